/* What a leader does in a Redis: transactions that the epoch fences, the log as a stream, and a stream of calls to
 * block on. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/rdzv/homes/rdzv_log_redis_internal.h"

int redis_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    struct redis_facts facts;
    h->leads = h->over = false;
    h->epoch[0] = 0;
    TRY(redis_connected(h, e));
    TRY(redis_learn_facts(h, &facts, e));
    TRY(redis_judge(&facts, h->allow_unsafe, h->given_lag_ms, &h->lag_ms, e));
    snprintf(h->identity, sizeof h->identity, "%s-%s", facts.run_id, facts.replid);
    memcpy(ret, h->identity, sizeof h->identity);
    h->cluster = facts.cluster;
    h->took_over = facts.promoted && h->lag_ms > 0;
    TRY(redis_learn_waited(h, e));
    h->leads = true;
    return 0;
}

/* Arm the fence: from here on the next transaction happens only if the epoch does not change before it. 1: it is
 * `expected`. */
static int arm(struct redis_home *h, const char *expected, struct err *e)
{
    redisReply *r[2];
    TRY(redis_connected(h, e));
    TRY(QUEUE(&h->conn, e, W("WATCH"), redis_key(h, KEY_EPOCH)));
    TRY(QUEUE(&h->conn, e, W("GET"), redis_key(h, KEY_EPOCH)));
    TRY(redis_converse(h, &h->conn, 2, r, e));
    bool same = strcmp(r[1]->type == REDIS_REPLY_STRING ? r[1]->str : "", expected) == 0;
    redis_free_replies(r, 2);
    if (!same) {
        TRY(QUEUE(&h->conn, e, W("UNWATCH")));
        TRY(redis_converse(h, &h->conn, 1, r, e));
        redis_free_replies(r, 1);
    }
    return same;
}

/* EXEC what is queued: n requests after MULTI. 1: it happened; 0: the fence refused it. */
static int execute(struct redis_home *h, size_t n, struct err *e)
{
    redisReply **r = calloc(n + 2, sizeof *r);
    int rc = r ? QUEUE(&h->conn, e, W("EXEC")) : err_set(e, -ENOMEM, "no memory for a transaction");
    if (rc == 0 && (rc = redis_converse(h, &h->conn, n + 2, r, e)) == 0) {
        rc = r[n + 1]->type != REDIS_REPLY_NIL;
        redis_free_replies(r, n + 2);
    } else
        resp_hang_up(&h->conn);
    free(r);
    return rc;
}

static int queue_decision(struct redis_home *h, const struct buf *text, struct err *e)
{
    char id[48];
    snprintf(id, sizeof id, "%llu-%" PRIu64, strtoull(h->epoch, NULL, 10), ++h->seq);
    return QUEUE(&h->conn, e, W("XADD"), redis_key(h, KEY_LOG), W(id), W("d"), {text->data, text->len});
}

int redis_claim(struct rdzv_home *base, const char *seen, const char *epoch, const struct buf *record, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    char pulse[RDZV_EPOCH_MAX + 16];
    int rc = arm(h, seen, e);
    if (rc != 1)
        return rc;
    snprintf(h->epoch, sizeof h->epoch, "%s", epoch);
    snprintf(pulse, sizeof pulse, "epoch=%s n=0", epoch);
    h->seq = 0;
    snprintf(h->calls_last, sizeof h->calls_last, "0-0");
    struct resp_conn *c = &h->conn;
    TRY(QUEUE(c, e, W("MULTI")));
    TRY(QUEUE(c, e, W("DEL"), redis_key(h, KEY_CALLS)));
    if (!seen[0]) /* what an epoch that vanished has left is no job */
        TRY(QUEUE(c, e, W("DEL"), redis_key(h, KEY_LOG), redis_key(h, KEY_SLOTS)));
    TRY(QUEUE(c, e, W("SET"), redis_key(h, KEY_EPOCH), W(epoch), W("PX"), W(h->keep)));
    TRY(QUEUE(c, e, W("SET"), redis_key(h, KEY_PULSE), W(pulse), W("PX"), W(h->keep)));
    TRY(queue_decision(h, record, e));
    TRY(redis_queue_expiry(h, KEY_LOG, h->keep, e));
    TRY(rc = execute(h, seen[0] ? 5 : 6, e));
    return rc == 1 && redis_await_replica(h, e) < 0 ? -EAGAIN : rc;
}

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
    TRY(redis_converse(h, &h->conn, 1, &r, e));
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

