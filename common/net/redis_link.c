/* Parses redis:// URLs, finds the primary, and connects to it (redis_link.h). */
#include "common/net/redis_link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/numbers.h"
#include "common/net/addr.h"
#include "common/net/tls_stream.h"

/* --- the URL */

static int unescape(const char *p, size_t n, char *out, size_t cap, const char *what, struct err *e)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++, len++) {
        int c = (unsigned char)p[i];
        if (c == '%') {
            c = hex_byte(p + i + 1, n - i - 1);
            i += 2;
        }
        if (c <= 0 || len + 1 >= cap)
            return err_set(e, -EINVAL,
                           "the %s in the URL: expected fewer than %zu bytes, '%%' followed by two hex digits", what,
                           cap);
        out[len] = (char)c;
    }
    out[len] = 0;
    return 0;
}

static int parse_userinfo(struct redis_link *l, const char *p, size_t n, struct err *e)
{
    const char *colon = memchr(p, ':', n);
    size_t user = colon ? (size_t)(colon - p) : n;
    TRY(unescape(p, user, l->user, sizeof l->user, "user", e));
    return colon ? unescape(colon + 1, n - user - 1, l->password, sizeof l->password, "password", e) : 0;
}

static int parse_host(struct redis_host *h, const char *p, size_t n, const char *default_port, struct err *e)
{
    struct host_port to;
    if (!addr_split(p, n, &to) || to.bare_v6 || to.host_len >= sizeof h->name ||
        (to.port && addr_port(to.port, to.port_len) < 0))
        return err_set(e, -EINVAL, "'%.*s': expected HOST, HOST:PORT or [IPv6]:PORT", (int)(n < 200 ? n : 200), p);
    snprintf(h->name, sizeof h->name, "%.*s", (int)to.host_len, to.host);
    snprintf(h->port, sizeof h->port, "%.*s", to.port ? (int)to.port_len : 5, to.port ? to.port : default_port);
    return 0;
}

static int parse_hosts(struct redis_link *l, const char *p, size_t n, struct err *e)
{
    const char *port = l->sentinel ? "26379" : "6379";
    for (const char *end = p + n;;) {
        const char *comma = memchr(p, ',', (size_t)(end - p)), *stop = comma ? comma : end;
        if (l->host_count == REDIS_HOSTS_MAX)
            return err_set(e, -EINVAL, "more than %d hosts", REDIS_HOSTS_MAX);
        TRY(parse_host(&l->hosts[l->host_count++], p, (size_t)(stop - p), port, e));
        if (!comma)
            break;
        p = comma + 1;
    }
    return l->host_count > 1 && !l->sentinel ? err_set(e, -EINVAL, "expected one host (a list needs redis+sentinel://)")
                                             : 0;
}

static int parse_db(struct redis_link *l, const char *p, struct err *e)
{
    if (!*p)
        return 0;
    if (strlen(p) > 4 || strspn(p, "0123456789") != strlen(p))
        return err_set(e, -EINVAL, "database '%.40s': expected a number", p);
    l->db = atoi(p);
    return 0;
}

static int parse_path(struct redis_link *l, const char *p, struct err *e)
{
    if (!l->sentinel)
        return parse_db(l, p, e);
    const char *slash = strchr(p, '/');
    size_t n = slash ? (size_t)(slash - p) : strlen(p);
    if (n == 0 || n >= sizeof l->master)
        return err_set(e, -EINVAL, "expected the name of the primary: redis+sentinel://HOST,HOST,HOST/NAME[/DB]");
    snprintf(l->master, sizeof l->master, "%.*s", (int)n, p);
    return slash ? parse_db(l, slash + 1, e) : 0;
}

static int read_password_file(struct redis_link *l, const char *path, struct err *e)
{
    const int fd = file_open_regular(path, -EINVAL, e);
    if (fd < 0)
        return err_wrap(e, "CRUN_REDIS_PASSWORD_FILE");
    ssize_t n = read(fd, l->password, sizeof l->password - 1);
    close(fd);
    if (n < 0)
        return err_errno(e, errno, "CRUN_REDIS_PASSWORD_FILE '%.200s'", path);
    l->password[n] = 0;
    l->password[strcspn(l->password, "\r\n")] = 0;
    return 0;
}

