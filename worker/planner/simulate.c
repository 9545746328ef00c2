/* Tasks that run: of each actor its training thread, its communication thread and what goes along, and each way of a
 * pair's messages. From one end of a task to the next one every task goes at the rate that its node allows. */
#include "worker/planner/simulate.h"

#include <errno.h>
#include <float.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"

int actor_add(struct actor *a, struct action x, struct err *e)
{
    struct action *last = a->n ? &a->actions[a->n - 1] : NULL;
    if (x.act == ACT_RUN && x.seconds <= 0)
        return 0;
    if (last && x.act == ACT_RUN && last->act == ACT_RUN && last->cores == x.cores) {
        last->seconds += x.seconds;
        return 0;
    }
    TRY(ARRAY_GROW(a->actions, a->cap, (size_t)a->n + 1, "actions of a step", e));
    a->actions[a->n++] = x;
    return 0;
}

void actor_finish(struct actor *a)
{
    free(a->actions);
    *a = (struct actor){0};
}

struct task {
    bool on;
    double left, cores;
    int node;
};

/* Asked for and not begun: indices of actions. */
struct queue {
    int *of, n, next;
    int done;
    struct task task;
};

struct mate { /* what an actor sends to another one, one way */
    struct queue queue;
    int received;
};

struct player {
    const struct actor *a;
    int at;
    bool begun; /* the action at `at` runs */
    struct task task, along;
    struct queue asked;
    struct mate *to; /* (n * SIMULATE_WAYS) */
    int sent[SIMULATE_WAYS], gone[SIMULATE_WAYS];
};

struct play {
    struct player *players;
    int n;
    double cores, now;
};

static struct task task_of(const struct player *p, const struct action *x)
{
    return (struct task){.on = true, .left = x->seconds, .cores = x->cores * p->a->ranks, .node = p->a->node};
}

static void begin_next(const struct player *p, struct queue *q)
{
    if (!q->task.on && q->next < q->n)
        q->task = task_of(p, &p->a->actions[q->of[q->next++]]);
}

static struct mate *mate_of(const struct player *p, int peer, int way)
{
    return &p->to[peer * SIMULATE_WAYS + way];
}

/* The action at hand is over, without time passing. */
static bool is_over(const struct play *g, struct player *p, int self)
{
    const struct action *x = &p->a->actions[p->at];
    struct queue *q;
    switch (x->act) {
    case ACT_RUN:
        if (!p->begun)
            p->task = task_of(p, x);
        p->begun = true;
        return !p->task.on;
    case ACT_ASK:
        q = &p->asked;
        q->of[q->n++] = p->at;
        return true;
    case ACT_AWAIT:
        return p->asked.done >= x->number;
    case ACT_SEND:
        q = &mate_of(p, x->peer, x->way)->queue;
        q->of[q->n++] = p->at;
        p->sent[x->way]++;
        return true;
    case ACT_RECEIVE: {
        struct mate *m = mate_of(&g->players[x->peer], self, x->way);
        if (m->queue.done <= m->received)
            return false;
        m->received++;
        return true;
    }
    case ACT_SENT:
        return p->sent[x->way] - p->gone[x->way] <= x->number;
    default: /* ACT_ALONG */
        p->along = task_of(p, x);
        return true;
    }
}

/* What can begin begins; false: nothing has changed. */
static bool move(struct play *g)
{
    bool moved = false;
    for (int i = 0; i < g->n; i++) {
        struct player *p = &g->players[i];
        while (p->at < p->a->n && is_over(g, p, i)) {
            p->at++;
            p->begun = false;
            moved = true;
        }
        begin_next(p, &p->asked);
        for (int k = 0; k < g->n * SIMULATE_WAYS; k++)
            begin_next(p, &p->to[k].queue);
    }
    return moved;
}

static void each_task(struct play *g, void (*f)(struct task *t, void *ctx), void *ctx)
{
    for (int i = 0; i < g->n; i++) {
        struct player *p = &g->players[i];
        f(&p->task, ctx);
        f(&p->along, ctx);
        f(&p->asked.task, ctx);
        for (int k = 0; k < g->n * SIMULATE_WAYS; k++)
            f(&p->to[k].queue.task, ctx);
    }
}

struct pace {
    double wanted[SIMULATE_ACTORS_MAX]; /* by node of an actor */
    double cores, step;
};

