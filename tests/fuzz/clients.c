/* See clients.h. */
#include "tests/fuzz/clients.h"

#include "common/base/buf.h"
#include "common/base/log.h"
#include "rendezvousd/net/conn_impl.h"
#include "tests/fuzz/driver.h"
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

static uv_loop_t loop;
static struct server *server;
static const struct front *front;

void clients_start(const struct server_options *o, const struct front *f)
{
    if (server)
        return;
    front = f;
    log_init(LOG_ERROR, "");
    uv_loop_init(&loop);
    if (server_create(&server, &loop, o, NULL) < 0)
        fuzz_die("no server");
}

void clients_stop(void)
{
    server_close(server, NULL, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
}

struct space *clients_begin(size_t max_bytes)
{
    struct space *sp;
    if (space_create(&sp, server, max_bytes) < 0)
        fuzz_die("no key-space");
    return sp;
}

/* One that nobody is at the other end of: reading may be begun and stopped, and nothing is ever read. */
static void give_socket(uv_tcp_t *tcp)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0 || uv_tcp_open(tcp, ends[0]) < 0)
        fuzz_die("no socket for a client");
    close(ends[1]);
}

struct conn *clients_add(struct space *sp)
{
    struct conn *c = calloc(1, sizeof *c);
    if (!c)
        fuzz_die("no memory for a client");
    c->s = server;
    uv_tcp_init(&loop, &c->tcp);
    give_socket(&c->tcp);
    uv_timer_init(&loop, &c->timer);
    c->tcp.data = c->timer.data = c;
    buf_init(&c->reply.out, server->o.max_output_bytes);
    c->space = space_hold(sp);
    c->trust = TRUST_FULL;
    c->writing = c->reading = true;
    server->open_handles++;
    server->clients++;
    DL_APPEND(server->conns, c);
    c->front = front;
    if (c->front->open(c) < 0)
        fuzz_die("a front end cannot be opened");
    return c;
}

void clients_end(struct conn *const *c, size_t n, struct space *sp)
{
    for (size_t i = 0; i < n; i++)
        conn_close(c[i]);
    uv_run(&loop, UV_RUN_NOWAIT);
    if (waiters_count(sp->waiters) != 0 || sp->barriers)
        fuzz_die("somebody waits who is gone");
    keyspace_clear(sp->keys);
    while (!waiters_sweep(&server->remains, SIZE_MAX) || !keyspace_sweep(&server->memory, SIZE_MAX))
        ;
    if (keyspace_bytes(sp->keys) != 0)
        fuzz_die("memory is charged to an empty key-space");
    space_release(sp);
}

bool clients_is_open(const struct conn *c)
{
    return !c->closing && !c->last_words;
}

void clients_feed(struct conn *c, const void *data, size_t n)
{
    if (!clients_is_open(c))
        return;
    if (c->front->feed(c, data, n) < 0)
        fuzz_die("a piece within the limits was not taken");
    conn_process(c);
    while (server->ready || server->turns.busy)
        turn_run(server);
}

bool clients_piece(const uint8_t *data, size_t n, size_t parties, size_t *at, struct piece *ret)
{
    if (*at + 2 > n)
        return false;
    const size_t most = n - *at - 2, len = data[*at + 1] < most ? data[*at + 1] : most;
    *ret = (struct piece){.client = data[*at] % parties, .n = len, .p = data + *at + 2};
    *at += 2 + len;
    return true;
}

void clients_tell_one(struct conn *c, const uint8_t *data, size_t n, bool cut, struct buf *out)
{
    for (size_t at = 0, i = 0; at < n; i++) {
        size_t len = cut ? data[i % n] % 61u + 1 : n;
        len = len < n - at ? len : n - at;
        clients_feed(c, data + at, len);
        at += len;
    }
    buf_add(out, c->reply.out.data, c->reply.out.len);
    buf_addstr(out, clients_is_open(c) ? c->blocked ? "waits" : "open" : "closed");
}
