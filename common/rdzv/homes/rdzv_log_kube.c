/* A job's home in the API of a Kubernetes: one Lease (coordination.k8s.io/v1), whose annotations are
 *
 *   crun/claim   who leads (rdzv_claim.h)
 *   crun/log     decisions, up to LOG_MAX bytes; crun/seq: how many of its leader's are in it and before it
 *   crun/older   what they follow: names of ConfigMaps, which are never changed, and hold TEXT_MAX bytes each
 *
 * Claim, renewal and decision are each one PUT of the Lease by its resourceVersion: one that comes late or twice is a
 * conflict. After a conflict, or without an answer, the Lease is read: its epoch, seq and n tell what happened. A
 * decision for which the log has no room has all text since the newest whole one put into new ConfigMaps first; those
 * that no Lease names any more go afterwards. Nodes that look for a leader watch the Lease, and read it every
 * CONFIRM_MS. With an owner (CRUN_K8S_OWNER) all of it goes when that goes; else, after an hour, with the next job. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/numbers.h"
#include "common/http/http_client.h"
#include "common/rdzv/homes/kube_api.h"
#include "common/rdzv/homes/rdzv_log_home.h"

#ifndef KUBE_LOG /* in the simulator all is small */
#define KUBE_LOG 8192
#define KUBE_TEXT (512 * 1024)
#endif

enum {
    LOG_MAX = KUBE_LOG,
    TEXT_MAX = KUBE_TEXT,
    CONFIRM_MS = 1500, /* what is watched is read */
    ANEW_MS = 250,     /* so is what cannot be watched */
    CLAIM_MS = 3000,   /* a claim's D */
    OLD_S = 3600,
    STILL_MS = 10000,
    TRIES = 5,       /* to have a Lease anew */
    AWAY_MS = 20000, /* an API server that is started again */
};

struct lease {        /* as last read, watched or put */
    char version[64]; /* "": there is none */
    struct rdzv_claim claim;
    char *log, *older; /* "": none */
    uint64_t seq;
};

struct kube_home {
    struct rdzv_home base;
    struct kube_api api;
    char run[RDZV_ID_MAX + 1];
    int64_t io_ms, read_ms, old_ms; /* old_ms: when `old` was noted */
    struct lease now;
    bool watched;
    char epoch[RDZV_EPOCH_MAX + 1]; /* our term; "": none */
    uint64_t n, seq;                /* renewals tried; number of the next decision */
    size_t record;                  /* bytes of our claim's record, with which the log ends then */
    struct buf text;                /* of our term: all since the newest whole decision */
    struct buf old;                 /* Leases to be deleted: "NAME VERSION" lines */
};

static struct kube_home *begin(struct rdzv_home *base)
{
    struct kube_home *h = (struct kube_home *)base;
    h->api.deadline = clock_deadline(h->io_ms);
    return h;
}

/* --- the Lease */

static void forget_lease(struct lease *l)
{
    free(l->log);
    free(l->older);
    *l = (struct lease){0};
}

static int take_lease(struct kube_home *h, const cJSON *object, struct err *e)
{
    const cJSON *meta = kube_api_in(object, "metadata"), *notes = kube_api_in(meta, "annotations");
    const char *claim = json_str_or(notes, "crun/claim", ""), *run = json_str_or(notes, "crun/run", h->run);
    struct lease l = {.seq = strtoull(json_str_or(notes, "crun/seq", "0"), NULL, 10)};
    snprintf(l.version, sizeof l.version, "%s", json_str_or(meta, "resourceVersion", ""));
    if (strcmp(run, h->run) != 0)
        return err_set(e, ERR_REFUSED,
                       "the Lease '%s' is that of job '%.100s', not of '%s': expected another name in k8s://",
                       h->api.name, run, h->run);
    if (*claim)
        TRY(rdzv_claim_decode(claim, strlen(claim), &l.claim, e));
    l.log = strdup(json_str_or(notes, "crun/log", ""));
    l.older = strdup(json_str_or(notes, "crun/older", ""));
    forget_lease(&h->now);
    h->now = l;
    return l.log && l.older ? 0 : err_set(e, -ENOMEM, "no memory for a rendezvous");
}

