/* A step: the next batch, forward and backward, sums over all ranks, and, if they are numbers, an update.
 *
 * step_now() is for devices that the host waits for, or is to wait for (step.lockstep). One that goes on by itself
 * (device_ops.async) is given the same step by step_ahead(), and judges it:
 *
 *   host     enqueue k | take k-1 | enqueue k+1 | take k ...
 *   device   ... k-1 ....| k: run, reduce, judge, update, post ....| k+1 ...
 *
 * Where a rank is lost the device goes on past collectives that were ended, and judges steps as torn: they change
 * nothing. The host asks afterwards which ones were whole (train_drain()).
 *
 * The host waits for the results of k-1 while k is enqueued behind it, so the device never runs out of work; and memory
 * for two results is enough. */
#include "worker/run/step.h"

#include <errno.h>
#include <math.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/data/loader/loader.h"
#include "worker/device/device.h"
#include "worker/optim/update.h"
#include "worker/parallel/ddp.h"
#include "worker/pipeline/stage.h"
#include "worker/program/program.h"
#include "worker/run/trace.h"
#include "worker/state/divergence.h"
#include "worker/state/state.h"

struct times { /* ns */
    int64_t began, loaded, first, computed, summed;
    int64_t waited; /* for other ranks, until `computed` */
};

/* Samples of the class that is ignored become such as do not count. */
static const float *weigh(const struct step *t, const struct batch *b)
{
    const size_t n = (size_t)t->parts * (size_t)t->stride;
    if (!t->weights)
        return b->weights;
    for (size_t i = 0; i < n; i++)
        t->weights[i] = b->labels[i] == t->ignored ? 0 : b->weights[i];
    return t->weights;
}

/* Of the classes of samples that count. */
static double weight_of(const struct step *t, const struct batch *b)
{
    const size_t n = (size_t)t->parts * (size_t)t->stride, own = (size_t)t->part; /* others' are not this rank's */
    double sum = 0;
    for (size_t i = 0; i < n && t->loader && t->class_weights; i++)
        if (i % (size_t)t->stride < own && b->weights[i] != 0 && b->labels[i] != t->ignored)
            sum += (double)t->class_weights[b->labels[i]];
    return sum;
}

/* Forward and backward, part after part; buckets leave as they fill in the last one. all: of all parts. */
static int run_parts(struct step *t, const struct run_args *all, struct err *e)
{
    const struct input *in = &t->state->program->input;
    const bool each = ddp_each_part(t->ddp);
    for (int i = 0; i < t->parts; i++) {
        const bool last = i == t->parts - 1, reduced = last || each;
        struct run_args run = *all;
        run.batch = batch_at(&all->batch, in, (size_t)i * (size_t)t->stride);
        run.accumulate = i > 0 && !each;
        run.hooks = reduced ? ddp_hooks(t->ddp) : ddp_idle_hooks(t->ddp);
        ddp_begin(t->ddp, reduced);
        TRY(t->state->device->ops->run(t->plan, &run, e));
        if (!last)
            TRY(ddp_wait(t->ddp, e));
        if (!last && each)
            TRY(ddp_keep(t->ddp, i == 0, false, e));
    }
    return 0;
}

/* Of the run, skipped ones among them. A device that has the loss scale counts those, too. */
static int64_t steps_before(const struct step *t)
{
    return t->moments_from + t->updates + (t->ahead.guarded ? 0 : t->state->loss_scale.skipped);
}

static int run_batch(struct step *t, const struct batch *b, double grad_scale, struct err *e)
{
    struct run_args all = {.batch = *b,
                           .grad_scale = grad_scale,
                           .smoothing = t->smoothing,
                           .seed = t->seed,
                           .step = (uint64_t)steps_before(t),
                           .params_version = t->state->version,
                           .trace = trace_ops(t->trace)};
    all.batch.weights = weigh(t, b);
    return t->stage ? stage_train(t->stage, &all, e) : run_parts(t, &all, e);
}

/* The next batch, here or from the stage that loads it. */
static int next_batch(struct step *t, struct loader_batch *ret, struct err *e)
{
    *ret = (struct loader_batch){0};
    TRY(t->loader ? loader_next(t->loader, ret, e) : 0); /* rows of samples, their labels and weights */
    if (t->stage && stage_share_batch(t->stage, &ret->b, (size_t)t->parts * (size_t)t->stride, e) < 0)
        return err_wrap(e, "labels of a step");
    return 0;
}

