/* See kube_api.h. */
#include "common/rdzv/homes/kube_api.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/numbers.h"
#include "common/http/http_client.h"

enum {
    REQUEST_MS = 1000,
    PAUSE_MS = 100, /* after an answer 429 or 5xx without a Retry-After, and twice as long after each further one */
    TOKEN_MS = 60000,
};

#define FILES "/var/run/secrets/kubernetes.io/serviceaccount"

/* --- requests */

/* It changes within the hour. */
static int read_token(struct kube_api *a, struct err *e)
{
    char token[4096];
    if (a->token_ms && clock_ms() - a->token_ms < TOKEN_MS)
        return 0;
    const int rc = file_read_line(token, sizeof token, "%s/token", a->files);
    if (rc < 0)
        return err_errno(e, -rc, "the token of the pod's service account, %s/token", a->files);
    snprintf(a->auth, sizeof a->auth, "Authorization: Bearer %s", token);
    a->token_ms = clock_ms();
    return 0;
}

static int failed(struct kube_api *a, int status, const cJSON *answer, struct err *e)
{
    const char *text = json_str_or(answer, "message", "");
    if (status == 401)
        a->token_ms = 0;
    return err_set(e, status == 403 ? -EPERM : -EAGAIN, "the Kubernetes API says: %.300s (HTTP status %d)%s",
                   *text ? text : "nothing", status, status == 403 ? ": add that rule to the Role of the pods" : "");
}

int kube_api_call(struct kube_api *a, const char *method, const char *path, bool body, cJSON **ret, struct err *e)
{
    char url[900];
    int64_t pause = PAUSE_MS;
    snprintf(url, sizeof url, "%s%s", a->server, path);
    for (;;) {
        cJSON *tree = NULL;
        TRY(read_token(a, e));
        const struct http_ask ask = {
            method, url, {a->auth, "Content-Type: application/json"}, body ? a->out.data : NULL, body ? a->out.len : 0};
        int rc = http_client_ask(a->http, &ask, min_i64(clock_deadline(REQUEST_MS), a->deadline), &a->in, e);
        if (rc == -ETIMEDOUT && body) /* whoever asked reads what has happened */
            return rc;
        const bool good = rc > 0 && (rc < 300 || rc == 404 || rc == 409);
        if (rc > 0 && (json_read_text(&a->in, "the Kubernetes API", &tree, NULL) == 0 || !good) && !good)
            rc = failed(a, rc, tree, e);
        if (good && ret && rc < 300)
            *ret = tree;
        else
            cJSON_Delete(tree);
        if (good && ret && rc < 300 && !tree)
            return err_set(e, -EPROTO, "the Kubernetes API answers with no JSON");
        if (good || (rc != -EAGAIN && rc != -ETIMEDOUT && rc != -ECONNREFUSED && rc != -EIO))
            return rc;
        const int64_t wished = rc == -EAGAIN ? http_client_retry_after(a->http) * 1000 : 0;
        pause = wished > 0 ? wished : pause;
        if (clock_left(a->deadline) <= pause)
            return rc;
        TRY(http_client_pause(a->http, pause, e));
        pause *= 2;
    }
}

const char *kube_api_lease(const struct kube_api *a, bool one, char *out)
{
    snprintf(out, KUBE_PATH_MAX, "/apis/coordination.k8s.io/v1/namespaces/%s/leases%s%s", a->space, one ? "/" : "",
             one ? a->name : "");
    return out;
}