static int read_lease(struct kube_home *h, struct err *e)
{
    char path[KUBE_PATH_MAX];
    cJSON *tree = NULL;
    int rc;
    TRY(rc = kube_api_call(&h->api, "GET", kube_api_lease(&h->api, true, path), false, &tree, e));
    h->read_ms = clock_ms();
    if (rc == 404)
        forget_lease(&h->now);
    rc = rc == 404 ? 0 : rc == 409 ? -EPROTO : take_lease(h, tree, e);
    cJSON_Delete(tree);
    return rc;
}

/* Put the Lease as it is to be, in place of exactly h->now. 1; 0: it was another one, or the answer is not known:
 * h->now is how it stands. */
static int put_lease(struct kube_home *h, const struct rdzv_claim *claim, const char *log, const char *older,
                     uint64_t seq, struct err *e)
{
    char path[KUBE_PATH_MAX], number[24], now[KUBE_TIME_MAX];
    struct buf line = {0};
    cJSON *tree = NULL;
    struct json_write w = kube_api_object(&h->api, "coordination.k8s.io/v1", "Lease", h->api.name);
    const bool make = !h->now.version[0];
    if (!make)
        json_text(&w, "resourceVersion", h->now.version);
    w.rc = w.rc ? w.rc : rdzv_claim_encode(claim, &line);
    snprintf(number, sizeof number, "%" PRIu64, seq);
    json_begin(&w, "annotations", '{');
    json_text(&w, "crun/run", h->run);
    json_text(&w, "crun/claim", line.data ? line.data : "");
    json_text(&w, "crun/seq", number);
    json_text(&w, "crun/log", log);
    json_text(&w, "crun/older", older);
    json_end(&w, '}');
    json_end(&w, '}');
    json_begin(&w, "spec", '{');
    json_text(&w, "holderIdentity", claim->node);
    json_text(&w, "renewTime", kube_api_time(now, 0));
    json_end(&w, '}');
    json_end(&w, '}');
    buf_free(&line);
    if (w.rc < 0)
        return err_set(e, w.rc, "no memory for a request");
    int rc = kube_api_call(&h->api, make ? "POST" : "PUT", kube_api_lease(&h->api, !make, path), true, &tree, e);
    if (rc == 404 && make)
        return err_set(e, ERR_REFUSED, "the Kubernetes API knows no namespace '%s'", h->api.space);
    if (rc == 404 || rc == 409 || rc == -ETIMEDOUT)
        return read_lease(h, e);
    if (rc > 0)
        rc = take_lease(h, tree, e) < 0 ? -EPROTO : 1;
    cJSON_Delete(tree);
    return rc;
}

/* --- what is not needed any more */

/* Delete the ConfigMaps of a list, "a,b", but those that `but` names. */
static void drop_maps(struct kube_home *h, const char *list, const char *but)
{
    char path[KUBE_PATH_MAX];
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',') {
        const size_t n = strcspn(p, ",");
        const char *named = strstr(but, p);
        if (!named || named[n] != p[n])
            kube_api_call(&h->api, "DELETE", kube_api_map(&h->api, p, n, path), false, NULL, NULL);
    }
}

/* Delete the ConfigMaps of a Lease that a leader has left which was gone before it named them, or deleted them. Of
 * older terms alone: another node may lead by now, whose Lease names what is not seen here. all: whatever there is. */
static void sweep(struct kube_home *h, const char *lease, bool all)
{
    cJSON *tree = kube_api_list(&h->api, false, "crun%2Flease", lease);
    const cJSON *item;
    cJSON_ArrayForEach(item, kube_api_in(tree, "items"))
    {
        const char *name = json_str_or(kube_api_in(item, "metadata"), "name", "");
        const size_t n = strlen(lease) + 1; /* its epoch stands behind "LEASE-" */
        if (all || (strlen(name) > n && rdzv_epoch_number(name + n) < rdzv_epoch_number(h->epoch)))
            drop_maps(h, name, all ? "" : h->now.older);
    }
    cJSON_Delete(tree);
}

/* --- what jobs have left whose pods were all killed, and which had no owner */

static void note_old(struct kube_home *h)
{
    char hour_ago[KUBE_TIME_MAX];
    const cJSON *item;
    const char *owner = getenv("CRUN_K8S_OWNER");
    buf_clear(&h->old);
    if (owner && *owner)
        return;
    cJSON *tree = kube_api_list(&h->api, true, "app.kubernetes.io%2Fmanaged-by", "crun");
    kube_api_time(hour_ago, -OLD_S);
    cJSON_ArrayForEach(item, kube_api_in(tree, "items"))
    {
        const cJSON *meta = kube_api_in(item, "metadata");
        const char *renewed = json_str_or(kube_api_in(item, "spec"), "renewTime", "9");
        if (!kube_api_in(meta, "ownerReferences") && strcmp(renewed, hour_ago) < 0)
            buf_printf(&h->old, "%s %s\n", json_str_or(meta, "name", "?"), json_str_or(meta, "resourceVersion", "?"));
    }
    cJSON_Delete(tree);
    h->old_ms = clock_ms();
}

