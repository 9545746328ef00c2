/* `crun status`: asks a rendezvous about its jobs, or reads a job's log in a shared home (status.h). */
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
#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/leader/rdzv_reign.h"
#include "common/rdzv/machine/rdzv.h"
#include "launcher/outside/ask_options.h"
#include "launcher/outside/whom.h"

#define WATCH_MS 1000

struct status_config {
    struct ask_options ask;
    bool watch, json;
};

static const struct arg_spec specs[] = {
    ARG_GROUP("Status"),
    ASK_OPTIONS(
        "HOST[:PORT] of a rendezvousd or of a crun that hosts a rendezvous; a list of hosts, as the job's nodes "
        "have it: the first that knows RUN, or any job, answers; or, for one RUN, the redis://, etcd://, k8s:// or file:// URL "
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
    const char *run; /* NULL: all jobs */
    bool told;       /* that the leader cannot be asked */
    struct whom whom;
};

static bool has_jobs(const redisReply *r)
{
    cJSON *o = r->type == REDIS_REPLY_STRING ? cJSON_ParseWithLength(r->str, r->len) : NULL;
    const bool has = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(o, "jobs")) > 0;
    cJSON_Delete(o);
    return has;
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

static int64_t now_here(const struct rdzv_reign *r)
{
    (void)r;
    return clock_ms();
}

/* Read a job's log in a Redis or a directory: makes JSON like RDZV.STATUS's, without what only a leader knows
 * (limits, events, reports). -ENOENT: there is no such job. */
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

/* Look at the job in a Redis or a directory: ask its leader, else read its log. Waits up to the time-out for each. */
static int read_home(struct status *s, redisReply **answer, char **ret, struct err *e)
{
    const char *const words[] = {"RDZV.STATUS", s->run};
    struct rdzv_home *home;
    struct err why = {0};
    TRY(whom_open_home(&s->whom, &home, e));
    int rc = whom_ask_leader(&s->whom, home, 2, words, answer, &why);
    if (rc == 0 || rc == ERR_REFUSED)
        rc = read_log(s, home, ret, e);
    else if (rc < 0)
        *e = why;
    if (rc == 0 && why.text[0] && !s->told) {
        fprintf(stderr,
                "crun status: the leader of job '%s' cannot be asked: %s. This is its log, from which no node is known "
                "to be heard\n",
                s->run, why.text);
        s->told = true;
    }
    home->ops->close(home);
    return rc < 0 ? err_wrap(e, "run '%s'", s->run) : 0;
}

/* --- showing */

/* The answer as JSON, to be freed. */
static int fetch(struct status *s, char **ret, struct err *e)
{
    const char *const words[] = {"RDZV.STATUS", s->run};
    redisReply *r = NULL;
    *ret = NULL;
    if (whom_is_shared(&s->whom))
        TRY(read_home(s, &r, ret, e));
    else
        TRY(whom_ask_hosts(&s->whom, s->run ? 2 : 1, words, s->run ? NULL : has_jobs, &r, e));
    if (!r)
        return 0;
    *ret = r->type == REDIS_REPLY_STRING ? strdup(r->str) : NULL;
    freeReplyObject(r);
    return *ret ? 0 : err_set(e, ERR_CORRUPT, "%s: the answer to RDZV.STATUS is none", s->config.ask.endpoint);
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

static int run(struct status *s)
{
    struct err e;
    if (!whom_is_shared(&s->whom) && whom_compare_states(&s->whom, &e) < 0)
        complain(&e, 0);
    int rc = print_answer(s, &e);
    while (s->config.watch) {
        if (rc < 0)
            complain(&e, 0); /* it may come back */
        if (rc == -EPIPE || rc == ERR_USAGE)
            break;
        poll(NULL, 0, WATCH_MS);
        rc = print_answer(s, &e);
    }
    whom_finish(&s->whom);
    return rc < 0 && !s->config.watch ? complain(&e, whom_exit_code(rc)) : rc < 0 ? whom_exit_code(rc) : EXIT_OK;
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
    if (whom_init(&s.whom, &s.config.ask, s.run, &e) < 0)
        return complain(&e, EXIT_USAGE_ERROR);
    return run(&s);
}
