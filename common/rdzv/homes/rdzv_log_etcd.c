/* A job's home in an etcd (3.4 or newer), by the JSON gateway of its v3 API.
 *
 *   PREFIX/RUN/claim             who leads: "LEASE\n" and the claim (rdzv_claim.h)
 *   PREFIX/RUN/log/EPOCH-N.last  a decision: "K\n" and its text; K: 2 * its other parts, and 1 more if it is whole.
 *                                The first of a term is the claim's record
 *   PREFIX/RUN/log/EPOCH-N.0001  what does not fit into that value: "-1\n" and a part, which counts once that stands
 *
 * Whatever is written is one transaction that compares the claim's mod revision, which each renewal changes: a request
 * that comes late or twice does nothing, but for a decision that comes back just after a whole one has removed it: who
 * loads passes over all that stands before a whole one. A request is given REQUEST_MS, and is then made again at
 * another member; if the answer to one that happened was lost, the comparison fails, and the same transaction reads the
 * claim and the decision that stand, which tell. Nodes that look for a leader watch the claim, and read it every
 * CONFIRM_MS, so that an etcd without a majority is not taken for a claim that stands still. All keys hang on one
 * lease, which whoever leads keeps alive and whose number the claim hands on: it clears away what nobody needs any
 * more. That somebody leads is told by renewals alone: etcd's leases count whole seconds, and last longer after a
 * fail-over. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/numbers.h"
#include "common/http/http_client.h"
#include "common/json/json.h"
#include "common/net/addr.h"
#include "common/rdzv/homes/framed_file.h"
#include "common/rdzv/homes/rdzv_log_home.h"

#ifndef ETCD_PART               /* in the simulator decisions are small, and parts too */
#define ETCD_PART (1000 * 1024) /* bytes of one value: etcd takes requests of 1.5 MiB */
#endif

enum {
    HOSTS_MAX = 16,
    KEY_MAX = 1100, /* characters of base64 */
    REQUEST_MS = 500,
    BYTES_PER_MS = 1500, /* and so much longer for a long one */
    PAUSE_MS = 50,       /* after each member has failed */
    CONFIRM_MS = 1000,   /* what is watched is read */
    ANEW_MS = 250,       /* so is what cannot be watched */
    PART = ETCD_PART,
    CLAIM_MS = 3000, /* a claim's D: an etcd that loses its leader takes no write for 1 to 3 s */
    AGAIN = 2,
};

struct etcd_home {
    struct rdzv_home base;
    struct http_client *http;
    char *hosts[HOSTS_MAX]; /* "https://10.0.0.1:2379" */
    int host_count, at;
    char *dir;                  /* "PREFIX/RUN/" */
    char login[700], auth[700]; /* {"name":...}, the header with a token; "": none */
    int64_t io_ms, keep_ms, deadline, request_ms;
    struct buf out, in; /* a request, an answer */
    int rc;             /* of what was added to the request */

    char identity[RDZV_IDENTITY_MAX + 1], answered[RDZV_IDENTITY_MAX + 1]; /* of identity(), of the newest answer */
    struct rdzv_claim seen;                                                /* as last read or watched */
    uint64_t mod, revision; /* its mod revision, 0: there is none; that of etcd then */
    int64_t lease;          /* that the claim names; 0: none */
    int64_t read_ms;        /* when it was read, not watched */
    bool watched;
    char epoch[RDZV_EPOCH_MAX + 1]; /* our term; "": none */
    uint64_t own_mod, n, seq;       /* the claim's mod revision; renewals tried; number of the next decision */
    int64_t kept_ms;                /* when the lease was kept alive */
};

/* A call begins. */
static struct etcd_home *begin(struct rdzv_home *base)
{
    struct etcd_home *h = (struct etcd_home *)base;
    h->deadline = clock_deadline(h->io_ms);
    h->request_ms = REQUEST_MS;
    return h;
}

/* --- requests and answers */

static const cJSON *in(const cJSON *o, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(o, name);
}

static int64_t number(const cJSON *o, const char *name) /* a text in this API, and left out if it is 0 */
{
    return strtoll(json_str_or(o, name, "0"), NULL, 10);
}

