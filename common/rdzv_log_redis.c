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
 * Each handle has two connections, one that blocks and one that does not; nothing is polled. Every key expires keep_ms after its last
 * renewal. A leader's connection is never replaced under it: what one reign reads and writes is one incarnation of the server. */
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/rdzv_log_home.h"
#include "common/redis_link.h"
#include "common/resolve.h"

enum {
    OVER_KEEP_MS = 600000, /* a job that is over is remembered this long */
    BLOCK_MS = 5000,       /* of one blocking command */
    CALLS_KEPT = 20000,    /* names in the stream of calls */
    PAGE = 500,            /* decisions of one read */
    MAX_REPLY = 256 << 20,
    MAX_REPLIES = 16,
};

enum key { KEY_EPOCH, KEY_PULSE, KEY_LOG, KEY_BEATS, KEY_SLOTS, KEY_CALLS, KEY_COUNT };

struct redis_home {
    struct rdzv_home base;
    struct redis_link link;
    int64_t io_ms, keep_ms;
    char *keys[KEY_COUNT];
    char *wake_prefix;
    char keep[24];
    struct resp_conn conn, blocked;
    bool pending; /* a blocking command's reply is to come on `blocked` */
    bool leads;   /* since identity(): conn must not be dialled anew */
    int wake_fd;
    char epoch[RDZV_EPOCH_MAX + 1];
    uint64_t seq;
    char calls_last[48]; /* id of the last call read */
    char **called;       /* names of nodes that called */
    size_t called_count, called_cap;
};

/* ---- requests ----------------------------------------------------------------------------------------------------- */

struct word {
    const char *p;
    size_t n;
};

static int queue(struct resp_conn *c, int argc, const struct word *w, struct err *e)
{
    const char *v[16];
    size_t n[16];
    for (int i = 0; i < argc; i++) {
        v[i] = w[i].p;
        n[i] = w[i].n;
    }
    return resp_append(c, argc, v, n, e);
}

#define W(text)                                                                                                        \
    {                                                                                                                  \
        (text), strlen(text)                                                                                           \
    }
#define QUEUE(c, e, ...)                                                                                               \
    queue((c), (int)(sizeof((struct word[]){__VA_ARGS__}) / sizeof(struct word)), (struct word[]){__VA_ARGS__}, (e))

static void free_replies(redisReply **r, size_t n)
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

/* Send what is queued and take n replies; any error reply is this call's error, and ends the connection: what stands in a half-made transaction
 * goes with it. */
static int exchange(struct redis_home *h, struct resp_conn *c, size_t n, redisReply **r, struct err *e)
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
        free_replies(r, n);
        resp_hang_up(c);
    }
    return rc;
}

static int connected(struct redis_home *h, struct err *e)
{
    if (h->conn.fd >= 0 && resp_is_stale(&h->conn))
        resp_hang_up(&h->conn);
    if (h->conn.fd >= 0)
        return 0;
    if (h->leads)
        return err_set(e, -ECONNRESET, "the connection to the Redis was lost");
    h->pending = false;
    resp_hang_up(&h->blocked);
    return redis_link_dial(&h->link, &h->conn, clock_deadline(h->io_ms), e);
}

static int64_t redis_now(struct rdzv_home *base)
{
    (void)base;
    return clock_ms();
}

static struct word key(const struct redis_home *h, enum key k)
{
    return (struct word){h->keys[k], strlen(h->keys[k])};
}

static int queue_expiry(struct redis_home *h, enum key k, const char *ms, struct err *e)
{
    return QUEUE(&h->conn, e, W("PEXPIRE"), key(h, k), W(ms));
}

/* ---- every node ----------------------------------------------------------------------------------------------------- */

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
    TRY(QUEUE(c, e, W("HSET"), key(h, KEY_BEATS), W(node), {beat->data, beat->len}));
    TRY(QUEUE(c, e, W("MGET"), key(h, KEY_EPOCH), key(h, KEY_PULSE)));
    TRY(QUEUE(c, e, W("HGET"), key(h, KEY_SLOTS), W(node)));
    TRY(queue_expiry(h, KEY_BEATS, h->keep, e));
    if (call) {
        TRY(QUEUE(c, e, W("XADD"), key(h, KEY_CALLS), W("MAXLEN"), W("~"), W("20000"), W("*"), W("n"), W(node)));
        TRY(queue_expiry(h, KEY_CALLS, h->keep, e));
    }
    return QUEUE(c, e, W("EXEC"));
}

