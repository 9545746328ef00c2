/* See etcd_api.h. */
#include "common/rdzv/homes/etcd_api.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/numbers.h"
#include "common/http/http_client.h"
#include "common/net/addr.h"
#include "common/rdzv/homes/framed_file.h"

#define PAUSE_MS 50 /* after each member has failed */

/* --- requests */

void etcd_api_start(struct etcd_api *a)
{
    buf_clear(&a->out);
    a->rc = 0;
}

static int refused(struct etcd_api *a, int status, const cJSON *answer, struct err *e)
{
    const int code = json_int_or(answer, "code", 0); /* gRPC's */
    const char *text = json_str_or(answer, "error", json_str_or(answer, "message", "")), *host = a->hosts[a->at];
    if (status == 404 && code == 0)
        return err_set(e, ERR_REFUSED,
                       "%s knows no /v3: its JSON gateway is off (--enable-grpc-gateway), or it is older than 3.4",
                       host);
    if (strstr(text, "name is empty"))
        return err_set(e, ERR_REFUSED,
                       "%s asks for a user (user name is empty), and its gateway takes none from a certificate: write "
                       "USER:PASSWORD into the file that CRUN_ETCD_USER_FILE names",
                       host);
    if (a->login[0] && (code == 16 || strstr(text, "store is old"))) { /* a token lives for minutes */
        a->auth[0] = 0;
        return err_set(e, -EAGAIN, "%s: %.200s", host, text);
    }
    const int rc = strstr(text, "lease not found")        ? -ENOKEY
                   : strstr(text, "space exceeded")       ? -ENOSPC
                   : code == 3 || code == 7 || code == 16 ? ERR_REFUSED
                                                          : -EAGAIN;
    return err_set(e, rc, "%s answers: %.200s (HTTP status %d)", host, *text ? text : "nothing", status);
}

/* Once, at the member that is asked now. */
static int ask_one(struct etcd_api *a, const char *path, const char *body, size_t n, cJSON **ret, struct err *e)
{
    char url[400];
    snprintf(url, sizeof url, "%s/v3/%s", a->hosts[a->at], path);
    const struct http_ask ask = {"POST", url, {a->auth[0] ? a->auth : NULL}, body, n};
    const int64_t end = min_i64(clock_deadline(a->request_ms + (int64_t)n / ETCD_BYTES_PER_MS), a->deadline);
    cJSON *tree = NULL;
    const int status = http_client_ask(a->http, &ask, end, &a->in, e);
    if (status < 0)
        return e ? err_wrap(e, "%s", a->hosts[a->at]) : status;
    int rc = json_read_text(&a->in, a->hosts[a->at], &tree, e);
    rc = status == 200 ? rc : refused(a, status, tree, e);
    if (rc < 0) {
        cJSON_Delete(tree);
        return rc;
    }
    snprintf(a->answered, sizeof a->answered, "etcd-%s", json_str_or(etcd_api_in(tree, "header"), "cluster_id", "?"));
    *ret = tree;
    return 0;
}

static int get_token(struct etcd_api *a, struct err *e)
{
    cJSON *tree;
    if (!a->login[0] || a->auth[0])
        return 0;
    TRY(ask_one(a, "auth/authenticate", a->login, strlen(a->login), &tree, e));
    snprintf(a->auth, sizeof a->auth, "Authorization: %s", json_str_or(tree, "token", ""));
    cJSON_Delete(tree);
    return 0;
}

int etcd_api_call(struct etcd_api *a, const char *path, cJSON **ret, struct err *e)
{
    for (int tried = 1; a->rc == 0; tried++) {
        int rc = get_token(a, e);
        rc = rc ? rc : ask_one(a, path, a->out.data, a->out.len, ret, e);
        const bool elsewhere = rc == -EAGAIN || rc == -ETIMEDOUT || rc == -ECONNREFUSED || rc == -EIO;
        if (!elsewhere || clock_left(a->deadline) <= PAUSE_MS)
            return rc;
        a->at = (a->at + 1) % a->host_count;
        a->moved = true;
        if (tried % a->host_count == 0)
            TRY(http_client_pause(a->http, PAUSE_MS, e));
    }
    return err_set(e, a->rc, "no memory for a request");
}

int etcd_api_watch(struct etcd_api *a, struct err *e)
{
    char url[400];
    a->moved = false;
    snprintf(url, sizeof url, "%s/v3/watch", a->hosts[a->at]);
    return http_client_stream(
        a->http, &(struct http_ask){"POST", url, {a->auth[0] ? a->auth : NULL}, a->out.data, a->out.len}, e);
}

/* --- the handle */

static int take_host(struct etcd_api *a, const char *scheme, const char *p, size_t n, struct err *e)
{
    struct host_port to;
    if (!addr_split(p, n, &to) || to.bare_v6 || to.host_len > 255 || (to.port && addr_port(to.port, to.port_len) < 0))
        return err_set(e, -EINVAL, "'%.*s': expected HOST, HOST:PORT or [IPv6]:PORT", (int)min_i64((int64_t)n, 200), p);
    const bool v6 = memchr(to.host, ':', to.host_len);
    if (a->host_count == ETCD_HOSTS_MAX ||
        asprintf(&a->hosts[a->host_count], "%s://%s%.*s%s:%.*s", scheme, v6 ? "[" : "", (int)to.host_len, to.host,
                 v6 ? "]" : "", to.port ? (int)to.port_len : 4, to.port ? to.port : "2379") < 0)
        return err_set(e, -EINVAL, "more than %d members", ETCD_HOSTS_MAX);
    a->host_count++;
    return 0;
}

/* "etcd[s]://HOST[:PORT],...[/PREFIX]" */
static int take_url(struct etcd_api *a, const char *url, const char *run_id, struct err *e)
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
        TRY(take_host(a, url[4] == 's' ? "https" : "http", p, len, e));
    }
    if (n > 128 || (*path && path[1 + n]))
        return err_set(e, -EINVAL, "'%.200s': expected one word of at most 128 characters as prefix of the keys", path);
    framed_file_escape(run_id, run, sizeof run);
    return asprintf(&a->dir, "%.*s/%s/", n ? (int)n : 4, n ? path + 1 : "crun", run) < 0
               ? err_set(e, -ENOMEM, "no memory for a rendezvous")
               : 0;
}

/* "USER:PASSWORD", the first line of a file */
static int take_user(struct etcd_api *a, struct err *e)
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
    snprintf(a->login, sizeof a->login, "{\"name\":\"%.*s\",\"password\":\"%s\"}", (int)n, line, line + n + 1);
    explicit_bzero(line, sizeof line);
    return 0;
}

int etcd_api_open(struct etcd_api *a, const char *url, const char *run_id, int cancel_fd, struct err *e)
{
    TRY(take_url(a, url, run_id, e));
    TRY(take_user(a, e));
    const struct http_client_options http = {getenv("CRUN_ETCD_CA"), getenv("CRUN_ETCD_CERT"), getenv("CRUN_ETCD_KEY"),
                                             cancel_fd};
    return http_client_open(&a->http, &http, e);
}

void etcd_api_close(struct etcd_api *a)
{
    http_client_close(a->http);
    for (int i = 0; i < a->host_count; i++)
        free(a->hosts[i]);
    free(a->dir);
    buf_free(&a->out);
    buf_free(&a->in);
    explicit_bzero(a, sizeof *a); /* password, token */
}