static int password_from_environment(struct redis_link *l, struct err *e)
{
    const char *file = getenv("CRUN_REDIS_PASSWORD_FILE"), *word = getenv("CRUN_REDIS_PASSWORD");
    if (l->password[0] || l->plain)
        return 0;
    if (file && *file)
        return read_password_file(l, file, e);
    word = word && *word ? word : getenv("REDISCLI_AUTH");
    if (word && strlen(word) >= sizeof l->password)
        return err_set(e, -EINVAL, "the password is longer than %zu bytes", sizeof l->password - 1);
    snprintf(l->password, sizeof l->password, "%s", word ? word : "");
    return 0;
}

int redis_link_parse(struct redis_link *l, const char *url, struct err *e)
{
    static const struct {
        const char *scheme;
        bool tls, sentinel, plain;
    } kinds[] = {{"redis://", false, false, false},
                 {"rediss://", true, false, false},
                 {"redis+sentinel://", false, true, false},
                 {"rediss+sentinel://", true, true, false},
                 {"resp://", false, false, true}};
    *l = (struct redis_link){0};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t n = strlen(kinds[i].scheme);
        if (strncmp(url, kinds[i].scheme, n) != 0)
            continue;
        l->tls = kinds[i].tls;
        l->sentinel = kinds[i].sentinel;
        l->plain = kinds[i].plain;
        const char *p = url + n, *path = p + strcspn(p, "/"), *at = NULL;
        for (const char *c = p; c < path; c++)
            at = *c == '@' ? c : at;
        if (at)
            TRY(parse_userinfo(l, p, (size_t)(at - p), e));
        TRY(parse_hosts(l, at ? at + 1 : p, (size_t)(path - (at ? at + 1 : p)), e));
        TRY(parse_path(l, *path ? path + 1 : path, e));
        TRY(password_from_environment(l, e));
        return l->user[0] && !l->password[0]
                   ? err_set(e, -EINVAL,
                             "a user, but no password: expected USER:PASSWORD@HOST (the default user: :PASSWORD@HOST), "
                             "CRUN_REDIS_PASSWORD_FILE or CRUN_REDIS_PASSWORD")
                   : 0;
    }
    return err_set(e, -EINVAL, "expected redis://, rediss://, redis+sentinel:// or rediss+sentinel://");
}

void redis_link_finish(struct redis_link *l)
{
    tls_context_free(l->tls_context);
    memset(l->password, 0, sizeof l->password);
    l->tls_context = NULL;
}

const char *redis_link_name(const struct redis_link *l, char *out, size_t cap)
{
    const struct redis_host *h = l->now.name[0] ? &l->now : &l->hosts[0];
    bool v6 = strchr(h->name, ':');
    snprintf(out, cap, "%s://%s%s%s:%s", l->tls ? "rediss" : "redis", v6 ? "[" : "", h->name, v6 ? "]" : "", h->port);
    return out;
}

/* --- what a server says no to */

/* "MOVED 3999 127.0.0.1:6381" */
static void follow(struct redis_link *l, const char *reply)
{
    const char *space = strrchr(reply, ' '), *colon = strrchr(reply, ':');
    if (!space || !colon || colon < space || (size_t)(colon - space) >= sizeof l->moved.name)
        return;
    if (colon > space + 1) /* else: the host that sent it */
        snprintf(l->moved.name, sizeof l->moved.name, "%.*s", (int)(colon - space - 1), space + 1);
    else
        l->moved = l->now;
    snprintf(l->moved.port, sizeof l->moved.port, "%.5s", colon + 1);
}

