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
 * CONFIRM_MS. With an owner (CRUN_K8S_OWNER) all of it goes when that goes. */
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
#include "common/json/json_write.h"
#include "common/rdzv/homes/rdzv_log_home.h"

#ifndef KUBE_LOG /* in the simulator all is small */
#define KUBE_LOG 8192
#define KUBE_TEXT (512 * 1024)
#endif

enum {
    LOG_MAX = KUBE_LOG,
    TEXT_MAX = KUBE_TEXT,
    WORD_MAX = 63, /* characters of a label's value */
    REQUEST_MS = 1000,
    PAUSE_MS = 100,    /* after an answer 429 or 5xx without a Retry-After, and twice as long after each further one */
    CONFIRM_MS = 1500, /* what is watched is read */
    ANEW_MS = 250,     /* so is what cannot be watched */
    CLAIM_MS = 3000,   /* a claim's D */
    TOKEN_MS = 60000,
};

#define FILES "/var/run/secrets/kubernetes.io/serviceaccount"

struct lease {        /* as last read, watched or put */
    char version[64]; /* "": there is none */
    struct rdzv_claim claim;
    char *log, *older; /* "": none */
    uint64_t seq;
};

struct kube_home {
    struct rdzv_home base;
    struct http_client *http;
    char server[300], files[200], space[WORD_MAX + 1], name[WORD_MAX + 1], run[RDZV_ID_MAX + 1];
    char auth[4200];  /* the header with the token */
    int64_t token_ms; /* when it was read */
    int64_t io_ms, deadline, read_ms;
    struct buf out, in;
    struct lease now;
    bool watched;
    char epoch[RDZV_EPOCH_MAX + 1]; /* our term; "": none */
    uint64_t n, seq;                /* renewals tried; number of the next decision */
    struct buf text;                /* of our term: all since the newest whole decision */
};

static struct kube_home *begin(struct rdzv_home *base)
{
    struct kube_home *h = (struct kube_home *)base;
    h->deadline = clock_deadline(h->io_ms);
    return h;
}

/* --- requests */

static const cJSON *in(const cJSON *o, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(o, name);
}

/* It changes within the hour. */
static int read_token(struct kube_home *h, struct err *e)
{
    char token[4096];
    if (h->token_ms && clock_ms() - h->token_ms < TOKEN_MS)
        return 0;
    const int rc = file_read_line(token, sizeof token, "%s/token", h->files);
    if (rc < 0)
        return err_errno(e, -rc, "the token of the pod's service account, %s/token", h->files);
    snprintf(h->auth, sizeof h->auth, "Authorization: Bearer %s", token);
    h->token_ms = clock_ms();
    return 0;
}

static int failed(struct kube_home *h, int status, const cJSON *answer, struct err *e)
{
    const char *text = json_str_or(answer, "message", "");
    if (status == 401)
        h->token_ms = 0;
    return err_set(e, status == 403 ? -EPERM : -EAGAIN, "the Kubernetes API says: %.300s (HTTP status %d)%s",
                   *text ? text : "nothing", status, status == 403 ? ": add that rule to the Role of the pods" : "");
}

/* One request; its body is what was written to h->out, if `body`. *ret (NULL allowed): the object of an answer below
 * 300. Returns the status if that is below 300, 404 or 409; else negative, after it was asked again. */
static int call(struct kube_home *h, const char *method, const char *path, bool body, cJSON **ret, struct err *e)
{
    char url[900];
    int64_t pause = PAUSE_MS;
    snprintf(url, sizeof url, "%s%s", h->server, path);
    for (;;) {
        cJSON *tree = NULL;
        TRY(read_token(h, e));
        const struct http_ask a = {
            method, url, {h->auth, "Content-Type: application/json"}, body ? h->out.data : NULL, body ? h->out.len : 0};
        int rc = http_client_ask(h->http, &a, min_i64(clock_deadline(REQUEST_MS), h->deadline), &h->in, e);
        if (rc == -ETIMEDOUT && body) /* whoever asked reads what has happened */
            return rc;
        const bool good = rc > 0 && (rc < 300 || rc == 404 || rc == 409);
        if (rc > 0 && (json_read_text(&h->in, "the Kubernetes API", &tree, NULL) == 0 || !good) && !good)
            rc = failed(h, rc, tree, e);
        if (good && ret && rc < 300)
            *ret = tree;
        else
            cJSON_Delete(tree);
        if (good && ret && rc < 300 && !tree)
            return err_set(e, -EPROTO, "the Kubernetes API answers with no JSON");
        if (good || (rc != -EAGAIN && rc != -ETIMEDOUT && rc != -ECONNREFUSED && rc != -EIO))
            return rc;
        const int64_t wished = rc == -EAGAIN ? http_client_retry_after(h->http) * 1000 : 0;
        pause = wished > 0 ? wished : pause;
        if (clock_left(h->deadline) <= pause)
            return rc;
        TRY(http_client_pause(h->http, pause, e));
        pause *= 2;
    }
}

