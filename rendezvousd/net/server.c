/* The server's life: options, listeners, in-process access, and an orderly end in which every handle is counted. */
#include "common/base/clock.h"
#include "common/base/err.h"
#include "rendezvousd/net/server_impl.h"
#include "rendezvousd/net/spaces.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#define KEEPALIVE_SECONDS 60

static void fill_defaults(struct server_options *o)
{
    const size_t mib = (size_t)1 << 20;
    o->max_clients = o->max_clients ? o->max_clients : 10000;
    o->max_request_bytes = o->max_request_bytes ? o->max_request_bytes : 64 * mib;
    o->max_args = o->max_args ? o->max_args : 65536;
    o->max_output_bytes = o->max_output_bytes ? o->max_output_bytes : 64 * mib;
    o->max_memory_bytes = o->max_memory_bytes ? o->max_memory_bytes : 1024 * mib;
    o->max_job_bytes = o->max_job_bytes ? o->max_job_bytes : 256 * mib;
    o->request_timeout_ms = o->request_timeout_ms ? o->request_timeout_ms : 10000;
}

static void destroy(struct server *s)
{
    while (s->expiring) {
        struct space *sp = s->expiring;
        DL_DELETE(s->expiring, sp);
        sp->expiring = NULL;
    }
    spaces_drop_all(s);
    space_release(s->space);
    free(s->index);
    free(s->members);
    free(s);
}

int server_create(struct server **ret, uv_loop_t *loop, const struct server_options *o, struct err *e)
{
    const size_t gib = (size_t)1 << 30;
    struct server *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, -ENOMEM, "no memory for a server");
    s->loop = loop;
    if (o)
        s->o = *o;
    fill_defaults(&s->o);
    s->started_ms = clock_ms();
    if (s->o.max_request_bytes > gib || s->o.max_output_bytes > gib || s->o.request_timeout_ms < 0) {
        int rc =
            err_set(e, -EINVAL,
                    "request limit %zu, output limit %zu, request timeout %lld: expected up to %zu bytes, 0 ms or more",
                    s->o.max_request_bytes, s->o.max_output_bytes, (long long)s->o.request_timeout_ms, gib);
        destroy(s);
        return rc;
    }
    if (space_create(&s->space, s->o.max_memory_bytes) < 0 || command_index_create(&s->index) < 0) {
        destroy(s);
        return err_set(e, -ENOMEM, "no memory for a server");
    }
    s->memory.max_bytes = s->o.max_memory_bytes;
    keyspace_share(s->space->keys, &s->memory);
    uv_timer_init(loop, &s->expiry_timer);
    s->expiry_timer.data = s;
    uv_timer_init(loop, &s->write_timer);
    s->write_timer.data = s;
    uv_prepare_init(loop, &s->before_sleep);
    s->before_sleep.data = s;
    uv_prepare_start(&s->before_sleep, conn_flush_all);
    uv_unref((uv_handle_t *)&s->before_sleep);
    s->open_handles += 3;
    *ret = s;
    return 0;
}

/* --- listeners */

static void on_connection(uv_stream_t *stream, int status)
{
    struct listener *l = stream->data;
    if (status < 0 || l->s->closing)
        return;                        /* out of descriptors: libuv turns such clients away by itself */
    l->waiting = !gate_has_room(l->s); /* libuv takes no more from the kernel's queue until this one is accepted */
    if (!l->waiting)
        conn_accept(l->s, stream);
}

void server_accept_waiting(struct server *s)
{
    struct listener *l;
    if (s->closing)
        return;
    DL_FOREACH (s->listeners, l) {
        if (!l->waiting || !gate_has_room(s))
            continue;
        l->waiting = false;
        conn_accept(s, (uv_stream_t *)&l->tcp);
    }
}

void server_forget_run(struct server *s, const char *run)
{
    spaces_drop(s, SPACE_OF_JOB, run);
}

int server_set_members(struct server *s, const char *addresses)
{
    char *copy = addresses ? strdup(addresses) : NULL;
    if (addresses && !copy)
        return -ENOMEM;
    free(s->members);
    s->members = copy;
    return 0;
}

static void on_listener_closed(uv_handle_t *h)
{
    struct listener *l = h->data;
    struct server *s = l->s;
    free(l);
    server_handle_closed(s);
}

static int parse_address(const char *host, int port, struct sockaddr_storage *ret, struct err *e)
{
    if (port < 0 || port > 65535)
        return err_set(e, -EINVAL, "port %d: expected 0 to 65535", port);
    memset(ret, 0, sizeof *ret);
    if (uv_ip4_addr(host, port, (struct sockaddr_in *)ret) == 0 ||
        uv_ip6_addr(host, port, (struct sockaddr_in6 *)ret) == 0)
        return 0;
    return err_set(e, -EINVAL, "address '%s': expected an IPv4 or IPv6 address such as 127.0.0.1", host);
}

