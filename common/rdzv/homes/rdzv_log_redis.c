/* A job's home in a Redis (5 or newer; a Redis Cluster too: every key carries the hash tag {run id}).
 *
 *   crun:{RUN}:epoch   string   the newest reign; WATCHed by every transaction of its leader
 *   crun:{RUN}:pulse   string   renewed by the leader
 *   crun:{RUN}:log     stream   decisions, ids <epoch number>-<n>: Redis itself refuses an id older than the newest
 *   crun:{RUN}:beats   hash     node -> beat
 *   crun:{RUN}:slots   hash     node -> slot, written in the transaction of the decision they follow from
 *   crun:{RUN}:calls   stream   names of nodes that ask for something: what the leader blocks on
 *   crun:{RUN}:wake:NODE list   one item for each news: what the node blocks on
 *
 * Each handle has two connections, one that blocks and one that does not; nothing is polled. Every key expires keep_ms
 * after its last renewal. A leader's connection is never replaced under it: what one reign reads and writes is one
 * incarnation of the server. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/addr.h"
#include "common/rdzv/homes/rdzv_log_home.h"
#include "common/rdzv/homes/rdzv_log_redis_internal.h"

#define CALLS_KEPT "20000" /* names in the stream of calls */

/* --- requests */

int redis_queue(struct resp_conn *c, int argc, const struct word *w, struct err *e)
{
    const char *v[16];
    size_t n[16];
    for (int i = 0; i < argc; i++) {
        v[i] = w[i].p;
        n[i] = w[i].n;
    }
    return resp_append(c, argc, v, n, e);
}

void redis_free_replies(redisReply **r, size_t n)
{
    for (size_t i = 0; i < n; i++)
        freeReplyObject(r[i]);
}

/* The first error among replies, EXECABORT last: it only says that there was another. */
static int first_error(struct redis_home *h, redisReply *const *r, size_t n, struct err *e)
{
    const redisReply *found = NULL;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; r[i]->type == REDIS_REPLY_ARRAY && k < r[i]->elements && !found; k++)
            if (r[i]->element[k]->type == REDIS_REPLY_ERROR)
                found = r[i]->element[k];
        if (r[i]->type == REDIS_REPLY_ERROR && (!found || strncmp(found->str, "EXECABORT", 9) == 0))
            found = r[i];
    }
    return found ? redis_link_refused(&h->link, found->str, e) : 0;
}

/* Send what is queued and take n replies; any error reply is this call's error, and ends the connection: what stands in
 * an unfinished transaction goes with it. */
int redis_converse(struct redis_home *h, struct resp_conn *c, size_t n, redisReply **r, struct err *e)
{
    int rc = resp_exchange(c, n, r, clock_deadline(h->io_ms), e);
    if (rc < 0) {
        char name[300];
        if (e)
            err_wrap(e, "%s", redis_link_name(&h->link, name, sizeof name));
        return rc;
    }
    rc = first_error(h, r, n, e);
    if (rc < 0) {
        redis_free_replies(r, n);
        resp_hang_up(c);
    }
    return rc;
}

int redis_connected(struct redis_home *h, struct err *e)
{
    if (h->conn.fd >= 0 && resp_is_stale(&h->conn))
        resp_hang_up(&h->conn);
    if (h->conn.fd >= 0)
        return 0;
    if (h->leads)
        return err_set(e, -ECONNRESET, "the connection to the Redis was lost");
    h->pending = false;
    h->run_id[0] = 0;
    resp_hang_up(&h->blocked);
    return redis_link_dial(&h->link, &h->conn, clock_deadline(h->io_ms), e);
}

static int64_t redis_now(struct rdzv_home *base)
{
    (void)base;
    return clock_ms();
}

struct word redis_key(const struct redis_home *h, enum key k)
{
    return (struct word){h->keys[k], strlen(h->keys[k])};
}

int redis_queue_expiry(struct redis_home *h, enum key k, const char *ms, struct err *e)
{
    return QUEUE(&h->conn, e, W("PEXPIRE"), redis_key(h, k), W(ms));
}

void redis_forget_calls(struct redis_home *h)
{
    for (size_t i = 0; i < h->called_count; i++)
        free(h->called[i]);
    h->called_count = 0;
}

/* --- every node */

static int take_text(const redisReply *r, struct buf *out, struct err *e)
{
    buf_clear(out);
    if (r->type == REDIS_REPLY_NIL)
        return 0;
    if (r->type != REDIS_REPLY_STRING)
        return err_set(e, -EPROTO, "the Redis holds something else under this job's keys");
    return buf_add(out, r->str, (size_t)r->len);
}

