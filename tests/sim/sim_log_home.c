/* The simulated homes, and the coroutines that lead over them. Each call of the host yields before and after its
 * effect. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "tests/sim/sim_log.h"

enum { STACK = 256 << 10 };

static struct log_agent *owner(struct rdzv_home *base)
{
    struct sim_home *h = (struct sim_home *)base;
    return &h->w->agents[h->agent];
}

static struct log_world *world(struct rdzv_home *base)
{
    return ((struct sim_home *)base)->w;
}

/* --- what may go wrong */

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
    for (int i = 0; i < w->agent_count; i++)
        if (w->agents[i].on_old) {
            w->agents[i].on_old = false;
            hang_up(w, &w->agents[i]);
        }
    log_trace(w, "the old primary is gone");
}

/* Some nodes go on with the old primary. */
static void part(struct log_world *w)
{
    w->old = w->state;
    memcpy(w->old_log, w->log, sizeof w->log[0] * (size_t)w->state.count);
    w->old_generation = w->generation;
    w->old_writes_until = w->now + w->max_lag_ms;
    w->old_until = w->now + log_between(w, 1000, 15000);
    w->stats->partitions++;
    for (int i = 0; i < w->agent_count; i++)
        w->agents[i].on_old = log_chance(w, 0.5);
    log_trace(w, "the old primary lives on");
}

/* The home knows nothing of the job any more. */
static void delay_births(struct log_world *w)
{
    w->no_births_until = w->now + w->config.silence_ms + w->config.kill_ms;
    for (int i = 0; i < w->agent_count; i++)
        if (!w->agents[i].knew_reign && w->agents[i].next_beat < w->no_births_until)
            w->agents[i].next_beat = w->no_births_until;
}

/* Another server takes over, without the last writes that the old one acknowledged; the old one is dead, or lives on
 * for some of the nodes. One that is emptied says nothing to a node that is new there: no node is born before what
 * works is dead (docs/design/log-of-decisions.md). */
void log_failover(struct log_world *w)
{
    int lost = (int)log_between(w, 0, w->history_count);
    if (w->old_until)
        log_heal(w);
    bool emptied = log_chance(w, 0.05);
    if (!emptied && log_chance(w, 0.4))
        part(w);
    const bool knew = w->state.epoch != NULL;
    if (emptied) {
        memset(&w->state, 0, sizeof w->state);
        log_trace(w, "the Redis is emptied");
    } else if (lost > 0) {
        /* where there are replicas, a claim is on one of them before it counts */
        const char *epoch = w->state.epoch;
        while (w->old_until && lost > 0 && w->history[w->history_count - lost].epoch != epoch)
            lost--;
    }
    if (!emptied && lost > 0) {
        w->state = w->history[w->history_count - lost];
        w->stats->lost_writes += (uint64_t)lost;
        log_trace(w, "failover: %d writes are lost", lost);
    }
    if (knew && !w->state.epoch)
        delay_births(w);
    w->history_count = 0;
    w->generation++;
    w->stats->failovers++;
    for (int i = 0; i < w->agent_count; i++)
        if (!w->agents[i].on_old)
            hang_up(w, &w->agents[i]);
}

/* Let time pass; -ECONNRESET if the node died or lost its connection meanwhile. */
static int yield(struct rdzv_home *base, int64_t ms)
{
    struct log_world *w = world(base);
    struct log_agent *a = owner(base);
    a->wake = w->now + ms;
    swapcontext(&a->context, &w->main);
    if (!a->alive || (w->kind == SIM_REDIS && a->generation != log_generation(w, a)))
        return -ECONNRESET;
    return 0;
}

static int travel(struct rdzv_home *base, struct err *e)
{
    struct log_world *w = world(base);
    struct log_agent *a = owner(base);
    int64_t ms = log_faulty(w) && log_chance(w, w->slow) ? log_between(w, 0, 5000) : log_between(w, 0, 8);
    int rc = yield(base, ms);
    if (rc == 0 && log_faulty(w) && (a->cut_until > w->now || log_chance(w, w->breaks)))
        a->generation = -1, rc = -ECONNRESET;
    return rc < 0 ? err_set(e, rc, "the simulated home is out of reach") : 0;
}

/* --- the calls */

static int64_t sim_now(struct rdzv_home *base)
{
    return world(base)->now + owner(base)->offset;
}

static int sim_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    struct log_world *w = world(base);
    struct log_agent *a = owner(base);
    a->generation = log_generation(w, a);
    TRY(travel(base, e));
    snprintf(ret, RDZV_IDENTITY_MAX + 1, "server%d", a->generation);
    return travel(base, e);
}

static bool is(const char *a, const char *b)
{
    return strcmp(a ? a : "", b) == 0;
}

