/* The model of a Kubernetes API: Leases and ConfigMaps with their resourceVersions, and watches of one Lease. As
 * kube-apiserver 1.20 answers. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/http/http_client.h"
#include "common/json/json.h"
#include "tests/sim/api.h"

enum { OBJECTS = 4096, NEWS = 256 };

struct api_kube api_kube;

static struct {
    uint64_t version, compacted;
    struct object {
        bool lease;
        char name[256];
        uint64_t version;
        cJSON *o;
    } v[OBJECTS];
    int count;
    struct {
        uint64_t version;
        int64_t at;
        char name[64];
        char *line;
    } news[NEWS]; /* a ring, of Leases */
    unsigned news_count;
} s;

static struct object *find(bool lease, const char *name)
{
    for (int i = 0; i < s.count; i++)
        if (s.v[i].lease == lease && strcmp(s.v[i].name, name) == 0)
            return &s.v[i];
    return NULL;
}

static void tell(const struct object *x, const char *type)
{
    const unsigned i = s.news_count++ % NEWS;
    struct buf line = {0};
    char *text = cJSON_PrintUnformatted(x->o);
    free(s.news[i].line);
    buf_printf(&line, "{\"type\":\"%s\",\"object\":%s}", type, text);
    cJSON_free(text);
    s.news[i].line = line.data;
    s.news[i].version = s.version;
    s.news[i].at = api_carrier->clock();
    snprintf(s.news[i].name, sizeof s.news[i].name, "%.63s", x->name);
}

static int status(struct buf *out, int code, const char *message)
{
    buf_printf(out, "{\"kind\":\"Status\",\"status\":\"Failure\",\"message\":\"%s\",\"code\":%d}", message, code);
    return code;
}

static int show(const struct object *x, struct buf *out, int code)
{
    char *text = cJSON_PrintUnformatted(x->o);
    buf_addstr(out, text);
    cJSON_free(text);
    return code;
}

static void stamp(struct object *x)
{
    char version[24];
    cJSON *meta = cJSON_GetObjectItem(x->o, "metadata");
    snprintf(version, sizeof version, "%" PRIu64, x->version = ++s.version);
    cJSON_DeleteItemFromObject(meta, "resourceVersion");
    cJSON_AddStringToObject(meta, "resourceVersion", version);
}

static void drop(struct object *x)
{
    stamp(x);
    if (x->lease)
        tell(x, "DELETED");
    cJSON_Delete(x->o);
    *x = s.v[--s.count];
}

static int write_object(bool lease, const char *name, bool make, cJSON *o, struct buf *out)
{
    const cJSON *meta = cJSON_GetObjectItem(o, "metadata");
    struct object *x = find(lease, make ? json_str_or(meta, "name", "") : name);
    const uint64_t wanted = strtoull(json_str_or(meta, "resourceVersion", "0"), NULL, 10);
    if (make ? x != NULL : x && wanted && wanted != x->version) {
        cJSON_Delete(o);
        return status(out, 409, make ? "already exists" : "the object has been modified");
    }
    if (!x && !lease && !make) {
        cJSON_Delete(o);
        return status(out, 404, "not found");
    }
    make = !x; /* a Lease that is gone is made anew by a PUT */
    if (make) {
        if (s.count == OBJECTS)
            abort();
        x = &s.v[s.count++];
        *x = (struct object){.lease = lease};
        snprintf(x->name, sizeof x->name, "%s", json_str_or(meta, "name", ""));
    }
    cJSON_Delete(x->o);
    x->o = o;
    stamp(x);
    api_kube.writes++;
    if (lease)
        tell(x, make ? "ADDED" : "MODIFIED");
    return show(x, out, make ? 201 : 200);
}

