/* The server's life: options, access from the same process, and an orderly end in which every handle is counted. */
#include "common/base/clock.h"
#include "common/base/err.h"
#include "rendezvousd/gate/peer_addr.h"
#include "rendezvousd/gate/peer_uid.h"
#include "rendezvousd/net/server_impl.h"
#include "rendezvousd/net/spaces.h"
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

static void fill_defaults(struct server_options *o)
{
    const size_t mib = (size_t)1 << 20;
    o->max_clients = o->max_clients ? o->max_clients : 10000;
    o->max_request_bytes = o->max_request_bytes ? o->max_request_bytes : 9 * mib;
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
    waiters_sweep(&s->remains, SIZE_MAX);
    keyspace_sweep(&s->memory, SIZE_MAX);
    spaces_free_shares(s);
    peer_uid_close(&s->uid_asker);
    free(s->members);
    free(s);
}

int server_create(struct server **ret, uv_loop_t *loop, const struct server_options *o, struct err *e)
{
    const size_t gib = (size_t)1 << 30;
    struct server *s = malloc(sizeof *s);
    if (!s)
        return err_set(e, -ENOMEM, "no memory for a server");
    memset(s, 0, offsetof(struct server, read_bytes)); /* the rest takes no memory page until a client speaks */
    s->loop = loop;
    s->uid_asker = -1;
    s->expiry_ms = INT64_MAX;
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
    s->memory.max_bytes = s->o.max_memory_bytes;
    if (space_create(&s->space, s, s->o.max_memory_bytes) < 0) {
        destroy(s);
        return err_set(e, -ENOMEM, "no memory for a server");
    }
    uv_timer_init(loop, &s->expiry_timer);
    uv_timer_init(loop, &s->accept_timer);
    s->expiry_timer.data = s->accept_timer.data = s;
    uv_timer_init(loop, &s->write_timer);
    s->write_timer.data = s;
    s->open_handles += 3;
    turn_open(s);
    *ret = s;
    return 0;
}

/* --- who may come */

void server_forget_run(struct server *s, const char *principal, const char *run)
{
    spaces_drop(s, principal, run);
}

int server_set_members(struct server *s, const char *addresses)
{
    struct peer_list *members = addresses ? peer_list_read(addresses) : NULL;
    if (addresses && !members)
        return -ENOMEM;
    free(s->members);
    s->members = members;
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
    listeners_close(s);
    struct conn *c, *following;
    DL_FOREACH_SAFE(s->conns, c, following)
    conn_finish(c);
    server_close_door(s);
    turn_close(s);
    uv_close((uv_handle_t *)&s->accept_timer, on_timer_closed);
    uv_close((uv_handle_t *)&s->write_timer, on_timer_closed);
    /* closed last; libuv calls back later, so done() is not called from this function */
    uv_close((uv_handle_t *)&s->expiry_timer, on_timer_closed);
}

/* --- in-process */

int server_renew_space(struct server *s, struct err *e)
{
    struct space *fresh, *old = s->space;
    if (space_create(&fresh, s, s->o.max_memory_bytes) < 0)
        return err_set(e, -ENOMEM, "no memory for a key-space");
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

void server_set_tell(struct server *s,
                     int (*tell)(void *arg, const struct server_tell *t, char answer[SERVER_ANSWER_MAX]), void *arg)
{
    s->o.tell = tell;
    s->o.tell_arg = arg;
}

void server_set_ended(struct server *s,
                      int (*ended)(void *arg, const char *principal, const char *run, struct buf *out), void *arg)
{
    s->o.ended = ended;
    s->o.ended_arg = arg;
}

void server_set_met(struct server *s, void (*met)(void *arg, size_t readers), void *arg)
{
    s->o.met = met;
    s->o.met_arg = arg;
}

void server_set_standby(struct server *s, const struct server_standby *standby)
{
    s->standby = standby;
}

bool server_leads(const struct server *s)
{
    return !s->standby || clock_ms() < s->standby->until;
}

uint64_t server_changes(const struct server *s)
{
    return s->space->changes;
}

void server_stats(const struct server *s, struct server_stats *ret)
{
    *ret = (struct server_stats){
        .clients = s->clients,
        .keys = keyspace_count(s->space->keys),
        .expires = keyspace_expiring(s->space->keys),
        .memory_bytes = s->memory.bytes + s->buffer_bytes,
        .waiters = waiters_count(s->space->waiters),
        .commands = s->turns.requests,
        .connections = s->connections,
        .refused = s->refused,
        .turns = s->turns.turn_times,
        .requests = s->turns.request_times,
    };
}