/* Connections inherit these from their listener: five system calls less for each. */
static int listen_now(struct listener *l)
{
    uv_tcp_nodelay(&l->tcp, 1);
    uv_tcp_keepalive(&l->tcp, 1, KEEPALIVE_SECONDS);
    return uv_listen((uv_stream_t *)&l->tcp, SERVER_BACKLOG, on_connection);
}

static int bound_port(const uv_tcp_t *tcp)
{
    struct sockaddr_storage sa;
    int n = sizeof sa;
    if (uv_tcp_getsockname(tcp, (struct sockaddr *)&sa, &n) < 0)
        return 0;
    const struct sockaddr_in *v4 = (const void *)&sa;
    const struct sockaddr_in6 *v6 = (const void *)&sa;
    return ntohs(sa.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

static int add_listener(struct server *s, struct listener **ret, struct err *e)
{
    struct listener *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, -ENOMEM, "no memory for a listener");
    int rc = uv_tcp_init(s->loop, &l->tcp);
    if (rc < 0) {
        free(l);
        return err_errno(e, -rc, "a listener");
    }
    l->s = s;
    l->tcp.data = l;
    s->open_handles++;
    DL_APPEND(s->listeners, l);
    *ret = l;
    return 0;
}

static void drop_listener(struct listener *l)
{
    DL_DELETE(l->s->listeners, l);
    uv_close((uv_handle_t *)&l->tcp, on_listener_closed);
}

int server_listen_fd(struct server *s, int fd, struct err *e)
{
    struct listener *l;
    int rc = s->closing ? err_set(e, -ESHUTDOWN, "the server is closing") : add_listener(s, &l, e);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    rc = uv_tcp_open(&l->tcp, fd);
    if (rc < 0)
        close(fd);
    else
        rc = listen_now(l);
    if (rc < 0) {
        drop_listener(l);
        return err_errno(e, -rc, "cannot accept connections");
    }
    return 0;
}

int server_listen(struct server *s, const char *host, int port, int *ret_port, struct err *e)
{
    struct sockaddr_storage sa;
    if (s->closing)
        return err_set(e, -ESHUTDOWN, "the server is closing");
    TRY(parse_address(host, port, &sa, e));
    struct listener *l;
    TRY(add_listener(s, &l, e));
    int rc = uv_tcp_bind(&l->tcp, (const struct sockaddr *)&sa, 0);
    if (rc == 0)
        rc = listen_now(l);
    if (rc < 0) {
        drop_listener(l);
        return err_errno(e, -rc, "cannot listen on %s port %d", host, port);
    }
    if (ret_port)
        *ret_port = bound_port(&l->tcp);
    return 0;
}

/* --- end */

void server_handle_closed(struct server *s)
{
    s->open_handles--;
    if (!s->closing || s->open_handles > 0)
        return;
    void (*done)(void *) = s->done;
    void *arg = s->done_arg;
    destroy(s);
    if (done)
        done(arg);
}

static void on_timer_closed(uv_handle_t *h)
{
    server_handle_closed(h->data);
}

void server_close(struct server *s, void (*done)(void *arg), void *arg)
{
    if (!s || s->closing)
        return;
    s->closing = true;
    s->done = done;
    s->done_arg = arg;
    struct listener *l, *next;
    DL_FOREACH_SAFE(s->listeners, l, next)
    drop_listener(l);
    struct conn *c, *following;
    DL_FOREACH_SAFE(s->conns, c, following)
    conn_finish(c);
    server_close_door(s);
    uv_close((uv_handle_t *)&s->before_sleep, on_timer_closed);
    uv_close((uv_handle_t *)&s->write_timer, on_timer_closed);
    uv_close((uv_handle_t *)&s->expiry_timer, on_timer_closed); /* the last: done() is never called from in here */
}

/* --- in-process */

int server_renew_space(struct server *s, struct err *e)
{
    struct space *fresh, *old = s->space;
    if (space_create(&fresh, s->o.max_memory_bytes) < 0)
        return err_set(e, -ENOMEM, "no memory for a key-space");
    keyspace_share(fresh->keys, &s->memory);
    s->space = fresh;
    struct conn *c, *next;
    DL_FOREACH_SAFE(s->conns, c, next)
    if (c->space == old && !c->rdzv)
        conn_close(c);
    space_release(old);
    return 0;
}

void server_set_alive(struct server *s, int (*alive)(void *arg, const char *run, const char *node, uint64_t round),
                      void *arg)
{
    s->o.alive = alive;
    s->o.alive_arg = arg;
}

void server_set_failure(struct server *s,
                        int (*failure)(void *arg, const char *run, const char *node, uint64_t round, const char *text,
                                       size_t n),
                        void *arg)
{
    s->o.failure = failure;
    s->o.failure_arg = arg;
}

void server_stats(const struct server *s, struct server_stats *ret)
{
    *ret = (struct server_stats){
        .clients = s->clients,
        .keys = keyspace_count(s->space->keys),
        .expires = keyspace_expiring(s->space->keys),
        .memory_bytes = s->memory.bytes + s->buffer_bytes,
        .waiters = waiters_count(s->space->waiters),
        .commands = s->commands,
        .connections = s->connections,
        .refused = s->refused,
    };
}
