/* A job's home in a Redis (5 or newer; a Redis Cluster too: every key carries the hash tag {run id}).
 *
 *   crun:{RUN}:claim       string   who leads (rdzv_claim.h); WATCHed by every transaction that depends on it
 *   crun:{RUN}:decisions   stream   decisions, ids <epoch number>-<n>: Redis itself refuses an id older than the newest
 *   crun:{RUN}:epoch, :log          what a crun of older versions finds there, and refuses
 *
 * One connection, and at rest one writer a job: its leader. Every key expires keep_ms after its last renewal. The
 * connection may be lost under a leader: the next one must lead to the same incarnation of the server, or all that the
 * leader asks is refused. A decision whose answer was lost is found by its id. Where a server may be replaced by a
 * replica, claim, renewal and decision count only once enough replicas have them (rdzv_log_redis_safe.c). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rdzv/homes/rdzv_log_home.h"
#include "common/rdzv/homes/rdzv_log_redis_internal.h"

#define OLD_EPOCH "newer" /* in the key of older versions */

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

int redis_converse(struct redis_home *h, size_t n, redisReply **r, struct err *e)
{
    int rc = resp_exchange(&h->conn, n, r, clock_deadline(h->io_ms), e);
    if (rc < 0) {
        char name[300];
        if (e)
            err_wrap(e, "%s", redis_link_name(&h->link, name, sizeof name));
        return rc;
    }
    rc = first_error(h, r, n, e);
    if (rc < 0) {
        redis_free_replies(r, n);
        resp_hang_up(&h->conn);
    }
    return rc;
}

static int connected(struct redis_home *h, struct err *e)
{
    if (h->conn.fd >= 0 && resp_is_stale(&h->conn))
        resp_hang_up(&h->conn);
    if (h->conn.fd >= 0)
        return 0;
    h->checked = false;
    return redis_link_dial(&h->link, &h->conn, clock_deadline(h->io_ms), e);
}

struct word redis_key(const struct redis_home *h, enum key k)
{
    return (struct word){h->keys[k], strlen(h->keys[k])};
}

static int queue_expiry(struct redis_home *h, enum key k, const char *ms, struct err *e)
{
    return QUEUE(&h->conn, e, W("PEXPIRE"), redis_key(h, k), W(ms));
}

/* --- which server */

/* *facts of the server that is dialled now. */
static int learn(struct redis_home *h, struct redis_facts *facts, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    TRY(connected(h, e));
    TRY(redis_learn_facts(h, facts, e));
    snprintf(ret, RDZV_IDENTITY_MAX + 1, "%s-%s", facts->run_id, facts->replid);
    return 0;
}

/* A job of an older version has an epoch, and no claim. */
static int refuse_older(struct redis_home *h, struct err *e)
{
    redisReply *r[2];
    TRY(QUEUE(&h->conn, e, W("EXISTS"), redis_key(h, KEY_CLAIM)));
    TRY(QUEUE(&h->conn, e, W("GET"), redis_key(h, KEY_OLD_EPOCH)));
    TRY(redis_converse(h, 2, r, e));
    const bool older = r[0]->type == REDIS_REPLY_INTEGER && r[0]->integer == 0 && r[1]->type == REDIS_REPLY_STRING &&
                       strcmp(r[1]->str, OLD_EPOCH) != 0;
    redis_free_replies(r, 2);
    return older ? err_set(e, ERR_REFUSED,
                           "this job is led there by an older version of crun, whose nodes dial no leader: all nodes "
                           "of a job must have the same")
                 : 0;
}

static int redis_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    struct redis_facts facts;
    TRY(learn(h, &facts, h->identity, e));
    TRY(redis_judge(&facts, h->allow_unsafe, h->given_lag_ms, &h->lag_ms, e));
    TRY(refuse_older(h, e));
    memcpy(ret, h->identity, sizeof h->identity);
    h->cluster = facts.cluster;
    h->min_replicas = facts.min_replicas > 1 ? facts.min_replicas : 1;
    h->took_over = facts.promoted && h->lag_ms > 0;
    h->checked = true;
    h->over = h->unsure = false;
    h->seq = 0;
    return redis_learn_waited(h, e);
}

