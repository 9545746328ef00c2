/* The model of an etcd: keys with their revisions, transactions, leases, users, watches of one key. As etcd 3.4 answers
 * through its JSON gateway. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/numbers.h"
#include "common/http/http_client.h"
#include "common/json/json.h"
#include "tests/sim/api.h"

enum { KEYS = 4096, NEWS = 256, LEASES = 256 };

struct kv {
    char *key, *value; /* value: base64 */
    uint64_t created, mod;
    int64_t lease;
};

struct api_etcd api_etcd;

static struct {
    uint64_t revision, compacted;
    struct kv kv[KEYS];
    int count;
    int64_t leases[LEASES];
    struct {
        uint64_t revision;
        int64_t at;
        char key[400], line[1200];
    } news[NEWS]; /* a ring, of keys that are called claim */
    unsigned news_count;
} s;

/* --- keys */

static char *plain(const cJSON *o, const char *name) /* NULL: it is not there */
{
    const char *text = json_str_or(o, name, NULL);
    char *out = text ? malloc(strlen(text) + 1) : NULL;
    if (out)
        out[base64_read(text, strlen(text), out, strlen(text))] = 0;
    return out;
}

static struct kv *find(const char *key)
{
    for (int i = 0; i < s.count; i++)
        if (strcmp(s.kv[i].key, key) == 0)
            return &s.kv[i];
    return NULL;
}

static void tell(const char *key, const struct kv *kv, uint64_t revision)
{
    const size_t n = strlen(key);
    if (n < 5 || strcmp(key + n - 5, "claim") != 0)
        return;
    const unsigned i = s.news_count++ % NEWS;
    s.news[i].revision = revision;
    s.news[i].at = api_carrier->clock();
    snprintf(s.news[i].key, sizeof s.news[i].key, "%s", key);
    snprintf(s.news[i].line, sizeof s.news[i].line,
             "{\"result\":{\"header\":{\"cluster_id\":\"%" PRIu64
             "\"},\"events\":[{%s\"kv\":{\"mod_revision\":\"%" PRIu64 "\",\"value\":\"%s\"}}]}}",
             api_etcd.cluster, kv ? "" : "\"type\":\"DELETE\",", revision, kv ? kv->value : "");
}

static void put(const char *key, const char *value, int64_t lease, uint64_t revision)
{
    struct kv *kv = find(key);
    if (!kv) {
        if (s.count == KEYS)
            abort();
        kv = &s.kv[s.count++];
        *kv = (struct kv){.key = strdup(key), .created = revision};
    }
    free(kv->value);
    kv->value = strdup(value);
    kv->mod = revision;
    kv->lease = lease;
    api_etcd.puts++;
    tell(key, kv, revision);
}

static void drop(struct kv *kv, uint64_t revision)
{
    tell(kv->key, NULL, revision);
    free(kv->key);
    free(kv->value);
    *kv = s.kv[--s.count];
}

static bool is_in(const struct kv *kv, const char *from, const char *to)
{
    return to ? strcmp(kv->key, from) >= 0 && strcmp(kv->key, to) < 0 : strcmp(kv->key, from) == 0;
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(const struct kv *const *)a)->key, (*(const struct kv *const *)b)->key);
}

static void range(const cJSON *o, struct buf *out)
{
    static const struct kv *found[KEYS];
    char *from = plain(o, "key"), *to = plain(o, "range_end"), key[1600];
    const bool bare = cJSON_IsTrue(cJSON_GetObjectItem(o, "keys_only"));
    int n = 0;
    for (int i = 0; i < s.count; i++)
        if (is_in(&s.kv[i], from, to))
            found[n++] = &s.kv[i];
    qsort(found, (size_t)n, sizeof *found, by_key);
    buf_printf(out, "\"header\":{\"cluster_id\":\"%" PRIu64 "\",\"revision\":\"%" PRIu64 "\"}", api_etcd.cluster,
               s.revision);
    for (int i = 0; i < n; i++) {
        *base64_write(key, found[i]->key, strlen(found[i]->key)) = 0;
        buf_printf(out, "%s{\"key\":\"%s\",\"create_revision\":\"%" PRIu64 "\",\"mod_revision\":\"%" PRIu64 "\"",
                   i ? "," : ",\"kvs\":[", key, found[i]->created, found[i]->mod);
        buf_printf(out, bare ? "}" : ",\"value\":\"%s\"}", found[i]->value);
    }
    buf_printf(out, "%s", n ? "]" : "");
    free(from);
    free(to);
}