static void push(struct log_world *w, const struct log_agent *a, const char *epoch, const struct buf *text)
{
    struct home_state *s = log_state(w, a);
    if (s->count == LOG_DECISIONS_MAX) {
        log_broken(w, "%d decisions: the simulation runs away", s->count);
        return;
    }
    log_decisions(w, a)[s->count++] =
        (struct decision){.epoch = log_keep(w, epoch, strlen(epoch)), .text = log_keep(w, text->data, text->len)};
}

/* NOREPLICAS: it has not heard of its replicas for too long. */
static int check_writes(const struct log_world *w, struct log_agent *a, struct err *e)
{
    if (log_takes_writes(w, a))
        return 0;
    a->generation = -1;
    return err_set(e, -ECONNRESET, "the simulated home takes no writes");
}

static int64_t sim_lag_ms(struct rdzv_home *base)
{
    return world(base)->kind == SIM_REDIS ? world(base)->max_lag_ms : 0;
}

static int sim_claim(struct rdzv_home *base, const char *seen, const char *epoch, const struct buf *record,
                     struct err *e)
{
    struct log_world *w = world(base);
    struct log_agent *a = owner(base);
    TRY(travel(base, e));
    struct home_state *s = log_state(w, a);
    TRY(check_writes(w, a, e));
    if (!is(s->epoch, seen)) {
        TRY(travel(base, e));
        return 0;
    }
    log_mutated(w);
    if (w->kind == SIM_REDIS && !seen[0])
        s->first = s->count = 0, memset(s->slots, 0, sizeof s->slots);
    s->epoch = log_keep(w, epoch, strlen(epoch));
    push(w, a, epoch, record);
    w->stats->reigns++;
    log_trace(w, "node%d claims %s after '%s'", a->index, epoch, seen);
    snprintf(a->own_epoch, sizeof a->own_epoch, "%s", epoch);
    TRY(travel(base, e));
    if (a->on_old) { /* WAIT: no replica hears of it any more */
        a->generation = -1;
        return err_set(e, -ECONNRESET, "no simulated replica has heard of the claim");
    }
    return 1;
}

static int sim_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    struct log_world *w = world(base);
    TRY(travel(base, e));
    struct log_agent *a = owner(base);
    struct home_state s = *log_state(w, a);
    for (int i = s.first; i < s.count; i++)
        buf_addstr(ret, log_decisions(w, a)[i].text);
    return travel(base, e);
}

static void set_slot(struct log_world *w, const struct log_agent *by, const struct rdzv_slot_write *s)
{
    log_mutated(w);
    log_state(w, by)->slots[atoi(s->node + 4)] = log_keep(w, s->text, s->len);
    struct log_agent *a = &w->agents[atoi(s->node + 4)];
    if (w->kind == SIM_REDIS && !s->quiet && a->on_old == by->on_old && a->next_beat > w->now + 3) /* woken */
        a->next_beat = w->now + 3;
}

enum log_home_fault log_home_fault;

static bool fenced(struct log_world *w, const struct log_agent *a)
{
    return !is(log_state(w, a)->epoch, a->own_epoch) && log_home_fault != LOG_HOME_UNFENCED;
}

static int write_slots(struct rdzv_home *base, const struct rdzv_write *v, bool steps, struct err *e)
{
    for (size_t i = 0; i < v->slot_count; i++) {
        if (steps)
            TRY(travel(base, e));
        set_slot(world(base), owner(base), &v->slots[i]);
    }
    return 0;
}

static int write_again(struct rdzv_home *base, const struct rdzv_slot_write *slot, struct err *e)
{
    struct log_world *w = world(base);
    TRY(travel(base, e));
    TRY(check_writes(w, owner(base), e));
    if (fenced(w, owner(base)))
        return 0;
    if (w->kind == SIM_FOLDER) /* there is time between the look and the write */
        TRY(travel(base, e));
    set_slot(w, owner(base), slot);
    TRY(travel(base, e));
    return 1;
}

/* A Redis does all of it at once; a directory links the decision, then writes one slot after the other. */
static int sim_append(struct rdzv_home *base, const struct rdzv_write *v, struct err *e)
{
    struct log_world *w = world(base);
    struct log_agent *a = owner(base);
    bool early = log_home_fault == LOG_HOME_SLOTS_FIRST, steps = w->kind == SIM_FOLDER || early;
    if (!v->decision)
        return write_again(base, v->slots, e);
    TRY(travel(base, e));
    if (early)
        TRY(write_slots(base, v, true, e));
    TRY(check_writes(w, a, e));
    if (fenced(w, a)) {
        w->stats->refused_appends++;
        TRY(travel(base, e));
        return 0;
    }
    log_mutated(w);
    if (v->whole && w->kind == SIM_REDIS)
        log_state(w, a)->first = log_state(w, a)->count;
    push(w, a, a->own_epoch, v->decision);
    w->stats->appends++;
    log_trace(w, "node%d decides, %zu slots:\n%s", a->index, v->slot_count, v->decision->data);
    if (!early)
        TRY(write_slots(base, v, steps, e));
    TRY(travel(base, e));
    return 1;
}