static int refused(struct etcd_home *h, int status, const cJSON *answer, struct err *e)
{
    const int code = json_int_or(answer, "code", 0); /* gRPC's */
    const char *text = json_str_or(answer, "error", json_str_or(answer, "message", "")), *host = h->hosts[h->at];
    if (status == 404 && code == 0)
        return err_set(e, ERR_REFUSED,
                       "%s knows no /v3: its JSON gateway is off (--enable-grpc-gateway), or it is older than 3.4",
                       host);
    if (strstr(text, "name is empty"))
        return err_set(e, ERR_REFUSED,
                       "%s asks for a user (user name is empty), and its gateway takes none from a certificate: write "
                       "USER:PASSWORD into the file that CRUN_ETCD_USER_FILE names",
                       host);
    if (h->login[0] && (code == 16 || strstr(text, "store is old"))) { /* a token lives for minutes */
        h->auth[0] = 0;
        return err_set(e, -EAGAIN, "%s: %.200s", host, text);
    }
    const int rc = strstr(text, "lease not found")        ? -ENOKEY
                   : strstr(text, "space exceeded")       ? -ENOSPC
                   : code == 3 || code == 7 || code == 16 ? ERR_REFUSED
                                                          : -EAGAIN;
    return err_set(e, rc, "%s answers: %.200s (HTTP status %d)", host, *text ? text : "nothing", status);
}

/* Once, at the member that is asked now. */
static int ask(struct etcd_home *h, const char *path, const char *body, size_t n, cJSON **ret, struct err *e)
{
    char url[400];
    snprintf(url, sizeof url, "%s/v3/%s", h->hosts[h->at], path);
    const struct http_ask a = {"POST", url, {h->auth[0] ? h->auth : NULL}, body, n};
    const int64_t end = min_i64(clock_deadline(h->request_ms + (int64_t)n / BYTES_PER_MS), h->deadline);
    cJSON *tree = NULL;
    const int status = http_client_ask(h->http, &a, end, &h->in, e);
    if (status < 0)
        return e ? err_wrap(e, "%s", h->hosts[h->at]) : status;
    int rc = json_read_text(&h->in, h->hosts[h->at], &tree, e);
    rc = status == 200 ? rc : refused(h, status, tree, e);
    if (rc < 0) {
        cJSON_Delete(tree);
        return rc;
    }
    snprintf(h->answered, sizeof h->answered, "etcd-%s", json_str_or(in(tree, "header"), "cluster_id", "?"));
    *ret = tree;
    return 0;
}

static int get_token(struct etcd_home *h, struct err *e)
{
    cJSON *tree;
    if (!h->login[0] || h->auth[0])
        return 0;
    TRY(ask(h, "auth/authenticate", h->login, strlen(h->login), &tree, e));
    snprintf(h->auth, sizeof h->auth, "Authorization: %s", json_str_or(tree, "token", ""));
    cJSON_Delete(tree);
    return 0;
}

/* What is in h->out, at one member after the other, until one answers. */
static int call(struct etcd_home *h, const char *path, cJSON **ret, struct err *e)
{
    for (int tried = 1; h->rc == 0; tried++) {
        int rc = get_token(h, e);
        rc = rc ? rc : ask(h, path, h->out.data, h->out.len, ret, e);
        const bool elsewhere = rc == -EAGAIN || rc == -ETIMEDOUT || rc == -ECONNREFUSED || rc == -EIO;
        if (!elsewhere || clock_left(h->deadline) <= PAUSE_MS)
            return rc;
        h->at = (h->at + 1) % h->host_count;
        h->watched = false;
        if (tried % h->host_count == 0)
            TRY(http_client_pause(h->http, PAUSE_MS, e));
    }
    return err_set(e, h->rc, "no memory for a request");
}

#define PUT(h, ...) ((h)->rc = (h)->rc ? (h)->rc : buf_printf(&(h)->out, __VA_ARGS__))
#define KEY(h, name) key_of((h), (name), (char[KEY_MAX]){0})

static const char *key_of(const struct etcd_home *h, const char *name, char out[KEY_MAX])
{
    char key[KEY_MAX / 4 * 3];
    const int n = snprintf(key, sizeof key, "%s%s", h->dir, name);
    *base64_write(out, key, (size_t)n) = 0;
    return out;
}