static int take_view(const redisReply *pair, const redisReply *slot, struct rdzv_view *v, struct err *e)
{
    if (pair->type != REDIS_REPLY_ARRAY || pair->elements != 2)
        return err_set(e, -EPROTO, "MGET: expected two values");
    const redisReply *epoch = pair->element[0];
    snprintf(v->epoch, sizeof v->epoch, "%s", epoch->type == REDIS_REPLY_STRING ? epoch->str : "");
    TRY(take_text(pair->element[1], &v->pulse, e));
    return take_text(slot, &v->slot, e);
}

static int queue_exchange(struct redis_home *h, const char *node, const struct buf *beat, bool call, struct err *e)
{
    struct resp_conn *c = &h->conn;
    TRY(QUEUE(c, e, W("MULTI")));
    TRY(QUEUE(c, e, W("HSET"), redis_key(h, KEY_BEATS), W(node), {beat->data, beat->len}));
    TRY(QUEUE(c, e, W("MGET"), redis_key(h, KEY_EPOCH), redis_key(h, KEY_PULSE)));
    TRY(QUEUE(c, e, W("HGET"), redis_key(h, KEY_SLOTS), W(node)));
    TRY(redis_queue_expiry(h, KEY_BEATS, h->keep, e));
    if (call) {
        TRY(QUEUE(c, e, W("XADD"), redis_key(h, KEY_CALLS), W("MAXLEN"), W("~"), W(CALLS_KEPT), W("*"), W("n"),
                  W(node)));
        TRY(redis_queue_expiry(h, KEY_CALLS, h->keep, e));
    }
    return QUEUE(c, e, W("EXEC"));
}

static int redis_exchange(struct rdzv_home *base, const char *node, const struct buf *beat, bool call,
                          struct rdzv_view *ret, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    redisReply *r[MAX_REPLIES];
    size_t n = call ? 8 : 6;
    TRY(redis_connected(h, e));
    if (!h->run_id[0])
        TRY(redis_learn_server(h, e));
    memcpy(ret->identity, h->run_id, sizeof h->run_id);
    int rc = queue_exchange(h, node, beat, call, e);
    if (rc < 0) {
        resp_hang_up(&h->conn);
        return rc;
    }
    TRY(redis_converse(h, &h->conn, n, r, e));
    const redisReply *done = r[n - 1];
    if (done->type != REDIS_REPLY_ARRAY || done->elements < 3)
        rc = err_set(e, -EPROTO, "EXEC: expected an array");
    if (rc == 0)
        rc = take_view(done->element[1], done->element[2], ret, e);
    redis_free_replies(r, n);
    return rc;
}

/* Until a reply to the pending blocking command, the time is over (0) or interrupt() (0). 1: *r is the reply. */
int redis_await_reply(struct redis_home *h, int64_t timeout_ms, redisReply **r, struct err *e)
{
    int rc = rdzv_home_wait_(&h->base, h->blocked.fd, h->conn.fd, clock_deadline(timeout_ms));
    if (rc == 0 || rc == -EINTR)
        return 0;
    if (rc < 0)
        return err_set(e, rc, "the Redis is waited for no longer");
    TRY(resp_receive(&h->blocked, r, clock_deadline(h->io_ms), e));
    h->pending = false;
    if ((*r)->type != REDIS_REPLY_ERROR)
        return 1;
    rc = redis_link_refused(&h->link, (*r)->str, e);
    freeReplyObject(*r);
    resp_hang_up(&h->blocked);
    return rc;
}

int redis_dial_blocked(struct redis_home *h, struct err *e)
{
    if (h->blocked.fd >= 0)
        return 0;
    h->pending = false;
    struct redis_link same = h->link; /* where the other one is, whatever the sentinels say by now */
    same.hosts[0] = h->link.now;
    same.host_count = 1;
    same.sentinel = false;
    same.moved.name[0] = 0;
    int rc = redis_link_dial(&same, &h->blocked, clock_deadline(h->io_ms), e);
    h->link.tls_context = same.tls_context;
    return rc;
}

static int redis_wait_slot(struct rdzv_home *base, const char *node, int64_t timeout_ms, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    redisReply *r = NULL;
    char list[400];
    snprintf(list, sizeof list, "%s%s", h->wake_prefix, node);
    if (h->conn.fd < 0)
        return err_set(e, -ECONNRESET, "the connection to the Redis was lost");
    TRY(redis_dial_blocked(h, e));
    if (!h->pending) {
        TRY(QUEUE(&h->blocked, e, W("BLPOP"), W(list), W("5")));
        TRY(resp_send(&h->blocked, clock_deadline(h->io_ms), e));
        h->pending = true;
    }
    int rc = redis_await_reply(h, timeout_ms, &r, e);
    if (rc == 1)
        freeReplyObject(r);
    return rc < 0 ? rc : 0;
}