/* What is counted on the last stage is for all. */
static int share_metrics(struct step *t, struct err *e)
{
    double m[METRIC_N];
    if (t->state->device->ops->async)
        return stage_sum_metrics(t->stage, state_metric(t->state, 0), e);
    TRY(state_get_metrics(t->state, m, e));
    TRY(stage_share_metrics(t->stage, m, e));
    return state_set_metrics(t->state, m, e);
}

static int set_metric(struct step *t, int metric, double value, struct err *e)
{
    struct device *d = t->state->device;
    return d->ops->async ? d->ops->async->store(d, state_metric(t->state, metric), value, e)
                         : state_set_metric(t->state, metric, value, e);
}

static bool wants_norm(const struct step *t)
{
    return t->check || t->optimizer->clip_norm > 0;
}

/* So far, for other ranks. */
static int64_t waited(const struct step *t)
{
    struct ddp_stats s;
    ddp_stats(t->ddp, &s);
    return s.exposed_ns + s.statistics_ns;
}

static void note_run(const struct step *t, int64_t waited_before, struct times *at)
{
    struct ddp_stats s;
    ddp_stats(t->ddp, &s);
    at->computed = clock_ns();
    at->waited = s.exposed_ns + s.statistics_ns - waited_before;
    at->first = s.first_ns > at->loaded ? s.first_ns : at->computed;
}

/* What the step was made of. Waits in the middle of it are taken as backward's. */
static void tell_parts(const struct times *at, int64_t update_ns, struct step_result *ret)
{
    ret->forward_ns = at->first - at->loaded;
    ret->backward_ns = at->computed - at->first - at->waited;
    if (ret->backward_ns < 0) { /* they were forward's */
        ret->forward_ns += ret->backward_ns;
        ret->backward_ns = 0;
    }
    ret->others_ns = at->waited + at->summed - at->computed;
    ret->update_ns = update_ns;
}

/* The next batch becomes sums over all ranks in the reduce arena: gradients (n_train), statistics (n_stats) and metrics
 * (METRIC_N), METRIC_NORM among them if somebody wants it. */
static int sum_gradients(struct step *t, double grad_scale, struct step_wishes w, struct times *at, struct err *e)
{
    struct state *s = t->state;
    struct loader_batch batch;
    at->began = clock_ns();
    TRY(next_batch(t, &batch, e));
    at->loaded = clock_ns();
    trace_span(t->trace, "data", "wait for the loader", at->began);
    const int64_t before = waited(t);
    const double weight = weight_of(t, &batch.b);
    int rc = run_batch(t, &batch.b, grad_scale, e);
    if (t->loader)
        loader_done(t->loader, &batch);
    TRY(rc);
    note_run(t, before, at);
    TRY(set_metric(t, METRIC_STOP, w.stop, e));
    if (t->saves_together)
        TRY(set_metric(t, METRIC_SAVE, w.save, e));
    if (t->tells_waits)
        TRY(set_metric(t, METRIC_WAITED, t->waits, e));
    TRY(set_metric(t, METRIC_BAD, (double)batch.bad, e));
    if (t->class_weights)
        TRY(set_metric(t, METRIC_WEIGHT, weight, e));
    TRY(ddp_wait(t->ddp, e));
    if (t->parts > 1 && ddp_each_part(t->ddp))
        TRY(ddp_keep(t->ddp, false, true, e));
    TRY(ddp_tie(t->ddp, e));
    TRY(t->stage ? share_metrics(t, e) : 0);
    trace_span(t->trace, "collective", "wait for reductions", at->computed);
    at->summed = clock_ns();
    if (t->optimizer->sum_losses)
        TRY(set_metric(t, METRIC_ONE, 1, e));
    return wants_norm(t) ? optimizer_norm(t->optimizer, s, t->ddp, grad_scale, e) : 0;
}

int train_update_rest(struct step *t, struct err *e)
{
    struct step_rest *r = &t->rest;
    if (!r->result.skipped)
        TRY(optimizer_update(t->optimizer, t->state, &t->precision, r->lr, r->grad_scale, r->updates, e));
    t->state->loss_scale = r->scale;
    r->reached = STEP_REACHED_UPDATE;
    return 0;
}

int train_finish_rest(struct step *t, struct err *e)
{
    const int64_t steps = t->moments_from + t->rest.updates + t->rest.scale.skipped;
    if (!t->rest.result.skipped)
        TRY(optimizer_spread(t->optimizer, t->state, t->ddp, steps, e));
    t->updates = t->rest.updates;
    t->rest.reached = STEP_REACHED_NOTHING;
    return 0;
}