static void start(struct etcd_home *h)
{
    buf_clear(&h->out);
    h->rc = 0;
}

struct value { /* "NUMBER\nTEXT" under a key */
    const char *name;
    int64_t number;
    const char *text;
    size_t n;
};

static void put_value(struct etcd_home *h, const struct value *v)
{
    struct buf b = {0};
    PUT(h, "{\"request_put\":{\"key\":\"%s\",\"lease\":\"%" PRId64 "\",\"value\":\"", KEY(h, v->name), h->lease);
    if (h->rc == 0 && (h->rc = buf_printf(&b, "%" PRId64 "\n", v->number)) == 0 &&
        (h->rc = buf_add(&b, v->text, v->n)) == 0 && (h->rc = buf_reserve(&h->out, b.len / 3 * 4 + 8)) == 0)
        h->out.len = (size_t)(base64_write(h->out.data + h->out.len, b.data, b.len) - h->out.data);
    PUT(h, "\"}}");
    buf_free(&b);
}

/* If the claim's mod revision is `mod`: delete the keys from..to (to NULL: none), and write count values; *once (NULL:
 * none) must not stand yet. If not: read the claim and *once. */
static int transact(struct etcd_home *h, uint64_t mod, const char *from, const char *to, const struct value *v,
                    int count, const char *once, cJSON **ret, struct err *e)
{
    const char *claim = KEY(h, "claim"), *stands = once ? KEY(h, once) : NULL;
    start(h);
    PUT(h, "{\"compare\":[{\"target\":\"MOD\",\"key\":\"%s\",\"mod_revision\":\"%" PRIu64 "\"}", claim, mod);
    if (once)
        PUT(h, ",{\"target\":\"CREATE\",\"key\":\"%s\",\"create_revision\":\"0\"}", stands);
    PUT(h, "],\"success\":[");
    if (to)
        PUT(h, "{\"request_delete_range\":{\"key\":\"%s\",\"range_end\":\"%s\"}}%s", KEY(h, from), KEY(h, to),
            count ? "," : "");
    for (int i = 0; i < count; i++) {
        PUT(h, "%s", i ? "," : "");
        put_value(h, &v[i]);
    }
    PUT(h, "],\"failure\":[{\"request_range\":{\"key\":\"%s\"}}", claim);
    if (once)
        PUT(h, ",{\"request_range\":{\"keys_only\":true,\"key\":\"%s\"}}", stands);
    PUT(h, "]}");
    return call(h, "kv/txn", ret, e);
}

/* The first key that request i of a transaction found; NULL: none. */
static const cJSON *found(const cJSON *txn, int i)
{
    return cJSON_GetArrayItem(in(in(cJSON_GetArrayItem(in(txn, "responses"), i), "response_range"), "kvs"), 0);
}

/* Adds its text to *ret. */
static int take_value(const cJSON *kv, int64_t *ret_number, struct buf *ret, struct err *e)
{
    const char *text = json_str_or(kv, "value", "");
    const size_t n = strlen(text);
    if (buf_reserve(ret, n + 1) < 0)
        return err_set(e, -ENOMEM, "the decision log does not fit in memory");
    char *to = ret->data + ret->len;
    const ptrdiff_t bytes = base64_read(text, n, to, n);
    const char *line = bytes > 0 ? memchr(to, '\n', (size_t)bytes) : NULL;
    if (!line)
        return err_set(e, -EPROTO, "etcd holds something else under this job's keys");
    *ret_number = strtoll(to, NULL, 10);
    const size_t rest = (size_t)(to + bytes - ++line);
    memmove(to, line, rest);
    to[rest] = 0;
    ret->len += rest;
    return 0;
}

/* --- the claim */

static int take_claim(struct etcd_home *h, const cJSON *kv, struct err *e) /* NULL: there is none */
{
    struct buf text = {0};
    int rc = 0;
    h->seen = (struct rdzv_claim){0};
    h->mod = kv ? (uint64_t)number(kv, "mod_revision") : 0;
    h->lease = 0;
    if (kv && (rc = take_value(kv, &h->lease, &text, e)) == 0)
        rc = rdzv_claim_decode(text.data, text.len, &h->seen, e);
    buf_free(&text);
    return rc;
}

