/* See status.h. One blocking connection, kept while it lasts. Of a list of hosts each is asked in turn. */
#include "launcher/tools/status/status.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/rdzv/homes/home_process.h"
#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/leader/rdzv_reign.h"
#include "common/rdzv/machine/rdzv.h"
#include "launcher/tools/status/ask_options.h"

#define WATCH_MS 1000
#define KEEP_MS 3600000

struct status_config {
    struct ask_options ask;
    bool watch, json;
};

static const struct arg_spec specs[] = {
    ARG_GROUP("Status"),
    ASK_OPTIONS(
        "HOST[:PORT] of a rendezvousd or of a crun that hosts a rendezvous; a list of hosts, as the job's nodes "
        "have it: the first that knows RUN, or any job, answers; or, for one RUN, the redis:// or file:// URL "
        "where its nodes meet"),
    {.name = "watch",
     .type = ARG_FLAG,
     .at = offsetof(struct status_config, watch),
     .help = "look again each second, until interrupted"},
    {.name = "json",
     .type = ARG_FLAG,
     .at = offsetof(struct status_config, json),
     .help = "print the rendezvous' answer as it is: JSON, one line for each look"},
    ARG_END,
};

const struct arg_program status_program = {
    .name = "crun status",
    .usage = "[options] [RUN]",
    .summary =
        "Show the jobs of a rendezvous, also those that are over and remembered by a rendezvousd: of all, one line "
        "each; of RUN, its nodes, restarts and events, too.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

struct status {
    struct status_config config;
    const char *run;     /* NULL: all jobs */
    struct rdzv_ask ask; /* host "": no server is asked */
    struct home_host list[HOME_LIST_MAX];
    int listed, at; /* at: the one that is asked, of `listed` */
    int home_fd;    /* to the process that touches a folder; 0: none yet */
};

static int64_t timeout_ms(const struct status *s)
{
    return (int64_t)(s->config.ask.timeout_s * 1000);
}

/* --- asking a server */

static int request_status(struct status *s, redisReply **ret, struct err *e)
{
    const char *const words[] = {"RDZV.STATUS", s->run};
    TRY(rdzv_ask_open(&s->ask, e));
    return rdzv_ask(&s->ask, s->run ? 2 : 1, words, ret, e);
}

static void take_host(struct status *s, int i)
{
    const struct home_host *h = &s->list[i];
    s->at = i;
    resp_init(&s->ask.conn, -1);
    snprintf(s->ask.host, sizeof s->ask.host, "%s", h->host);
    snprintf(s->ask.port, sizeof s->ask.port, "%d", h->port);
}

static bool has_jobs(const redisReply *r)
{
    cJSON *o = r->type == REDIS_REPLY_STRING ? cJSON_ParseWithLength(r->str, r->len) : NULL;
    const bool has = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(o, "jobs")) > 0;
    cJSON_Delete(o);
    return has;
}

/* Each host in turn, from the one that answered last on, until one knows the job, or any. None: what the last said that
 * answered, else why the last cannot be reached. */
static int request_in_turn(struct status *s, redisReply **ret, struct err *e)
{
    redisReply *jobless = NULL;
    int rc = 0;
    for (int i = 0; i < s->listed; i++) {
        struct err why;
        redisReply *r;
        const int one = request_status(s, &r, &why);
        if (one == 0 && (s->run || has_jobs(r))) {
            if (jobless)
                freeReplyObject(jobless);
            *ret = r;
            return 0;
        }
        if (one == 0 && jobless)
            freeReplyObject(jobless);
        jobless = one == 0 ? r : jobless;
        if (one < 0 && rc != ERR_REFUSED)
            rc = err_set(e, one, "%s port %s: %s", s->ask.host, s->ask.port, why.text);
        if (s->listed > 1) {
            rdzv_ask_finish(&s->ask);
            take_host(s, (s->at + 1) % s->listed);
        }
    }
    *ret = jobless;
    return jobless ? 0 : rc;
}

/* --- asking a Redis or a directory */

