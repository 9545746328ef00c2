/* Asks the server that answers for a job: a host, each host of a list, or an elected leader (whom.h). */
#include "launcher/outside/whom.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/rdzv/homes/home_process.h"
#include "common/rdzv/homes/rdzv_claim.h"
#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/wire/rdzv_wire.h"

#define KEEP_MS 3600000
#define ONE_OF_SEVERAL_MS 2000 /* to connect to one of a list and prove who we are: the next one may answer */

/* --- servers */

static int ask_one(struct whom *w, int argc, const char *const *words, redisReply **ret, struct err *e)
{
    const int64_t timeout_ms = w->ask.timeout_ms;
    if (w->listed > 1 && timeout_ms > ONE_OF_SEVERAL_MS)
        w->ask.timeout_ms = ONE_OF_SEVERAL_MS;
    const int rc = rdzv_ask_open(&w->ask, e);
    w->ask.timeout_ms = timeout_ms;
    if (rc < 0)
        return rc;
    return rdzv_ask(&w->ask, argc, words, ret, e);
}

static void take_host(struct whom *w, int i)
{
    const struct home_host *h = &w->list[i];
    w->at = i;
    resp_init(&w->ask.conn, -1);
    memcpy(w->ask.host, h->host, sizeof h->host);
    snprintf(w->ask.port, sizeof w->ask.port, "%d", h->port);
}

int whom_ask_hosts(struct whom *w, int argc, const char *const *words, bool (*fits)(const redisReply *r),
                   redisReply **ret, struct err *e)
{
    redisReply *other = NULL;
    int rc = 0;
    for (int i = 0; i < w->listed; i++) {
        struct err why;
        redisReply *r;
        const int one = ask_one(w, argc, words, &r, &why);
        if (one == 0 && other)
            freeReplyObject(other);
        other = one == 0 ? r : other;
        const bool aside = one == 0 && r->type == REDIS_REPLY_ERROR && strncmp(r->str, "STANDBY ", 8) == 0;
        if (one == 0 && !aside && (!fits || fits(r)))
            break;
        if (one < 0 && rc != ERR_REFUSED)
            rc = err_set(e, one, "%s port %s: %s", w->ask.host, w->ask.port, why.text);
        if (w->listed > 1) {
            rdzv_ask_finish(&w->ask);
            take_host(w, (w->at + 1) % w->listed);
        }
    }
    *ret = other;
    return other ? 0 : rc;
}

int whom_compare_states(struct whom *w, struct err *e)
{
    const char *const words[] = {"RDZV.SEATS", w->run ? w->run : "-", "-"};
    const int at = w->at;
    char state[40], first[40] = "", by[HOME_HOST_MAX + 16], where[HOME_HOST_MAX + 16];
    int rc = 0;
    for (int i = 0; i < w->listed && w->listed > 1 && rc == 0; i++) {
        redisReply *r = NULL;
        rdzv_ask_finish(&w->ask);
        take_host(w, i);
        home_join(w->list[i].host, w->list[i].port, where, sizeof where);
        const bool says = ask_one(w, 3, words, &r, NULL) == 0 && r->type == REDIS_REPLY_STRING &&
                          rdzv_field_find(r->str, r->len, "state_id", state, sizeof state) == 1 && state[0];
        if (says && first[0] && strcmp(first, state) != 0)
            rc = err_set(e, ERR_MISMATCH,
                         "the daemons %s and %s of the list do not share one state, %s and %s, and either has jobs of "
                         "its own: start them with the same --state",
                         by, where, first, state);
        if (says && !first[0]) {
            memcpy(first, state, sizeof first);
            memcpy(by, where, sizeof by);
        }
        freeReplyObject(r);
    }
    if (w->listed > 1) {
        rdzv_ask_finish(&w->ask);
        take_host(w, at);
    }
    return rc;
}

/* --- a Redis or a folder */

/* Start a process for the file operations of a shared folder, whose disk may hang: it blocks in our place, and may
 * end after us. *ret_fd: the socket for requests. */
static int start_home_process(int *ret_fd, struct err *e)
{
    pid_t pid;
    const int fd = home_process_start(home_serve_folder, "crun-home", &pid);
    if (fd < 0)
        return err_start(e, -fd, "a process for the shared folder");
    *ret_fd = fd;
    return 0;
}

int whom_open_home(struct whom *w, struct rdzv_home **ret, struct err *e)
{
    struct rdzv_home_options o = {.run_id = w->run, .io_timeout_ms = w->ask.timeout_ms, .keep_ms = KEEP_MS};
    if (strncmp(w->o->endpoint, "file://", 7) == 0 && w->home_fd == 0)
        TRY(start_home_process(&w->home_fd, e));
    o.process_fd = w->home_fd;
    return rdzv_home_open(ret, w->o->endpoint, &o, e);
}

int whom_ask_leader(struct whom *w, struct rdzv_home *home, int argc, const char *const *words, redisReply **ret,
                    struct err *e)
{
    struct rdzv_claim claim;
    int rc = home->ops->look(home, &claim, e);
    if (rc <= 0 || claim.released)
        return rc < 0 ? rc : 0;
    rc = -ENOTCONN;
    snprintf(w->ask.port, sizeof w->ask.port, "%d", claim.port);
    for (const char *p = claim.addrs; *p && rc < 0 && rc != ERR_REFUSED; p += strcspn(p, ","), p += *p == ',') {
        snprintf(w->ask.host, sizeof w->ask.host, "%.*s", (int)strcspn(p, ","), p);
        resp_init(&w->ask.conn, -1);
        rc = ask_one(w, argc, words, ret, e);
        rdzv_ask_finish(&w->ask);
    }
    return rc == 0 ? 1 : rc == ERR_REFUSED ? rc : 0;
}

/* --- whoever it is */

int whom_request(struct whom *w, int argc, const char *const *words, redisReply **ret, struct err *e)
{
    struct rdzv_home *home;
    if (!whom_is_shared(w))
        return whom_ask_hosts(w, argc, words, NULL, ret, e);
    TRY(whom_open_home(w, &home, e));
    const int rc = whom_ask_leader(w, home, argc, words, ret, e);
    home->ops->close(home);
    return rc == 0  ? err_set(e, -ENOTCONN, "nobody leads the job '%s' at %s just now", w->run, w->o->endpoint)
           : rc < 0 ? rc
                    : 0;
}

bool whom_is_shared(const struct whom *w)
{
    return strstr(w->o->endpoint, "://");
}

int whom_init(struct whom *w, const struct ask_options *o, const char *run, struct err *e)
{
    *w = (struct whom){.o = o, .run = run};
    resp_init(&w->ask.conn, -1);
    ask_options_apply(o, &w->ask);
    if (whom_is_shared(w))
        return run ? 0 : err_set(e, ERR_USAGE, "a Redis, an etcd or a directory has no list of jobs: name the RUN");
    TRY(home_parse_list(o->endpoint, w->list, &w->listed, e));
    take_host(w, 0);
    return 0;
}

void whom_finish(struct whom *w)
{
    rdzv_ask_finish(&w->ask);
}

int whom_exit_code(int rc)
{
    return rc == ERR_USAGE || rc == -EINVAL     ? EXIT_USAGE_ERROR
           : rc == ERR_REFUSED || rc == -ENOENT ? EXIT_FAIL
                                                : EXIT_UNAVAILABLE;
}