static int read_claim(struct etcd_home *h, struct err *e)
{
    cJSON *tree;
    start(h);
    PUT(h, "{\"key\":\"%s\"}", KEY(h, "claim"));
    TRY(call(h, "kv/range", &tree, e));
    h->read_ms = clock_ms();
    h->revision = (uint64_t)number(in(tree, "header"), "revision");
    const int rc = take_claim(h, cJSON_GetArrayItem(in(tree, "kvs"), 0), e);
    cJSON_Delete(tree);
    return rc;
}

static int watch(struct etcd_home *h, struct err *e)
{
    char url[400];
    snprintf(url, sizeof url, "%s/v3/watch", h->hosts[h->at]);
    start(h);
    PUT(h, "{\"create_request\":{\"key\":\"%s\",\"start_revision\":\"%" PRIu64 "\"}}", KEY(h, "claim"),
        h->revision + 1);
    const struct http_ask a = {"POST", url, {h->auth[0] ? h->auth : NULL}, h->out.data, h->out.len};
    const int rc = http_client_stream(h->http, &a, e);
    h->watched = rc == 0;
    return rc;
}

/* One line of the watch. Negative: the watch has ended (compacted, cancelled). */
static int take_news(struct etcd_home *h, const struct buf *line)
{
    const cJSON *event;
    cJSON *tree;
    TRY(json_read_text(line, "watch", &tree, NULL));
    const cJSON *result = in(tree, "result");
    int rc = result && !cJSON_IsTrue(in(result, "canceled")) ? 0 : -EPIPE;
    cJSON_ArrayForEach(event, in(result, "events"))
    {
        const cJSON *kv = in(event, "kv");
        const uint64_t revision = (uint64_t)number(kv, "mod_revision");
        if (rc < 0 || revision <= h->revision) /* it was read meanwhile */
            continue;
        h->revision = revision;
        rc = take_claim(h, strcmp(json_str_or(event, "type", ""), "DELETE") == 0 ? NULL : kv, NULL);
    }
    cJSON_Delete(tree);
    return rc;
}

static int etcd_look(struct rdzv_home *base, struct rdzv_claim *ret, struct err *e)
{
    struct etcd_home *h = begin(base);
    struct buf line = {0};
    for (int rc = 1; h->watched && rc != 0;) {
        rc = http_client_line(h->http, &line);
        h->watched = rc == 0 || (rc == 1 && take_news(h, &line) == 0);
    }
    buf_free(&line);
    if (clock_ms() - h->read_ms >= (h->watched ? CONFIRM_MS : ANEW_MS)) {
        TRY(read_claim(h, e));
        if (!h->watched)
            TRY(watch(h, e));
    }
    *ret = h->seen;
    return h->mod > 0;
}

static void etcd_rest(struct rdzv_home *base)
{
    struct etcd_home *h = (struct etcd_home *)base;
    h->watched = false;
    h->read_ms = 0;
    http_client_stream_end(h->http);
}

static int etcd_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    struct etcd_home *h = begin(base);
    TRY(read_claim(h, e));
    memcpy(h->identity, h->answered, sizeof h->identity);
    memcpy(ret, h->identity, sizeof h->identity);
    return 0;
}

/* h->lease lives for another keep_ms; where it has ended, with all its keys, or there is none: a new one. */
static int keep_lease(struct etcd_home *h, struct err *e)
{
    cJSON *tree;
    start(h);
    PUT(h, "{\"ID\":\"%" PRId64 "\"}", h->lease);
    if (h->lease) {
        TRY(call(h, "lease/keepalive", &tree, e));
        h->lease = number(in(tree, "result"), "TTL") > 0 ? h->lease : 0;
        cJSON_Delete(tree);
    }
    if (!h->lease) {
        start(h);
        PUT(h, "{\"TTL\":\"%" PRId64 "\"}", (h->keep_ms + 999) / 1000);
        TRY(call(h, "lease/grant", &tree, e));
        h->lease = number(tree, "ID");
        cJSON_Delete(tree);
    }
    h->kept_ms = clock_ms();
    return 0;
}

/* Have it done if our term lasts. 1; 0: it does not; AGAIN: nothing happened, for our claim was in another state than
 * h->own_mod. */