static const char *condition(const struct rdzv_member *m)
{
    return m->silent ? "silent" : m->done ? "done" : m->leaving ? "leaving" : m->ready ? "ready" : "running";
}

static int add_node(void *arg, const struct rdzv_member *m)
{
    cJSON *o = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(arg, o)) {
        cJSON_Delete(o);
        return -ENOMEM;
    }
    cJSON_AddStringToObject(o, "id", m->node);
    cJSON_AddStringToObject(o, "addr", m->addr);
    cJSON_AddNumberToObject(o, "slots", m->slots);
    cJSON_AddBoolToObject(o, "member", m->member);
    cJSON_AddNumberToObject(o, "rank_base", m->rank_base);
    cJSON_AddStringToObject(o, "state", condition(m));
    return 0;
}

static int to_json(struct rdzv *machine, const char *run, char **ret, struct err *e)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "run", run);
    cJSON_AddStringToObject(o, "state", rdzv_state_name(rdzv_state(machine)));
    cJSON_AddNumberToObject(o, "round", (double)rdzv_round(machine));
    cJSON_AddNumberToObject(o, "restart_count", rdzv_restarts(machine));
    cJSON *nodes = cJSON_AddArrayToObject(o, "nodes");
    int rc = nodes ? rdzv_members(machine, add_node, nodes) : -ENOMEM;
    *ret = rc == 0 ? cJSON_PrintUnformatted(o) : NULL;
    cJSON_Delete(o);
    return *ret ? 0 : err_set(e, -ENOMEM, "no memory for the status of a job");
}

/* A process that a folder's disk may hold in our place: it ends after us, at the latest when the disk answers. *ret_fd:
 * where it is asked. */
static int start_home_process(int *ret_fd, struct err *e)
{
    pid_t pid;
    const int fd = home_process_start(home_serve_folder, "crun-home", &pid);
    if (fd < 0)
        return err_start(e, -fd, "a process for the shared folder");
    *ret_fd = fd;
    return 0;
}

static int64_t now_here(const struct rdzv_reign *r)
{
    (void)r;
    return clock_ms();
}

/* What a job's log in a Redis or a directory says: JSON like RDZV.STATUS's, without what only a leader knows (limits,
 * events, reports). -ENOENT: there is no such job. */
static int read_log(struct status *s, struct rdzv_home *home, char **ret, struct err *e)
{
    struct rdzv_reign r = {.home = home};
    TRY(leader_create(&r.leader, &(struct leader_options){.run = s->run}, e));
    int rc = rdzv_reign_take_over(&r, now_here, 0, e);
    if (rc == 0 && !leader_machine(r.leader))
        rc = err_set(e, -ENOENT, "no job of this run id is known there");
    if (rc == 0)
        rc = to_json(leader_machine(r.leader), s->run, ret, e);
    leader_destroy(r.leader);
    return rc;
}

/* Whoever leads, at one of the addresses of its claim. 1: it has answered; 0: none of them does. */
static int ask_leader(struct status *s, const struct rdzv_claim *claim, char **ret)
{
    redisReply *r = NULL;
    struct err e;
    snprintf(s->ask.port, sizeof s->ask.port, "%d", claim->port);
    for (const char *p = claim->addrs; *p && !r; p += strcspn(p, ","), p += *p == ',') {
        snprintf(s->ask.host, sizeof s->ask.host, "%.*s", (int)strcspn(p, ","), p);
        resp_init(&s->ask.conn, -1);
        if (request_status(s, &r, &e) < 0)
            r = NULL;
        rdzv_ask_finish(&s->ask);
    }
    s->ask.host[0] = 0;
    *ret = r && r->type == REDIS_REPLY_STRING ? strdup(r->str) : NULL;
    if (r)
        freeReplyObject(r);
    return *ret != NULL;
}

