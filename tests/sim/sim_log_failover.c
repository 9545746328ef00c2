/* What a simulated Redis is made of, a primary and its replicas, and what befalls them. Which deployments there are,
 * the product itself decides: those it takes to be safe. */
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/homes/rdzv_log_redis_internal.h"
#include "tests/sim/sim_log.h"

enum { LATE_LOOK_MS = 1000 /* a primary looks at the lag of its replicas once a second */ };

void log_deploy(struct log_world *w)
{
    struct redis_facts f = {.run_id = "sim"};
    struct err e;
    do {
        f.replicas = (int)log_between(w, w->sound, 4);
        f.min_replicas = w->cut ? 0 : log_between(w, 0, f.replicas);
        f.max_lag_s = log_between(w, w->sound ? 5 : 1, 8);
    } while (redis_judge(&f, w->cut, 0, &w->max_lag_ms, &e) < 0);
    w->replicas = f.replicas;
    w->min_replicas = (int)f.min_replicas;
    log_trace(w, "%d replicas, at least %d to write, lag %lld ms", w->replicas, w->min_replicas,
              (long long)w->max_lag_ms);
}

void log_mutated(struct log_world *w)
{
    if (w->history_count == LOG_HISTORY) {
        memmove(w->history, w->history + 1, (LOG_HISTORY - 1) * sizeof *w->history);
        w->history_count--;
    }
    w->history[w->history_count++] = w->state;
}

static void hang_up(struct log_world *w, struct log_agent *a)
{
    a->generation = -1;
    if (a->exchange)
        a->gives_up = w->now;
}

void log_heal(struct log_world *w)
{
    w->old_until = 0;
    w->writes_from = w->now < w->writes_from ? w->now : w->writes_from; /* the old primary is a replica now */
    for (int i = 0; i < w->agent_count; i++)
        if (w->agents[i].on_old) {
            w->agents[i].on_old = false;
            hang_up(w, &w->agents[i]);
        }
    log_trace(w, "the old primary is gone");
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Who leads stays with the old primary, and somebody does not. */
static void choose_sides(struct log_world *w)
{
    struct log_agent *leader = log_leader(w);
    w->agents[log_between(w, 0, w->agent_count - 1)].on_old = false;
    if (leader)
        leader->on_old = true;
}

/* Some nodes go on with the old primary, and some of the replicas. Those are taken from it later: from then on it knows
 * that they lag, and the new one has them. */
static void part(struct log_world *w)
{
    const int stay = (int)log_between(w, 0, w->replicas - 1), come = w->replicas - stay - 1;
    w->old = w->state;
    memcpy(w->old_log, w->log, sizeof w->log[0] * (size_t)w->state.count);
    memcpy(w->round_heard[1], w->round_heard[0], sizeof w->round_heard[0]);
    w->old_generation = w->generation;
    w->old_promoted = w->promoted;
    w->old_replicas = stay;
    w->old_replicas_until = stay ? w->now + log_between(w, 0, 10000) : w->now;
    w->old_until = w->old_replicas_until + log_between(w, 1000, 15000);
    w->old_writes_until =
        (stay >= w->min_replicas ? w->old_replicas_until : w->now) + w->max_lag_ms + log_between(w, 0, LATE_LOOK_MS);
    w->old_writes_until = w->min_replicas ? earlier(w->old_writes_until, w->old_until) : w->old_until;
    w->writes_from = come >= w->min_replicas          ? w->now
                     : come + stay >= w->min_replicas ? w->old_replicas_until
                                                      : w->old_until;
    w->stats->partitions++;
    for (int i = 0; i < w->agent_count; i++)
        w->agents[i].on_old = log_chance(w, 0.5);
    if (w->cut)
        choose_sides(w);
    log_trace(w, "the old primary lives on with %d of %d replicas, writes until %lld; the new one from %lld", stay,
              w->replicas, (long long)w->old_writes_until, (long long)w->writes_from);
}

bool log_has_replicas(const struct log_world *w, const struct log_agent *a)
{
    if (!a->on_old)
        return w->now >= w->writes_from;
    return w->old_replicas >= w->min_replicas && w->now < w->old_replicas_until;
}

/* The home knows nothing of the job any more. */
static void delay_births(struct log_world *w)
{
    w->no_births_until = w->now + w->config.silence_ms + w->config.kill_ms;
    for (int i = 0; i < w->agent_count; i++)
        if (!w->agents[i].knew_reign && w->agents[i].next_beat < w->no_births_until)
            w->agents[i].next_beat = w->no_births_until;
}

static void promote(struct log_world *w)
{
    w->writes_from = w->now;
    if (w->replicas > 0 && (w->sound || log_chance(w, 0.4)))
        part(w);
    else if (w->replicas > 0 && w->replicas - 1 < w->min_replicas) /* the old one must come back first */
        w->writes_from = w->now + log_between(w, 0, 5000);
    w->promoted = w->replicas > 0;
    const int lost = (int)log_between(w, 0, w->history_count);
    if (lost == 0)
        return;
    w->state = w->history[w->history_count - lost];
    w->stats->lost_writes += (uint64_t)lost;
    log_trace(w, "failover: %d writes are lost", lost);
}

/* Another server takes over, without the last writes that the old one acknowledged; the old one is dead, or lives on
 * for some of the nodes. One that is emptied says nothing to a node that is new there: no node is born before what
 * works is dead (docs/design/log-of-decisions.md). */
void log_failover(struct log_world *w)
{
    const bool knew = w->state.epoch != NULL;
    if (w->old_until)
        log_heal(w);
    if (!w->sound && log_chance(w, 0.05)) {
        memset(&w->state, 0, sizeof w->state);
        log_trace(w, "the Redis is emptied");
    } else {
        promote(w);
    }
    if (knew && !w->state.epoch && !w->promoted)
        delay_births(w);
    w->history_count = 0;
    w->generation++;
    w->stats->failovers++;
    for (int i = 0; i < w->agent_count; i++)
        if (!w->agents[i].on_old)
            hang_up(w, &w->agents[i]);
}