/* --- transactions */

static bool holds(const cJSON *compare)
{
    char *key = plain(compare, "key");
    const struct kv *kv = find(key);
    const bool mod = strcmp(json_str_or(compare, "target", ""), "MOD") == 0;
    const char *wanted = json_str_or(compare, mod ? "mod_revision" : "create_revision", "0");
    free(key);
    return strtoull(wanted, NULL, 10) == (kv ? mod ? kv->mod : kv->created : 0);
}

static bool has_lease(int64_t id)
{
    for (int i = 0; i < api_etcd.leases; i++)
        if (s.leases[i] == id)
            return true;
    return id == 0;
}

static int error(struct buf *out, int status, int code, const char *text)
{
    buf_printf(out, "{\"error\":\"%s\",\"message\":\"%s\",\"code\":%d}", text, text, code);
    return status;
}

static void apply(const cJSON *op, uint64_t revision, struct buf *out)
{
    const cJSON *put_op = cJSON_GetObjectItem(op, "request_put"),
                *drop_op = cJSON_GetObjectItem(op, "request_delete_range"),
                *range_op = cJSON_GetObjectItem(op, "request_range");
    if (range_op) {
        buf_addstr(out, "{\"response_range\":{");
        range(range_op, out);
        buf_addstr(out, "}}");
        return;
    }
    char *key = plain(put_op ? put_op : drop_op, "key"), *to = plain(drop_op, "range_end");
    if (put_op)
        put(key, json_str_or(put_op, "value", ""), strtoll(json_str_or(put_op, "lease", "0"), NULL, 10), revision);
    for (int i = 0; drop_op && i < s.count;)
        if (is_in(&s.kv[i], key, to))
            drop(&s.kv[i], revision);
        else
            i++;
    buf_printf(out, "{\"%s\":{}}", put_op ? "response_put" : "response_delete_range");
    free(key);
    free(to);
}

static int txn(const cJSON *o, struct buf *out)
{
    const cJSON *x;
    struct buf responses = {0};
    bool yes = true;
    cJSON_ArrayForEach(x, cJSON_GetObjectItem(o, "compare")) yes = yes && holds(x);
    cJSON_ArrayForEach(x, cJSON_GetObjectItem(o, "success"))
    {
        const cJSON *p = cJSON_GetObjectItem(x, "request_put");
        if (p && !has_lease(strtoll(json_str_or(p, "lease", "0"), NULL, 10)))
            return error(out, 404, 5, "etcdserver: requested lease not found");
    }
    const cJSON *ops = cJSON_GetObjectItem(o, yes ? "success" : "failure");
    const uint64_t revision = s.revision + yes;
    cJSON_ArrayForEach(x, ops)
    {
        if (responses.len)
            buf_addstr(&responses, ",");
        apply(x, revision, &responses);
    }
    s.revision = revision;
    buf_printf(out, "{\"header\":{\"cluster_id\":\"%" PRIu64 "\",\"revision\":\"%" PRIu64 "\"}%s,\"responses\":[%s]}",
               api_etcd.cluster, s.revision, yes ? ",\"succeeded\":true" : "", responses.data ? responses.data : "");
    buf_free(&responses);
    return 200;
}

/* --- leases, users, watches */

static void end_lease(int64_t id)
{
    s.revision++;
    for (int i = 0; i < s.count;)
        if (s.kv[i].lease == id)
            drop(&s.kv[i], s.revision);
        else
            i++;
    for (int i = 0; i < api_etcd.leases; i++)
        s.leases[i] = s.leases[i] == id ? -1 : s.leases[i];
}

void api_etcd_expire(void)
{
    for (int i = 0; i < api_etcd.leases; i++)
        end_lease(s.leases[i]);
}