int redis_link_refused(struct redis_link *l, const char *reply, struct err *e)
{
    static const struct {
        const char *begins;
        int code;
        const char *hint;
    } known[] = {
        {"NOAUTH", ERR_REFUSED, "a password is needed: CRUN_REDIS_PASSWORD_FILE, CRUN_REDIS_PASSWORD or in the URL"},
        {"WRONGPASS", ERR_REFUSED, "the user or the password is wrong"},
        {"ERR invalid password", ERR_REFUSED, "the password is wrong"},
        {"ERR Client sent AUTH", ERR_REFUSED, "this Redis has no password: give none"},
        {"ERR AUTH <password> called without", ERR_REFUSED, "this Redis has no password: give none"},
        {"NOPERM", ERR_REFUSED,
         "this user may not do that: it needs the keys crun:* and the commands that docs/guide/redis-and-folders.md names"},
        {"DENIED", ERR_REFUSED, "protected mode: the server serves its own host only until it has a password"},
        {"ERR DB index is out of range", ERR_REFUSED, "the URL names a database this server does not have"},
        {"ERR SELECT is not allowed in cluster mode", ERR_REFUSED, "a Redis Cluster has database 0 only"},
        {"READONLY", -EROFS, "it is a read-only replica: name the primary, or use redis+sentinel://"},
        {"LOADING", -EAGAIN, "it is loading its data"},
        {"MASTERDOWN", -EAGAIN, "it is a replica without its primary"},
        {"CLUSTERDOWN", -EAGAIN, "the cluster is not complete"},
        {"TRYAGAIN", -EAGAIN, "the cluster is moving this key"},
        {"ASK", -EAGAIN, "the cluster is moving this key"},
        {"NOREPLICAS", -EAGAIN, "it accepts writes only with replicas (min-replicas-to-write)"},
        {"ERR max number of clients", -EAGAIN, "it serves as many clients as it may (maxclients)"},
        {"OOM", -ENOSPC, "its memory is full (maxmemory)"},
        {"MISCONF", -EROFS, "it refuses writes because it cannot save"},
    };
    char name[300];
    redis_link_name(l, name, sizeof name);
    if (strncmp(reply, "MOVED", 5) == 0) {
        follow(l, reply);
        return err_set(e, -EAGAIN, "%s: the key lives on another node of the cluster: %.80s", name, reply);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(reply, known[i].begins, strlen(known[i].begins)) == 0)
            return err_set(e, known[i].code, "%s: %s (%.120s)", name, known[i].hint, reply);
    return err_set(e, -EPROTO, "%s: %.200s", name, reply);
}

/* --- getting in */

/* Send one command; the caller frees the reply. An error reply becomes an error. */
static int ask(struct redis_link *l, struct resp_conn *c, int argc, const char *const *argv, redisReply **ret,
               int64_t deadline, struct err *e)
{
    size_t lens[6];
    for (int i = 0; i < argc; i++)
        lens[i] = strlen(argv[i]);
    TRY(resp_append(c, argc, argv, lens, e));
    TRY(resp_exchange(c, 1, ret, deadline, e));
    if ((*ret)->type != REDIS_REPLY_ERROR)
        return 0;
    int rc = redis_link_refused(l, (*ret)->str, e);
    freeReplyObject(*ret);
    return rc;
}

static int tell(struct redis_link *l, struct resp_conn *c, int argc, const char *const *argv, int64_t deadline,
                struct err *e)
{
    redisReply *r;
    TRY(ask(l, c, argc, argv, &r, deadline, e));
    freeReplyObject(r);
    return 0;
}

static int start_tls(struct redis_link *l, struct resp_conn *c, const char *host, int64_t deadline, struct err *e)
{
    const char *ca = getenv("CRUN_REDIS_CA");
    ca = ca && *ca ? ca : getenv("SSL_CERT_FILE");
    if (!l->tls_context)
        TRY(tls_context_client(&l->tls_context, ca && *ca ? ca : NULL, NULL, NULL, e));
    return resp_start_tls(c, l->tls_context, host, deadline, e);
}

static int greet(struct redis_link *l, struct resp_conn *c, int64_t deadline, struct err *e)
{
    char db[16];
    const char *auth[3] = {"AUTH", l->user[0] ? l->user : l->password, l->password};
    const char *select[2] = {"SELECT", db}, *ping[1] = {"PING"};
    snprintf(db, sizeof db, "%d", l->db);
    if (l->password[0])
        TRY(tell(l, c, l->user[0] ? 3 : 2, auth, deadline, e));
    else
        TRY(tell(l, c, 1, ping, deadline, e)); /* a full server answers the first request with an error, and closes */
    return l->db ? tell(l, c, 2, select, deadline, e) : 0;
}

