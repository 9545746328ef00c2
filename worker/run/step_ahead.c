/* Steps on a device that goes on by itself:
 *
 *   host     enqueue k | take k-1 | enqueue k+1 | take k ...
 *   device   ... k-1 ....| k: run, reduce, judge, update, post ....| k+1 ...
 *
 * The host waits for the results of k-1 while k is enqueued behind it, so the device never runs out of work; and memory
 * for two results is enough. */
#include <math.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/data/loader/loader.h"
#include "worker/parallel/ddp.h"
#include "worker/program/program.h"
#include "worker/run/step_impl.h"
#include "worker/run/trace.h"
#include "worker/state/divergence.h"
#include "worker/state/state.h"

static const struct device_async *async_of(const struct step *t)
{
    return t->state->device->ops->async;
}

/* The device takes over the loss scale. Its steps include those that were left out: only it knows how many will be. */
static int hand_over(struct step *t, struct err *e)
{
    if (t->ahead.guarded)
        return 0;
    TRY(async_of(t)->guard(t->state->device, &t->state->loss_scale, e));
    t->ahead.guarded = true;
    t->updates += t->state->loss_scale.skipped;
    return 0;
}

/* Everything of a step up to its result, enqueued. */
static int enqueue(struct step *t, const struct loader_batch *batch, double lr, int stop, int slot, struct err *e)
{
    const struct device_async *a = async_of(t);
    struct device *d = t->state->device;
    const struct loss_scale one = loss_scale_fixed(1);
    const void *norm;
    t->grad_scale = precision_grad_scale(&t->precision, &one, t->grad_batch);
    TRY(step_run(t, batch, e));
    TRY(a->store(d, step_metric(t, METRIC_STOP), stop, e));
    TRY(a->store(d, step_metric(t, METRIC_BAD), (double)batch->bad, e));
    TRY(ddp_wait(t->ddp, e));
    TRY(step_norm(t, t->grad_scale, &norm, e));
    TRY(a->judge(d, step_metric(t, METRIC_LOSS), norm, e));
    TRY(step_update(t, lr, e));
    return a->post(d, slot, step_metric(t, 0), METRIC_N, e);
}

int train_catch_up(struct step *t, struct step_result *ret, struct err *e)
{
    struct step_ahead *h = &t->ahead;
    struct device_verdict v;
    double m[METRIC_N];
    *ret = (struct step_result){0};
    if (!h->outstanding)
        return 0;
    TRY(async_of(t)->take(t->state->device, h->slot, m, METRIC_N, &v, e));
    TRY(ddp_check(t->ddp, e)); /* a collective that failed leaves anything in the sums */
    h->outstanding = false;
    t->state->loss_scale = v.scale_after;
    if (v.hopeless)
        return divergence_error(t->state, m[METRIC_LOSS], e);
    if (v.skipped && !isfinite(m[METRIC_LOSS]))
        m[METRIC_LOSS] = m[METRIC_TOP1] = m[METRIC_TOP5] = m[METRIC_COUNT] = 0;
    const int64_t now = clock_ns(), since = h->taken_ns > h->began_ns ? h->taken_ns : h->began_ns;
    *ret = step_result_of(m);
    ret->lr = h->lr;
    ret->skipped = v.skipped;
    ret->grad_norm = m[METRIC_NORM];
    ret->wait_ns = h->wait_ns;
    ret->total_ns = now - since;
    h->taken_ns = now;
    return 0;
}

int step_ahead(struct step *t, double lr, int stop, struct step_result *ret, struct err *e)
{
    struct step_ahead *h = &t->ahead;
    struct loader_batch batch;
    const int slot = 1 - h->slot;
    const int64_t start = clock_ns();
    TRY(ddp_check(t->ddp, e)); /* a graph must not be launched with a communicator that is gone */
    TRY(hand_over(t, e));
    TRY(loader_next(t->loader, &batch, e));
    const int64_t loaded = clock_ns();
    trace_span(t->trace, "data", "wait for the loader", start);
    int rc = enqueue(t, &batch, lr, stop, slot, e);
    loader_done(t->loader, &batch);
    TRY(rc);
    trace_span(t->trace, "step", "enqueue", loaded);
    TRY(train_catch_up(t, ret, e));
    h->outstanding = true;
    h->slot = slot;
    h->lr = lr;
    h->wait_ns = loaded - start;
    h->began_ns = start;
    return 0;
}