/* 1: the server is still the one that identity() found; 0: it is another. */
static int is_same(struct redis_home *h, struct err *e)
{
    struct redis_facts facts;
    char now[RDZV_IDENTITY_MAX + 1];
    TRY(connected(h, e));
    if (h->checked)
        return 1;
    TRY(learn(h, &facts, now, e));
    h->checked = strcmp(now, h->identity) == 0;
    return h->checked;
}

/* --- the claim */

/* 1, or 0: there is none. */
static int take_claim(const redisReply *r, struct rdzv_claim *ret, struct err *e)
{
    *ret = (struct rdzv_claim){0};
    if (r->type == REDIS_REPLY_NIL)
        return 0;
    if (r->type != REDIS_REPLY_STRING || rdzv_claim_decode(r->str, (size_t)r->len, ret, e) < 0)
        return err_set(e, -EPROTO, "the Redis holds something else under this job's keys");
    return 1;
}

static int redis_look(struct rdzv_home *base, struct rdzv_claim *ret, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    redisReply *r;
    TRY(connected(h, e));
    TRY(QUEUE(&h->conn, e, W("GET"), redis_key(h, KEY_CLAIM)));
    TRY(redis_converse(h, 1, &r, e));
    const int rc = take_claim(r, ret, e);
    freeReplyObject(r);
    return rc;
}

static int unwatch(struct redis_home *h, struct err *e)
{
    redisReply *r;
    TRY(QUEUE(&h->conn, e, W("UNWATCH")));
    TRY(redis_converse(h, 1, &r, e));
    freeReplyObject(r);
    return 0;
}

/* From here on the next transaction happens only if the claim does not change before it. 1: *ret is the claim, 0: there
 * is none. */
static int watch(struct redis_home *h, struct rdzv_claim *ret, struct err *e)
{
    redisReply *r[2];
    TRY(QUEUE(&h->conn, e, W("WATCH"), redis_key(h, KEY_CLAIM)));
    TRY(QUEUE(&h->conn, e, W("GET"), redis_key(h, KEY_CLAIM)));
    TRY(redis_converse(h, 2, r, e));
    const int rc = take_claim(r[1], ret, e);
    redis_free_replies(r, 2);
    return rc;
}

/* EXEC what is queued: n requests after MULTI. 1: it happened; 0: the fence refused it. */
static int execute(struct redis_home *h, size_t n, struct err *e)
{
    redisReply *r[MAX_REPLIES];
    int rc = QUEUE(&h->conn, e, W("EXEC"));
    if (rc == 0 && (rc = redis_converse(h, n + 2, r, e)) == 0) {
        rc = r[n + 1]->type != REDIS_REPLY_NIL;
        redis_free_replies(r, n + 2);
    } else
        resp_hang_up(&h->conn);
    return rc;
}

/* 1 once enough replicas have it. */
static int confirmed(struct redis_home *h, int rc, struct err *e)
{
    if (rc == 1)
        TRY(redis_await_replicas(h, e));
    return rc;
}

static int queue_claim(struct redis_home *h, const struct rdzv_claim *c, struct err *e)
{
    struct buf text = {0};
    int rc = rdzv_claim_encode(c, &text);
    rc = rc < 0 ? err_set(e, rc, "no memory for a claim")
                : QUEUE(&h->conn, e, W("SET"), redis_key(h, KEY_CLAIM), {text.data, text.len}, W("PX"), W(h->keep));
    buf_free(&text);
    return rc;
}

static int queue_decision(struct redis_home *h, const char *epoch, const struct buf *text, struct err *e)
{
    char id[48];
    snprintf(id, sizeof id, "%" PRIu64 "-%" PRIu64, rdzv_epoch_number(epoch), h->seq);
    return QUEUE(&h->conn, e, W("XADD"), redis_key(h, KEY_LOG), W(id), W("d"), {text->data, text->len});
}

