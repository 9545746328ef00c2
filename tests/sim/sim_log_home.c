/* The simulated homes, and the coroutines that lead over them. Each call of the host yields before and after its
 * effect. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

static bool sim_took_over(struct rdzv_home *base)
{
    struct log_world *w = world(base);
    const struct log_agent *a = owner(base);
    const bool promoted = a->on_old ? w->old_promoted : w->promoted;
    return w->kind == SIM_REDIS && promoted && log_state(w, a)->waited != a->generation;
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
    a->heard = a->heard_before = 0;
    push(w, a, epoch, record);
    w->stats->reigns++;
    log_trace(w, "node%d claims %s after '%s'", a->index, epoch, seen);
    snprintf(a->own_epoch, sizeof a->own_epoch, "%s", epoch);
    TRY(travel(base, e));
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

/* The rest of the first line of a decision that begins with `word`. */
static const char *line_of(const char *text, const char *word, size_t *n)
{
    const char *at = strstr(text, word);
    at = at ? at + strlen(word) : "";
    *n = strcspn(at, "\n");
    return at;
}

/* The nodes that this decision says `field` of. */
static unsigned nodes_that(const char *field, const char *text)
{
    unsigned nodes = 0;
    char node[16];
    size_t n;
    for (const char *at = text; *(at = line_of(at, "\nnode ", &n)); at += n)
        if (rdzv_field_number(at, n, field, 0) && rdzv_field_find(at, n, "id", node, sizeof node) == 1)
            nodes |= 1u << atoi(node + 4);
    return nodes;
}

/* Nobody is turned away for the sake of a member that was dead when it came, and not done. */
static void check_turned_away(struct log_world *w, struct home_state *s, const char *text)
{
    char node[16], kind[8];
    size_t n;
    s->waited_for &= ~nodes_that("done", text);
    for (const char *at = text; *(at = line_of(at, "\n@news ", &n)); at += n) {
        if (rdzv_field_find(at, n, "kind", kind, sizeof kind) != 1 || !is(kind, "end") ||
            !rdzv_field_number(at, n, "spare", 0) || rdzv_field_find(at, n, "host_node", node, sizeof node) != 1)
            continue;
        for (int i = 0; i < w->agent_count; i++)
            if ((s->waited_for >> i & 1) && !w->agents[i].alive &&
                w->agents[i].died_at < w->agents[atoi(node + 4)].born_at)
                log_broken(w, "%s is turned away, and node%d, which has a place, was dead when it came", node, i);
    }
}

/* A round that begins with this decision: who could have told the leader that its number is taken? Later decisions,
 * and other reigns, tell of the same round again. The first one is of nodes alone that the leader has heard itself. */
static void note_round(struct log_world *w, const struct log_agent *leader, const char *text)
{
    struct home_state *s = log_state(w, leader);
    char instance[20] = "";
    size_t n;
    const char *job = line_of(text, "\n@job ", &n);
    if (rdzv_field_find(job, n, "instance", instance, sizeof instance) == 1 && !is(s->instance, instance)) {
        s->instance = log_keep(w, instance, strlen(instance));
        s->round = 0;
    }
    const char *machine = line_of(text, "\nmachine ", &n);
    const uint64_t round = (uint64_t)rdzv_field_number(machine, n, "round", 0);
    if (round <= s->round)
        return;
    const unsigned members = nodes_that("member", text), unheard = members & ~leader->heard;
    if (s->round == 0 && unheard)
        log_broken(w, "node%d begins round %llu with node%d, which it has not heard", leader->index,
                   (unsigned long long)round, ffs((int)unheard) - 1);
    s->waited_for = members;
    w->round_heard[leader->on_old][round % 64] = leader->heard_before;
    s->round = round;
}

/* WAIT: as many replicas must be there as a write needs, and then time passes. */
static int await_replicas(struct rdzv_home *base, struct err *e)
{
    const struct log_world *w = world(base);
    struct log_agent *a = owner(base);
    if (w->kind == SIM_FOLDER || w->max_lag_ms == 0 || log_home_fault == LOG_HOME_UNREPLICATED)
        return 0;
    TRY(travel(base, e));
    if (log_has_replicas(w, a))
        return 0;
    a->generation = -1;
    return err_set(e, -ECONNRESET, "the simulated home has too few replicas");
}

/* A Redis does all of it at once; a directory links the decision, then writes one slot after the other. */
static int sim_append(struct rdzv_home *base, const struct rdzv_write *v, struct err *e)
{
    struct log_world *w = world(base);
    struct log_agent *a = owner(base);
    bool early = log_home_fault == LOG_HOME_SLOTS_FIRST, steps = w->kind == SIM_FOLDER || early;
    if (!v->decision)
        return write_again(base, v->slots, e);
    TRY(await_replicas(base, e));
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
    log_state(w, a)->waited = a->generation;
    note_round(w, a, v->decision->data);
    check_turned_away(w, log_state(w, a), v->decision->data);
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

/* What the leader knows of a node: the epoch that it has promised, and with it the rounds that it was told of. */
static void visit_beat(struct log_agent *leader, int i, const char *beat, rdzv_beat_visit *visit, void *arg)
{
    char node[16], epoch[RDZV_EPOCH_MAX + 1] = "";
    snprintf(node, sizeof node, "node%d", i);
    visit(arg, node, beat, strlen(beat));
    rdzv_field_find(beat, strcspn(beat, "\n"), "epoch", epoch, sizeof epoch);
    leader->heard |= (unsigned)is(epoch, leader->own_epoch) << i;
}

static int sim_beats(struct rdzv_home *base, bool all, rdzv_beat_visit *visit, void *arg, struct err *e)
{
    struct log_world *w = world(base);
    struct log_agent *a = owner(base);
    a->heard_before = a->heard;
    TRY(travel(base, e));
    struct home_state now = *log_state(w, a);
    if (w->kind == SIM_REDIS)
        TRY(travel(base, e));
    for (int i = 0; i < w->agent_count; i++) {
        if (!all && !a->called[i] && w->kind == SIM_REDIS)
            continue;
        a->called[i] = false;
        if (w->kind == SIM_FOLDER) { /* one file after the other */
            TRY(yield(base, log_between(w, 0, 2)));
            now = *log_state(w, a);
        }
        if (now.beats[i])
            visit_beat(a, i, now.beats[i], visit, arg);
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
    .took_over = sim_took_over,
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
