/* Clock, faults and one run of a job whose rendezvous lives in a log. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "tests/sim/sim_log.h"

enum { FAULTS_MS = 30000, HORIZON_MS = 400000, CUT_MS = 8000 };

uint64_t log_random(struct log_world *w) /* splitmix64 */
{
    uint64_t z = (w->rng += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t log_between(struct log_world *w, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(log_random(w) % (uint64_t)(hi - lo + 1));
}

bool log_chance(struct log_world *w, double p)
{
    return (double)(log_random(w) >> 11) * 0x1p-53 < p;
}

const char *log_keep(struct log_world *w, const char *p, size_t n)
{
    if (w->arena_count == w->arena_cap) {
        w->arena_cap = w->arena_cap ? w->arena_cap * 2 : 1024;
        w->arena = realloc(w->arena, w->arena_cap * sizeof *w->arena);
    }
    char *copy = malloc(n + 1);
    memcpy(copy, p, n);
    copy[n] = 0;
    w->arena[w->arena_count++] = copy;
    return copy;
}

void log_broken(struct log_world *w, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    log_trace(w, "BROKEN: %s", text);
    if (!w->broken)
        w->broken = err_set(w->e, ERR_CORRUPT, "seed %llu, at %lld ms: %s", (unsigned long long)w->seed,
                            (long long)w->now, text);
}

void log_trace(struct log_world *w, const char *fmt, ...)
{
    va_list ap;
    if (!w->trace)
        return;
    fprintf(stderr, "%7lld ", (long long)w->now);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

static void add_agent(struct log_world *w)
{
    if (w->agent_count < LOG_AGENTS_MAX && w->now >= w->no_births_until) {
        w->agent_count++;
        log_agent_born(w, &w->agents[w->agent_count - 1], w->agent_count - 1);
    }
}

/* --- faults */

struct log_agent *log_leader(struct log_world *w)
{
    for (int i = 0; i < w->agent_count; i++)
        if (w->agents[i].leads && w->agents[i].alive)
            return &w->agents[i];
    return NULL;
}

/* The leader goes, or a worker fails, so that a round is due when the next one leads. */
static void depose(struct log_world *w)
{
    struct log_agent *a = &w->agents[log_between(w, 0, w->agent_count - 1)], *l = log_leader(w);
    const int64_t what = log_between(w, 0, 5);
    if (what == 0)
        add_agent(w);
    else if (what < 3 && a->alive && !a->ended)
        log_agent_fail(w, a);
    else if (l && what < 5)
        l->paused_until = w->now + log_between(w, w->config.silence_ms, 9000);
    else if (l && !l->ended)
        log_agent_crash(w, l);
}

static void fault(struct log_world *w)
{
    struct log_agent *a = &w->agents[log_between(w, 0, w->agent_count - 1)], *l = log_leader(w);
    if (l && log_chance(w, 0.4))
        a = l;
    bool alive = a->alive && !a->ended;
    switch (w->sound ? log_chance(w, 0.3) ? 11 : 0 : log_between(w, 0, 11)) {
    case 0:
    case 1:
        add_agent(w);
        break;
    case 2:
        if (alive)
            log_agent_crash(w, a);
        break;
    case 3:
    case 4:
        if (alive)
            log_agent_fail(w, a);
        break;
    case 5:
        if (alive && log_chance(w, 0.4))
            log_agent_leave(w, a);
        break;
    case 6:
    case 7:
        a->paused_until = w->now + log_between(w, 10, 9000);
        log_trace(w, "node%d pauses", a->index);
        break;
    case 8:
    case 9:
        a->cut_until = w->now + log_between(w, 50, 9000);
        log_trace(w, "node%d is cut off", a->index);
        break;
    default:
        if (w->kind == SIM_REDIS && log_chance(w, 0.5))
            log_failover(w);
    }
}

/* The one fault that there is. */
static void cut(struct log_world *w)
{
    log_failover(w);
    w->old_until = w->old_writes_until = w->horizon = w->now + CUT_MS;
}

static void cease(struct log_world *w)
{
    for (int i = 0; i < w->agent_count; i++) {
        struct log_agent *a = &w->agents[i];
        a->paused_until = a->paused_until > w->faults_end ? w->faults_end : a->paused_until;
        a->cut_until = a->cut_until > w->faults_end ? w->faults_end : a->cut_until;
    }
}

/* --- one run */

/* A request reaches the home: the beat is written, then what there is is read. */
static void arrive(struct log_world *w, struct flight *f)
{
    struct log_agent *a = &w->agents[f->agent];
    if (w->kind == SIM_REDIS && (f->generation != log_generation(w, a) || !log_takes_writes(w, a)))
        return; /* its server is gone */
    struct home_state *s = log_state(w, a);
    log_mutated(w);
    s->beats[f->agent] = f->beat;
    if (strchr(f->beat, '\n'))
        for (int i = 0; i < w->agent_count; i++) {
            if (w->agents[i].on_old != a->on_old)
                continue;
            w->agents[i].called[f->agent] = true;
            if (w->kind == SIM_REDIS && w->agents[i].leads && w->agents[i].wake > w->now + 1)
                w->agents[i].wake = w->now + 1; /* a blocked leader is woken; another call only takes less time */
        }
    f->server = log_generation(w, a);
    f->epoch = s->epoch;
    f->pulse = s->pulse;
    f->slot = s->slots[f->agent];
    if (log_faulty(w) && (log_chance(w, w->loss) || a->cut_until > w->now))
        return;
    f->kind = EV_REPLY;
    f->at = w->now + (log_faulty(w) && log_chance(w, w->slow) ? log_between(w, 0, 6000) : log_between(w, 1, 15));
    w->flights[w->flight_count++] = *f;
}

static void land(struct log_world *w, int i)
{
    struct flight f = w->flights[i];
    struct log_agent *a = &w->agents[f.agent];
    if (f.kind == EV_REPLY && a->paused_until > w->now) {
        w->flights[i].at = a->paused_until;
        return;
    }
    w->flights[i] = w->flights[--w->flight_count];
    if (f.kind == EV_ARRIVE)
        arrive(w, &f);
    else if (w->kind == SIM_FOLDER || f.generation == log_generation(w, a) || log_chance(w, 0.5))
        log_agent_hear(w, a, &f); /* what a server had sent before it went may still be read */
}

static int first_flight(const struct log_world *w)
{
    int best = -1;
    for (int i = 0; i < w->flight_count; i++)
        if (best < 0 || w->flights[i].at < w->flights[best].at)
            best = i;
    return best;
}

static void turn(struct log_world *w)
{
    int f = first_flight(w);
    int64_t flight = f < 0 ? INT64_MAX : w->flights[f].at, agent = INT64_MAX;
    struct log_agent *first = NULL;
    for (int i = 0; i < w->agent_count; i++) {
        int64_t at = log_agent_wake(w, &w->agents[i]);
        if (at < agent) {
            agent = at;
            first = &w->agents[i];
        }
    }
    int64_t now = flight < agent ? flight : agent;
    now = w->next_fault < now ? w->next_fault : now;
    w->now = now > w->now ? now : w->now;
    w->stats->steps++;
    if (w->old_until && w->old_until <= w->now)
        log_heal(w);
    if (now == agent && first)
        log_agent_tick(w, first);
    else if (now == flight)
        land(w, f);
    else if (w->cut) {
        cut(w);
        w->next_fault = INT64_MAX;
    } else {
        if (w->takeovers)
            depose(w);
        else
            fault(w);
        w->next_fault = w->now + log_between(w, 1, (int64_t)(3000 / w->fault_rate));
        if (w->next_fault >= w->faults_end)
            w->next_fault = INT64_MAX;
    }
}

static bool all_answered(const struct log_world *w)
{
    for (int i = 0; i < w->agent_count; i++)
        if (w->agents[i].alive ? !w->agents[i].ended || w->agents[i].leads : w->agents[i].leads)
            return false;
    return true;
}

static void set_up(struct log_world *w)
{
    static const double some[] = {0, 0.02, 0.1, 0.25};
    w->rng = w->seed * 2 + (w->kind == SIM_FOLDER);
    w->faults_end = FAULTS_MS;
    w->horizon = HORIZON_MS;
    w->sound = w->cut || (w->kind == SIM_REDIS && w->seed % 8 == 7); /* two sides that both go on are rare elsewhere */
    w->takeovers = !w->cut && w->seed % 8 == 5;
    w->loss = some[log_between(w, 0, 3)];
    w->slow = some[log_between(w, 0, 3)];
    w->breaks = some[log_between(w, 0, 2)];
    w->fault_rate = (double)log_between(w, 1, 6);
    rdzv_config_defaults(&w->config);
    w->config.min_nodes = (int)log_between(w, 1, 3);
    w->config.max_nodes = w->config.min_nodes + (int)log_between(w, 0, 3);
    w->config.max_restarts = (int)log_between(w, 0, 12);
    w->config.join_timeout_ms = 30000;
    w->config.last_call_ms = log_between(w, 0, 3000);
    w->config.silence_ms = 3000;
    if (w->sound || w->takeovers) {
        w->loss = w->slow = w->breaks = 0;
        w->fault_rate = w->sound ? 1 : 0.5;
        w->config.min_nodes = 1;
        w->config.max_nodes = (int)log_between(w, 3, 6);
        w->config.max_restarts = 12;
    }
    if (w->kind == SIM_REDIS)
        log_deploy(w);
    w->config.kill_ms = 1000;
    w->next_fault = w->cut ? log_between(w, 4000, 15000) : log_between(w, 0, 3000);
}

static void tear_down(struct log_world *w)
{
    for (int i = 0; i < w->agent_count; i++) { /* coroutines end by themselves once every call fails */
        struct log_agent *a = &w->agents[i];
        a->alive = false;
        while (a->leads)
            log_resume(w, a);
        rdzv_seat_finish(&a->seat);
        free(a->stack);
    }
    for (size_t i = 0; i < w->arena_count; i++)
        free(w->arena[i]);
    free(w->arena);
    free(w);
}

int log_run(enum sim_home_kind kind, uint64_t seed, bool trace, struct log_stats *total, struct err *e)
{
    struct log_world *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, -12, "no memory");
    w->cut = kind == SIM_CUT;
    w->kind = w->cut ? SIM_REDIS : kind;
    w->seed = seed;
    w->trace = trace;
    w->stats = total;
    w->e = e;
    set_up(w);
    for (int64_t i = log_between(w, 1, w->config.max_nodes + 1); i > 0; i--)
        add_agent(w);
    while (!w->broken && w->now < w->horizon && !all_answered(w)) {
        if (!log_faulty(w))
            cease(w);
        turn(w);
    }
    for (int i = 0; i < w->agent_count && !w->broken && !w->cut; i++)
        if (w->agents[i].alive && !w->agents[i].ended)
            log_broken(w, "node%d never had its answer", i);
    int rc = w->broken;
    tear_down(w);
    return rc;
}
