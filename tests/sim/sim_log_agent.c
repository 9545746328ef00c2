/* A simulated agent: the product's seat, workers that take time to run and to die, and the rules that say when two
 * rounds would meet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "tests/sim/sim_log.h"

enum { HEARTBEAT_MS = 1000, EXCHANGE_MS = 3000, STOP_MS = 1500, END_GRACE_MS = 7000 };

static int64_t own_clock(const struct log_world *w, const struct log_agent *a)
{
    return w->now + a->offset;
}

static void join(struct log_world *w, struct log_agent *a)
{
    struct rdzv_event ev = {.kind = RDZV_JOIN, .slots = a->slots, .node_rank = -1, .waits = a->slots % 2, .port = 1};
    snprintf(ev.addr, sizeof ev.addr, "node%d", a->index);
    if (rdzv_seat_ask(&a->seat, &ev) < 0)
        log_broken(w, "node%d cannot ask to join", a->index);
    a->join_due = false;
    a->next_beat = w->now;
}

void log_agent_born(struct log_world *w, struct log_agent *a, int index)
{
    char node[16], inc[20];
    snprintf(node, sizeof node, "node%d", index);
    snprintf(inc, sizeof inc, "inc%d", index);
    a->index = index;
    a->alive = true;
    a->born_at = w->now;
    a->offset = log_between(w, -1000000, 1000000) + 2000000;
    a->slots = (int)log_between(w, 1, 4);
    a->dead_at = a->finish_at = a->wake = a->gives_up = INT64_MAX;
    a->generation = -1;
    a->pulse_moved = own_clock(w, a);
    rdzv_seat_init(&a->seat, node, inc, &w->config, own_clock(w, a));
    log_home_open(w, index);
    join(w, a);
}

/* --- workers */

static void kill_workers(struct log_world *w, struct log_agent *a, int64_t within)
{
    int64_t at = w->now + (log_chance(w, 0.3) ? within : log_between(w, 0, within));
    if (a->work == WORK_NONE)
        at = w->now;
    a->dead_at = at < a->dead_at ? at : a->dead_at;
    a->work = a->work == WORK_NONE ? WORK_NONE : WORK_STOPS;
    a->finish_at = INT64_MAX;
}

/* Nodes that the leader had heard of when it decided the round, or that work: others may have been out of reach when a
 * loss was waited out. */
static bool anybody_knows(const struct log_world *w, unsigned nodes, unsigned heard)
{
    for (int i = 0; i < w->agent_count; i++) {
        const struct log_agent *b = &w->agents[i];
        if ((nodes >> i & 1) && b->alive && !b->ended && ((heard >> i & 1) || b->work != WORK_NONE))
            return true;
    }
    return false;
}

/* Whoever is told of a round is told the same of it; only if all who were are gone or out of reach, may a number that
 * was lost with a Redis come again. */
static void check_round(struct log_world *w, struct log_agent *a, const struct rdzv_news *n)
{
    unsigned k = (unsigned)(n->round % 64);
    uint64_t bit = (uint64_t)1 << (n->group_rank & 63);
    if (w->round_number[k] != n->round || strcmp(w->round_instance[k], a->seat.instance) != 0 ||
        !anybody_knows(w, w->round_nodes[k], w->round_heard[a->on_old][k])) {
        memcpy(w->round_instance[k], a->seat.instance, sizeof w->round_instance[k]);
        w->round_number[k] = n->round;
        w->round_nodes[k] = 0;
        w->round_world[k] = (uint64_t)n->group_world;
        w->round_slots[k] = n->world_size;
        w->round_taken[k] = 0;
        memcpy(w->round_leader[k], n->leader_addr, sizeof w->round_leader[k]);
        w->stats->rounds++;
    }
    if (w->round_world[k] != (uint64_t)n->group_world || w->round_slots[k] != n->world_size ||
        strcmp(w->round_leader[k], n->leader_addr) != 0 || (w->round_taken[k] & bit))
        log_broken(w, "node%d is told otherwise of round %llu than others", a->index, (unsigned long long)n->round);
    w->round_taken[k] |= bit;
    w->round_nodes[k] |= 1u << a->index;
    if (n->group_world < w->config.min_nodes || n->group_world > w->config.max_nodes || n->group_rank < 0 ||
        n->group_rank >= n->group_world || n->rank_base < 0 || n->rank_base + a->slots > n->world_size)
        log_broken(w, "node%d: group rank %d of %d, ranks %d + %d of %d", a->index, n->group_rank, n->group_world,
                   n->rank_base, a->slots, n->world_size);
    if (n->restart_count > w->config.max_restarts)
        log_broken(w, "%d restarts of %d", n->restart_count, w->config.max_restarts);
}

