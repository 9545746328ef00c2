/* See floor.h. */
#include "tests/bench/floor.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

struct client {
    uv_tcp_t tcp;
    size_t reads;
    struct client *next; /* in `all`, from its second answer on */
};

static const struct floor *sizes;
static struct client *all;
static size_t waiting;
static char bytes[FLOOR_BYTES];

static void die(const char *what)
{
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void on_alloc(uv_handle_t *h, size_t n, uv_buf_t *b)
{
    (void)h;
    (void)n;
    *b = uv_buf_init(bytes, sizeof bytes);
}

static void on_closed(uv_handle_t *h)
{
    free(h);
}

static int say(struct client *c, size_t n)
{
    uv_buf_t out = uv_buf_init(bytes, (unsigned)n);
    return uv_try_write((uv_stream_t *)&c->tcp, &out, 1) == (int)n ? 0 : -1;
}

static void tell_all(void)
{
    for (struct client *c = all; c; c = c->next)
        if (say(c, sizes->news) < 0)
            die("news");
}

static void on_read(uv_stream_t *t, ssize_t n, const uv_buf_t *b)
{
    struct client *c = (struct client *)t;
    (void)b;
    if (n == 0)
        return;
    const size_t answer = n > 0 && c->reads < FLOOR_READS ? sizes->answers[c->reads] : 0;
    if (n < 0 || say(c, answer ? answer : (size_t)n) < 0) {
        uv_close((uv_handle_t *)t, on_closed);
        return;
    }
    if (++c->reads != FLOOR_READS || sizes->news == 0)
        return;
    c->next = all;
    all = c;
    if (++waiting == sizes->clients)
        tell_all();
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct client *c = calloc(1, sizeof *c);
    if (status < 0 || !c || uv_tcp_init(listener->loop, &c->tcp) < 0 || uv_accept(listener, (uv_stream_t *)&c->tcp) < 0)
        die("accept");
    uv_tcp_nodelay(&c->tcp, 1);
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
}

int floor_serve(const struct floor *f)
{
    uv_loop_t *loop = uv_default_loop();
    uv_tcp_t listener;
    struct sockaddr_in sa;
    int n = sizeof sa;
    sizes = f;
    uv_ip4_addr("127.0.0.1", 0, &sa);
    uv_tcp_init(loop, &listener);
    if (uv_tcp_bind(&listener, (struct sockaddr *)&sa, 0) < 0 ||
        uv_listen((uv_stream_t *)&listener, 4096, on_connection) < 0 ||
        uv_tcp_getsockname(&listener, (struct sockaddr *)&sa, &n) < 0)
        die("listen");
    printf("%d\n", ntohs(sa.sin_port));
    fflush(stdout);
    return uv_run(loop, UV_RUN_DEFAULT);
}