const char *kube_api_map(const struct kube_api *a, const char *name, size_t n, char *out)
{
    snprintf(out, KUBE_PATH_MAX, "/api/v1/namespaces/%s/configmaps%s%.*s", a->space, n ? "/" : "", (int)n, name);
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

struct json_write kube_api_object(struct kube_api *a, const char *version, const char *kind, const char *name)
{
    struct json_write w = {.out = &a->out};
    buf_clear(&a->out);
    json_begin(&w, NULL, '{');
    json_text(&w, "apiVersion", version);
    json_text(&w, "kind", kind);
    json_begin(&w, "metadata", '{');
    json_text(&w, "name", name);
    json_begin(&w, "labels", '{');
    json_text(&w, "app.kubernetes.io/managed-by", "crun");
    json_text(&w, "crun/lease", a->name);
    json_end(&w, '}');
    put_owner(&w);
    return w;
}

cJSON *kube_api_list(struct kube_api *a, bool leases, const char *label, const char *value)
{
    char path[KUBE_PATH_MAX + 200], all[KUBE_PATH_MAX];
    cJSON *tree = NULL;
    snprintf(path, sizeof path, "%s?labelSelector=%s%%3D%s",
             leases ? kube_api_lease(a, false, all) : kube_api_map(a, "", 0, all), label, value);
    kube_api_call(a, "GET", path, false, &tree, NULL);
    return tree;
}

int kube_api_delete(struct kube_api *a, const char *name, const char *version)
{
    struct json_write w = {.out = &a->out};
    char path[KUBE_PATH_MAX], one[KUBE_PATH_MAX + KUBE_NAME_MAX + 1];
    buf_clear(&a->out);
    json_begin(&w, NULL, '{');
    json_begin(&w, "preconditions", '{');
    json_text(&w, "resourceVersion", version);
    json_end(&w, '}');
    json_end(&w, '}');
    snprintf(one, sizeof one, "%s/%s", kube_api_lease(a, false, path), name);
    return w.rc < 0 ? w.rc : kube_api_call(a, "DELETE", one, true, NULL, NULL);
}

const char *kube_api_time(char out[KUBE_TIME_MAX], int64_t from_now_s)
{
    const time_t t = time(NULL) + from_now_s;
    struct tm utc;
    strftime(out, KUBE_TIME_MAX, "%Y-%m-%dT%H:%M:%S.000000Z", gmtime_r(&t, &utc));
    return out;
}

int kube_api_watch(struct kube_api *a, const char *version, struct err *e)
{
    char path[KUBE_PATH_MAX], url[1500];
    snprintf(url, sizeof url, "%s%s?watch=true&fieldSelector=metadata.name%%3D%s&resourceVersion=%s&timeoutSeconds=60",
             a->server, kube_api_lease(a, false, path), a->name, version);
    return http_client_stream(a->http, &(struct http_ask){"GET", url, {a->auth}, NULL, 0}, e);
}

int kube_api_cannot_watch(const struct kube_api *a, struct err *e)
{
    return err_set(e, -EPERM,
                   "the Kubernetes API says: this pod cannot watch resource \"leases\" in the namespace '%s': add that "
                   "rule to the Role of the pods",
                   a->space);
}

/* --- the handle */

static bool is_name(const char *p, size_t n, size_t most)
{
    return n > 0 && n <= most && strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789-") >= n && p[0] != '-' &&
           p[n - 1] != '-';
}

/* "k8s://[NAMESPACE/]NAME", and where a pod finds its API */
static int take_url(struct kube_api *a, const char *url, struct err *e)
{
    const char *p = url + strlen("k8s://"), *slash = strchr(p, '/'), *name = slash ? slash + 1 : p;
    const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT");
    const char *files = getenv("CRUN_K8S_FILES");
    if (!is_name(name, strlen(name), KUBE_NAME_MAX) || (slash && !is_name(p, (size_t)(slash - p), KUBE_NAME_MAX)))
        return err_set(e, -EINVAL,
                       "'%.200s': expected k8s://[NAMESPACE/]NAME, of small letters, digits and '-', at most 63 each",
                       url);
    if (!host || !*host || !port || !*port)
        return err_set(
            e, -EINVAL,
            "'%.200s': this is no pod (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set): expected "
            "another --rdzv-endpoint, or another --state of a rendezvousd, outside of Kubernetes",
            url);
    snprintf(a->files, sizeof a->files, "%s", files && *files ? files : FILES);
    snprintf(a->server, sizeof a->server, strchr(host, ':') ? "https://[%.250s]:%.10s" : "https://%.250s:%.10s", host,
             port);
    snprintf(a->name, sizeof a->name, "%s", name);
    if (slash)
        snprintf(a->space, sizeof a->space, "%.*s", (int)(slash - p), p);
    const int rc = slash ? 0 : file_read_line(a->space, sizeof a->space, "%s/namespace", a->files);
    if (rc < 0)
        return err_errno(e, -rc, "the pod's namespace, %s/namespace (automountServiceAccountToken: false?)", a->files);
    return 0;
}

static int check_owner(struct err *e)
{
    const char *p = getenv("CRUN_K8S_OWNER");
    int words = 0;
    for (const char *at = p; at && *at && words < 5 && *at != ','; at += strcspn(at, ","), at += *at == ',')
        words++;
    return !p || !*p || (words == 4 && p[strlen(p) - 1] != ',')
               ? 0
               : err_set(e, -EINVAL, "CRUN_K8S_OWNER '%.200s': expected APIVERSION,KIND,NAME,UID", p);
}

int kube_api_open(struct kube_api *a, const char *url, int cancel_fd, struct err *e)
{
    char ca[220];
    TRY(check_owner(e));
    TRY(take_url(a, url, e));
    snprintf(ca, sizeof ca, "%s/ca.crt", a->files);
    return http_client_open(&a->http, &(struct http_client_options){ca, NULL, NULL, cancel_fd}, e);
}

void kube_api_close(struct kube_api *a)
{
    http_client_close(a->http);
    buf_free(&a->out);
    buf_free(&a->in);
    explicit_bzero(a->auth, sizeof a->auth);
}
