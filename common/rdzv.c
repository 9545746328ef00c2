/* The rendezvous machine: see rdzv.h for the life of a job.
 *
 * One table says which function handles an event in a state; each changes nodes, may break the round or end the job, and afterwards
 * settle() asks once whether the next round can begin. All memory is taken before anything changes. Each step walks the nodes a fixed
 * number of times: 10,000 JOINs of 10,000 nodes are some 10^8 short visits, well under a second, spread over the time they take to come. */
#include "common/rdzv.h"
#include "common/err.h"
#include "common/exitcode.h"
#include "common/rdzv_impl.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tests/sim compiles this file again with one fault sown into it, to show that the simulator would see it. */
#ifndef RDZV_MUTANT
#define RDZV_MUTANT 0
#endif
#define SOUND(n) (RDZV_MUTANT != (n))

/* What a handler works with. */
struct step {
    struct rdzv *r;
    struct node *n; /* the event's node; NULL for TICK, DRAIN */
    const struct rdzv_event *ev;
    int64_t now;
    struct rdzv_effects *fx;
    struct err *e;
};

static bool is_final(enum rdzv_state s)
{
    return s == RDZV_SUCCEEDED || s == RDZV_FAILED || s == RDZV_DRAINED;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

static struct node *find(const struct rdzv *r, const char *id)
{
    struct node *n;
    HASH_FIND_STR(r->nodes, id, n);
    return n;
}

static int grow_order(struct rdzv *r, size_t need)
{
    if (need <= r->order_cap)
        return 0;
    size_t cap = r->order_cap ? r->order_cap * 2 : 8;
    struct node **v = realloc(r->order, cap * sizeof *v);
    if (!v)
        return -ENOMEM;
    r->order = v;
    r->order_cap = cap;
    return 0;
}

/* A node unknown so far. It is not joined yet: nothing has changed if the step fails after all. */
static int add_node(struct rdzv *r, const char *id, struct node **ret, struct err *e)
{
    unsigned count = HASH_COUNT(r->nodes);
    if (count >= RDZV_NODES_MAX)
        return err_set(e, ERR_REFUSED, "node '%s' cannot join: the job has %u nodes, the most there can be", id, count);
    struct node *n = NULL;
    if (grow_order(r, count + 1) < 0 || !(n = calloc(1, sizeof *n)))
        return err_set(e, -ENOMEM, "no memory for node '%s'", id);
    snprintf(n->id, sizeof n->id, "%s", id);
    n->seq = r->seq_floor;
    HASH_ADD_STR(r->nodes, id, n);
    if (!n->hh.tbl) {
        free(n);
        return err_set(e, -ENOMEM, "no memory for node '%s'", id);
    }
    *ret = n;
    return 0;
}

static void forget(struct rdzv *r, struct node *n)
{
    if (r->state == RDZV_RUNNING && n->member && n->done)
        r->departed_done++;
    if (n->seq > r->seq_floor)
        r->seq_floor = n->seq;
    HASH_DEL(r->nodes, n);
    free(n);
}

struct tally rdzv_tally_(const struct rdzv *r)
{
    struct tally t = {0};
    for (const struct node *n = r->nodes; n; n = n->hh.next) {
        t.ready += n->joined && !n->silent;
        t.stopping += n->member && !n->joined && !(n->done && r->why == RDZV_WHY_DRAIN);
        t.members += n->member;
        t.staying += !n->leaving && !n->silent;
    }
    return t;
}

/* ---- news ------------------------------------------------------------------------------------------------------- */

static int reserve_effects(struct rdzv_effects *fx, size_t need)
{
    fx->n = 0;
    if (need <= fx->cap)
        return 0;
    size_t cap = need + need / 2;
    struct rdzv_effect *v = realloc(fx->v, cap * sizeof *v);
    if (!v)
        return -ENOMEM;
    fx->v = v;
    fx->cap = cap;
    return 0;
}

void rdzv_effects_free(struct rdzv_effects *fx)
{
    free(fx->v);
    *fx = (struct rdzv_effects){0};
}

static struct rdzv_news *tell(struct step *s, struct node *n, enum rdzv_news_kind kind)
{
    assert(s->fx->n < s->fx->cap); /* reserved before the step began */
    struct rdzv_effect *fx = &s->fx->v[s->fx->n++];
    memset(fx, 0, sizeof *fx);
    memcpy(fx->node, n->id, sizeof fx->node);
    fx->news.seq = ++n->seq;
    fx->news.kind = kind;
    fx->news.round = s->r->round;
    fx->news.why = s->r->why;
    fx->news.restart_count = s->r->restarts;
    fx->news.cause.rank = -1;
    return &fx->news;
}

static void tell_round(struct step *s, struct node *n, const char *leader_addr)
{
    struct rdzv_news *news = tell(s, n, RDZV_NEWS_ROUND);
    news->group_world = s->r->group_world;
    news->world_size = s->r->world_size;
    news->spare = !n->member;
    news->group_rank = n->member ? n->group_rank : -1;
    news->rank_base = n->member ? n->rank_base : -1;
    snprintf(news->leader_addr, sizeof news->leader_addr, "%s", leader_addr);
}

static void tell_end(struct step *s, struct node *n, int exit_code, const struct rdzv_cause *cause)
{
    struct rdzv_news *news = tell(s, n, RDZV_NEWS_END);
    news->exit_code = exit_code;
    if (cause)
        news->cause = *cause;
}

/* ---- changes of state ------------------------------------------------------------------------------------------- */

static void set_state(struct rdzv *r, enum rdzv_state to, int64_t deadline)
{
    r->state = to;
    r->state_deadline = deadline;
}

static void finish(struct step *s, enum rdzv_state how, int exit_code, const struct rdzv_cause *cause)
{
    for (struct node *n = s->r->nodes; n; n = n->hh.next)
        tell_end(s, n, exit_code, cause);
    set_state(s->r, how, INT64_MAX);
}

/* The running round is over for this reason: every member stops its workers and joins again. */
static void stop_round(struct step *s, enum rdzv_reason why, const struct rdzv_cause *cause)
{
    s->r->why = why;
    set_state(s->r, RDZV_STOPPING, s->now + s->r->config.join_timeout_ms);
    for (struct node *n = s->r->nodes; n; n = n->hh.next) {
        if (!n->member)
            continue;
        struct rdzv_news *news = tell(s, n, RDZV_NEWS_STOP);
        if (cause)
            news->cause = *cause;
    }
}

/* A failure breaks the running round: one restart is used up, or there is none and the job has failed. */
static void fail_round(struct step *s, const struct rdzv_cause *cause)
{
    struct rdzv_cause c = *cause;
    if (c.exit_code < 1 || c.exit_code > 255)
        c.exit_code = EXIT_FAIL;
    if (s->r->restarts >= s->r->config.max_restarts + !SOUND(1)) {
        s->r->why = RDZV_WHY_FAILURE;
        finish(s, RDZV_FAILED, c.exit_code, &c);
        return;
    }
    s->r->restarts++;
    stop_round(s, RDZV_WHY_FAILURE, &c);
}

/* Members of the last round keep their order; new nodes come after, in the natural order of their names (node2 before node10). */
static int by_seniority(const void *pa, const void *pb)
{
    const struct node *a = *(struct node *const *)pa, *b = *(struct node *const *)pb;
    if (a->member != b->member)
        return a->member ? -1 : 1;
    if (a->member)
        return (a->group_rank > b->group_rank) - (a->group_rank < b->group_rank);
    int c = strverscmp(a->id, b->id);
    return c ? c : strcmp(a->id, b->id);
}

static void start_round(struct step *s)
{
    struct rdzv *r = s->r;
    size_t ready = 0;
    for (struct node *n = r->nodes; n; n = n->hh.next)
        if (n->joined && !n->silent)
            r->order[ready++] = n;
    qsort(r->order, ready, sizeof *r->order, by_seniority);

    r->why = r->round ? r->why : RDZV_WHY_START;
    uint64_t last = r->round > r->round_floor ? r->round : r->round_floor;
    r->round = last + 1 > r->config.first_round ? last + 1 : r->config.first_round;
    size_t room = (size_t)r->config.max_nodes + !SOUND(2);
    r->group_world = (int)(ready < room ? ready : room);
    r->world_size = r->done_count = r->departed_done = 0;
    for (struct node *n = r->nodes; n; n = n->hh.next)
        n->member = n->done = false;
    for (int i = 0; i < r->group_world; i++) {
        struct node *n = r->order[i];
        n->member = true;
        n->joined = n->leaving = false;
        n->group_rank = i;
        n->rank_base = r->world_size;
        r->world_size += n->slots;
    }
    set_state(r, RDZV_RUNNING, INT64_MAX);
    for (size_t i = 0; i < ready; i++)
        tell_round(s, r->order[i], r->order[0]->addr);
}

static const char *leader_addr(const struct rdzv *r)
{
    for (const struct node *n = r->nodes; n; n = n->hh.next)
        if (n->member && n->group_rank == 0)
            return n->addr;
    return "";
}

/* After every event: can the next round begin, or has the gathering gained or lost its minimum? */
static void settle(struct step *s)
{
    struct rdzv *r = s->r;
    const struct rdzv_config *c = &r->config;
    struct tally t = rdzv_tally_(r);

    if (r->state == RDZV_STOPPING) {
        if (t.stopping > 0 && SOUND(3))
            return;
        if (r->why == RDZV_WHY_DRAIN)
            finish(s, RDZV_DRAINED, EXIT_REQUEUE, NULL);
        else if (t.ready >= c->min_nodes)
            start_round(s); /* all live members are back: no last call */
        else
            set_state(r, RDZV_JOINING, s->now + c->join_timeout_ms);
    } else if (r->state == RDZV_JOINING && t.ready >= c->min_nodes) {
        if (t.ready >= c->max_nodes || r->round > 0)
            start_round(s);
        else
            set_state(r, RDZV_LAST_CALL, s->now + c->last_call_ms);
    } else if (r->state == RDZV_LAST_CALL) {
        if (t.ready < c->min_nodes && SOUND(4))
            set_state(r, RDZV_JOINING, s->now + c->join_timeout_ms);
        else if (t.ready >= c->max_nodes)
            start_round(s);
    }
}

/* ---- handlers: what an event does in a state ---------------------------------------------------------------------- */

/* A node that could take part appears while a round runs. No resize once a member is done: the job is about to end. */
static void offer_while_running(struct step *s)
{
    struct tally t = rdzv_tally_(s->r);
    if (t.members < s->r->config.max_nodes && s->r->done_count == 0)
        stop_round(s, RDZV_WHY_RESIZE, NULL);
    else
        tell_round(s, s->n, leader_addr(s->r));
}

static void take_join(struct step *s)
{
    s->n->slots = s->ev->slots;
    memcpy(s->n->addr, s->ev->addr, sizeof s->n->addr);
    s->n->joined = true;
    s->n->silent = false;
    if (s->ev->round > s->r->round_floor)
        s->r->round_floor = s->ev->round;
}

/* Only a member that names the stopped round says that its workers of that round are gone: an older JOIN was delayed on its way. */
static int join_waiting(struct step *s)
{
    struct node *n = s->n;
    if (n->member && !n->joined && s->ev->round < s->r->round && SOUND(5))
        return err_set(s->e, ERR_FENCED, "JOIN of node '%s' names round %llu, but it is a member of round %llu", n->id,
                       (unsigned long long)s->ev->round, (unsigned long long)s->r->round);
    if (n->leaving) {
        tell_end(s, n, EXIT_REQUEUE, NULL);
        forget(s->r, n);
        return 0;
    }
    take_join(s);
    return 0;
}

static int join_running(struct step *s)
{
    struct node *n = s->n;
    if (!n->member) {
        bool known = n->joined && !n->silent;
        take_join(s);
        if (!known)
            offer_while_running(s);
        return 0;
    }
    n->silent = false;
    if (s->ev->round < s->r->round)
        return 0; /* repeated: it has its place already */
    if (n->done)
        return err_set(s->e, ERR_REFUSED, "node '%s' is done with round %llu and cannot join", n->id,
                       (unsigned long long)s->r->round);
    struct rdzv_cause cause = {.exit_code = EXIT_UNAVAILABLE, .rank = -1};
    snprintf(cause.text, sizeof cause.text, "node '%s' lost touch and stopped its workers", n->id);
    fail_round(s, &cause);
    if (s->r->state == RDZV_STOPPING)
        take_join(s);
    return 0;
}

static int leave_waiting(struct step *s)
{
    tell_end(s, s->n, s->n->done && !s->n->joined ? EXIT_OK : EXIT_REQUEUE, NULL);
    forget(s->r, s->n);
    return 0;
}

/* A member's workers must stop first; with too few nodes left all of them do. */
static int leave_with_workers(struct step *s)
{
    struct node *n = s->n;
    if (!n->member || n->joined || n->done)
        return leave_waiting(s);
    n->leaving = true;
    bool enough = rdzv_tally_(s->r).staying >= s->r->config.min_nodes;
    if (s->r->state == RDZV_RUNNING)
        stop_round(s, enough ? RDZV_WHY_RESIZE : RDZV_WHY_DRAIN, NULL);
    else if (!enough)
        s->r->why = RDZV_WHY_DRAIN;
    return 0;
}

static int fail_running(struct step *s)
{
    fail_round(s, &s->ev->cause);
    return 0;
}

static int done_now(struct step *s)
{
    if (s->n->done)
        return 0;
    s->n->done = true;
    if (++s->r->done_count >= s->r->group_world - !SOUND(6))
        finish(s, RDZV_SUCCEEDED, EXIT_OK, NULL);
    return 0;
}

static int gone_waiting(struct step *s)
{
    forget(s->r, s->n);
    return 0;
}

static int gone_running(struct step *s)
{
    bool breaks = s->n->member && !s->n->done;
    forget(s->r, s->n);
    if (breaks)
        fail_round(s, &s->ev->cause);
    return 0;
}

static int fall_silent(struct step *s)
{
    if (s->n->silent)
        return 0;
    s->n->silent = true;
    s->n->fence = s->now + s->r->config.silence_ms + s->r->config.kill_ms * SOUND(7);
    return 0;
}

static int resume(struct step *s)
{
    bool was = s->n->silent;
    s->n->silent = false;
    if (was && s->r->state == RDZV_RUNNING && !s->n->member && SOUND(8))
        offer_while_running(s);
    return 0;
}

static int drain_waiting(struct step *s)
{
    finish(s, RDZV_DRAINED, EXIT_REQUEUE, NULL);
    return 0;
}

static int drain_running(struct step *s)
{
    stop_round(s, RDZV_WHY_DRAIN, NULL);
    return 0;
}

static int drain_stopping(struct step *s)
{
    s->r->why = RDZV_WHY_DRAIN;
    return 0;
}

/* Silent nodes whose time is over are forgotten; the first that takes living work with it breaks the running round. */
static void expire_fences(struct step *s)
{
    struct node *n, *next;
    HASH_ITER (hh, s->r->nodes, n, next) {
        if (!n->silent || n->fence > s->now)
            continue;
        bool breaks = s->r->state == RDZV_RUNNING && n->member && !n->done;
        struct rdzv_cause cause = {.exit_code = EXIT_UNAVAILABLE, .rank = -1};
        snprintf(cause.text, sizeof cause.text, "node '%s' was not heard of for %lld ms", n->id,
                 (long long)(s->r->config.silence_ms + s->r->config.kill_ms));
        forget(s->r, n);
        if (breaks)
            fail_round(s, &cause);
        if (is_final(s->r->state))
            return;
    }
}

static int tick(struct step *s)
{
    struct rdzv *r = s->r;
    expire_fences(s);
    settle(s);
    if (r->state_deadline > s->now)
        return 0;
    struct tally t = rdzv_tally_(r);
    struct rdzv_cause cause = {.exit_code = EXIT_UNAVAILABLE, .rank = -1};
    if (r->state == RDZV_LAST_CALL) {
        start_round(s);
        return 0;
    }
    if (r->state == RDZV_STOPPING)
        snprintf(cause.text, sizeof cause.text, "%d nodes did not stop their workers within %lld ms", t.stopping,
                 (long long)r->config.join_timeout_ms);
    else
        snprintf(cause.text, sizeof cause.text, "%d of at least %d nodes were there within %lld ms", t.ready,
                 r->config.min_nodes, (long long)r->config.join_timeout_ms);
    r->why = RDZV_WHY_FAILURE;
    finish(s, RDZV_FAILED, cause.exit_code, &cause);
    return 0;
}

static int nothing(struct step *s)
{
    (void)s;
    return 0;
}

static int refuse(struct step *s)
{
    return err_set(s->e, ERR_REFUSED, "the job is over (%s): %s of node '%s' comes too late",
                   rdzv_state_name(s->r->state), rdzv_event_name(s->ev->kind), s->ev->node);
}

typedef int handler(struct step *s);

/* clang-format off */
#define FINAL {[RDZV_JOIN] = refuse, [RDZV_LEAVE] = nothing, [RDZV_FAIL] = nothing, [RDZV_DONE] = nothing, [RDZV_GONE] = nothing, \
               [RDZV_SILENT] = nothing, [RDZV_RESUME] = nothing, [RDZV_DRAIN] = nothing, [RDZV_TICK] = nothing}