static int redis_claim(struct rdzv_home *base, const struct rdzv_claim *seen, const struct rdzv_claim *own,
                       const struct buf *record, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    struct resp_conn *c = &h->conn;
    struct rdzv_claim now;
    int rc;
    TRY(rc = is_same(h, e));
    if (rc == 0)
        return 0;
    TRY(watch(h, &now, e));
    if (!rdzv_claim_is(&now, seen)) {
        TRY(unwatch(h, e));
        return 0;
    }
    h->seq = 1;
    TRY(QUEUE(c, e, W("MULTI")));
    if (!seen->epoch[0]) /* what a claim that vanished has left is no job */
        TRY(QUEUE(c, e, W("DEL"), redis_key(h, KEY_LOG), redis_key(h, KEY_OLD_LOG)));
    TRY(queue_claim(h, own, e));
    TRY(queue_decision(h, own->epoch, record, e));
    TRY(queue_expiry(h, KEY_LOG, h->keep, e));
    if (!seen->epoch[0]) {
        TRY(QUEUE(c, e, W("SET"), redis_key(h, KEY_OLD_EPOCH), W(OLD_EPOCH), W("PX"), W(h->keep)));
        TRY(QUEUE(c, e, W("XADD"), redis_key(h, KEY_OLD_LOG), W("0-1"), W("d"), W(RDZV_HOME_MARK)));
        TRY(queue_expiry(h, KEY_OLD_LOG, h->keep, e));
    }
    rc = execute(h, seen->epoch[0] ? 3 : 7, e);
    return confirmed(h, rc, e);
}

/* How long keys are kept, as text. */
static const char *keep_of(const struct redis_home *h, char over[24])
{
    snprintf(over, 24, "%d", OVER_KEEP_MS);
    return h->over ? over : h->keep;
}

static int redis_renew(struct rdzv_home *base, struct rdzv_claim *own, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    struct rdzv_claim now, next = *own;
    char over[24];
    int rc;
    TRY(rc = is_same(h, e));
    if (rc == 0)
        return 0;
    TRY(watch(h, &now, e));
    if (strcmp(now.epoch, own->epoch) != 0) {
        TRY(unwatch(h, e));
        return 0;
    }
    next.n = now.n + 1; /* one whose answer was lost may have happened */
    TRY(QUEUE(&h->conn, e, W("MULTI")));
    TRY(queue_claim(h, &next, e));
    for (enum key k = KEY_CLAIM; k < KEY_COUNT; k++)
        TRY(queue_expiry(h, k, keep_of(h, over), e));
    rc = execute(h, 1 + KEY_COUNT, e);
    if (rc == 1)
        own->n = next.n;
    return confirmed(h, rc, e);
}

/* --- the log */

/* One page of the log after *last, which moves on. Returns how many decisions, or an error. */
static int load_page(struct redis_home *h, char last[48], struct buf *out, struct err *e)
{
    redisReply *r;
    char from[64], count[12];
    unsigned long long ms = 0, seq = 0;
    sscanf(last, "%llu-%llu", &ms, &seq);
    snprintf(from, sizeof from, "%llu-%llu", ms, seq + 1); /* the successor: exclusive ranges are newer than Redis 5 */
    snprintf(count, sizeof count, "%d", PAGE);
    TRY(QUEUE(&h->conn, e, W("XRANGE"), redis_key(h, KEY_LOG), W(from), W("+"), W("COUNT"), W(count)));
    TRY(redis_converse(h, 1, &r, e));
    int rc = r->type == REDIS_REPLY_ARRAY ? (int)r->elements : err_set(e, -EPROTO, "XRANGE: expected an array");
    for (int i = 0; i < rc; i++) {
        const redisReply *entry = r->element[i];
        if (entry->type != REDIS_REPLY_ARRAY || entry->elements != 2 || entry->element[1]->elements != 2) {
            rc = err_set(e, -EPROTO, "the decision log holds an entry of another kind");
            break;
        }
        const redisReply *text = entry->element[1]->element[1];
        snprintf(last, 48, "%s", entry->element[0]->str);
        int added = buf_add(out, text->str, (size_t)text->len);
        rc = added < 0 ? err_set(e, added, "the decision log does not fit in memory") : rc;
    }
    freeReplyObject(r);
    return rc;
}