static const char *lease_path(const struct kube_home *h, bool one, char out[700])
{
    snprintf(out, 700, "/apis/coordination.k8s.io/v1/namespaces/%s/leases%s%s", h->space, one ? "/" : "",
             one ? h->name : "");
    return out;
}

static const char *map_path(const struct kube_home *h, const char *name, size_t n, char out[700])
{
    snprintf(out, 700, "/api/v1/namespaces/%s/configmaps%s%.*s", h->space, n ? "/" : "", (int)n, name);
    return out;
}

/* "batch/v1,Job,NAME,UID" */
static void put_owner(struct json_write *w)
{
    static const char *const keys[] = {"apiVersion", "kind", "name", "uid"};
    const char *p = getenv("CRUN_K8S_OWNER");
    char word[300];
    if (!p || !*p)
        return;
    json_begin(w, "ownerReferences", '[');
    json_begin(w, NULL, '{');
    for (int i = 0; i < 4; i++, p += strcspn(p, ","), p += *p == ',') {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(p, ","), p);
        json_text(w, keys[i], word);
    }
    json_end(w, '}');
    json_end(w, ']');
}

/* An object, up to its annotations or data. */
static struct json_write start(struct kube_home *h, const char *version, const char *kind, const char *name)
{
    struct json_write w = {.out = &h->out};
    buf_clear(&h->out);
    json_begin(&w, NULL, '{');
    json_text(&w, "apiVersion", version);
    json_text(&w, "kind", kind);
    json_begin(&w, "metadata", '{');
    json_text(&w, "name", name);
    json_begin(&w, "labels", '{');
    json_text(&w, "app.kubernetes.io/managed-by", "crun");
    json_text(&w, "crun/lease", h->name);
    json_end(&w, '}');
    put_owner(&w);
    return w;
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
    const cJSON *meta = in(object, "metadata"), *notes = in(meta, "annotations");
    const char *claim = json_str_or(notes, "crun/claim", ""), *run = json_str_or(notes, "crun/run", h->run);
    struct lease l = {.seq = strtoull(json_str_or(notes, "crun/seq", "0"), NULL, 10)};
    snprintf(l.version, sizeof l.version, "%s", json_str_or(meta, "resourceVersion", ""));
    if (strcmp(run, h->run) != 0)
        return err_set(e, ERR_REFUSED,
                       "the Lease '%s' is that of job '%.100s', not of '%s': expected another name in k8s://", h->name,
                       run, h->run);
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
    char path[700];
    cJSON *tree = NULL;
    int rc;
    TRY(rc = call(h, "GET", lease_path(h, true, path), false, &tree, e));
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
    char path[700], number[24];
    struct buf line = {0};
    cJSON *tree = NULL;
    struct json_write w = start(h, "coordination.k8s.io/v1", "Lease", h->name);
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
    json_end(&w, '}');
    json_end(&w, '}');
    buf_free(&line);
    if (w.rc < 0)
        return err_set(e, w.rc, "no memory for a request");
    int rc = call(h, make ? "POST" : "PUT", lease_path(h, !make, path), true, &tree, e);
    if (rc == 404 && make)
        return err_set(e, ERR_REFUSED, "the Kubernetes API knows no namespace '%s'", h->space);
    if (rc == 404 || rc == 409 || rc == -ETIMEDOUT)
        return read_lease(h, e);
    if (rc > 0)
        rc = take_lease(h, tree, e) < 0 ? -EPROTO : 1;
    cJSON_Delete(tree);
    return rc;
}

static int watch(struct kube_home *h, struct err *e)
{
    char path[700], url[1500];
    snprintf(url, sizeof url, "%s%s?watch=true&fieldSelector=metadata.name%%3D%s&resourceVersion=%s&timeoutSeconds=60",
             h->server, lease_path(h, false, path), h->name, h->now.version);
    const struct http_ask a = {"GET", url, {h->auth}, NULL, 0};
    const int rc = http_client_stream(h->http, &a, e);
    h->watched = rc == 0;
    return rc;
}

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
        rc = take_lease(h, in(tree, "object"), NULL);
    cJSON_Delete(tree);
    return rc;
}