#define GATHERING {[RDZV_JOIN] = join_waiting, [RDZV_LEAVE] = leave_waiting, [RDZV_FAIL] = nothing, [RDZV_DONE] = nothing, \
                   [RDZV_GONE] = gone_waiting, [RDZV_SILENT] = fall_silent, [RDZV_RESUME] = resume, \
                   [RDZV_DRAIN] = drain_waiting, [RDZV_TICK] = tick}
static handler *const table[STATE_COUNT][EVENT_COUNT] = {
    [RDZV_JOINING] = GATHERING,
    [RDZV_LAST_CALL] = GATHERING,
    [RDZV_RUNNING] = {[RDZV_JOIN] = join_running, [RDZV_LEAVE] = leave_with_workers, [RDZV_FAIL] = fail_running,
                      [RDZV_DONE] = done_now, [RDZV_GONE] = gone_running, [RDZV_SILENT] = fall_silent,
                      [RDZV_RESUME] = resume, [RDZV_DRAIN] = drain_running, [RDZV_TICK] = tick},
    /* A round breaks once: what else fails while it stops costs nothing more. */
    [RDZV_STOPPING] = {[RDZV_JOIN] = join_waiting, [RDZV_LEAVE] = leave_with_workers, [RDZV_FAIL] = nothing,
                       [RDZV_DONE] = done_now, [RDZV_GONE] = gone_waiting, [RDZV_SILENT] = fall_silent,
                       [RDZV_RESUME] = resume, [RDZV_DRAIN] = drain_stopping, [RDZV_TICK] = tick},
    [RDZV_SUCCEEDED] = FINAL,
    [RDZV_FAILED] = FINAL,
    [RDZV_DRAINED] = FINAL,
};
/* clang-format on */