/* The job at a Redis or in a directory: asks its leader, else reads its log. Waits up to timeout_ms for each. */
static int read_home(struct status *s, char **ret, struct err *e)
{
    struct rdzv_home_options o = {.run_id = s->run, .io_timeout_ms = timeout_ms(s), .keep_ms = KEEP_MS};
    struct rdzv_claim claim;
    struct rdzv_home *home;
    if (strncmp(s->config.ask.endpoint, "file://", 7) == 0 && s->home_fd == 0)
        TRY(start_home_process(&s->home_fd, e));
    o.process_fd = s->home_fd;
    TRY(rdzv_home_open(&home, s->config.ask.endpoint, &o, e));
    int rc = home->ops->look(home, &claim, e);
    if (rc >= 0 && (rc == 0 || claim.released || !ask_leader(s, &claim, ret)))
        rc = read_log(s, home, ret, e);
    home->ops->close(home);
    return rc < 0 ? err_wrap(e, "run '%s'", s->run) : 0;
}

/* --- showing */

/* The answer as JSON, to be freed. */
static int fetch(struct status *s, char **ret, struct err *e)
{
    redisReply *r;
    if (!s->ask.host[0])
        return read_home(s, ret, e);
    TRY(request_in_turn(s, &r, e));
    *ret = r->type == REDIS_REPLY_STRING ? strdup(r->str) : NULL;
    freeReplyObject(r);
    return *ret ? 0
                : err_set(e, ERR_CORRUPT, "%s port %s: the answer to RDZV.STATUS is none", s->ask.host, s->ask.port);
}

static int print_answer(struct status *s, struct err *e)
{
    char *json = NULL;
    TRY(fetch(s, &json, e));
    if (s->config.watch && !s->config.json && isatty(STDOUT_FILENO))
        fputs("\033[H\033[J", stdout); /* home, and clear to the end */
    int rc = s->config.json ? puts(json) : status_print(json, s->run ? STATUS_DETAILS : STATUS_LIST, stdout, e);
    free(json);
    if (fflush(stdout) != 0)
        return err_errno(e, errno, "the terminal");
    return rc < 0 ? rc : 0;
}

static int complain(const struct err *e, int code)
{
    fprintf(stderr, "crun status: %s\n", e->text);
    return code;
}

static int exit_code_of(int rc)
{
    return rc == ERR_USAGE || rc == -EINVAL     ? EXIT_USAGE_ERROR
           : rc == ERR_REFUSED || rc == -ENOENT ? EXIT_FAIL
                                                : EXIT_UNAVAILABLE;
}

static int run(struct status *s)
{
    struct err e;
    int rc = print_answer(s, &e);
    while (s->config.watch) {
        if (rc < 0)
            complain(&e, 0); /* it may come back */
        if (rc == -EPIPE || rc == ERR_USAGE)
            break;
        poll(NULL, 0, WATCH_MS);
        rc = print_answer(s, &e);
    }
    if (s->ask.host[0])
        rdzv_ask_finish(&s->ask);
    return rc < 0 && !s->config.watch ? complain(&e, exit_code_of(rc)) : rc < 0 ? exit_code_of(rc) : EXIT_OK;
}

static int find_endpoint(struct status *s, struct err *e)
{
    ask_options_apply(&s->config.ask, &s->ask);
    if (strstr(s->config.ask.endpoint, "://"))
        return s->run ? 0 : err_set(e, ERR_USAGE, "a Redis or a directory has no list of jobs: name the RUN");
    TRY(home_parse_list(s->config.ask.endpoint, s->list, &s->listed, e));
    take_host(s, 0);
    return 0;
}

int status_main(int argc, char **argv)
{
    struct status s = {0};
    struct arg_result r;
    struct err e;
    if (args_parse(&status_program, argc, argv, &s.config, &r, &e) < 0)
        return complain(&e, EXIT_USAGE_ERROR);
    if (args_answer(&status_program, "crun " CRUN_VERSION, &s.config, &r, stdout))
        return EXIT_OK;
    if (argc - r.first_operand > 1) {
        err_set(&e, ERR_USAGE, "'%s': expected one RUN at most", argv[r.first_operand + 1]);
        return complain(&e, EXIT_USAGE_ERROR);
    }
    s.run = r.first_operand < argc ? argv[r.first_operand] : NULL;
    if (find_endpoint(&s, &e) < 0)
        return complain(&e, EXIT_USAGE_ERROR);
    return run(&s);
}
