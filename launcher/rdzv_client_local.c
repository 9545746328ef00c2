/* A rendezvous of one node: the machine runs in this process, its deadline is a timer of the loop. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "launcher/rdzv_client.h"

struct local {
    struct rdzv_client base;
    struct rdzv_client_options o;
    struct rdzv *machine;
    struct rdzv_effects effects;
    uint64_t round; /* the last one this node was told of */
    uv_timer_t tick;
    bool closing;
};

static int apply(struct local *l, struct rdzv_event *ev, struct err *e);

static void on_tick(uv_timer_t *t)
{
    struct local *l = (struct local *)((char *)t - offsetof(struct local, tick));
    struct rdzv_event ev = {.kind = RDZV_TICK};
    if (!l->closing)
        apply(l, &ev, NULL);
}

static void arm(struct local *l)
{
    int64_t due = rdzv_deadline(l->machine), now = clock_ms();
    if (due == INT64_MAX)
        uv_timer_stop(&l->tick);
    else
        uv_timer_start(&l->tick, on_tick, due > now ? (uint64_t)(due - now) : 0, 0);
}

static int apply(struct local *l, struct rdzv_event *ev, struct err *e)
{
    snprintf(ev->node, sizeof ev->node, "%s", l->o.node);
    TRY(rdzv_step(l->machine, ev, clock_ms(), &l->effects, e));
    for (size_t i = 0; i < l->effects.n; i++) {
        const struct rdzv_news *news = &l->effects.v[i].news;
        if (news->kind != RDZV_NEWS_END)
            l->round = news->round;
        l->o.on_news(l->o.arg, news);
    }
    arm(l);
    return 0;
}

static int local_open(struct rdzv_client **ret, uv_loop_t *loop, const struct rdzv_client_options *o, struct err *e)
{
    struct local *l = calloc(1, sizeof *l);
    if (!l)
        return err_errno(e, ENOMEM, "rendezvous");
    int rc = rdzv_create(&l->machine, &o->job, e);
    if (rc < 0) {
        free(l);
        return rc;
    }
    l->base.ops = &rdzv_client_local_ops;
    l->o = *o;
    uv_timer_init(loop, &l->tick);
    *ret = &l->base;
    return 0;
}

static int local_join(struct rdzv_client *c, struct err *e)
{
    struct local *l = (struct local *)c;
    struct rdzv_event ev = {.kind = RDZV_JOIN, .round = l->round, .slots = l->o.slots};
    snprintf(ev.addr, sizeof ev.addr, "%s", l->o.addr);
    return apply(l, &ev, e);
}

static int local_fail(struct rdzv_client *c, const struct rdzv_cause *cause, struct err *e)
{
    struct local *l = (struct local *)c;
    struct rdzv_event ev = {.kind = RDZV_FAIL, .round = l->round, .cause = *cause};
    return apply(l, &ev, e);
}

static int local_done(struct rdzv_client *c, struct err *e)
{
    struct local *l = (struct local *)c;
    struct rdzv_event ev = {.kind = RDZV_DONE, .round = l->round};
    return apply(l, &ev, e);
}

static int local_leave(struct rdzv_client *c, struct err *e)
{
    struct rdzv_event ev = {.kind = RDZV_LEAVE};
    return apply((struct local *)c, &ev, e);
}

static void on_closed(uv_handle_t *h)
{
    struct local *l = (struct local *)((char *)h - offsetof(struct local, tick));
    rdzv_destroy(l->machine);
    rdzv_effects_free(&l->effects);
    free(l);
}

static void local_close(struct rdzv_client *c)
{
    struct local *l = (struct local *)c;
    if (!l || l->closing)
        return;
    l->closing = true;
    uv_close((uv_handle_t *)&l->tick, on_closed);
}

const struct rdzv_client_ops rdzv_client_local_ops = {
    .name = "local",
    .open = local_open,
    .join = local_join,
    .fail = local_fail,
    .done = local_done,
    .leave = local_leave,
    .close = local_close,
};