/* ---- the step --------------------------------------------------------------------------------------------------- */

/* FAIL and DONE are claims about a round: only a member may make them, and only about the current one. */
static int check_claim(const struct rdzv *r, const struct node *n, const struct rdzv_event *ev, struct err *e)
{
    const char *what = rdzv_event_name(ev->kind);
    unsigned long long named = ev->round, current = r->round;
    if (named < current && SOUND(9))
        return err_set(e, ERR_FENCED, "%s of node '%s' names round %llu, but the current one is %llu", what, ev->node,
                       named, current);
    if (named > current)
        return err_set(e, ERR_REFUSED, "%s of node '%s' names round %llu, which has not begun", what, ev->node, named);
    if (!n || !n->member)
        return err_set(e, ERR_REFUSED, "%s of node '%s': it is not a member of round %llu", what, ev->node, current);
    return 0;
}

static int check_join(const struct rdzv_event *ev, struct err *e)
{
    if (ev->slots < 1 || ev->slots > RDZV_SLOTS_MAX)
        return err_set(e, ERR_REFUSED, "JOIN of node '%s' offers %d slots, expected 1 to %d", ev->node, ev->slots,
                       RDZV_SLOTS_MAX);
    if (ev->round > INT64_MAX)
        return err_set(e, ERR_REFUSED, "JOIN of node '%s' names the impossible round %llu", ev->node,
                       (unsigned long long)ev->round);
    if (!memchr(ev->addr, 0, sizeof ev->addr))
        return err_set(e, ERR_REFUSED, "JOIN of node '%s' has an address longer than %d bytes", ev->node,
                       RDZV_ADDR_MAX);
    return 0;
}