/* One of them. Clocks differ, but who leads renews each second: it must not have changed since it was noted. */
static void drop_old(struct kube_home *h)
{
    char name[256], version[64];
    if (h->old.len == 0 || clock_ms() - h->old_ms < STILL_MS)
        return;
    const int n = sscanf(h->old.data, "%255s %63s", name, version);
    buf_consume(&h->old, strcspn(h->old.data, "\n") + 1);
    if (n == 2 && kube_api_delete(&h->api, name, version) == 200)
        sweep(h, name, true);
}

/* --- the claim */

/* One line of the watch. Negative: it has ended; also by an ERROR, code 410, in the midst of it. */
static int take_news(struct kube_home *h, const struct buf *line)
{
    cJSON *tree;
    TRY(json_read_text(line, "watch", &tree, NULL));
    const char *type = json_str_or(tree, "type", "ERROR");
    int rc = strcmp(type, "ERROR") == 0 ? -EPIPE : 0;
    if (strcmp(type, "DELETED") == 0)
        forget_lease(&h->now);
    else if (strcmp(type, "MODIFIED") == 0 || strcmp(type, "ADDED") == 0)
        rc = take_lease(h, kube_api_in(tree, "object"), NULL);
    cJSON_Delete(tree);
    return rc;
}

static int kube_look(struct rdzv_home *base, struct rdzv_claim *ret, struct err *e)
{
    struct kube_home *h = begin(base);
    struct buf line = {0};
    for (int rc = 1; h->watched && rc != 0;) {
        rc = http_client_line(h->api.http, &line);
        h->watched = rc == 0 || (rc == 1 && take_news(h, &line) == 0);
        if (rc == -403)
            return kube_api_cannot_watch(&h->api, e);
    }
    buf_free(&line);
    if (clock_ms() - h->read_ms >= (h->watched ? CONFIRM_MS : ANEW_MS)) {
        char before[sizeof h->now.version];
        const bool first = !h->read_ms;
        memcpy(before, h->now.version, sizeof before);
        TRY(read_lease(h, e));
        /* not the first time: mostly a leader is dialled then; where it lags, what it still has to tell is older */
        if (!first && (!h->watched || strcmp(before, h->now.version) != 0)) {
            TRY(kube_api_watch(&h->api, h->now.version, e));
            h->watched = true;
        }
    }
    *ret = h->now.claim;
    return h->now.claim.epoch[0] != 0;
}

static void kube_rest(struct rdzv_home *base)
{
    struct kube_home *h = (struct kube_home *)base;
    h->watched = false;
    h->read_ms = 0;
    http_client_stream_end(h->api.http);
}

static int kube_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    (void)e;
    begin(base);
    snprintf(ret, RDZV_IDENTITY_MAX + 1, "kubernetes"); /* linearizable: a Lease that was removed is another one */
    return 0;
}

/* A Lease that lacks decisions of ours was deleted, and came back by a request that was late. */
static bool is_ours(const struct kube_home *h, const char *epoch)
{
    return strcmp(h->epoch, epoch) == 0 && strcmp(h->now.claim.epoch, epoch) == 0 && !h->now.claim.released &&
           h->now.seq + 1 >= h->seq;
}

static int kube_claim(struct rdzv_home *base, const struct rdzv_claim *seen, const struct rdzv_claim *own,
                      const struct buf *record, struct err *e)
{
    struct kube_home *h = (struct kube_home *)base;
    if (!rdzv_claim_is(seen, &h->now.claim))
        return 0;
    memcpy(h->epoch, own->epoch, sizeof h->epoch);
    h->n = own->n;
    h->seq = 2;
    h->record = record->len;
    buf_clear(&h->text);
    /* A log without a claim is no job. Behind that of a job the record has room, whatever the length: the next decision
     * has it moved. */
    const bool fresh = !h->now.claim.epoch[0];
    struct buf log = {0};
    int rc = buf_addstr(&log, fresh || !h->now.log ? "" : h->now.log);
    rc = rc ? rc : buf_add(&log, record->data, record->len);
    char *older = strdup(fresh || !h->now.older ? "" : h->now.older);
    rc = rc < 0 || !older ? err_set(e, -ENOMEM, "no memory for a claim") : put_lease(h, own, log.data, older, 1, e);
    buf_free(&log);
    free(older);
    kube_rest(base);
    return rc == 0 ? is_ours(h, own->epoch) : rc; /* ours: an answer was lost */
}

