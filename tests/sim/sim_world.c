/* Clock, network and faults of a simulated job. Faults come until faults_end; from then on every message arrives, nobody fails, and
 * every agent alive must have its answer before the horizon. */
#include "common/err.h"
#include "tests/sim/sim_impl.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULTS_MS = 25000, HORIZON_MS = 200000 };

uint64_t sim_random(struct world *w) /* splitmix64 */
{
    uint64_t z = (w->rng += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t sim_between(struct world *w, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(sim_random(w) % (uint64_t)(hi - lo + 1));
}

bool sim_chance(struct world *w, double p)
{
    return (double)(sim_random(w) >> 11) * 0x1p-53 < p;
}

void sim_broken(struct world *w, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!w->broken) /* the first is the one to look at */
        w->broken = err_set(w->e, ERR_CORRUPT, "seed %llu, at %lld ms: %s", (unsigned long long)w->seed,
                            (long long)w->now, text);
}

static bool faulty(const struct world *w)
{
    return w->now < w->faults_end;
}

static void enqueue(struct world *w, struct message m)
{
    if (w->queued == MESSAGES_MAX) {
        sim_broken(w, "%d messages are under way: the simulation runs away", w->queued);
        return;
    }
    m.at = w->now + (faulty(w) && sim_chance(w, w->long_delay) ? sim_between(w, 0, 6000) : sim_between(w, 1, 40));
    w->queue[w->queued++] = m;
}

void sim_send(struct world *w, struct message m)
{
    bool certain = m.ask == TELL_GONE && !m.to_agent;
    if (!certain && w->agents[m.agent].cut_until > w->now)
        return;
    if (!certain && faulty(w) && sim_chance(w, w->loss))
        return;
    enqueue(w, m);
    if (faulty(w) && sim_chance(w, w->repeat))
        enqueue(w, m);
}

static void deliver(struct world *w, int i)
{
    struct message m = w->queue[i];
    struct agent *a = &w->agents[m.agent];
    w->queue[i] = w->queue[--w->queued];
    if (a->cut_until > w->now && m.ask != TELL_GONE)
        return;
    if (m.to_agent)
        sim_agent_receive(w, a, &m);
    else
        sim_host_receive(w, &m);
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static void add_agent(struct world *w)
{
    if (w->agent_count == AGENTS_MAX)
        return;
    struct agent *a = &w->agents[w->agent_count++];
    snprintf(a->id, sizeof a->id, "node%d", w->agent_count);
    sim_agent_born(w, a);
}

static void die(struct world *w, struct agent *a, bool proved)
{
    a->mode = AGENT_DEAD;
    a->workers = false;
    if (proved)
        sim_send(w, (struct message){.sent = w->now, .agent = (int)(a - w->agents), .ask = TELL_GONE});
}

/* Out of reach; half the time the host sees the connection break at once, else only that nothing comes any more. */
static void cut(struct world *w, struct agent *a)
{
    a->cut_until = w->now + sim_between(w, 50, 9000);
    if (!rdzv_knows(w->rdzv, a->id) || a->known_silent || sim_chance(w, 0.5))
        return;
    a->known_silent = true;
    struct rdzv_event ev = {.kind = RDZV_SILENT};
    memcpy(ev.node, a->id, sizeof ev.node);
    sim_step(w, &ev);
}

static void fault(struct world *w)
{
    struct agent *a = &w->agents[sim_between(w, 0, w->agent_count - 1)];
    bool alive = a->mode != AGENT_DEAD && a->mode != AGENT_ENDED;
    switch (sim_between(w, 0, 15)) {
    case 0:
    case 1:
    case 2:
        add_agent(w);
        break;
    case 3:
    case 4:
        if (alive)
            die(w, a, sim_chance(w, 0.6));
        break;
    case 5:
    case 6:
    case 7:
        if (a->mode == AGENT_WORKING && a->workers && a->killed_at == NEVER) {
            a->failed = true;
            a->finish_at = NEVER;
            a->next_ask = w->now;
        }
        break;
    case 8:
    case 9:
    case 10:
    case 11:
    case 12:
        if (alive)
            cut(w, a);
        break;
    case 13:
    case 14:
        if (alive && sim_chance(w, 0.5)) {
            a->leaving = true;
            a->next_ask = w->now;
        }
        break;
    default:
        if (sim_chance(w, 0.1))
            sim_step(w, &(struct rdzv_event){.kind = RDZV_DRAIN});
    }
}

/* ---- one run ---------------------------------------------------------------------------------------------------- */

static bool all_answered(const struct world *w)
{
    for (int i = 0; i < w->agent_count; i++)
        if (w->agents[i].mode != AGENT_ENDED && w->agents[i].mode != AGENT_DEAD)
            return false;
    return true;
}

static int earliest_message(const struct world *w)
{
    int best = -1;
    for (int i = 0; i < w->queued; i++)
        if (best < 0 || w->queue[i].at < w->queue[best].at)
            best = i;
    return best;
}

/* Advance to whatever happens next. */
static void turn(struct world *w)
{
    int m = earliest_message(w);
    int64_t message = m < 0 ? NEVER : w->queue[m].at, host = sim_host_wake(w), next = w->next_fault;
    struct agent *first = NULL;
    int64_t agent = NEVER;
    for (int i = 0; i < w->agent_count; i++) {
        int64_t at = sim_agent_wake(w, &w->agents[i]);
        if (at < agent) {
            agent = at;
            first = &w->agents[i];
        }
    }
    int64_t now = message < host ? message : host;
    now = agent < now ? agent : now;
    now = next < now ? next : now;
    w->now = now > w->now ? now : w->now;
    if (now == agent)
        sim_agent_tick(w, first);
    else if (now == host)
        sim_host_tick(w);
    else if (now == message)
        deliver(w, m);
    else {
        fault(w);
        w->next_fault = w->now + sim_between(w, 1, (int64_t)(2000 / w->fault_rate));
        if (w->next_fault >= w->faults_end)
            w->next_fault = NEVER;
    }
}

static void cease(struct world *w)
{
    for (int i = 0; i < w->agent_count; i++)
        if (w->agents[i].cut_until > w->faults_end)
            w->agents[i].cut_until = w->faults_end;
}

static void set_up(struct world *w)
{
    static const double losses[] = {0, 0.02, 0.15, 0.4};
    w->rng = w->seed;
    w->faults_end = FAULTS_MS;
    w->loss = losses[sim_between(w, 0, 3)];
    w->repeat = losses[sim_between(w, 0, 3)];
    w->long_delay = losses[sim_between(w, 0, 3)];
    w->fault_rate = (double)sim_between(w, 1, 8);
    w->config.min_nodes = (int)sim_between(w, 1, 4);
    w->config.max_nodes = w->config.min_nodes + (int)sim_between(w, 0, 3);
    w->config.max_restarts = (int)sim_between(w, 0, 12);
    w->config.join_timeout_ms = 20000;
    w->config.last_call_ms = sim_between(w, 0, 3000);
    w->config.silence_ms = 3000;
    w->config.kill_ms = 1000;
    w->config.first_round = (uint64_t)sim_between(w, 1, 3);
    w->next_fault = sim_between(w, 0, 3000);
}

int sim_run(uint64_t seed, int trace, struct sim_stats *total, struct err *e)
{
    struct world *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, -12, "no memory");
    w->seed = seed;
    w->trace = trace;
    w->stats = total;
    w->e = e;
    set_up(w);
    int rc = rdzv_create(&w->rdzv, &w->config, e);
    if (rc == 0) {
        int64_t n = sim_between(w, 1, w->config.max_nodes + 1);
        for (int64_t i = 0; i < n; i++)
            add_agent(w);
        while (!w->broken && w->now < HORIZON_MS && !all_answered(w)) {
            if (!faulty(w))
                cease(w);
            turn(w);
        }
        for (int i = 0; i < w->agent_count && !w->broken; i++)
            if (w->agents[i].mode != AGENT_ENDED && w->agents[i].mode != AGENT_DEAD)
                sim_broken(w, "%s never had its answer (state %s, round %llu)", w->agents[i].id,
                           rdzv_state_name(rdzv_state(w->rdzv)), (unsigned long long)rdzv_round(w->rdzv));
        total->succeeded += rdzv_state(w->rdzv) == RDZV_SUCCEEDED;
        total->failed += rdzv_state(w->rdzv) == RDZV_FAILED;
        total->drained += rdzv_state(w->rdzv) == RDZV_DRAINED;
        rc = w->broken;
    }
    rdzv_effects_free(&w->fx);
    rdzv_destroy(w->rdzv);
    free(w);
    return rc;
}

int sim_run_many(uint64_t first, uint64_t n, struct sim_stats *total, uint64_t *ret_seed, struct err *e)
{
    for (uint64_t seed = first; seed < first + n; seed++) {
        int rc = sim_run(seed, 0, total, e);
        if (rc < 0) {
            *ret_seed = seed;
            return rc;
        }
    }
    return 0;
}

uint64_t sim_env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end;
    unsigned long long v = text && *text ? strtoull(text, &end, 10) : 0;
    return text && *text && !*end ? v : otherwise;
}