/* Sums of a step whose loss overflowed say nothing. */
static struct step_result result_of(const double m[METRIC_N], double lr, bool skipped)
{
    const bool known = !skipped || isfinite(m[METRIC_LOSS]);
    const double share = m[METRIC_WEIGHT] > 0 ? m[METRIC_COUNT] / m[METRIC_WEIGHT] : 1; /* loss / count is the mean */
    return (struct step_result){.done = true,
                                .lr = lr,
                                .loss = known ? m[METRIC_LOSS] * share : 0,
                                .top1 = known ? m[METRIC_TOP1] : 0,
                                .top5 = known ? m[METRIC_TOP5] : 0,
                                .count = known ? m[METRIC_COUNT] : 0,
                                .stop = m[METRIC_STOP],
                                .save = m[METRIC_SAVE],
                                .bad = m[METRIC_BAD],
                                .waited = m[METRIC_WAITED],
                                .skipped = skipped,
                                .grad_norm = m[METRIC_NORM]};
}

/* Shall this step change anything? Sums are equal on all ranks, so all find the same, whoever overflowed. Ends training
 * that diverged. */
static int judge(struct step *t, const double m[METRIC_N], bool *ret_skipped, struct err *e)
{
    const bool finite = isfinite(m[METRIC_LOSS]) && isfinite(m[METRIC_NORM]);
    const enum loss_scale_verdict v = loss_scale_after(&t->state->loss_scale, finite);
    *ret_skipped = v == LOSS_SCALE_SKIP;
    return v == LOSS_SCALE_HOPELESS ? divergence_error(t->state, t->ddp, m[METRIC_LOSS], e) : 0;
}

/* All of a step that changes nothing yet but the loss scale; t->rest is what is left of it. */
static int sum_and_judge(struct step *t, double lr, struct step_wishes w, struct times *at, struct err *e)
{
    const double grad_scale = precision_grad_scale(&t->precision, &t->state->loss_scale, t->grad_batch);
    double m[METRIC_N];
    bool skipped;
    TRY(sum_gradients(t, grad_scale, w, at, e));
    TRY(state_get_metrics(t->state, m, e));
    TRY(judge(t, m, &skipped, e));
    if (!skipped)
        TRY(optimizer_agree(t->optimizer, t->state, t->ddp, grad_scale, t->updates + 1, e));
    TRY(t->before_update ? t->before_update(t->arg, e) : 0);
    t->rest = (struct step_rest){.reached = STEP_REACHED_SUMS,
                                 .lr = lr,
                                 .grad_scale = grad_scale,
                                 .updates = t->updates + !skipped,
                                 .scale = t->state->loss_scale,
                                 .result = result_of(m, lr, skipped)};
    return t->confirms ? ddp_confirm(t->ddp, e) : 0;
}

static int step_now(struct step *t, double lr, struct step_wishes w, struct step_result *ret, struct err *e)
{
    const struct loss_scale before = t->state->loss_scale;
    struct times at;
    t->rest.reached = STEP_REACHED_NOTHING;
    const int rc = sum_and_judge(t, lr, w, &at, e);
    if (rc < 0) {
        t->state->loss_scale = before;
        return rc;
    }
    const int64_t judged = clock_ns();
    TRY(train_update_rest(t, e));
    TRY(train_finish_rest(t, e));
    trace_span(t->trace, "optimizer", "update", judged);
    *ret = t->rest.result;
    ret->wait_ns = at.loaded - at.began;
    ret->total_ns = clock_ns() - at.began;
    if (!t->state->device->ops->async)
        tell_parts(&at, ret->total_ns - (judged - at.began), ret);
    return 0;
}

/* --- devices that go on by themselves */

/* The device takes over the loss scale. Its steps include those that were left out: only it knows how many will be. */
static int hand_over_scale(struct step *t, struct err *e)
{
    struct device *d = t->state->device;
    if (t->ahead.guarded)
        return 0;
    TRY(d->ops->async->guard(d, &t->state->loss_scale, e));
    t->ahead.guarded = true;
    t->updates += t->state->loss_scale.skipped;
    return 0;
}