static int redis_address(struct rdzv_home *base, char *ret, size_t cap, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    uint8_t ip[ADDR_BYTES];
    char text[INET6_ADDRSTRLEN];
    TRY(redis_connected(h, e));
    if (getsockname(h->conn.fd, (struct sockaddr *)&a, &len) < 0 || !addr_of((struct sockaddr *)&a, ip))
        return err_set(e, -EPROTO, "the connection's own address is unknown");
    snprintf(ret, cap, "%s", addr_text(ip, text));
    return 0;
}

static void redis_forget(struct rdzv_home *base, const char *node)
{
    struct redis_home *h = (struct redis_home *)base;
    redisReply *r[3];
    char list[400];
    struct err e;
    snprintf(list, sizeof list, "%s%s", h->wake_prefix, node);
    if (h->conn.fd < 0 || QUEUE(&h->conn, &e, W("HDEL"), redis_key(h, KEY_BEATS), W(node)) < 0 ||
        QUEUE(&h->conn, &e, W("HDEL"), redis_key(h, KEY_SLOTS), W(node)) < 0 ||
        QUEUE(&h->conn, &e, W("DEL"), W(list)) < 0)
        return;
    if (redis_converse(h, &h->conn, 3, r, &e) == 0)
        redis_free_replies(r, 3);
}

/* --- the handle */

static void redis_close(struct rdzv_home *base)
{
    struct redis_home *h = (struct redis_home *)base;
    if (!h)
        return;
    resp_finish(&h->conn);
    resp_finish(&h->blocked);
    redis_link_finish(&h->link);
    for (int i = 0; i < KEY_COUNT; i++)
        free(h->keys[i]);
    redis_forget_calls(h);
    free(h->called);
    free(h->wake_prefix);
    rdzv_home_finish_(base);
    free(h);
}

static const struct rdzv_home_ops redis_ops = {
    .name = "redis",
    .now = redis_now,
    .exchange = redis_exchange,
    .wait_slot = redis_wait_slot,
    .address = redis_address,
    .forget = redis_forget,
    .lag_ms = redis_lag_ms,
    .took_over = redis_took_over,
    .identity = redis_identity,
    .claim = redis_claim,
    .load = redis_load,
    .append = redis_append,
    .pulse = redis_pulse,
    .beats = redis_beats,
    .wait_calls = redis_wait_calls,
    .close = redis_close,
};

/* Keys of one job; its id without what would end the hash tag. */
static int make_keys(struct redis_home *h, const char *run_id)
{
    static const char *const names[KEY_COUNT] = {"epoch", "pulse", "log", "beats", "slots", "calls"};
    struct buf id = {0};
    int rc = 0;
    for (const char *p = run_id; *p && rc == 0; p++)
        rc = *p == '{' || *p == '}' || *p == '%' ? buf_printf(&id, "%%%02X", (unsigned char)*p) : buf_add(&id, p, 1);
    for (int i = 0; i < KEY_COUNT && rc == 0; i++)
        rc = asprintf(&h->keys[i], "crun:{%s}:%s", id.data, names[i]) < 0 ? -ENOMEM : 0;
    if (rc == 0 && asprintf(&h->wake_prefix, "crun:{%s}:wake:", id.data) < 0)
        rc = -ENOMEM;
    buf_free(&id);
    return rc;
}

int rdzv_log_redis_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e)
{
    struct redis_home *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for a connection");
    h->io_ms = o->io_timeout_ms;
    h->keep_ms = o->keep_ms;
    h->allow_unsafe = o->allow_unsafe;
    h->given_lag_ms = o->max_lag_ms;
    snprintf(h->keep, sizeof h->keep, "%" PRId64, o->keep_ms);
    int rc = rdzv_home_init_(&h->base, &redis_ops, o->wake_fd, e);
    resp_init(&h->conn, h->base.cancel_fd);
    resp_init(&h->blocked, h->base.cancel_fd);
    h->conn.max_reply = h->blocked.max_reply = MAX_REPLY;
    rc = rc ? rc : redis_link_parse(&h->link, url, e);
    if (rc == 0 && make_keys(h, o->run_id) < 0)
        rc = err_set(e, -ENOMEM, "no memory for a connection");
    if (rc < 0) {
        redis_close(&h->base);
        return rc;
    }
    *ret = &h->base;
    return 0;
}