static int lead(struct etcd_home *h, const char *epoch, const char *from, const char *to, const struct value *v,
                int count, const char *once, struct err *e)
{
    const int64_t lease = h->lease;
    cJSON *txn;
    if (strcmp(h->epoch, epoch) != 0)
        return 0;
    int rc = transact(h, h->own_mod, from, to, v, count, once, &txn, e);
    if (rc < 0)
        return rc == -ENOKEY ? 0 : rc; /* the lease has ended, and with it our claim */
    rc = cJSON_IsTrue(in(txn, "succeeded"));
    const bool stands = once && found(txn, 1);
    if (rc == 1 && strcmp(v->name, "claim") == 0)
        h->own_mod = (uint64_t)number(in(txn, "header"), "revision");
    else if (rc == 0 && (rc = take_claim(h, found(txn, 0), e)) == 0 && strcmp(h->seen.epoch, epoch) == 0 &&
             !h->seen.released) {
        h->own_mod = h->mod;
        h->n = (uint64_t)max_i64((int64_t)h->n, (int64_t)h->seen.n);
        h->lease = lease;
        rc = stands ? 1 : AGAIN;
    }
    cJSON_Delete(txn);
    return rc < 0 || strcmp(h->identity, h->answered) == 0 ? rc : 0;
}

static const char *decision_name(const struct etcd_home *h, int part, char out[128])
{
    const char *epoch = h->epoch + strcspn(h->epoch, "-");
    const int n = snprintf(out, 128, "log/%016" PRIx64 "%s-%08" PRIx64, rdzv_epoch_number(h->epoch), epoch, h->seq);
    snprintf(out + n, 128 - (size_t)n,
             part < 0 ? ""
             : part   ? ".%04d"
                      : ".last",
             part); /* which sorts behind all parts */
    return out;
}

static int etcd_claim(struct rdzv_home *base, const struct rdzv_claim *seen, const struct rdzv_claim *own,
                      const struct buf *record, struct err *e)
{
    struct etcd_home *h = (struct etcd_home *)base; /* identity() has begun, and just read the claim */
    struct buf text = {0};
    char name[128];
    cJSON *txn;
    if (!rdzv_claim_is(seen, &h->seen))
        return 0;
    if (h->mod == 0) { /* what a claim that vanished has left is no job */
        TRY(transact(h, 0, "log/", "log0", NULL, 0, NULL, &txn, e));
        cJSON_Delete(txn);
    }
    TRY(keep_lease(h, e));
    memcpy(h->epoch, own->epoch, sizeof h->epoch);
    h->own_mod = h->mod;
    h->n = own->n;
    h->seq = 1;
    int rc = rdzv_claim_encode(own, &text);
    const struct value v[] = {{"claim", h->lease, text.data, text.len},
                              {decision_name(h, 0, name), 0, record->data, record->len}};
    rc = rc < 0 ? err_set(e, rc, "no memory for a claim") : lead(h, own->epoch, NULL, NULL, v, 2, NULL, e);
    buf_free(&text);
    h->seq = 2;
    etcd_rest(base);
    return rc == AGAIN ? 1 : rc; /* it is ours: an answer was lost */
}

static int etcd_renew(struct rdzv_home *base, struct rdzv_claim *own, struct err *e)
{
    struct etcd_home *h = begin(base);
    struct rdzv_claim next = *own;
    struct buf text = {0};
    int rc = AGAIN;
    while (rc == AGAIN) {
        next.n = ++h->n; /* no number comes twice: whoever looks must see each renewal */
        buf_clear(&text);
        rc = rdzv_claim_encode(&next, &text);
        rc = rc < 0
                 ? err_set(e, rc, "no memory for a claim")
                 : lead(h, own->epoch, NULL, NULL, &(struct value){"claim", h->lease, text.data, text.len}, 1, NULL, e);
    }
    buf_free(&text);
    own->n = rc == 1 ? next.n : own->n;
    if (rc == 1 && clock_ms() - h->kept_ms > h->keep_ms / 12)
        keep_lease(h, NULL); /* else with the next one */
    return rc;
}

/* --- the log */