/* Everything that can refuse an event before it touches the machine. */
static int admit(struct step *s)
{
    const struct rdzv_event *ev = s->ev;
    if ((size_t)ev->kind >= EVENT_COUNT)
        return err_set(s->e, ERR_REFUSED, "event %d is unknown", (int)ev->kind);
    if (ev->kind == RDZV_TICK || ev->kind == RDZV_DRAIN)
        return 0;
    if (!ev->node[0] || !memchr(ev->node, 0, sizeof ev->node))
        return err_set(s->e, ERR_REFUSED, "a node id has 1 to %d bytes", RDZV_ID_MAX);
    s->n = find(s->r, ev->node);
    if (ev->kind == RDZV_JOIN)
        return check_join(ev, s->e);
    if (ev->kind == RDZV_FAIL || ev->kind == RDZV_DONE)
        return check_claim(s->r, s->n, ev, s->e);
    if (!s->n)
        return err_set(s->e, ERR_REFUSED, "%s of node '%s', which is unknown", rdzv_event_name(ev->kind), ev->node);
    return 0;
}

int rdzv_step(struct rdzv *r, const struct rdzv_event *ev, int64_t now_ms, struct rdzv_effects *fx, struct err *e)
{
    struct step s = {.r = r, .ev = ev, .now = now_ms, .fx = fx, .e = e};
    fx->n = 0;
    TRY(admit(&s));
    /* Nobody is told more than two things in one step. */
    if (reserve_effects(fx, 2 * (HASH_COUNT(r->nodes) + 2)) < 0)
        return err_set(e, -ENOMEM, "no memory for the news of %u nodes", HASH_COUNT(r->nodes));
    if (ev->kind == RDZV_JOIN && !s.n && !is_final(r->state))
        TRY(add_node(r, ev->node, &s.n, e));
    if (!r->begun) {
        r->begun = true;
        set_state(r, RDZV_JOINING, now_ms + r->config.join_timeout_ms);
    }
    TRY(table[r->state][ev->kind](&s));
    settle(&s);
    return 0;
}

int64_t rdzv_deadline(const struct rdzv *r)
{
    int64_t first = r->state_deadline;
    if (is_final(r->state))
        return INT64_MAX;
    for (const struct node *n = r->nodes; n; n = n->hh.next)
        if (n->silent && n->fence < first)
            first = n->fence;
    return first;
}
