/* See jobs_rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvousd/jobs/jobs_rig.h"
#include <stdio.h>
#include <string.h>

int64_t rig_now = 1000000;

int64_t rig_clock(void)
{
    return rig_now;
}

static int64_t no_wall_clock(void)
{
    return 0;
}

struct jobs *rig_jobs(const struct jobs_options *o)
{
    struct jobs_options own = o ? *o : (struct jobs_options){0};
    struct jobs *j;
    struct err e;
    own.now = rig_clock;
    own.wall_ms = no_wall_clock;
    if (jobs_create(&j, &own, &e) < 0)
        fail_msg("%s", e.text);
    return j;
}

void rig_pass(struct jobs *j, int64_t ms)
{
    const int64_t until = rig_now + ms;
    while (jobs_deadline(j) <= until) {
        if (jobs_deadline(j) > rig_now)
            rig_now = jobs_deadline(j);
        jobs_tick(j);
        assert_true(jobs_deadline(j) > rig_now);
    }
    rig_now = until;
}

struct rdzv_config rig_config(int min, int max)
{
    return (struct rdzv_config){.min_nodes = min,
                                .max_nodes = max,
                                .max_restarts = 3,
                                .backoff_max_ms = 30000,
                                .backoff_reset_ms = 10000,
                                .join_timeout_ms = 600000,
                                .last_call_ms = 1000,
                                .silence_ms = 3000,
                                .kill_ms = 1000,
                                .first_round = 1};
}

static void on_told(void *arg, const struct rdzv_news *news, const char *members, int more)
{
    struct agent *a = arg;
    if (!news) {
        a->is_void = true;
        return;
    }
    a->news = *news;
    a->told++;
    a->more = more;
    snprintf(a->members, sizeof a->members, "%s", members ? members : "");
    if (a->then)
        a->then(a);
}

static void on_asked(void *arg, const char *record, size_t n)
{
    struct agent *a = arg;
    snprintf(a->question, sizeof a->question, "%.*s", (int)n, record);
    a->questions++;
}

void rig_open_as(struct jobs *j, struct agent *a, const char *run, const char *node, const char *addr,
                 const char *principal)
{
    struct err e;
    memset(a, 0, sizeof *a);
    a->run = run;
    a->node = node;
    const struct jobs_party_options o = {.principal = principal,
                                         .addr = addr[0] ? addr : NULL,
                                         .local = "10.0.0.1",
                                         .told = on_told,
                                         .asked = on_asked,
                                         .arg = a};
    if (jobs_party_open(&a->party, j, &o, &e) < 0)
        fail_msg("%s", e.text);
}

void rig_open(struct jobs *j, struct agent *a, const char *run, const char *node, const char *addr)
{
    rig_open_as(j, a, run, node, addr, "alice");
}

int rig_join(struct agent *a, const struct rdzv_config *c, uint64_t round)
{
    struct rdzv_event ev = {.kind = RDZV_JOIN, .round = round, .slots = 2, .node_rank = -1, .port = 4000};
    snprintf(ev.node, sizeof ev.node, "%s", a->node);
    int rc = jobs_join(a->party, a->run, &ev, c, &a->joined, &a->e);
    if (rc == 0)
        a->news = (struct rdzv_news){.seq = a->joined.seq};
    return rc;
}

int rig_next(struct agent *a)
{
    return jobs_next(a->party, a->run, a->node, a->news.seq, -1, &a->e);
}

int rig_say(struct agent *a, enum rdzv_event_kind kind, uint64_t round, int exit_code)
{
    struct rdzv_event ev = {.kind = kind, .round = round, .cause = {.exit_code = exit_code, .rank = -1}};
    snprintf(ev.node, sizeof ev.node, "%s", a->node);
    snprintf(ev.cause.text, sizeof ev.cause.text, "rank 0 broke");
    return jobs_claim(a->party, a->run, &ev, &a->e);
}

void rig_close(struct agent *a, enum jobs_end how)
{
    jobs_party_close(a->party, how);
    a->party = NULL;
}
