/* A job's home in an etcd (3.4 or newer), by the JSON gateway of its v3 API.
 *
 *   PREFIX/RUN/claim             who leads: "LEASE\n" and the claim (rdzv_claim.h)
 *   PREFIX/RUN/log/EPOCH-N.last  a decision: "K\n" and its text; K: 2 * its other parts, and 1 more if it is whole.
 *                                The first of a term is the claim's record
 *   PREFIX/RUN/log/EPOCH-N.0001  what does not fit into that value: "-1\n" and a part, which counts once that stands
 *
 * Whatever is written is one transaction that compares the claim's mod revision, which each renewal changes: a request
 * that comes late or twice does nothing, but for a decision that comes back just after a whole one has removed it: who
 * loads passes over all that stands before a whole one. A request is given ETCD_REQUEST_MS, and is then made again at
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
#include "common/base/numbers.h"
#include "common/http/http_client.h"
#include "common/rdzv/homes/etcd_api.h"
#include "common/rdzv/homes/rdzv_log_home.h"

#ifndef ETCD_PART               /* in the simulator decisions are small, and parts too */
#define ETCD_PART (1000 * 1024) /* bytes of one value: etcd takes requests of 1.5 MiB */
#endif

enum {
    KEY_MAX = 1100,    /* characters of base64 */
    CONFIRM_MS = 1000, /* what is watched is read */
    ANEW_MS = 250,     /* so is what cannot be watched */
    PART = ETCD_PART,
    CLAIM_MS = 3000, /* a claim's D: an etcd that loses its leader takes no write for 1 to 3 s */
    AWAY_MS = 20000, /* an etcd that is started again, one that lost its majority for a while */
    AGAIN = 2,
};

struct etcd_home {
    struct rdzv_home base;
    struct etcd_api api;
    int64_t io_ms, keep_ms;
    char identity[RDZV_IDENTITY_MAX + 1];
    struct rdzv_claim seen; /* as last read or watched */
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
    h->api.deadline = clock_deadline(h->io_ms);
    h->api.request_ms = ETCD_REQUEST_MS;
    return h;
}

/* --- transactions */

#define KEY(h, name) key_of((h), (name), (char[KEY_MAX]){0})

static const char *key_of(const struct etcd_home *h, const char *name, char out[KEY_MAX])
{
    char key[KEY_MAX / 4 * 3];
    const int n = snprintf(key, sizeof key, "%s%s", h->api.dir, name);
    *base64_write(out, key, (size_t)n) = 0;
    return out;
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
    ETCD_PUT(&h->api, "{\"request_put\":{\"key\":\"%s\",\"lease\":\"%" PRId64 "\",\"value\":\"", KEY(h, v->name),
             h->lease);
    if (h->api.rc == 0 && (h->api.rc = buf_printf(&b, "%" PRId64 "\n", v->number)) == 0 &&
        (h->api.rc = buf_add(&b, v->text, v->n)) == 0 && (h->api.rc = buf_reserve(&h->api.out, b.len / 3 * 4 + 8)) == 0)
        h->api.out.len = (size_t)(base64_write(h->api.out.data + h->api.out.len, b.data, b.len) - h->api.out.data);
    ETCD_PUT(&h->api, "\"}}");
    buf_free(&b);
}

/* If the claim's mod revision is `mod`: delete the keys from..to (to NULL: none), and write count values; *once (NULL:
 * none) must not stand yet. If not: read the claim and *once. */
