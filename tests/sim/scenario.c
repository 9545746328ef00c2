#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "tests/sim/scenario.h"
#include <stdio.h>

struct rdzv_config job_config(int min, int max, int restarts)
{
    return (struct rdzv_config){.min_nodes = min,
                                .max_nodes = max,
                                .max_restarts = restarts,
                                .join_timeout_ms = 600000,
                                .last_call_ms = 30000,
                                .silence_ms = 3000,
                                .kill_ms = 1000,
                                .first_round = 1};
}

struct job begin_with(const struct rdzv_config *c)
{
    struct job j = {.now = 0};
    assert_int_equal(rdzv_create(&j.r, c, NULL), 0);
    return j;
}

struct job begin(int min, int max, int restarts)
{
    struct rdzv_config c = job_config(min, max, restarts);
    return begin_with(&c);
}

void end(struct job *j)
{
    rdzv_destroy(j->r);
    rdzv_effects_free(&j->fx);
    buf_free(&j->said);
}

static void write_news(struct buf *b, const struct rdzv_effect *fx)
{
    static const char *const why[] = {"start", "failure", "resize", "drain"};
    const struct rdzv_news *n = &fx->news;
    if (n->kind == RDZV_NEWS_ROUND && n->spare)
        buf_printf(b, "%s: spare of round %d; ", fx->node, (int)n->round);
    else if (n->kind == RDZV_NEWS_ROUND)
        buf_printf(b, "%s: round %d %s, node %d/%d at %s, ranks %d+ of %d, restart %d; ", fx->node, (int)n->round,
                   why[n->why], n->group_rank, n->group_world, n->leader_addr, n->rank_base, n->world_size,
                   n->restart_count);
    else if (n->kind == RDZV_NEWS_STOP)
        buf_printf(b, "%s: stop %d %s; ", fx->node, (int)n->round, why[n->why]);
    else if (n->spare)
        buf_printf(b, "%s: no place of %d at %s%s%s; ", fx->node, n->group_world, n->leader_addr,
                   n->cause.text[0] ? ": " : "", n->cause.text);
    else
        buf_printf(b, "%s: end %d; ", fx->node, n->exit_code);
}

int step_event(struct job *j, const struct rdzv_event *ev)
{
    struct err e;
    int rc = rdzv_step(j->r, ev, j->now, &j->fx, &e);
    buf_clear(&j->said);
    for (size_t i = 0; rc == 0 && i < j->fx.n; i++)
        write_news(&j->said, &j->fx.v[i]);
    if (rdzv_check(j->r, &e) < 0)
        fail_msg("after %s of %s: %s", rdzv_event_name(ev->kind), ev->node, e.text);
    return rc;
}

int step(struct job *j, enum rdzv_event_kind kind, const char *node, uint64_t round, int slots)
{
    struct rdzv_event ev = {.kind = kind, .round = round, .slots = slots, .node_rank = -1};
    if (kind != RDZV_LEAVE && kind != RDZV_DRAIN) /* theirs in good order */
        ev.cause = (struct rdzv_cause){.exit_code = 137, .rank = 1, .text = "killed"};
    snprintf(ev.node, sizeof ev.node, "%s", node);
    snprintf(ev.addr, sizeof ev.addr, "@%s", node);
    return step_event(j, &ev);
}

void says_event(struct job *j, const struct rdzv_event *ev, const char *expected)
{
    assert_int_equal(step_event(j, ev), 0);
    assert_string_equal(j->said.data ? j->said.data : "", expected);
}

void says(struct job *j, enum rdzv_event_kind kind, const char *node, uint64_t round, const char *expected)
{
    assert_int_equal(step(j, kind, node, round, 2), 0);
    assert_string_equal(j->said.data ? j->said.data : "", expected);
}

void ticks(struct job *j, int64_t at, const char *expected)
{
    assert_int_equal(rdzv_deadline(j->r), at);
    j->now = at;
    says(j, RDZV_TICK, "", 0, expected);
}
