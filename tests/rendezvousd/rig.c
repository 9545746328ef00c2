/* See rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "tests/rendezvousd/harness.h"
#include "tests/rendezvousd/rig.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TURNS = 3 }; /* accept, read, answer to what was woken */

void rig_turn(struct rig *r)
{
    for (int i = 0; i < TURNS; i++)
        uv_run(&r->loop, UV_RUN_NOWAIT);
}

void rig_start(struct rig *r, const struct server_options *o)
{
    struct err e = {0};
    assert_int_equal(uv_loop_init(&r->loop), 0);
    if (server_create(&r->server, &r->loop, o, &e) < 0 || server_listen(r->server, "127.0.0.1", 0, &r->port, &e) < 0)
        fail_msg("%s", e.text);
}

void rig_stop(struct rig *r)
{
    server_close(r->server, NULL, NULL);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&r->loop), 0);
}

int rig_open(struct rig *r)
{
    int fd = client_open(r->port), one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    rig_turn(r);
    return fd;
}

void rig_close(struct rig *r, int fd)
{
    close(fd);
    rig_turn(r);
}

void rig_send(struct rig *r, int fd, const void *p, size_t n)
{
    for (const char *at = p; n > 0;) {
        ssize_t w = send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (w < 0 && errno != EAGAIN)
            break; /* the server hung up: what it said before is what counts */
        at += w < 0 ? 0 : w;
        n -= w < 0 ? 0 : (size_t)w;
        rig_turn(r);
    }
    rig_turn(r);
}

bool rig_receive(struct rig *r, int fd, struct buf *in)
{
    char bytes[65536];
    for (;;) {
        ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno == ECONNRESET))
            return false;
        if (n < 0)
            return true;
        assert_int_equal(buf_add(in, bytes, (size_t)n), 0);
        rig_turn(r);
    }
}

static void add_word(struct buf *b, const char *s)
{
    buf_printf(b, "$%zu\r\n%s\r\n", strlen(s), s);
}

void rig_names(struct buf *b, const char *command, int first, int n, const char *value, const char *last)
{
    char name[16];
    buf_printf(b, "*%d\r\n", 1 + n * (value ? 2 : 1) + (last != NULL));
    add_word(b, command);
    for (int i = first; i < first + n; i++) {
        snprintf(name, sizeof name, "k%07d", i);
        add_word(b, name);
        if (value)
            add_word(b, value);
    }
    if (last)
        add_word(b, last);
}

void rig_dialogue(const struct server_options *o, const void *p, size_t n, const size_t *cuts, size_t ncuts,
                  struct buf *replies)
{
    struct rig r;
    rig_start(&r, o);
    int fd = rig_open(&r);
    size_t at = 0;
    for (size_t i = 0; i <= ncuts; i++) {
        size_t end = i < ncuts ? cuts[i] : n;
        rig_send(&r, fd, (const char *)p + at, end - at);
        at = end;
    }
    if (!rig_receive(&r, fd, replies))
        buf_addstr(replies, "closed");
    rig_close(&r, fd);
    rig_stop(&r);
}