static int kube_look(struct rdzv_home *base, struct rdzv_claim *ret, struct err *e)
{
    struct kube_home *h = begin(base);
    struct buf line = {0};
    for (int rc = 1; h->watched && rc != 0;) {
        rc = http_client_line(h->http, &line);
        h->watched = rc == 0 || (rc == 1 && take_news(h, &line) == 0);
        if (rc == -403)
            return err_set(e, -EPERM,
                           "the Kubernetes API says: this pod cannot watch resource \"leases\" in the namespace "
                           "'%s': add that rule to the Role of the pods",
                           h->space);
    }
    buf_free(&line);
    if (clock_ms() - h->read_ms >= (h->watched ? CONFIRM_MS : ANEW_MS)) {
        char before[sizeof h->now.version];
        memcpy(before, h->now.version, sizeof before);
        TRY(read_lease(h, e));
        if (!h->watched || strcmp(before, h->now.version) != 0) /* it lags: what it still has to tell is older */
            TRY(watch(h, e));
    }
    *ret = h->now.claim;
    return h->now.claim.epoch[0] != 0;
}

static void kube_rest(struct rdzv_home *base)
{
    struct kube_home *h = (struct kube_home *)base;
    h->watched = false;
    h->read_ms = 0;
    http_client_stream_end(h->http);
}

static int kube_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    (void)e;
    begin(base);
    snprintf(ret, RDZV_IDENTITY_MAX + 1, "kubernetes"); /* linearizable: a Lease that was removed is another one */
    return 0;
}

static bool is_ours(const struct kube_home *h, const char *epoch)
{
    return strcmp(h->epoch, epoch) == 0 && strcmp(h->now.claim.epoch, epoch) == 0 && !h->now.claim.released;
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
    return rc;
}

/* --- the log */

/* Delete the ConfigMaps of a list, "a,b", but those that `but` names. */
static void drop_maps(struct kube_home *h, const char *list, const char *but)
{
    char path[700];
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',') {
        const size_t n = strcspn(p, ",");
        const char *named = strstr(but, p);
        if (!named || named[n] != p[n])
            call(h, "DELETE", map_path(h, p, n, path), false, NULL, NULL);
    }
}

