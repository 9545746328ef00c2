/* See harness.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "tests/rendezvousd/harness.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DEADLINE_MS = 20000 };

struct harness {
    uv_loop_t loop;
    uv_async_t call;
    uv_thread_t thread;
    sem_t answered;
    struct server *server;
    int port;
    /* what the server's thread is asked to do */
    enum { DO_STOP, DO_STATS } what;
    struct server_stats stats;
};

static void on_call(uv_async_t *a)
{
    struct harness *h = a->data;
    if (h->what == DO_STOP) {
        server_close(h->server, NULL, NULL);
        uv_close((uv_handle_t *)a, NULL);
        return;
    }
    server_stats(h->server, &h->stats);
    sem_post(&h->answered);
}

static void run(void *arg)
{
    struct harness *h = arg;
    uv_run(&h->loop, UV_RUN_DEFAULT);
}

struct harness *harness_start(const struct server_options *o)
{
    struct harness *h = calloc(1, sizeof *h);
    struct err e;
    assert_non_null(h);
    assert_int_equal(uv_loop_init(&h->loop), 0);
    uv_async_init(&h->loop, &h->call, on_call);
    h->call.data = h;
    sem_init(&h->answered, 0, 0);
    if (server_create(&h->server, &h->loop, o, &e) < 0 || server_listen(h->server, "127.0.0.1", 0, &h->port, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(uv_thread_create(&h->thread, run, h), 0);
    return h;
}

void harness_stop(struct harness *h)
{
    h->what = DO_STOP;
    uv_async_send(&h->call);
    uv_thread_join(&h->thread);
    assert_int_equal(uv_loop_close(&h->loop), 0);
    sem_destroy(&h->answered);
    free(h);
}

int harness_port(const struct harness *h)
{
    return h->port;
}

static void ask(struct harness *h)
{
    uv_async_send(&h->call);
    while (sem_wait(&h->answered) < 0)
        ;
}

struct server_stats harness_stats(struct harness *h)
{
    h->what = DO_STATS;
    ask(h);
    return h->stats;
}

void client_connect(int fd, int port)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (struct sockaddr *)&sa, sizeof sa) < 0)
        fail_msg("connect: %s", strerror(errno));
}

int client_open(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    client_connect(fd, port);
    return fd;
}

void client_send(int fd, const void *p, size_t n)
{
    for (const char *at = p; n > 0;) {
        ssize_t w = send(fd, at, n, MSG_NOSIGNAL);
        if (w < 0)
            return; /* the server hung up: what it said before is what counts */
        at += w;
        n -= (size_t)w;
    }
}

void client_say(int fd, const char *text)
{
    client_send(fd, text, strlen(text));
}

static ssize_t receive(int fd, char *p, size_t n)
{
    struct pollfd pf = {.fd = fd, .events = POLLIN};
    if (poll(&pf, 1, DEADLINE_MS) != 1)
        return -ETIMEDOUT;
    ssize_t got = recv(fd, p, n, 0);
    return got < 0 ? -errno : got;
}

void client_expect(int fd, const char *reply)
{
    size_t n = strlen(reply), have = 0;
    char *got = calloc(1, n + 1);
    while (have < n) {
        ssize_t r = receive(fd, got + have, n - have);
        if (r <= 0)
            fail_msg("got '%s' then %s, expected '%s'", got, r == 0 ? "the end" : strerror((int)-r), reply);
        have += (size_t)r;
    }
    if (memcmp(got, reply, n) != 0)
        fail_msg("got '%s', expected '%s'", got, reply);
    free(got);
}

void client_expect_closed(int fd)
{
    char b[65536];
    ssize_t r;
    while ((r = receive(fd, b, sizeof b)) > 0)
        ;
    if (r != 0 && r != -ECONNRESET)
        fail_msg("still open: %s", strerror((int)-r));
    close(fd);
}

void client_expect_silence(int fd, int ms)
{
    struct pollfd pf = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&pf, 1, ms), 0);
}

void client_talk(int fd, const char *say, const char *reply)
{
    client_say(fd, say);
    client_expect(fd, reply);
}