static int redis_exchange(struct rdzv_home *base, const char *node, const struct buf *beat, bool call,
                          struct rdzv_view *ret, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    redisReply *r[MAX_REPLIES];
    size_t n = call ? 8 : 6;
    TRY(connected(h, e));
    int rc = queue_exchange(h, node, beat, call, e);
    if (rc < 0) {
        resp_hang_up(&h->conn);
        return rc;
    }
    TRY(exchange(h, &h->conn, n, r, e));
    const redisReply *done = r[n - 1];
    if (done->type != REDIS_REPLY_ARRAY || done->elements < 3)
        rc = err_set(e, -EPROTO, "EXEC: expected an array");
    rc = rc ? rc : take_view(done->element[1], done->element[2], ret, e);
    free_replies(r, n);
    return rc;
}

static void drain_wake(struct redis_home *h)
{
    uint64_t n;
    ssize_t got = read(h->wake_fd, &n, sizeof n);
    (void)got;
}

/* Until a reply to the pending blocking command, the time is over (0) or interrupt() (0). 1: *r is the reply. */
static int await_reply(struct redis_home *h, int64_t timeout_ms, redisReply **r, struct err *e)
{
    int64_t until = clock_deadline(timeout_ms);
    struct pollfd p[3] = {{.fd = h->blocked.fd, .events = POLLIN},
                          {.fd = h->wake_fd, .events = POLLIN},
                          {.fd = h->conn.fd, .events = POLLRDHUP}}; /* -1 is ignored */
    int n = poll(p, 3, clock_left(until));
    if (n > 0 && p[1].revents)
        drain_wake(h);
    if (n <= 0 || !p[0].revents)
        return 0;
    TRY(resp_receive(&h->blocked, r, clock_deadline(h->io_ms), e));
    h->pending = false;
    if ((*r)->type != REDIS_REPLY_ERROR)
        return 1;
    int rc = redis_link_refused(&h->link, (*r)->str, e);
    freeReplyObject(*r);
    resp_hang_up(&h->blocked);
    return rc;
}

static int dial_blocked(struct redis_home *h, struct err *e)
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
    TRY(dial_blocked(h, e));
    if (!h->pending) {
        TRY(QUEUE(&h->blocked, e, W("BLPOP"), W(list), W("5")));
        TRY(resp_send(&h->blocked, clock_deadline(h->io_ms), e));
        h->pending = true;
    }
    int rc = await_reply(h, timeout_ms, &r, e);
    if (rc == 1)
        freeReplyObject(r);
    return rc < 0 ? rc : 0;
}

static int redis_address(struct rdzv_home *base, char *ret, size_t cap, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    TRY(connected(h, e));
    if (getsockname(h->conn.fd, (struct sockaddr *)&a, &len) < 0 ||
        getnameinfo((struct sockaddr *)&a, len, ret, (socklen_t)cap, NULL, 0, NI_NUMERICHOST) != 0)
        return err_set(e, -EPROTO, "the connection's own address is unknown");
    return 0;
}

static void redis_forget(struct rdzv_home *base, const char *node)
{
    struct redis_home *h = (struct redis_home *)base;
    redisReply *r[3];
    char list[400];
    struct err e;
    snprintf(list, sizeof list, "%s%s", h->wake_prefix, node);
    if (h->conn.fd < 0 || QUEUE(&h->conn, &e, W("HDEL"), key(h, KEY_BEATS), W(node)) < 0 ||
        QUEUE(&h->conn, &e, W("HDEL"), key(h, KEY_SLOTS), W(node)) < 0 || QUEUE(&h->conn, &e, W("DEL"), W(list)) < 0)
        return;
    if (exchange(h, &h->conn, 3, r, &e) == 0)
        free_replies(r, 3);
}

/* ---- the leader ----------------------------------------------------------------------------------------------------- */

static void info_field(const char *info, const char *name, char *out, size_t cap)
{
    const char *p = strstr(info, name);
    p = p ? p + strlen(name) : "";
    snprintf(out, cap, "%.*s", (int)strcspn(p, "\r\n"), p);
}

static int redis_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    redisReply *r[2];
    char run[44], replica[44];
    h->leads = false;
    h->epoch[0] = 0;
    TRY(connected(h, e));
    TRY(QUEUE(&h->conn, e, W("INFO"), W("server")));
    TRY(QUEUE(&h->conn, e, W("INFO"), W("replication")));
    TRY(exchange(h, &h->conn, 2, r, e));
    h->leads = true;
    info_field(r[0]->type == REDIS_REPLY_STRING ? r[0]->str : "", "run_id:", run, sizeof run);
    info_field(r[1]->type == REDIS_REPLY_STRING ? r[1]->str : "", "master_replid:", replica, sizeof replica);
    snprintf(ret, RDZV_IDENTITY_MAX + 1, "%s-%s", run, replica);
    free_replies(r, 2);
    return 0;
}