static int sim_pulse(struct rdzv_home *base, const struct buf *record, struct err *e)
{
    struct log_world *w = world(base);
    TRY(travel(base, e));
    TRY(check_writes(w, owner(base), e));
    if (fenced(w, owner(base)))
        return 0;
    if (w->kind == SIM_FOLDER)
        TRY(travel(base, e));
    log_mutated(w);
    log_state(w, owner(base))->pulse = log_keep(w, record->data, record->len);
    TRY(travel(base, e));
    return 1;
}

static int sim_beats(struct rdzv_home *base, bool all, rdzv_beat_visit *visit, void *arg, struct err *e)
{
    struct log_world *w = world(base);
    struct log_agent *a = owner(base);
    TRY(travel(base, e));
    struct home_state now = *log_state(w, a);
    if (w->kind == SIM_REDIS)
        TRY(travel(base, e));
    for (int i = 0; i < w->agent_count; i++) {
        char node[16];
        if (!all && !a->called[i] && w->kind == SIM_REDIS)
            continue;
        a->called[i] = false;
        if (w->kind == SIM_FOLDER) { /* one file after the other */
            TRY(yield(base, log_between(w, 0, 2)));
            now = *log_state(w, a);
        }
        snprintf(node, sizeof node, "node%d", i);
        if (now.beats[i])
            visit(arg, node, now.beats[i], strlen(now.beats[i]));
    }
    return 0;
}

static int sim_wait_calls(struct rdzv_home *base, int64_t timeout_ms, struct err *e)
{
    struct log_world *w = world(base);
    struct log_agent *a = owner(base);
    int64_t ms = w->kind == SIM_FOLDER && timeout_ms > 200 ? 200 : timeout_ms;
    for (int i = 0; i < w->agent_count && w->kind == SIM_REDIS; i++)
        ms = a->called[i] ? 0 : ms;
    int rc = yield(base, ms);
    return rc < 0 ? err_set(e, rc, "the simulated home is out of reach") : 0;
}

static void sim_nothing(struct rdzv_home *base)
{
    (void)base;
}

static const struct rdzv_home_ops sim_ops = {
    .name = "simulated",
    .now = sim_now,
    .lag_ms = sim_lag_ms,
    .identity = sim_identity,
    .claim = sim_claim,
    .load = sim_load,
    .append = sim_append,
    .pulse = sim_pulse,
    .beats = sim_beats,
    .wait_calls = sim_wait_calls,
    .close = sim_nothing,
};

void log_home_open(struct log_world *w, int agent)
{
    w->homes[agent] = (struct sim_home){.base.ops = &sim_ops, .w = w, .agent = agent};
    w->agents[agent].home = &w->homes[agent];
}

/* --- the coroutine */

static uint64_t draw(void *arg)
{
    return log_random(arg);
}

static void run_host(unsigned hi, unsigned lo)
{
    struct log_agent *a = (struct log_agent *)(((uintptr_t)hi << 32) | lo);
    struct err e = {0};
    int rc = rdzv_host_lead(&a->home->base, &a->o, a->seen, &e);
    if (a->alive) {
        log_trace(a->home->w, "node%d leads no more: %d %s", a->index, rc, rc < 0 ? e.text : "");
        if (rc < 0 && rc != -ECONNRESET)
            log_broken(a->home->w, "node%d: leading failed with %s", a->index, e.text);
    }
    a->leads = false;
    a->wake = INT64_MAX;
    if (rc < 0)
        a->pulse_moved = -1000000;
}

void log_lead(struct log_world *w, struct log_agent *a)
{
    a->stop = false;
    a->o = (struct rdzv_host_options){.job = w->config,
                                      .node = a->seat.node,
                                      .heartbeat_ms = 1000,
                                      .was_member = a->knew_reign,
                                      .random = draw,
                                      .random_arg = w,
                                      .stop = &a->stop};
    snprintf(a->seen, sizeof a->seen, "%s", a->view_epoch ? a->view_epoch : "");
    memset(a->called, 0, sizeof a->called);
    if (!a->stack)
        a->stack = malloc(STACK);
    getcontext(&a->context);
    a->context.uc_stack.ss_sp = a->stack;
    a->context.uc_stack.ss_size = STACK;
    a->context.uc_link = &w->main;
    makecontext(&a->context, (void (*)(void))run_host, 2, (unsigned)((uintptr_t)a >> 32), (unsigned)(uintptr_t)a);
    a->leads = true;
    a->wake = w->now;
}

void log_resume(struct log_world *w, struct log_agent *a)
{
    swapcontext(&w->main, &a->context);
}