static int etcd_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct etcd_home *h = (struct etcd_home *)base;
    const int parts = w->decision->len ? (int)((w->decision->len - 1) / PART) : 0;
    char name[128], own[128];
    int rc = 1;
    h->request_ms = REQUEST_MS;
    decision_name(h, -1, own);
    for (int i = 0; i <= parts && rc == 1; i++) {
        const bool last = i == parts;
        const char *p = w->decision->data + (size_t)i * PART;
        const size_t n = last ? w->decision->len - (size_t)i * PART : PART;
        h->deadline =
            clock_deadline(min_i64(h->io_ms, 2 * REQUEST_MS + 2 * (int64_t)n / BYTES_PER_MS)); /* renewals wait */
        const struct value v = {decision_name(h, last ? 0 : i + 1, name), last ? 2 * parts + w->whole : -i - 1, p, n};
        do
            rc = lead(h, w->epoch, "log/", last && w->whole ? own : NULL, &v, 1, last ? name : NULL, e);
        while (rc == AGAIN);
    }
    h->seq += rc == 1;
    return rc;
}

struct log_reader {
    struct buf *out, parts; /* parts: that wait for the last one of their decision */
    int64_t count;          /* of them */
    bool lacks;             /* a decision since the newest whole one has not all of its parts */
};

static int take_decision(struct log_reader *r, const cJSON *kv, struct err *e)
{
    const size_t before = r->parts.len;
    int64_t k;
    TRY(take_value(kv, &k, &r->parts, e));
    if (k == -1 || k == 0 || k == 1) { /* what waits is of a decision that never came to stand */
        buf_consume(&r->parts, before);
        r->count = 0;
    }
    r->count += k < 0;
    if (k < 0)
        return 0;
    r->lacks = k / 2 != r->count || (r->lacks && k % 2 == 0);
    if (k % 2 == 1)
        buf_clear(r->out);
    const int rc = buf_add(r->out, r->parts.data, r->parts.len);
    buf_clear(&r->parts);
    r->count = 0;
    return rc < 0 ? err_set(e, rc, "the decision log does not fit in memory") : 0;
}

static int etcd_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    struct etcd_home *h = begin(base);
    struct log_reader r = {.out = ret};
    const cJSON *kv;
    cJSON *tree;
    int rc = 0;
    h->request_ms = h->io_ms / 2; /* the answer may be long */
    start(h);
    PUT(h, "{\"key\":\"%s\",\"range_end\":\"%s\"}", KEY(h, "log/"), KEY(h, "log0"));
    TRY(call(h, "kv/range", &tree, e));
    cJSON_ArrayForEach(kv, in(tree, "kvs")) rc = rc ? rc : take_decision(&r, kv, e);
    cJSON_Delete(tree);
    buf_free(&r.parts);
    return rc == 0 && r.lacks ? err_set(e, ERR_CORRUPT, "a decision in etcd lacks a part") : rc;
}

static void etcd_forget(struct rdzv_home *base) /* unless somebody else has claimed */
{
    struct etcd_home *h = begin(base);
    cJSON *tree = NULL;
    if (!h->epoch[0] || transact(h, h->own_mod, "", "~", NULL, 0, NULL, &tree, NULL) < 0)
        return;
    const bool gone = cJSON_IsTrue(in(tree, "succeeded"));
    cJSON_Delete(tree);
    start(h);
    PUT(h, "{\"ID\":\"%" PRId64 "\"}", h->lease);
    if (gone && call(h, "lease/revoke", &tree, NULL) == 0)
        cJSON_Delete(tree);
}

/* --- the handle */

static void etcd_close(struct rdzv_home *base)
{
    struct etcd_home *h = (struct etcd_home *)base;
    if (!h)
        return;
    http_client_close(h->http);
    for (int i = 0; i < h->host_count; i++)
        free(h->hosts[i]);
    free(h->dir);
    buf_free(&h->out);
    buf_free(&h->in);
    rdzv_home_finish_(base);
    explicit_bzero(h, sizeof *h); /* password, token */
    free(h);
}