static int transact(struct etcd_home *h, uint64_t mod, const char *from, const char *to, const struct value *v,
                    int count, const char *once, cJSON **ret, struct err *e)
{
    const char *claim = KEY(h, "claim"), *stands = once ? KEY(h, once) : NULL;
    etcd_api_start(&h->api);
    ETCD_PUT(&h->api, "{\"compare\":[{\"target\":\"MOD\",\"key\":\"%s\",\"mod_revision\":\"%" PRIu64 "\"}", claim, mod);
    if (once)
        ETCD_PUT(&h->api, ",{\"target\":\"CREATE\",\"key\":\"%s\",\"create_revision\":\"0\"}", stands);
    ETCD_PUT(&h->api, "],\"success\":[");
    if (to)
        ETCD_PUT(&h->api, "{\"request_delete_range\":{\"key\":\"%s\",\"range_end\":\"%s\"}}%s", KEY(h, from),
                 KEY(h, to), count ? "," : "");
    for (int i = 0; i < count; i++) {
        ETCD_PUT(&h->api, "%s", i ? "," : "");
        put_value(h, &v[i]);
    }
    ETCD_PUT(&h->api, "],\"failure\":[{\"request_range\":{\"key\":\"%s\"}}", claim);
    if (once)
        ETCD_PUT(&h->api, ",{\"request_range\":{\"keys_only\":true,\"key\":\"%s\"}}", stands);
    ETCD_PUT(&h->api, "]}");
    return etcd_api_call(&h->api, "kv/txn", ret, e);
}

/* The first key that request i of a transaction found; NULL: none. */
static const cJSON *found(const cJSON *txn, int i)
{
    return cJSON_GetArrayItem(
        etcd_api_in(etcd_api_in(cJSON_GetArrayItem(etcd_api_in(txn, "responses"), i), "response_range"), "kvs"), 0);
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
    h->mod = kv ? (uint64_t)etcd_api_number(kv, "mod_revision") : 0;
    h->lease = 0;
    if (kv && (rc = take_value(kv, &h->lease, &text, e)) == 0)
        rc = rdzv_claim_decode(text.data, text.len, &h->seen, e);
    buf_free(&text);
    return rc;
}

static int read_claim(struct etcd_home *h, struct err *e)
{
    cJSON *tree;
    etcd_api_start(&h->api);
    ETCD_PUT(&h->api, "{\"key\":\"%s\"}", KEY(h, "claim"));
    TRY(etcd_api_call(&h->api, "kv/range", &tree, e));
    h->read_ms = clock_ms();
    h->revision = (uint64_t)etcd_api_number(etcd_api_in(tree, "header"), "revision");
    const int rc = take_claim(h, cJSON_GetArrayItem(etcd_api_in(tree, "kvs"), 0), e);
    cJSON_Delete(tree);
    return rc;
}

static int watch(struct etcd_home *h, struct err *e)
{
    etcd_api_start(&h->api);
    ETCD_PUT(&h->api, "{\"create_request\":{\"key\":\"%s\",\"start_revision\":\"%" PRIu64 "\"}}", KEY(h, "claim"),
             h->revision + 1);
    const int rc = etcd_api_watch(&h->api, e);
    h->watched = rc == 0;
    return rc;
}