/* Arm the fence: from here on the next transaction happens only if the epoch does not change before it. 1: it is `expected`. */
static int arm(struct redis_home *h, const char *expected, struct err *e)
{
    redisReply *r[2];
    TRY(connected(h, e));
    TRY(QUEUE(&h->conn, e, W("WATCH"), key(h, KEY_EPOCH)));
    TRY(QUEUE(&h->conn, e, W("GET"), key(h, KEY_EPOCH)));
    TRY(exchange(h, &h->conn, 2, r, e));
    bool same = strcmp(r[1]->type == REDIS_REPLY_STRING ? r[1]->str : "", expected) == 0;
    free_replies(r, 2);
    if (!same) {
        TRY(QUEUE(&h->conn, e, W("UNWATCH")));
        TRY(exchange(h, &h->conn, 1, r, e));
        free_replies(r, 1);
    }
    return same;
}

/* EXEC what is queued: n requests after MULTI. 1: it happened; 0: the fence refused it. */
static int execute(struct redis_home *h, size_t n, struct err *e)
{
    redisReply **r = calloc(n + 2, sizeof *r);
    int rc = r ? QUEUE(&h->conn, e, W("EXEC")) : err_set(e, -ENOMEM, "no memory for a transaction");
    if (rc == 0 && (rc = exchange(h, &h->conn, n + 2, r, e)) == 0) {
        rc = r[n + 1]->type != REDIS_REPLY_NIL;
        free_replies(r, n + 2);
    } else
        resp_hang_up(&h->conn);
    free(r);
    return rc;
}

static int queue_decision(struct redis_home *h, const struct buf *text, struct err *e)
{
    char id[48];
    snprintf(id, sizeof id, "%llu-%" PRIu64, strtoull(h->epoch, NULL, 10), ++h->seq);
    return QUEUE(&h->conn, e, W("XADD"), key(h, KEY_LOG), W(id), W("d"), {text->data, text->len});
}

static int redis_claim(struct rdzv_home *base, const char *seen, const char *epoch, const struct buf *record,
                       struct err *e)
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
    TRY(QUEUE(c, e, W("DEL"), key(h, KEY_CALLS)));
    if (!seen[0]) /* what an epoch that vanished has left is no job */
        TRY(QUEUE(c, e, W("DEL"), key(h, KEY_LOG), key(h, KEY_SLOTS)));
    TRY(QUEUE(c, e, W("SET"), key(h, KEY_EPOCH), W(epoch), W("PX"), W(h->keep)));
    TRY(QUEUE(c, e, W("SET"), key(h, KEY_PULSE), W(pulse), W("PX"), W(h->keep)));
    TRY(queue_decision(h, record, e));
    TRY(queue_expiry(h, KEY_LOG, h->keep, e));
    return execute(h, seen[0] ? 5 : 6, e);
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
    TRY(QUEUE(&h->conn, e, W("XRANGE"), key(h, KEY_LOG), W(from), W("+"), W("COUNT"), W(count)));
    TRY(exchange(h, &h->conn, 1, &r, e));
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

/* Returns how many requests that is. */
static int queue_slot(struct redis_home *h, const struct rdzv_slot_write *s, struct err *e)
{
    char list[400];
    TRY(QUEUE(&h->conn, e, W("HSET"), key(h, KEY_SLOTS), W(s->node), {s->text, s->len}));
    if (s->quiet)
        return 1;
    snprintf(list, sizeof list, "%s%s", h->wake_prefix, s->node);
    TRY(QUEUE(&h->conn, e, W("RPUSH"), W(list), W("1")));
    TRY(QUEUE(&h->conn, e, W("PEXPIRE"), W(list), W(h->keep)));
    return 3;
}

static int redis_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    char over[24];
    snprintf(over, sizeof over, "%d", OVER_KEEP_MS);
    const char *keep = w->over ? over : h->keep;
    int rc = arm(h, h->epoch, e);
    if (rc != 1)
        return rc;
    TRY(QUEUE(&h->conn, e, W("MULTI")));
    if (w->whole)
        TRY(QUEUE(&h->conn, e, W("XTRIM"), key(h, KEY_LOG), W("MAXLEN"), W("0")));
    TRY(queue_decision(h, w->decision, e));
    size_t requests = 0;
    for (size_t i = 0; i < w->slot_count; i++) {
        TRY(rc = queue_slot(h, &w->slots[i], e));
        requests += (size_t)rc;
    }
    TRY(queue_expiry(h, KEY_LOG, keep, e));
    TRY(queue_expiry(h, KEY_SLOTS, keep, e));
    return execute(h, 3 + requests + w->whole, e);
}