/* Check that the server is a primary: a demoted one can still be reached at its old address. */
static int check_primary(struct redis_link *l, struct resp_conn *c, int64_t deadline, struct err *e)
{
    const char *role[1] = {"ROLE"};
    redisReply *r;
    TRY(ask(l, c, 1, role, &r, deadline, e));
    bool primary = r->type == REDIS_REPLY_ARRAY && r->elements > 0 && r->element[0]->type == REDIS_REPLY_STRING &&
                   strcmp(r->element[0]->str, "master") == 0;
    freeReplyObject(r);
    return primary ? 0
                   : err_set(e, -EAGAIN, "the sentinels name %s:%s, which is no primary (any more)", l->now.name,
                             l->now.port);
}

static int dial_server(struct redis_link *l, struct resp_conn *c, const struct redis_host *h, int64_t deadline,
                       struct err *e)
{
    char name[300];
    l->now = *h;
    int rc = resp_dial(c, h->name, h->port, deadline, e);
    if (l->plain)
        return rc;
    if (rc < 0)
        return e ? (err_wrap(e, "%s", redis_link_name(l, name, sizeof name)), rc) : rc;
    if (l->tls)
        rc = start_tls(l, c, h->name, deadline, e);
    if (rc < 0)
        return e ? (err_wrap(e, "%s", redis_link_name(l, name, sizeof name)), rc) : rc;
    rc = greet(l, c, deadline, e);
    rc = rc == 0 && l->sentinel ? check_primary(l, c, deadline, e) : rc;
    if (rc < 0)
        resp_hang_up(c);
    return rc;
}

/* Ask one sentinel where the primary is. */
static int ask_sentinel(struct redis_link *l, const struct redis_host *s, struct resp_conn *c, struct redis_host *ret,
                        int64_t deadline, struct err *e)
{
    const char *words[3] = {"SENTINEL", "get-master-addr-by-name", l->master};
    redisReply *r;
    l->now = *s;
    TRY(resp_dial(c, s->name, s->port, deadline, e));
    int rc = ask(l, c, 3, words, &r, deadline, e);
    if (rc == 0) {
        if (r->type == REDIS_REPLY_ARRAY && r->elements == 2 && r->element[0]->type == REDIS_REPLY_STRING &&
            r->element[1]->type == REDIS_REPLY_STRING) {
            snprintf(ret->name, sizeof ret->name, "%s", r->element[0]->str);
            snprintf(ret->port, sizeof ret->port, "%.7s", r->element[1]->str);
        } else
            rc = err_set(e, -EAGAIN, "sentinel %s:%s knows no primary named '%s'", s->name, s->port, l->master);
        freeReplyObject(r);
    }
    resp_hang_up(c);
    return rc;
}

static int dial_by_sentinels(struct redis_link *l, struct resp_conn *c, int64_t deadline, struct err *e)
{
    int rc = -EAGAIN;
    for (int i = 0; i < l->host_count; i++) {
        struct redis_host primary, sentinel = l->hosts[i];
        int64_t share = clock_deadline(clock_left(deadline) / (l->host_count - i));
        rc = ask_sentinel(l, &sentinel, c, &primary, share, e);
        if (rc == 0)
            rc = dial_server(l, c, &primary, share, e);
        if (rc == 0) { /* ask this sentinel first the next time */
            l->hosts[i] = l->hosts[0];
            l->hosts[0] = sentinel;
        }
        if (rc == 0 || rc == -ECANCELED)
            return rc;
    }
    return rc;
}

int redis_link_dial(struct redis_link *l, struct resp_conn *c, int64_t deadline, struct err *e)
{
    if (l->sentinel)
        return dial_by_sentinels(l, c, deadline, e);
    if (l->moved.name[0]) {
        struct redis_host to = l->moved;
        l->moved = (struct redis_host){0};
        if (dial_server(l, c, &to, deadline, e) == 0)
            return 0;
    }
    return dial_server(l, c, &l->hosts[0], deadline, e);
}