static int redis_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    char last[48] = "0-0";
    TRY(connected(h, e));
    for (;;) {
        int n = load_page(h, last, ret, e);
        if (n < PAGE)
            return n < 0 ? n : 0;
    }
}

/* Does our newest decision stand, whose answer was lost? 1, 0. */
static int stands(struct redis_home *h, const char *epoch, struct err *e)
{
    redisReply *r;
    char id[48];
    snprintf(id, sizeof id, "%" PRIu64 "-%" PRIu64, rdzv_epoch_number(epoch), h->seq);
    TRY(QUEUE(&h->conn, e, W("XRANGE"), redis_key(h, KEY_LOG), W(id), W(id)));
    TRY(redis_converse(h, 1, &r, e));
    const int rc = r->type == REDIS_REPLY_ARRAY && r->elements > 0;
    freeReplyObject(r);
    return rc;
}

static int write_decision(struct redis_home *h, const struct rdzv_write *w, struct err *e)
{
    char over[24];
    TRY(QUEUE(&h->conn, e, W("MULTI")));
    if (w->whole)
        TRY(QUEUE(&h->conn, e, W("XTRIM"), redis_key(h, KEY_LOG), W("MAXLEN"), W("0")));
    TRY(queue_decision(h, w->epoch, w->decision, e));
    h->over = w->over;
    TRY(queue_expiry(h, KEY_LOG, keep_of(h, over), e));
    return execute(h, 2 + (size_t)w->whole, e);
}

/* The same decision again, until it is known to stand, or not to. */
static int redis_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    struct rdzv_claim now;
    int rc;
    TRY(rc = is_same(h, e));
    if (rc == 0)
        return 0;
    TRY(rc = h->unsure ? stands(h, w->epoch, e) : 0);
    if (rc == 0) {
        TRY(watch(h, &now, e));
        if (strcmp(now.epoch, w->epoch) != 0) {
            TRY(unwatch(h, e));
            return 0;
        }
        h->seq += !h->unsure;
        h->unsure = true;
        TRY(rc = write_decision(h, w, e));
    }
    TRY(rc = confirmed(h, rc, e));
    h->unsure = false;
    if (rc == 1)
        TRY(redis_note_waited(h, e));
    return rc;
}

/* They expire. */
static void redis_forget(struct rdzv_home *base)
{
    (void)base;
}

/* --- the handle */

static void redis_close(struct rdzv_home *base)
{
    struct redis_home *h = (struct redis_home *)base;
    if (!h)
        return;
    resp_finish(&h->conn);
    redis_link_finish(&h->link);
    for (int i = 0; i < KEY_COUNT; i++)
        free(h->keys[i]);
    rdzv_home_finish_(base);
    free(h);
}

static const struct rdzv_home_ops redis_ops = {
    .name = "redis",
    .identity = redis_identity,
    .load = redis_load,
    .append = redis_append,
    .forget = redis_forget,
    .close = redis_close,
    .look = redis_look,
    .claim = redis_claim,
    .renew = redis_renew,
    .lag_ms = redis_lag_ms,
    .took_over = redis_took_over,
};

/* Keys of one job; its id without what would end the hash tag. */
static int make_keys(struct redis_home *h, const char *run_id)
{
    static const char *const names[KEY_COUNT] = {"claim", "decisions", "epoch", "log"};
    struct buf id = {0};
    int rc = 0;
    for (const char *p = run_id; *p && rc == 0; p++)
        rc = *p == '{' || *p == '}' || *p == '%' ? buf_printf(&id, "%%%02X", (unsigned char)*p) : buf_add(&id, p, 1);
    for (int i = 0; i < KEY_COUNT && rc == 0; i++)
        rc = asprintf(&h->keys[i], "crun:{%s}:%s", id.data, names[i]) < 0 ? -ENOMEM : 0;
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
    int rc = rdzv_home_init_(&h->base, &redis_ops, e);
    resp_init(&h->conn, h->base.cancel_fd);
    h->conn.max_reply = MAX_REPLY;
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