static int redis_rewrite(struct rdzv_home *base, const struct rdzv_slot_write *slot, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    int rc = arm(h, h->epoch, e);
    if (rc != 1)
        return rc;
    TRY(QUEUE(&h->conn, e, W("MULTI")));
    TRY(rc = queue_slot(h, slot, e));
    return execute(h, (size_t)rc, e);
}

static int redis_pulse(struct rdzv_home *base, const struct buf *record, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    int rc = arm(h, h->epoch, e);
    if (rc != 1)
        return rc;
    TRY(QUEUE(&h->conn, e, W("MULTI")));
    TRY(QUEUE(&h->conn, e, W("SET"), key(h, KEY_PULSE), {record->data, record->len}, W("PX"), W(h->keep)));
    TRY(queue_expiry(h, KEY_EPOCH, h->keep, e));
    TRY(queue_expiry(h, KEY_LOG, h->keep, e));
    TRY(queue_expiry(h, KEY_SLOTS, h->keep, e));
    return execute(h, 4, e);
}

static int all_beats(struct redis_home *h, rdzv_beat_visit *visit, void *arg, struct err *e)
{
    redisReply *r;
    TRY(QUEUE(&h->conn, e, W("HGETALL"), key(h, KEY_BEATS)));
    TRY(exchange(h, &h->conn, 1, &r, e));
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

static void forget_calls(struct redis_home *h)
{
    for (size_t i = 0; i < h->called_count; i++)
        free(h->called[i]);
    h->called_count = 0;
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
    return rc ? rc : exchange(h, &h->conn, 1, ret, e);
}

static int redis_beats(struct rdzv_home *base, bool all, rdzv_beat_visit *visit, void *arg, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    redisReply *r;
    TRY(connected(h, e));
    if (all) {
        forget_calls(h);
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
    forget_calls(h);
    return rc;
}

static int note_call(struct redis_home *h, const char *node)
{
    if (h->called_count == h->called_cap) {
        size_t cap = h->called_cap ? h->called_cap * 2 : 64;
        char **v = realloc(h->called, cap * sizeof *v);
        if (!v)
            return -ENOMEM;
        h->called = v;
        h->called_cap = cap;
    }
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

static int redis_wait_calls(struct rdzv_home *base, int64_t timeout_ms, struct err *e)
{
    struct redis_home *h = (struct redis_home *)base;
    redisReply *r = NULL;
    char block[12];
    TRY(connected(h, e));
    TRY(dial_blocked(h, e));
    if (!h->pending) {
        snprintf(block, sizeof block, "%d", BLOCK_MS);
        TRY(QUEUE(&h->blocked, e, W("XREAD"), W("COUNT"), W("1000"), W("BLOCK"), W(block), W("STREAMS"),
                  key(h, KEY_CALLS), W(h->calls_last)));
        TRY(resp_send(&h->blocked, clock_deadline(h->io_ms), e));
        h->pending = true;
    }
    int rc = await_reply(h, timeout_ms, &r, e);
    if (rc != 1)
        return rc;
    rc = take_calls(h, r);
    freeReplyObject(r);
    return rc;
}

/* ---- the handle ------------------------------------------------------------------------------------------------------- */

static void redis_interrupt(struct rdzv_home *base)
{
    struct redis_home *h = (struct redis_home *)base;
    uint64_t one = 1;
    ssize_t n = write(h->wake_fd, &one, sizeof one);
    (void)n;
}

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
    forget_calls(h);
    free(h->called);
    free(h->wake_prefix);
    if (h->wake_fd >= 0)
        close(h->wake_fd);
    free(h);
}

static const struct rdzv_home_ops redis_ops = {
    .name = "redis",
    .now = redis_now,
    .exchange = redis_exchange,
    .wait_slot = redis_wait_slot,
    .address = redis_address,
    .forget = redis_forget,
    .identity = redis_identity,
    .claim = redis_claim,
    .load = redis_load,
    .append = redis_append,
    .rewrite = redis_rewrite,
    .pulse = redis_pulse,
    .beats = redis_beats,
    .wait_calls = redis_wait_calls,
    .interrupt = redis_interrupt,
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
    h->base.ops = &redis_ops;
    h->io_ms = o->io_timeout_ms;
    h->keep_ms = o->keep_ms;
    snprintf(h->keep, sizeof h->keep, "%" PRId64, o->keep_ms);
    resp_init(&h->conn, -1);
    resp_init(&h->blocked, -1);
    h->conn.max_reply = h->blocked.max_reply = MAX_REPLY;
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = redis_link_parse(&h->link, url, e);
    if (rc == 0 && (h->wake_fd < 0 || make_keys(h, o->run_id) < 0))
        rc = err_set(e, -ENOMEM, "no memory or file descriptor for a connection");
    if (rc < 0) {
        redis_close(&h->base);
        return rc;
    }
    *ret = &h->base;
    return 0;
}