/* h->text, in new ConfigMaps. *ret: their names. */
static int put_maps(struct kube_home *h, struct buf *ret, struct err *e)
{
    char name[200], path[700];
    for (size_t at = 0; at < h->text.len; at += TEXT_MAX) {
        const size_t n = h->text.len - at < TEXT_MAX ? h->text.len - at : TEXT_MAX;
        char *part = strndup(h->text.data + at, n);
        snprintf(name, sizeof name, "%s-%s-%" PRIu64 "-%zu", h->name, h->epoch, h->seq, at / TEXT_MAX);
        struct json_write w = start(h, "v1", "ConfigMap", name);
        json_end(&w, '}');
        json_bool(&w, "immutable", true);
        json_begin(&w, "data", '{');
        json_text(&w, "text", part ? part : "");
        json_end(&w, '}');
        json_end(&w, '}');
        free(part);
        int rc = w.rc < 0 || !part ? err_set(e, -ENOMEM, "no memory for a request") : 0;
        while (rc == 0 && (rc = call(h, "POST", map_path(h, "", 0, path), true, NULL, e)) == -ETIMEDOUT &&
               clock_left(h->deadline) > 0)
            rc = 0; /* if it is there: a conflict, of the same text */
        if (rc < 0 || rc == 404)
            return rc == 404 ? err_set(e, -EAGAIN, "the Kubernetes API knows no namespace '%s'", h->space) : rc;
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

/* Those that a leader has left which was gone before it named them, or deleted them. Of older terms alone: another node
 * may lead by now, whose Lease names what we have not seen. */
static void sweep(struct kube_home *h)
{
    char path[1400], one[700];
    const cJSON *item;
    cJSON *tree = NULL;
    snprintf(path, sizeof path, "%s?labelSelector=crun%%2Flease%%3D%s", map_path(h, "", 0, one), h->name);
    if (call(h, "GET", path, false, &tree, NULL) != 200)
        return;
    cJSON_ArrayForEach(item, in(tree, "items"))
    {
        const char *name = json_str_or(in(item, "metadata"), "name", "");
        const size_t n = strlen(h->name) + 1; /* its epoch stands behind "NAME-" */
        if (strlen(name) > n && rdzv_epoch_number(name + n) < rdzv_epoch_number(h->epoch))
            drop_maps(h, name, h->now.older);
    }
    cJSON_Delete(tree);
}

static int kube_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    struct kube_home *h = begin(base);
    char path[700];
    TRY(read_lease(h, e));
    buf_clear(&h->text);
    for (const char *p = h->now.older ? h->now.older : ""; *p; p += strcspn(p, ","), p += *p == ',') {
        cJSON *tree = NULL;
        int rc;
        TRY(rc = call(h, "GET", map_path(h, p, strcspn(p, ","), path), false, &tree, e));
        rc = rc != 200 ? err_set(e, ERR_CORRUPT, "the ConfigMap '%.*s' of a Lease is gone", (int)strcspn(p, ","), p)
                       : buf_addstr(&h->text, json_str_or(in(tree, "data"), "text", ""));
        cJSON_Delete(tree);
        TRY(rc);
    }
    if (buf_addstr(&h->text, h->now.log ? h->now.log : "") < 0 || buf_add(ret, h->text.data, h->text.len) < 0)
        return err_set(e, -ENOMEM, "the decision log does not fit in memory");
    if (is_ours(h, h->epoch))
        sweep(h);
    return 0;
}

static void kube_forget(struct rdzv_home *base) /* unless somebody else has claimed */
{
    struct kube_home *h = begin(base);
    struct json_write w = {.out = &h->out};
    char path[700];
    if (!h->epoch[0] || strcmp(h->now.claim.epoch, h->epoch) != 0)
        return;
    buf_clear(&h->out);
    json_begin(&w, NULL, '{');
    json_begin(&w, "preconditions", '{');
    json_text(&w, "resourceVersion", h->now.version);
    json_end(&w, '}');
    json_end(&w, '}');
    if (w.rc == 0 && call(h, "DELETE", lease_path(h, true, path), true, NULL, NULL) == 200)
        drop_maps(h, h->now.older, "");
}

/* --- the handle */

static void kube_close(struct rdzv_home *base)
{
    struct kube_home *h = (struct kube_home *)base;
    if (!h)
        return;
    http_client_close(h->http);
    forget_lease(&h->now);
    buf_free(&h->out);
    buf_free(&h->in);
    buf_free(&h->text);
    rdzv_home_finish_(base);
    explicit_bzero(h->auth, sizeof h->auth);
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
};

static bool is_name(const char *p, size_t n, size_t most)
{
    return n > 0 && n <= most && strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789-") >= n && p[0] != '-' &&
           p[n - 1] != '-';
}

/* "k8s://[NAMESPACE/]NAME", and where a pod finds its API */
static int take_url(struct kube_home *h, const char *url, struct err *e)
{
    const char *p = url + strlen("k8s://"), *slash = strchr(p, '/'), *name = slash ? slash + 1 : p;
    const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT");
    const char *files = getenv("CRUN_K8S_FILES");
    if (!is_name(name, strlen(name), WORD_MAX) || (slash && !is_name(p, (size_t)(slash - p), WORD_MAX)))
        return err_set(e, -EINVAL,
                       "'%.200s': expected k8s://[NAMESPACE/]NAME, of small letters, digits and '-', at most 63 each",
                       url);
    if (!host || !*host || !port || !*port)
        return err_set(
            e, -EINVAL,
            "'%.200s': this is no pod (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set): expected "
            "another --rdzv-endpoint outside of Kubernetes",
            url);
    snprintf(h->files, sizeof h->files, "%s", files && *files ? files : FILES);
    snprintf(h->server, sizeof h->server, strchr(host, ':') ? "https://[%.250s]:%.10s" : "https://%.250s:%.10s", host,
             port);
    snprintf(h->name, sizeof h->name, "%s", name);
    if (slash)
        snprintf(h->space, sizeof h->space, "%.*s", (int)(slash - p), p);
    const int rc = slash ? 0 : file_read_line(h->space, sizeof h->space, "%s/namespace", h->files);
    if (rc < 0)
        return err_errno(e, -rc, "the pod's namespace, %s/namespace (automountServiceAccountToken: false?)", h->files);
    return 0;
}

int rdzv_log_kube_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e)
{
    struct kube_home *h = calloc(1, sizeof *h);
    char ca[220];
    if (!h)
        return err_set(e, -ENOMEM, "no memory for a rendezvous");
    h->io_ms = o->io_timeout_ms;
    snprintf(h->run, sizeof h->run, "%s", o->run_id);
    int rc = rdzv_home_init_(&h->base, &kube_ops, e);
    rc = rc ? rc : take_url(h, url, e);
    snprintf(ca, sizeof ca, "%s/ca.crt", h->files);
    rc = rc ? rc : http_client_open(&h->http, &(struct http_client_options){ca, NULL, NULL, h->base.cancel_fd}, e);
    if (rc < 0) {
        kube_close(&h->base);
        return rc;
    }
    *ret = &h->base;
    return 0;
}