int redis_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    char last[48] = "0-0";
    TRY(redis_connected(h, e));
    for (;;) {
        int n = load_page(h, last, ret, e);
        if (n < PAGE)
            return n < 0 ? n : 0;
    }
}

/* Returns how many requests that is. */
static int queue_slot(struct redis_home *h, const struct rdzv_slot_write *s, struct err *e)
{
    char list[400];
    TRY(QUEUE(&h->conn, e, W("HSET"), redis_key(h, KEY_SLOTS), W(s->node), {s->text, s->len}));
    if (s->quiet)
        return 1;
    snprintf(list, sizeof list, "%s%s", h->wake_prefix, s->node);
    TRY(QUEUE(&h->conn, e, W("RPUSH"), W(list), W("1")));
    TRY(QUEUE(&h->conn, e, W("PEXPIRE"), W(list), W(h->keep)));
    return 3;
}

/* How long keys are kept, as text. */
static const char *keep_of(const struct redis_home *h, char over[24])
{
    snprintf(over, 24, "%d", OVER_KEEP_MS);
    return h->over ? over : h->keep;
}

int redis_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    char over[24];
    int requests = 0, rc = arm(h, h->epoch, e);
    if (rc != 1)
        return rc;
    TRY(QUEUE(&h->conn, e, W("MULTI")));
    if (w->whole)
        TRY(QUEUE(&h->conn, e, W("XTRIM"), redis_key(h, KEY_LOG), W("MAXLEN"), W("0")));
    if (w->decision)
        TRY(queue_decision(h, w->decision, e));
    for (size_t i = 0; i < w->slot_count; i++) {
        TRY(rc = queue_slot(h, &w->slots[i], e));
        requests += rc;
    }
    if (!w->decision)
        return execute(h, (size_t)requests, e);
    h->over = w->over;
    TRY(redis_queue_expiry(h, KEY_LOG, keep_of(h, over), e));
    TRY(redis_queue_expiry(h, KEY_SLOTS, keep_of(h, over), e));
    rc = execute(h, (size_t)requests + 3 + w->whole, e);
    if (rc == 1)
        TRY(redis_note_waited(h, e));
    return rc;
}

int redis_pulse(struct rdzv_home *base, const struct buf *record, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    char over[24];
    const char *keep = keep_of(h, over);
    int rc = arm(h, h->epoch, e);
    if (rc != 1)
        return rc;
    TRY(QUEUE(&h->conn, e, W("MULTI")));
    TRY(QUEUE(&h->conn, e, W("SET"), redis_key(h, KEY_PULSE), {record->data, record->len}, W("PX"), W(keep)));
    TRY(redis_queue_expiry(h, KEY_EPOCH, keep, e));
    TRY(redis_queue_expiry(h, KEY_LOG, keep, e));
    TRY(redis_queue_expiry(h, KEY_SLOTS, keep, e));
    return execute(h, 4, e);
}