static void start_workers(struct log_world *w, struct log_agent *a, const struct rdzv_news *n)
{
    check_round(w, a, n);
    if (a->work != WORK_NONE)
        log_broken(w, "node%d is told of a round while it works", a->index);
    for (int i = 0; i < w->agent_count; i++)
        if (w->agents[i].work != WORK_NONE &&
            (w->agents[i].work_round != n->round || strcmp(w->agents[i].work_instance, a->seat.instance) != 0))
            log_broken(w, "node%d starts round %llu of %s while node%d works in round %llu of %s", a->index,
                       (unsigned long long)n->round, a->seat.instance, i, (unsigned long long)w->agents[i].work_round,
                       w->agents[i].work_instance);
    log_trace(w, "node%d starts round %llu as %d of %d", a->index, (unsigned long long)n->round, n->group_rank,
              n->group_world);
    a->work = WORK_RUNS;
    a->lapsed = false;
    a->work_round = n->round;
    memcpy(a->work_instance, a->seat.instance, sizeof a->work_instance);
    a->dead_at = INT64_MAX;
    a->finish_at = w->now + log_between(w, 1000, 20000);
}

static void fence(struct log_world *w, struct log_agent *a, const char *why)
{
    log_trace(w, "node%d is fenced: %s", a->index, why);
    w->stats->fences++;
    kill_workers(w, a, w->config.kill_ms);
    a->seat.works = false;
    a->join_due = true;
}

/* The last word of a node whose job is over and that has no workers left. */
static void forget(struct log_world *w, struct log_agent *a)
{
    log_mutated(w);
    log_state(w, a)->beats[a->index] = log_state(w, a)->slots[a->index] = NULL;
}

static void take_news(struct log_world *w, struct log_agent *a, const struct rdzv_news *n)
{
    log_trace(w, "node%d hears news %d of round %llu, seq %llu", a->index, (int)n->kind, (unsigned long long)n->round,
              (unsigned long long)n->seq);
    switch (n->kind) {
    case RDZV_NEWS_ROUND:
        if (!n->spare)
            start_workers(w, a, n);
        break;
    case RDZV_NEWS_STOP:
        kill_workers(w, a, STOP_MS);
        a->join_due = a->join_due || !a->seat.joining;
        break;
    case RDZV_NEWS_END:
        kill_workers(w, a, END_GRACE_MS);
        a->ended = true;
        a->claim_at = 0;
        a->join_due = false;
        a->stop = true;
        w->stats->ended_well += n->exit_code == 0;
        w->stats->ended_badly += n->exit_code != 0;
        if (a->work == WORK_NONE)
            forget(w, a);
        break;
    }
}

/* --- exchanges */

static int64_t transit(struct log_world *w)
{
    return log_faulty(w) && log_chance(w, w->slow) ? log_between(w, 0, 6000) : log_between(w, 1, 15);
}