static int lease(const char *what, const cJSON *o, struct buf *out)
{
    const int64_t id = strtoll(json_str_or(o, "ID", "0"), NULL, 10);
    if (strcmp(what, "grant") == 0) {
        const int64_t fresh = 7000 + api_etcd.leases;
        s.leases[api_etcd.leases++ % LEASES] = fresh;
        buf_printf(out, "{\"header\":{\"cluster_id\":\"%" PRIu64 "\"},\"ID\":\"%" PRId64 "\",\"TTL\":\"3600\"}",
                   api_etcd.cluster, fresh);
        return 200;
    }
    if (strcmp(what, "keepalive") == 0) {
        buf_printf(out, "{\"result\":{\"header\":{\"cluster_id\":\"%" PRIu64 "\"},\"ID\":\"%" PRId64 "\"%s}}",
                   api_etcd.cluster, id, has_lease(id) ? ",\"TTL\":\"3600\"" : "");
        return 200;
    }
    end_lease(id);
    buf_addstr(out, "{}");
    return 200;
}

static int let_in(const char *path, const struct http_ask *a, struct buf *out)
{
    char good[64];
    if (strcmp(path, "auth/authenticate") == 0) {
        if (!api_etcd.login || strcmp(a->body, api_etcd.login) != 0)
            return error(out, 400, 3, "etcdserver: authentication failed, invalid user ID or password");
        buf_printf(out, "{\"header\":{},\"token\":\"t%u\"}", ++api_etcd.tokens);
        return 200;
    }
    snprintf(good, sizeof good, "Authorization: t%u", api_etcd.tokens);
    return !api_etcd.login                    ? 0
           : !a->headers[0]                   ? error(out, 400, 3, "etcdserver: user name is empty")
           : strcmp(a->headers[0], good) == 0 ? 0
                                              : error(out, 401, 16, "etcdserver: invalid auth token");
}

int api_etcd_serve(const struct http_ask *a, struct buf *ret)
{
    const char *path = strstr(a->url, "/v3/");
    struct buf body = {.data = (char *)a->body, .len = a->body_n};
    cJSON *o = NULL;
    api_etcd.requests++;
    if (!path || !api_etcd.gateway) {
        buf_addstr(ret, "404 page not found\n");
        return 404;
    }
    path += 4;
    int status = let_in(path, a, ret);
    if (status)
        return status;
    if (json_read_text(&body, "request", &o, NULL) < 0)
        return error(ret, 400, 3, "not JSON");
    if (strcmp(path, "kv/txn") == 0) {
        status = txn(o, ret);
    } else if (strcmp(path, "kv/range") == 0) {
        buf_addstr(ret, "{");
        range(o, ret);
        buf_addstr(ret, "}");
        status = 200;
    } else {
        status = lease(path + strlen("lease/"), o, ret);
    }
    cJSON_Delete(o);
    return status;
}

int api_etcd_line(const char *request, uint64_t *from, int64_t then, struct buf *ret)
{
    const struct buf text = {.data = (char *)request, .len = strlen(request)};
    cJSON *o = NULL;
    if (json_read_text(&text, "watch", &o, NULL) < 0)
        return -EPIPE;
    const cJSON *create = cJSON_GetObjectItem(o, "create_request");
    const uint64_t start = strtoull(json_str_or(create, "start_revision", "0"), NULL, 10);
    char *key = plain(create, "key");
    int rc = 0;
    *from = *from ? *from : start;
    if (*from <= s.compacted) {
        rc = buf_printf(ret, "{\"result\":{\"canceled\":true,\"compact_revision\":\"%" PRIu64 "\"}}", s.compacted) == 0;
        *from = s.compacted + 1;
    }
    for (unsigned i = s.news_count > NEWS ? s.news_count - NEWS : 0; i < s.news_count && rc == 0; i++)
        if (s.news[i % NEWS].revision >= *from && s.news[i % NEWS].at <= then &&
            strcmp(s.news[i % NEWS].key, key) == 0) {
            buf_addstr(ret, s.news[i % NEWS].line);
            *from = s.news[i % NEWS].revision + 1;
            rc = 1;
        }
    free(key);
    cJSON_Delete(o);
    return rc;
}

void api_etcd_compact(void)
{
    s.compacted = s.revision;
}

void api_etcd_end(void)
{
    while (s.count > 0)
        drop(&s.kv[0], s.revision);
    s.news_count = 0;
}

void api_etcd_begin(uint64_t cluster)
{
    api_etcd_end();
    s.revision++; /* of another etcd: what was watched is gone */
    s.compacted = s.revision;
    api_etcd = (struct api_etcd){.gateway = true, .cluster = cluster};
}