static int all_beats(struct redis_home *h, rdzv_beat_visit *visit, void *arg, struct err *e)
{
    redisReply *r;
    TRY(QUEUE(&h->conn, e, W("HGETALL"), redis_key(h, KEY_BEATS)));
    TRY(redis_converse(h, &h->conn, 1, &r, e));
    for (size_t i = 0; r->type == REDIS_REPLY_ARRAY && i + 1 < r->elements; i += 2)
        visit(arg, r->element[i]->str, r->element[i + 1]->str, (size_t)r->element[i + 1]->len);
    freeReplyObject(r);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Each once. */
static size_t unique_names(char **v, size_t n)
{
    size_t kept = 0;
    qsort(v, n, sizeof *v, by_name);
    for (size_t i = 0; i < n; i++) {
        if (kept > 0 && strcmp(v[kept - 1], v[i]) == 0)
            free(v[i]);
        else
            v[kept++] = v[i];
    }
    return kept;
}

static int ask_called(struct redis_home *h, redisReply **ret, struct err *e)
{
    size_t n = h->called_count;
    const char **v = calloc(n + 2, sizeof *v);
    size_t *len = calloc(n + 2, sizeof *len);
    int rc = v && len ? 0 : err_set(e, -ENOMEM, "no memory for %zu names", n);
    if (rc == 0) {
        v[0] = "HMGET";
        v[1] = h->keys[KEY_BEATS];
        memcpy(v + 2, h->called, n * sizeof *v);
        for (size_t i = 0; i < n + 2; i++)
            len[i] = strlen(v[i]);
        rc = resp_append(&h->conn, (int)n + 2, v, len, e);
    }
    free(v);
    free(len);
    return rc ? rc : redis_converse(h, &h->conn, 1, ret, e);
}

int redis_beats(struct rdzv_home *base, bool all, rdzv_beat_visit *visit, void *arg, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    redisReply *r;
    TRY(redis_connected(h, e));
    if (all) {
        redis_forget_calls(h);
        return all_beats(h, visit, arg, e);
    }
    if (h->called_count == 0)
        return 0;
    h->called_count = unique_names(h->called, h->called_count);
    int rc = ask_called(h, &r, e);
    if (rc == 0) {
        for (size_t i = 0; i < h->called_count && i < r->elements; i++)
            if (r->element[i]->type == REDIS_REPLY_STRING)
                visit(arg, h->called[i], r->element[i]->str, (size_t)r->element[i]->len);
        freeReplyObject(r);
    }
    redis_forget_calls(h);
    return rc;
}

static int note_call(struct redis_home *h, const char *node)
{
    TRY(ARRAY_RESERVE(h->called, h->called_cap, h->called_count + 1));
    h->called[h->called_count] = strdup(node);
    return h->called[h->called_count] ? (void)h->called_count++, 0 : -ENOMEM;
}

/* [[stream, [[id, [n, node]], ...]]] */
static int take_calls(struct redis_home *h, const redisReply *r)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 1 || r->element[0]->elements != 2)
        return 0; /* nil: nobody called */
    const redisReply *list = r->element[0]->element[1];
    for (size_t i = 0; i < list->elements; i++) {
        const redisReply *entry = list->element[i];
        if (entry->elements != 2 || entry->element[1]->elements != 2)
            continue;
        snprintf(h->calls_last, sizeof h->calls_last, "%s", entry->element[0]->str);
        TRY(note_call(h, entry->element[1]->element[1]->str));
    }
    return 0;
}

int redis_wait_calls(struct rdzv_home *base, int64_t timeout_ms, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    redisReply *r = NULL;
    char block[12];
    TRY(redis_connected(h, e));
    TRY(redis_dial_blocked(h, e));
    if (!h->pending) {
        snprintf(block, sizeof block, "%d", BLOCK_MS);
        TRY(QUEUE(&h->blocked, e, W("XREAD"), W("COUNT"), W("1000"), W("BLOCK"), W(block), W("STREAMS"),
                  redis_key(h, KEY_CALLS), W(h->calls_last)));
        TRY(resp_send(&h->blocked, clock_deadline(h->io_ms), e));
        h->pending = true;
    }
    int rc = redis_await_reply(h, timeout_ms, &r, e);
    if (rc != 1)
        return rc;
    rc = take_calls(h, r);
    freeReplyObject(r);
    return rc;
}