static void send_beat(struct log_world *w, struct log_agent *a)
{
    struct buf b = {0};
    if (w->flight_count == LOG_EVENTS_MAX) {
        log_broken(w, "%d exchanges under way", w->flight_count);
        return;
    }
    rdzv_seat_beat(&a->seat, &b);
    a->exchange = ++a->exchanges;
    a->gives_up = w->now + EXCHANGE_MS;
    a->next_beat = w->now + HEARTBEAT_MS;
    if (!log_faulty(w) || (!log_chance(w, w->loss) && a->cut_until <= w->now))
        w->flights[w->flight_count++] = (struct flight){.kind = EV_ARRIVE,
                                                        .at = w->now + transit(w),
                                                        .sent = own_clock(w, a),
                                                        .agent = a->index,
                                                        .number = a->exchange,
                                                        .generation = log_generation(w, a),
                                                        .beat = log_keep(w, b.data, b.len)};
    buf_free(&b);
}

static void watch_leader(struct log_world *w, struct log_agent *a, const struct flight *f)
{
    char is_free[8] = "";
    int64_t now = own_clock(w, a);
    const char *pulse = f->pulse ? f->pulse : "";
    if (strcmp(pulse, a->view_pulse ? a->view_pulse : "") != 0)
        a->pulse_moved = now;
    a->view_epoch = f->epoch;
    a->knew_reign |= f->epoch != NULL;
    a->view_pulse = f->pulse;
    rdzv_field_find(pulse, strlen(pulse), "free", is_free, sizeof is_free);
    bool none = !f->epoch || is_free[0] == '1', kept = w->cut && w->old_until && !a->on_old;
    if (a->leads || a->ended || kept || (!none && now - a->pulse_moved < w->config.silence_ms + a->index * 37)) {
        a->claim_at = 0;
        return;
    }
    if (!a->claim_at)
        a->claim_at = w->now + log_between(w, 0, 20);
}

/* It has heard of the next leader, which may not have heard of it. */
static void cut_off_on_takeover(struct log_world *w, struct log_agent *a, const struct flight *f)
{
    bool other = f->epoch && a->view_epoch && strcmp(f->epoch, a->view_epoch) != 0;
    if (w->takeovers && other && !a->leads && log_faulty(w) && log_chance(w, 0.3))
        a->cut_until = w->now + log_between(w, w->config.silence_ms, 9000);
}

void log_agent_hear(struct log_world *w, struct log_agent *a, const struct flight *f)
{
    struct rdzv_view v = {0};
    struct rdzv_heard h;
    struct err e = {0};
    if (f->number != a->exchange || !a->alive || (a->ended && a->work == WORK_NONE))
        return; /* its connection is gone */
    a->exchange = 0;
    a->gives_up = INT64_MAX;
    snprintf(v.epoch, sizeof v.epoch, "%s", f->epoch ? f->epoch : "");
    snprintf(v.identity, sizeof v.identity, "server%d", f->server);
    if (f->slot)
        buf_addstr(&v.slot, f->slot);
    if (rdzv_seat_hear(&a->seat, &v, f->sent, own_clock(w, a), &h, &e) < 0)
        log_broken(w, "node%d cannot make sense of its slot: %s", a->index, e.text);
    if (a->ended) { /* it only shows itself */
        if (h.bits & SEAT_LAPSED)
            kill_workers(w, a, w->config.kill_ms);
        buf_free(&v.slot);
        return;
    }
    if (h.bits & SEAT_REFUSED)
        log_broken(w, "node%d is refused: %s", a->index, h.why);
    if (h.bits & (SEAT_UNKNOWN | SEAT_LAPSED))
        fence(w, a, h.bits & SEAT_UNKNOWN ? "unknown" : "lapsed");
    if (h.bits & SEAT_NEWS)
        take_news(w, a, &h.news);
    if (h.bits & SEAT_AGAIN)
        a->next_beat = w->now;
    if (!f->epoch && a->next_beat > w->now + 20)
        a->next_beat = w->now + 20;
    cut_off_on_takeover(w, a, f);
    watch_leader(w, a, f);
    buf_free(&v.slot);
}

/* --- time */

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Workers and the guardian that keeps the lease go on where the agent itself is paused. */
static int64_t workers_wake(const struct log_agent *a)
{
    int64_t at = earlier(a->dead_at, a->finish_at), lease = a->seat.lease - a->offset;
    bool leased = a->work == WORK_RUNS || (a->work == WORK_STOPS && !a->lapsed);
    return leased ? earlier(at, lease) : at;
}

