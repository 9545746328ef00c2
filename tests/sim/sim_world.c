/* Clock and network of a simulated job. Faults come until faults_end; from then on every message arrives, nobody fails,
 * and every agent alive must have its answer before the horizon. */
#include "common/base/err.h"
#include "tests/sim/sim_impl.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULTS_MS = 73000, HORIZON_MS = 300000 };

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

bool sim_faulty(const struct world *w)
{
    return w->now < w->faults_end;
}

/* --- the network: a heap by time */

static bool sooner(const struct flight *a, const struct flight *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void swap(struct flight *a, struct flight *b)
{
    struct flight t = *a;
    *a = *b;
    *b = t;
}

static void put(struct world *w, const struct message *m, int64_t at)
{
    if (w->queued == MESSAGES_MAX) {
        sim_broken(w, "%d messages are under way: the simulation runs away", w->queued);
        return;
    }
    int i = w->queued++;
    struct flight *h = w->heap;
    w->slots[h[i].slot] = *m;
    h[i].at = at;
    h[i].order = w->sent++;
    for (; i > 0 && sooner(&h[i], &h[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&h[i], &h[(i - 1) / 2]);
}

static struct message take(struct world *w)
{
    struct flight *h = w->heap;
    struct message m = w->slots[h[0].slot];
    swap(&h[0], &h[--w->queued]); /* its slot is free now */
    for (int i = 0, k; (k = 2 * i + 1) < w->queued; i = k) {
        if (k + 1 < w->queued && sooner(&h[k + 1], &h[k]))
            k++;
        if (!sooner(&h[k], &h[i]))
            break;
        swap(&h[k], &h[i]);
    }
    return m;
}

static void enqueue(struct world *w, const struct message *m)
{
    bool slow = sim_faulty(w) && sim_chance(w, w->long_delay);
    put(w, m, w->now + (slow ? sim_between(w, 0, 6000) : sim_between(w, 1, 40)));
}

/* The end of a connection is told by the kernel: it is neither lost nor told twice. */
static bool is_cut(const struct world *w, const struct message *m)
{
    const struct agent *a = &w->agents[m->agent];
    return m->to_agent ? a->deaf_until > w->now : m->ask < TELL_GONE && a->mute_until > w->now;
}

void sim_send(struct world *w, struct message m)
{
    bool certain = m.ask >= TELL_GONE && !m.to_agent;
    m.life = w->life;
    if (is_cut(w, &m) || (!certain && sim_faulty(w) && sim_chance(w, w->loss)))
        return;
    enqueue(w, &m);
    if (!certain && sim_faulty(w) && sim_chance(w, w->repeat))
        enqueue(w, &m);
}

static void deliver(struct world *w)
{
    struct message m = take(w);
    struct agent *a = &w->agents[m.agent];
    int64_t asleep = m.to_agent ? a->paused_until : w->host_paused_until;
    if (is_cut(w, &m))
        return;
    if (asleep > w->now) /* it waits in a socket */
        put(w, &m, asleep + sim_between(w, 1, 40));
    else if (m.to_agent) {
        sim_agent_receive(w, a, &m);
        w->wakes[m.agent] = sim_agent_wake(w, a);
    } else if (w->up && m.life == w->life) /* else that connection was another host's */
        sim_host_receive(w, &m);
}

/* It will count when that is read, although its node may be dead by then. */
static bool has_join_under_way(const struct world *w, int agent)
{
    for (int i = 0; i < w->queued; i++) {
        const struct message *m = &w->slots[w->heap[i].slot];
        if (m->agent == agent && !m->to_agent && m->ask == ASK_JOIN && m->life == w->life)
            return true;
    }
    return false;
}

/* Seats that are not free. Over hosts that die nobody succeeds a node that is dead but counts still: decision 0035 says
 * what remains. */
static int alive(const struct world *w)
{
    int n = 0;
    for (int i = 0; i < w->agent_count; i++)
        n += (w->agents[i].mode != AGENT_ENDED && w->agents[i].mode != AGENT_DEAD) ||
             (w->blank && (w->agents[i].workers || w->agents[i].known || has_join_under_way(w, i)));
    return n;
}

struct agent *sim_add_agent(struct world *w)
{
    if (w->agent_count == AGENTS_MAX || alive(w) >= w->agent_limit)
        return NULL;
    struct agent *a = &w->agents[w->agent_count++];
    snprintf(a->id, sizeof a->id, "node%d", w->agent_count);
    sim_agent_born(w, a);
    w->wakes[a - w->agents] = sim_agent_wake(w, a);
    w->most_alive = alive(w) > w->most_alive ? alive(w) : w->most_alive;
    return a;
}

/* --- one run */

static bool all_answered(const struct world *w)
{
    for (int i = 0; i < w->agent_count; i++)
        if (w->agents[i].mode != AGENT_ENDED && w->agents[i].mode != AGENT_DEAD)
            return false;
    return true;
}

static void look_at_all(struct world *w)
{
    for (int i = 0; i < w->agent_count; i++)
        w->wakes[i] = sim_agent_wake(w, &w->agents[i]);
}

/* Advance to whatever happens next; of things due at once, agents come first. */
static void turn(struct world *w)
{
    int64_t message = w->queued ? w->heap[0].at : NEVER, host = sim_host_wake(w), next = w->next_fault;
    int first = 0;
    for (int i = 1; i < w->agent_count; i++)
        first = w->wakes[i] < w->wakes[first] ? i : first;
    int64_t agent = w->wakes[first];
    int64_t now = message < host ? message : host;
    now = agent < now ? agent : now;
    now = next < now ? next : now;
    w->now = now > w->now ? now : w->now;
    if (now == agent && now != NEVER) {
        sim_agent_tick(w, &w->agents[first]);
        w->wakes[first] = sim_agent_wake(w, &w->agents[first]);
    } else if (now == host) {
        sim_host_tick(w);
    } else if (now == message) {
        deliver(w);
    } else {
        sim_fault(w);
        look_at_all(w);
        w->next_fault = w->now + sim_between(w, 1, (int64_t)(2000 / w->fault_rate));
        if (w->next_fault >= w->faults_end)
            w->next_fault = NEVER;
    }
}

/* 3 to 64 nodes, half of the jobs up to 20. */
static int draw_nodes(struct world *w)
{
    static const int upto[] = {10, 20, 36, NODES_MAX};
    int i = (int)sim_between(w, 0, 3);
    return (int)sim_between(w, i == 0 ? 3 : upto[i - 1] + 1, upto[i]);
}

static void draw_config(struct world *w, int nodes)
{
    struct rdzv_config *c = &w->config;
    c->min_nodes = (int)sim_between(w, 1, sim_chance(w, 0.8) ? (nodes + 1) / 2 : nodes);
    c->max_nodes = (int)sim_between(w, c->min_nodes, sim_chance(w, 0.5) ? nodes : c->min_nodes + 3);
    c->max_restarts = (int)sim_between(w, 0, sim_chance(w, 0.3) ? 3 : 30);
    c->max_node_failures = (int)sim_between(w, 0, 3);
    c->restart_window_ms = sim_chance(w, 0.5) ? sim_between(w, 1, 20000) : 0;
    c->backoff_ms = sim_chance(w, 0.7) ? sim_between(w, 1, 4000) : 0;
    c->backoff_max_ms = c->backoff_ms + sim_between(w, 0, 10000);
    c->backoff_reset_ms = sim_between(w, 0, 20000);
    c->order = (enum rdzv_order)sim_between(w, 0, 2);
    c->join_timeout_ms = 20000;
    c->last_call_ms = sim_between(w, 0, 3000);
    c->silence_ms = 3000;
    c->kill_ms = 1000;
    c->first_round = (uint64_t)sim_between(w, 1, 3);
}

static void set_up(struct world *w)
{
    static const double losses[] = {0, 0.01, 0.1, 0.4}, rates[] = {0.5, 1, 3, 8};
    w->rng = w->seed;
    w->faults_end = FAULTS_MS;
    w->loss = losses[sim_between(w, 0, 3)];
    w->repeat = losses[sim_between(w, 0, 3)];
    w->long_delay = losses[sim_between(w, 0, 3)];
    w->fault_rate = rates[sim_between(w, 0, 3)];
    w->roles = sim_chance(w, 0.5);
    w->agent_limit = draw_nodes(w);
    draw_config(w, w->agent_limit);
    if (w->blank) /* a seat for each node that there is */
        w->agent_limit = w->config.max_nodes;
    w->next_fault = sim_between(w, 0, 3000);
    for (int i = 0; i < MESSAGES_MAX; i++)
        w->heap[i].slot = i;
}

static void count_run(const struct world *w, struct sim_stats *t)
{
    uint64_t n = (uint64_t)w->most_alive;
    t->nodes_min = t->nodes_min == 0 || n < t->nodes_min ? n : t->nodes_min;
    t->nodes_max = n > t->nodes_max ? n : t->nodes_max;
    t->runs_of[w->events < SIM_EVENTS_MAX ? w->events : SIM_EVENTS_MAX]++;
}

static void live(struct world *w)
{
    int64_t n = sim_between(w, w->agent_limit < 3 ? 1 : 3, w->agent_limit);
    for (int64_t i = 0; i < n; i++)
        sim_add_agent(w);
    look_at_all(w);
    bool ceased = false;
    while (!w->broken && w->now < HORIZON_MS && !all_answered(w)) {
        if (!ceased && !sim_faulty(w)) {
            sim_cease(w);
            look_at_all(w);
            ceased = true;
        }
        turn(w);
    }
    for (int i = 0; i < w->agent_count && !w->broken; i++)
        if (w->agents[i].mode != AGENT_ENDED && w->agents[i].mode != AGENT_DEAD)
            sim_broken(w, "%s never had its answer (state %s, round %llu)", w->agents[i].id,
                       w->rdzv ? rdzv_state_name(rdzv_state(w->rdzv)) : "none", (unsigned long long)w->account.round);
}

int sim_run(enum sim_kind kind, uint64_t seed, int trace, struct sim_stats *total, struct err *e)
{
    struct world *w = calloc(1, sizeof *w);
    struct message *slots = malloc(MESSAGES_MAX * sizeof *slots);
    struct flight *heap = malloc(MESSAGES_MAX * sizeof *heap);
    int rc = w && slots && heap ? 0 : err_set(e, -ENOMEM, "no memory");
    if (rc == 0) {
        *w = (struct world){.seed = seed,
                            .trace = trace,
                            .durable = kind == SIM_DIR,
                            .blank = kind == SIM_BLANK,
                            .stats = total,
                            .e = e,
                            .slots = slots,
                            .heap = heap};
        set_up(w);
        sim_host_open(w);
        live(w);
        count_run(w, total);
        rc = w->broken;
    }
    if (w) {
        sim_host_close(w);
    }
    free(slots);
    free(heap);
    free(w);
    return rc;
}

int sim_run_many(enum sim_kind kind, uint64_t first, uint64_t n, struct sim_stats *total, uint64_t *ret_seed,
                 struct err *e)
{
    for (uint64_t seed = first; seed < first + n; seed++) {
        int rc = sim_run(kind, seed, 0, total, e);
        if (rc < 0) {
            *ret_seed = seed;
            return rc;
        }
    }
    return 0;
}

unsigned sim_median_events(const struct sim_stats *st)
{
    uint64_t all = 0, seen = 0;
    unsigned events = 0;
    for (unsigned i = 0; i <= SIM_EVENTS_MAX; i++)
        all += st->runs_of[i];
    while (events < SIM_EVENTS_MAX && 2 * (seen + st->runs_of[events]) < all)
        seen += st->runs_of[events++];
    return events;
}

uint64_t sim_env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end;
    unsigned long long v = text && *text ? strtoull(text, &end, 10) : 0;
    return text && *text && !*end ? v : otherwise;
}