/* One line of the watch. Negative: the watch has ended (compacted, cancelled). */
static int take_news(struct etcd_home *h, const struct buf *line)
{
    const cJSON *event;
    cJSON *tree;
    TRY(json_read_text(line, "watch", &tree, NULL));
    const cJSON *result = etcd_api_in(tree, "result");
    int rc = result && !cJSON_IsTrue(etcd_api_in(result, "canceled")) ? 0 : -EPIPE;
    cJSON_ArrayForEach(event, etcd_api_in(result, "events"))
    {
        const cJSON *kv = etcd_api_in(event, "kv");
        const uint64_t revision = (uint64_t)etcd_api_number(kv, "mod_revision");
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
    for (int rc = 1; h->watched && !h->api.moved && rc != 0;) {
        rc = http_client_line(h->api.http, &line);
        h->watched = rc == 0 || (rc == 1 && take_news(h, &line) == 0);
    }
    buf_free(&line);
    h->watched = h->watched && !h->api.moved;
    if (clock_ms() - h->read_ms >= (h->watched ? CONFIRM_MS : ANEW_MS)) {
        const bool first = !h->read_ms;
        TRY(read_claim(h, e));
        if (!first && (!h->watched || h->api.moved))
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
    http_client_stream_end(h->api.http);
}

static int etcd_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    struct etcd_home *h = begin(base);
    TRY(read_claim(h, e));
    memcpy(h->identity, h->api.answered, sizeof h->identity);
    memcpy(ret, h->identity, sizeof h->identity);
    return 0;
}

/* h->lease lives for another keep_ms; where it has ended, with all its keys, or there is none: a new one. */
static int keep_lease(struct etcd_home *h, struct err *e)
{
    cJSON *tree;
    etcd_api_start(&h->api);
    ETCD_PUT(&h->api, "{\"ID\":\"%" PRId64 "\"}", h->lease);
    if (h->lease) {
        TRY(etcd_api_call(&h->api, "lease/keepalive", &tree, e));
        h->lease = etcd_api_number(etcd_api_in(tree, "result"), "TTL") > 0 ? h->lease : 0;
        cJSON_Delete(tree);
    }
    if (!h->lease) {
        etcd_api_start(&h->api);
        ETCD_PUT(&h->api, "{\"TTL\":\"%" PRId64 "\"}", (h->keep_ms + 999) / 1000);
        TRY(etcd_api_call(&h->api, "lease/grant", &tree, e));
        h->lease = etcd_api_number(tree, "ID");
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
    rc = cJSON_IsTrue(etcd_api_in(txn, "succeeded"));
    const bool stands = once && found(txn, 1);
    if (rc == 1 && strcmp(v->name, "claim") == 0)
        h->own_mod = (uint64_t)etcd_api_number(etcd_api_in(txn, "header"), "revision");
    else if (rc == 0 && (rc = take_claim(h, found(txn, 0), e)) == 0 && strcmp(h->seen.epoch, epoch) == 0 &&
             !h->seen.released) {
        h->own_mod = h->mod;
        h->n = (uint64_t)max_i64((int64_t)h->n, (int64_t)h->seen.n);
        h->lease = lease;
        rc = stands ? 1 : AGAIN;
    }
    cJSON_Delete(txn);
    return rc < 0 || strcmp(h->identity, h->api.answered) == 0 ? rc : 0;
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
    h->api.request_ms = ETCD_REQUEST_MS;
    decision_name(h, -1, own);
    for (int i = 0; i <= parts && rc == 1; i++) {
        const bool last = i == parts;
        const char *p = w->decision->data + (size_t)i * PART;
        const size_t n = last ? w->decision->len - (size_t)i * PART : PART;
        h->api.deadline = clock_deadline(
            min_i64(h->io_ms, 2 * ETCD_REQUEST_MS + 2 * (int64_t)n / ETCD_BYTES_PER_MS)); /* renewals wait */
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
    h->api.request_ms = h->io_ms / 2; /* the answer may be long */
    etcd_api_start(&h->api);
    ETCD_PUT(&h->api, "{\"key\":\"%s\",\"range_end\":\"%s\"}", KEY(h, "log/"), KEY(h, "log0"));
    TRY(etcd_api_call(&h->api, "kv/range", &tree, e));
    cJSON_ArrayForEach(kv, etcd_api_in(tree, "kvs")) rc = rc ? rc : take_decision(&r, kv, e);
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
    const bool gone = cJSON_IsTrue(etcd_api_in(tree, "succeeded"));
    cJSON_Delete(tree);
    etcd_api_start(&h->api);
    ETCD_PUT(&h->api, "{\"ID\":\"%" PRId64 "\"}", h->lease);
    if (gone && etcd_api_call(&h->api, "lease/revoke", &tree, NULL) == 0)
        cJSON_Delete(tree);
}

/* --- the handle */

static void etcd_close(struct rdzv_home *base)
{
    struct etcd_home *h = (struct etcd_home *)base;
    if (!h)
        return;
    etcd_api_close(&h->api);
    rdzv_home_finish_(base);
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
    .away_ms = AWAY_MS,
};

int rdzv_log_etcd_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e)
{
    struct etcd_home *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for a rendezvous");
    h->io_ms = o->io_timeout_ms;
    h->keep_ms = o->keep_ms;
    int rc = rdzv_home_init_(&h->base, &etcd_ops, e);
    rc = rc ? rc : etcd_api_open(&h->api, url, o->run_id, h->base.cancel_fd, e);
    if (rc < 0) {
        etcd_close(&h->base);
        return rc;
    }
    *ret = &h->base;
    return 0;
}