static int kube_renew(struct rdzv_home *base, struct rdzv_claim *own, struct err *e)
{
    struct kube_home *h = begin(base);
    struct rdzv_claim next = *own;
    int rc = 0;
    while (rc == 0 && is_ours(h, own->epoch)) {
        h->n = (uint64_t)max_i64((int64_t)h->n, (int64_t)h->now.claim.n);
        next.n = ++h->n; /* no number comes twice: whoever looks must see each renewal */
        char *log = strdup(h->now.log), *older = strdup(h->now.older);
        rc = log && older ? put_lease(h, &next, log, older, h->now.seq, e) : err_set(e, -ENOMEM, "no memory");
        free(log);
        free(older);
    }
    own->n = rc == 1 ? next.n : own->n;
    if (rc == 1)
        drop_old(h);
    return rc;
}

/* --- the log */

/* h->text, in new ConfigMaps. *ret: their names. */
static int put_maps(struct kube_home *h, struct buf *ret, struct err *e)
{
    char name[200], path[KUBE_PATH_MAX];
    for (size_t at = 0; at < h->text.len; at += TEXT_MAX) {
        const size_t n = h->text.len - at < TEXT_MAX ? h->text.len - at : TEXT_MAX;
        char *part = strndup(h->text.data + at, n);
        snprintf(name, sizeof name, "%s-%s-%" PRIu64 "-%zu", h->api.name, h->epoch, h->seq, at / TEXT_MAX);
        struct json_write w = kube_api_object(&h->api, "v1", "ConfigMap", name);
        json_end(&w, '}');
        json_bool(&w, "immutable", true);
        json_begin(&w, "data", '{');
        json_text(&w, "text", part ? part : "");
        json_end(&w, '}');
        json_end(&w, '}');
        free(part);
        int rc = w.rc < 0 || !part ? err_set(e, -ENOMEM, "no memory for a request") : 0;
        while (rc == 0 &&
               (rc = kube_api_call(&h->api, "POST", kube_api_map(&h->api, "", 0, path), true, NULL, e)) == -ETIMEDOUT &&
               clock_left(h->api.deadline) > 0)
            rc = 0; /* if it is there: a conflict, of the same text */
        if (rc < 0 || rc == 404)
            return rc == 404 ? err_set(e, -EAGAIN, "the Kubernetes API knows no namespace '%s'", h->api.space) : rc;
        if (buf_printf(ret, "%s%s", at ? "," : "", name) < 0)
            return err_set(e, -ENOMEM, "no memory for a rendezvous");
    }
    return 0;
}

static int kube_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct kube_home *h = begin(base);
    const char *d = w->decision->data;
    const size_t n = w->decision->len, before = h->text.len;
    int rc = w->whole ? 0 : buf_reserve(&h->text, n);
    rc = rc ? rc : buf_add(&h->text, d, n);
    while (rc == 0 && is_ours(h, w->epoch)) {
        if (h->now.seq >= h->seq) { /* an answer was lost */
            rc = 1;
            break;
        }
        struct buf log = {0}, older = {0};
        char *former = strdup(h->now.older);
        const bool fits = (w->whole ? 0 : strlen(h->now.log)) + n <= LOG_MAX;
        const struct buf all = h->text;
        if (w->whole) /* what comes to stand is this alone */
            h->text = (struct buf){.data = all.data + before, .len = n};
        rc = !former ? -ENOMEM
             : fits  ? buf_printf(&log, "%s%.*s", w->whole ? "" : h->now.log, (int)n, d)
                     : put_maps(h, &older, e);
        if (rc == 0 && fits && !w->whole)
            rc = buf_addstr(&older, former);
        h->text = all;
        rc = rc ? rc : put_lease(h, &h->now.claim, log.data ? log.data : "", older.data ? older.data : "", h->seq, e);
        if (rc == 1)
            drop_maps(h, former, h->now.older);
        free(former);
        buf_free(&log);
        buf_free(&older);
    }
    if (rc == 1 && w->whole)
        buf_consume(&h->text, before);
    else if (rc != 1 && h->text.len > before)
        h->text.len = before;
    h->seq += rc == 1;
    return rc == -ENOMEM || rc == -E2BIG ? err_set(e, rc, "no memory for a decision") : rc;
}