static int list(bool lease, const char *selector, struct buf *out)
{
    const char *is = strstr(selector, "%3D");
    buf_addstr(out, "{\"items\":[");
    for (int i = 0, n = 0; i < s.count; i++) {
        const cJSON *meta = cJSON_GetObjectItem(s.v[i].o, "metadata");
        const char *label = lease ? "app.kubernetes.io/managed-by" : "crun/lease";
        if (s.v[i].lease == lease && is &&
            strcmp(json_str_or(cJSON_GetObjectItem(meta, "labels"), label, ""), is + 3) == 0) {
            buf_addstr(out, n++ ? "," : "");
            show(&s.v[i], out, 200);
        }
    }
    buf_addstr(out, "]}");
    return 200;
}

int api_kube_serve(const struct http_ask *a, struct buf *ret)
{
    const bool lease = strstr(a->url, "/leases") != NULL;
    const char *kind = strstr(a->url, lease ? "/leases" : "/configmaps"), *name = kind + (lease ? 7 : 11);
    const struct buf body = {.data = (char *)a->body, .len = a->body ? a->body_n : 0};
    cJSON *o = NULL;
    api_kube.requests++;
    if (api_kube.token && (!a->headers[0] || !strstr(a->headers[0], api_kube.token)))
        return status(ret, 401, "Unauthorized");
    if (api_kube.refuse > 0) {
        api_kube.refuse--;
        return status(ret, api_kube.status, "leases.coordination.k8s.io is forbidden: User cannot update resource");
    }
    name += *name == '/';
    if (body.len && json_read_text(&body, "request", &o, NULL) < 0)
        return status(ret, 400, "not JSON");
    if (strcmp(a->method, "POST") == 0 || strcmp(a->method, "PUT") == 0)
        return write_object(lease, name, strcmp(a->method, "POST") == 0, o, ret);
    if (*name == '?')
        return list(lease, name, ret);
    struct object *x = find(lease, name);
    const uint64_t wanted =
        strtoull(json_str_or(cJSON_GetObjectItem(o, "preconditions"), "resourceVersion", "0"), NULL, 10);
    cJSON_Delete(o);
    if (!x)
        return status(ret, 404, "not found");
    if (strcmp(a->method, "GET") == 0)
        return show(x, ret, 200);
    if (wanted && wanted != x->version)
        return status(ret, 409, "the precondition failed");
    drop(x);
    buf_addstr(ret, "{}");
    return 200;
}

int api_kube_line(const char *request, uint64_t *from, int64_t then, struct buf *ret)
{
    char name[64] = "";
    const char *field = strstr(request, "name%3D"), *version = strstr(request, "resourceVersion=");
    sscanf(field + 7, "%63[^&]", name);
    *from = *from ? *from : strtoull(version + 16, NULL, 10);
    if (*from < s.compacted && *from != UINT64_MAX) {
        *from = UINT64_MAX;
        return buf_addstr(ret, "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410}}") == 0;
    }
    for (unsigned i = s.news_count > NEWS ? s.news_count - NEWS : 0; i < s.news_count; i++)
        if (s.news[i % NEWS].version > *from && s.news[i % NEWS].at <= then &&
            strcmp(s.news[i % NEWS].name, name) == 0) {
            buf_addstr(ret, s.news[i % NEWS].line);
            *from = s.news[i % NEWS].version;
            return 1;
        }
    return *from == UINT64_MAX ? -EPIPE : 0;
}

void api_kube_compact(void)
{
    s.compacted = ++s.version;
}

int api_kube_maps(void)
{
    int n = 0;
    for (int i = 0; i < s.count; i++)
        n += !s.v[i].lease;
    return n;
}

void api_kube_lose(void)
{
    for (int i = s.count - 1; i >= 0; i--)
        if (!s.v[i].lease)
            drop(&s.v[i]);
}

void api_kube_begin(void)
{
    while (s.count > 0)
        drop(&s.v[0]);
    for (int i = 0; i < NEWS; i++) {
        free(s.news[i].line);
        s.news[i].line = NULL;
    }
    s.news_count = 0;
    api_kube = (struct api_kube){0};
    s.compacted = ++s.version;
}