static const struct rdzv_home_ops etcd_ops = {
    .name = "etcd",
    .identity = etcd_identity,
    .load = etcd_load,
    .append = etcd_append,
    .forget = etcd_forget,
    .close = etcd_close,
    .look = etcd_look,
    .claim = etcd_claim,
    .renew = etcd_renew,
    .rest = etcd_rest,
    .valid_ms = CLAIM_MS,
};

static int take_host(struct etcd_home *h, const char *scheme, const char *p, size_t n, struct err *e)
{
    struct host_port to;
    if (!addr_split(p, n, &to) || to.bare_v6 || to.host_len > 255 || (to.port && addr_port(to.port, to.port_len) < 0))
        return err_set(e, -EINVAL, "'%.*s': expected HOST, HOST:PORT or [IPv6]:PORT", (int)min_i64((int64_t)n, 200), p);
    const bool v6 = memchr(to.host, ':', to.host_len);
    if (h->host_count == HOSTS_MAX ||
        asprintf(&h->hosts[h->host_count], "%s://%s%.*s%s:%.*s", scheme, v6 ? "[" : "", (int)to.host_len, to.host,
                 v6 ? "]" : "", to.port ? (int)to.port_len : 4, to.port ? to.port : "2379") < 0)
        return err_set(e, -EINVAL, "more than %d members", HOSTS_MAX);
    h->host_count++;
    return 0;
}

/* "etcd[s]://HOST[:PORT],...[/PREFIX]" */
static int take_url(struct etcd_home *h, const char *url, const char *run_id, struct err *e)
{
    const char *p = strstr(url, "://") + 3, *path = p + strcspn(p, "/");
    const size_t n = strcspn(path + (*path == '/'), "/");
    char run[RDZV_ID_MAX * 3 + 1];
    if (memchr(p, '@', (size_t)(path - p)))
        return err_set(e, -EINVAL,
                       "a user in the URL, which all on this machine can read: expected USER:PASSWORD in the file that "
                       "CRUN_ETCD_USER_FILE names");
    for (size_t len; p <= path; p += len + 1) {
        len = strcspn(p, ",/");
        TRY(take_host(h, url[4] == 's' ? "https" : "http", p, len, e));
    }
    if (n > 128 || (*path && path[1 + n]))
        return err_set(e, -EINVAL, "'%.200s': expected one word of at most 128 characters as prefix of the keys", path);
    framed_file_escape(run_id, run, sizeof run);
    return asprintf(&h->dir, "%.*s/%s/", n ? (int)n : 4, n ? path + 1 : "crun", run) < 0
               ? err_set(e, -ENOMEM, "no memory for a rendezvous")
               : 0;
}

/* "USER:PASSWORD", the first line of a file */
static int take_user(struct etcd_home *h, struct err *e)
{
    const char *path = getenv("CRUN_ETCD_USER_FILE");
    char line[300] = "";
    if (!path || !*path)
        return 0;
    const int rc = file_read_line(line, sizeof line, "%s", path);
    if (rc < 0)
        return err_errno(e, -rc, "CRUN_ETCD_USER_FILE '%.200s'", path);
    const size_t n = strcspn(line, ":");
    if (!line[n] || strpbrk(line, "\"\\"))
        return err_set(e, -EINVAL, "CRUN_ETCD_USER_FILE '%.200s': expected USER:PASSWORD, without \" and \\", path);
    snprintf(h->login, sizeof h->login, "{\"name\":\"%.*s\",\"password\":\"%s\"}", (int)n, line, line + n + 1);
    explicit_bzero(line, sizeof line);
    return 0;
}

int rdzv_log_etcd_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e)
{
    struct etcd_home *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for a rendezvous");
    h->io_ms = o->io_timeout_ms;
    h->keep_ms = o->keep_ms;
    int rc = rdzv_home_init_(&h->base, &etcd_ops, e);
    rc = rc ? rc : take_url(h, url, o->run_id, e);
    rc = rc ? rc : take_user(h, e);
    const struct http_client_options http = {getenv("CRUN_ETCD_CA"), getenv("CRUN_ETCD_CERT"), getenv("CRUN_ETCD_KEY"),
                                             h->base.cancel_fd};
    rc = rc ? rc : http_client_open(&h->http, &http, e);
    if (rc < 0) {
        etcd_close(&h->base);
        return rc;
    }
    *ret = &h->base;
    return 0;
}