/* Everything of a step up to its result. The device multiplies grad_scale by its own loss scale. */
static int enqueue(struct step *t, double lr, struct step_wishes w, int slot, struct times *at, struct err *e)
{
    struct state *s = t->state;
    const struct device_async *a = s->device->ops->async;
    const struct loss_scale one = loss_scale_fixed(1);
    const double grad_scale = precision_grad_scale(&t->precision, &one, t->grad_batch);
    TRY(ddp_check(t->ddp, e)); /* a graph must not be launched with a communicator that is gone */
    TRY(hand_over_scale(t, e));
    TRY(sum_gradients(t, grad_scale, w, at, e));
    t->ahead.halfway = true;
    TRY(optimizer_agree(t->optimizer, s, t->ddp, grad_scale, t->updates + 1,
                        e)); /* while the scale is still this step's */
    TRY(a->judge(s->device, state_metric(s, METRIC_LOSS), wants_norm(t) ? s->norm : NULL, e));
    TRY(optimizer_update(t->optimizer, s, &t->precision, lr, grad_scale, ++t->updates, e));
    TRY(optimizer_spread(t->optimizer, s, t->ddp, t->moments_from + t->updates, e)); /* skipped ones are in updates */
    TRY(a->post(s->device, slot, state_metric(s, 0), METRIC_N, e));
    t->ahead.halfway = false;
    trace_span(t->trace, "step", "enqueue", at->loaded);
    return 0;
}

static struct step_result taken(struct step_ahead *h, const double m[METRIC_N], const struct device_verdict *v)
{
    const struct step_sent *s = &h->sent;
    const int64_t now = clock_ns(), since = h->taken_ns > s->began_ns ? h->taken_ns : s->began_ns;
    struct step_result ret = result_of(m, s->lr, v->skipped);
    ret.wait_ns = s->wait_ns;
    ret.total_ns = now - since;
    h->taken_ns = now;
    return ret;
}

int train_catch_up(struct step *t, struct step_result *ret, struct err *e)
{
    struct step_ahead *h = &t->ahead;
    struct device *d = t->state->device;
    struct device_verdict v;
    double m[METRIC_N];
    *ret = (struct step_result){0};
    if (!h->outstanding)
        return 0;
    TRY(d->ops->async->take(d, h->slot, m, METRIC_N, &v, e));
    TRY(ddp_check(t->ddp, e)); /* a collective that failed leaves anything in the sums */
    if (v.torn)
        return err_set(e, -ECANCELED, "the sums of a step are not whole");
    h->outstanding = false;
    t->state->loss_scale = v.scale_after;
    h->has_behind = h->has_behind && !v.hopeless;
    if (v.hopeless)
        return divergence_error(t->state, t->ddp, m[METRIC_LOSS], e);
    *ret = taken(h, m, &v);
    return 0;
}

/* The one behind is the outstanding one now. */
static void move_up(struct step_ahead *h)
{
    h->outstanding = h->has_behind;
    h->slot = h->has_behind ? 1 - h->slot : h->slot;
    h->sent = h->behind;
    h->has_behind = false;
}

int train_drain(struct step *t, struct step_result ret[STEP_SENT_MOST], int *ret_n, struct err *e)
{
    struct step_ahead *h = &t->ahead;
    struct device_verdict v;
    double m[METRIC_N];
    *ret_n = 0;
    if (h->halfway)
        return err_set(e, -EIO, "an update was enqueued in part");
    while (h->outstanding) {
        struct device *d = t->state->device;
        TRY(d->ops->async->take(d, h->slot, m, METRIC_N, &v, e));
        if (v.torn || v.hopeless) /* neither has changed anything, nor has what is behind it */
            break;
        t->state->loss_scale = v.scale_after;
        ret[(*ret_n)++] = taken(h, m, &v);
        move_up(h);
    }
    h->outstanding = h->has_behind = false;
    return 0;
}

static int step_ahead(struct step *t, double lr, struct step_wishes w, struct step_result *ret, struct err *e)
{
    struct step_ahead *h = &t->ahead;
    struct times at;
    const int slot = 1 - h->slot;
    TRY(enqueue(t, lr, w, slot, &at, e));
    h->behind = (struct step_sent){.lr = lr, .wait_ns = at.loaded - at.began, .began_ns = at.began};
    h->has_behind = true;
    TRY(train_catch_up(t, ret, e));
    move_up(h);
    return 0;
}

int train_lag(const struct step *t)
{
    return t->state->device->ops->async && !t->lockstep ? 1 : 0;
}

int train_step(struct step *t, double lr, struct step_wishes w, struct step_result *ret, struct err *e)
{
    return train_lag(t) ? step_ahead(t, lr, w, ret, e) : step_now(t, lr, w, ret, e);
}