int64_t log_agent_wake(const struct log_world *w, const struct log_agent *a)
{
    int64_t at = INT64_MAX;
    if (!a->alive)
        return a->leads ? w->now : at; /* its coroutine unwinds */
    if (a->leads)
        at = a->wake;
    if (!a->ended || a->work != WORK_NONE) {
        at = earlier(at, a->exchange ? a->gives_up : a->next_beat);
        if (a->claim_at && !a->leads)
            at = earlier(at, a->claim_at);
    }
    at = at < a->paused_until ? a->paused_until : at;
    return earlier(at, workers_wake(a));
}

static void workers_gone(struct log_world *w, struct log_agent *a)
{
    a->work = WORK_NONE;
    a->dead_at = INT64_MAX;
    if (a->ended)
        forget(w, a);
    else if (a->join_due)
        join(w, a);
}

static void tick_workers(struct log_world *w, struct log_agent *a)
{
    if (a->work == WORK_RUNS && a->seat.lease <= own_clock(w, a))
        fence(w, a, "the lease is over");
    if (a->work == WORK_STOPS && !a->lapsed && a->seat.lease <= own_clock(w, a)) { /* a grace ends there */
        a->lapsed = true;
        kill_workers(w, a, w->config.kill_ms);
    }
    if (a->dead_at <= w->now)
        workers_gone(w, a);
    if (a->finish_at <= w->now) {
        a->finish_at = INT64_MAX;
        a->work = WORK_NONE;
        rdzv_seat_ask(&a->seat, &(struct rdzv_event){.kind = RDZV_DONE});
        a->next_beat = w->now;
    }
}

static void tick_node(struct log_world *w, struct log_agent *a)
{
    if (a->exchange && a->gives_up <= w->now) {
        a->exchange = 0;
        a->gives_up = INT64_MAX;
        a->next_beat = w->now + 50;
        if (!a->knew_reign && a->next_beat < w->no_births_until)
            a->next_beat = w->no_births_until;
    }
    if (a->claim_at && a->claim_at <= w->now && !a->leads) {
        a->claim_at = 0;
        log_lead(w, a);
    }
    if (!a->exchange && a->next_beat <= w->now)
        send_beat(w, a);
}

void log_agent_tick(struct log_world *w, struct log_agent *a)
{
    bool paused = a->alive && a->paused_until > w->now;
    if (a->alive)
        tick_workers(w, a);
    if (paused)
        return;
    if (a->leads && (a->wake <= w->now || !a->alive))
        log_resume(w, a);
    else if (a->alive && (!a->ended || a->work != WORK_NONE))
        tick_node(w, a);
}

/* --- what happens to it */

void log_agent_crash(struct log_world *w, struct log_agent *a)
{
    log_trace(w, "node%d dies", a->index);
    a->alive = false;
    a->died_at = w->now;
    a->work = WORK_NONE;
    a->exchange = 0;
}

void log_agent_fail(struct log_world *w, struct log_agent *a)
{
    if (a->work != WORK_RUNS)
        return;
    log_trace(w, "a worker of node%d fails", a->index);
    rdzv_seat_ask(&a->seat, &(struct rdzv_event){.kind = RDZV_FAIL, .cause = {.exit_code = 3, .rank = 0}});
    kill_workers(w, a, STOP_MS);
    a->join_due = true;
    a->next_beat = w->now;
}

void log_agent_leave(struct log_world *w, struct log_agent *a)
{
    if (a->leaving || a->ended)
        return;
    log_trace(w, "node%d wants to leave", a->index);
    a->leaving = true;
    rdzv_seat_ask(&a->seat, &(struct rdzv_event){.kind = RDZV_LEAVE, .cause.exit_code = a->index % 3 ? 0 : 126});
    a->next_beat = w->now;
}