static void count(struct task *t, void *ctx)
{
    struct pace *p = ctx;
    p->wanted[t->node] += t->on ? t->cores : 0;
}

static double rate(const struct pace *p, const struct task *t)
{
    return p->wanted[t->node] > p->cores ? p->cores / p->wanted[t->node] : 1;
}

static void look(struct task *t, void *ctx)
{
    struct pace *p = ctx;
    if (t->on && t->left / rate(p, t) < p->step)
        p->step = t->left / rate(p, t);
}

static void pass(struct task *t, void *ctx)
{
    const struct pace *p = ctx;
    if (!t->on)
        return;
    const double left = t->left - p->step * rate(p, t);
    t->on = left > 1e-12;
    t->left = left;
}

static void finish(struct queue *q, const bool was)
{
    q->done += was && !q->task.on;
}

/* Time passes until the next task ends; false: none runs. */
static bool wait(struct play *g)
{
    struct pace p = {.cores = g->cores, .step = DBL_MAX};
    each_task(g, count, &p);
    each_task(g, look, &p);
    if (p.step == DBL_MAX)
        return false;
    for (int i = 0; i < g->n; i++) {
        struct player *x = &g->players[i];
        const bool asked = x->asked.task.on;
        pass(&x->task, &p);
        pass(&x->along, &p);
        pass(&x->asked.task, &p);
        finish(&x->asked, asked);
        for (int k = 0; k < g->n * SIMULATE_WAYS; k++) {
            struct queue *q = &x->to[k].queue;
            const int before = q->done;
            const bool was = q->task.on;
            pass(&q->task, &p);
            finish(q, was);
            x->gone[k % SIMULATE_WAYS] += q->done - before;
        }
    }
    g->now += p.step;
    return true;
}

static bool is_through(const struct play *g)
{
    for (int i = 0; i < g->n; i++)
        if (g->players[i].at < g->players[i].a->n || g->players[i].along.on)
            return false;
    return true;
}

static int open_player(struct player *p, const struct actor *a, int n, struct err *e)
{
    const size_t mates = (size_t)n * SIMULATE_WAYS;
    bool missing = false;
    p->a = a;
    p->asked.of = calloc((size_t)a->n + 1, sizeof(int));
    p->to = calloc(mates, sizeof *p->to);
    for (size_t k = 0; p->to && k < mates; k++) {
        bool sends = false;
        for (int i = 0; i < a->n && !sends; i++)
            sends = a->actions[i].act == ACT_SEND && a->actions[i].peer == (int)k / SIMULATE_WAYS;
        p->to[k].queue.of = sends ? calloc((size_t)a->n + 1, sizeof(int)) : NULL;
        missing |= sends && !p->to[k].queue.of;
    }
    return p->asked.of && p->to && !missing ? 0 : err_errno(e, ENOMEM, "a step of %d actions", a->n);
}

static void close_player(struct player *p, int n)
{
    for (int k = 0; p->to && k < n * SIMULATE_WAYS; k++)
        free(p->to[k].queue.of);
    free(p->to);
    free(p->asked.of);
}

static int play(struct play *g, struct err *e)
{
    for (;;) {
        while (move(g))
            ;
        if (is_through(g))
            return 0;
        if (!wait(g))
            break;
    }
    for (int i = 0; i < g->n; i++)
        if (g->players[i].at < g->players[i].a->n)
            return err_set(e, -EDEADLK, "actor %d waits at action %d of %d for what never comes", i, g->players[i].at,
                           g->players[i].a->n);
    return 0;
}

int simulate(const struct actor *actors, int n, double cores, double *ret, struct err *e)
{
    if (n < 1 || n > SIMULATE_ACTORS_MAX)
        return err_set(e, -EINVAL, "a step of %d actors: expected 1 to %d", n, SIMULATE_ACTORS_MAX);
    struct play g = {.players = calloc((size_t)n, sizeof *g.players), .n = n, .cores = cores};
    int rc = g.players ? 0 : err_errno(e, ENOMEM, "a step of %d actors", n);
    for (int i = 0; i < n && rc == 0; i++)
        rc = open_player(&g.players[i], &actors[i], n, e);
    if (rc == 0)
        rc = play(&g, e);
    for (int i = 0; g.players && i < n; i++)
        close_player(&g.players[i], n);
    free(g.players);
    *ret = g.now;
    return rc;
}