/* What the ConfigMaps of the Lease hold. -ESTALE: one of them is gone. */
static int read_maps(struct kube_home *h, struct err *e)
{
    char path[KUBE_PATH_MAX];
    buf_clear(&h->text);
    for (const char *p = h->now.older ? h->now.older : ""; *p; p += strcspn(p, ","), p += *p == ',') {
        const int n = (int)strcspn(p, ",");
        cJSON *tree = NULL;
        int rc = kube_api_call(&h->api, "GET", kube_api_map(&h->api, p, (size_t)n, path), false, &tree, e);
        if (rc == 404)
            return err_set(e, -ESTALE,
                           "the ConfigMap '%.*s', which the Lease '%s' names, is gone (did somebody delete it?): the "
                           "job begins anew, with what its nodes know",
                           n, p, h->api.name);
        rc = rc < 0 ? rc : buf_addstr(&h->text, json_str_or(kube_api_in(tree, "data"), "text", ""));
        cJSON_Delete(tree);
        TRY(rc);
    }
    return 0;
}

/* A log without its beginning is of no use: have the Lease as if it had been new when we claimed it. */
static int begin_anew(struct kube_home *h, struct err *e)
{
    char *record = strdup(h->now.log + max_i64((int64_t)strlen(h->now.log) - (int64_t)h->record, 0));
    int rc = record ? 0 : -ENOMEM;
    for (int i = 0; i < TRIES && rc == 0 && is_ours(h, h->epoch) && h->now.older[0]; i++)
        rc = put_lease(h, &h->now.claim, record, "", h->now.seq, NULL);
    free(record);
    buf_clear(&h->text);
    rc = rc < 0 || (is_ours(h, h->epoch) && !h->now.older[0]) ? rc : -EAGAIN;
    return rc < 0 ? err_set(e, rc, "the Lease '%s' cannot be begun anew now", h->api.name) : 0;
}

static int kube_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    struct kube_home *h = begin(base);
    TRY(read_lease(h, e));
    const int rc = read_maps(h, e);
    TRY(rc == -ESTALE ? begin_anew(h, e) : rc); /* it succeeds, and *e tells of it */
    if (buf_addstr(&h->text, h->now.log ? h->now.log : "") < 0 || buf_add(ret, h->text.data, h->text.len) < 0)
        return err_set(e, -ENOMEM, "the decision log does not fit in memory");
    if (is_ours(h, h->epoch)) {
        sweep(h, h->api.name, false);
        note_old(h);
    }
    return 0;
}

static void kube_forget(struct rdzv_home *base) /* unless somebody else has claimed */
{
    struct kube_home *h = begin(base);
    if (h->epoch[0] && strcmp(h->now.claim.epoch, h->epoch) == 0 &&
        kube_api_delete(&h->api, h->api.name, h->now.version) == 200)
        drop_maps(h, h->now.older, "");
}

/* --- the handle */

static void kube_close(struct rdzv_home *base)
{
    struct kube_home *h = (struct kube_home *)base;
    if (!h)
        return;
    kube_api_close(&h->api);
    forget_lease(&h->now);
    buf_free(&h->text);
    buf_free(&h->old);
    rdzv_home_finish_(base);
    free(h);
}

static const struct rdzv_home_ops kube_ops = {
    .name = "kubernetes",
    .identity = kube_identity,
    .load = kube_load,
    .append = kube_append,
    .forget = kube_forget,
    .close = kube_close,
    .look = kube_look,
    .claim = kube_claim,
    .renew = kube_renew,
    .rest = kube_rest,
    .valid_ms = CLAIM_MS,
    .away_ms = AWAY_MS,
};

int rdzv_log_kube_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e)
{
    struct kube_home *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for a rendezvous");
    h->io_ms = o->io_timeout_ms;
    snprintf(h->run, sizeof h->run, "%s", o->run_id);
    int rc = rdzv_home_init_(&h->base, &kube_ops, e);
    rc = rc ? rc : kube_api_open(&h->api, url, h->base.cancel_fd, e);
    if (rc < 0) {
        kube_close(&h->base);
        return rc;
    }
    *ret = &h->base;
    return 0;
}
