#include "worker/run/step_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/data/loader/loader.h"
#include "worker/device/device.h"
#include "worker/device/half.h"
#include "worker/parallel/ddp.h"
#include "worker/program/program.h"
#include "worker/run/trace.h"
#include "worker/state/divergence.h"
#include "worker/state/state.h"

/* Biases and the scales and shifts of batch norm are vectors. */
static struct update_slice slice_of(const struct param *q, const struct optimizer *o)
{
    const bool vector = q->ndim < 2;
    return (struct update_slice){.first = q->offset,
                                 .weight_decay = !q->decay || (vector && !o->decay_vectors) ? 0 : o->weight_decay,
                                 .trust = vector ? 0 : o->trust};
}

static bool alike(const struct update_slice *a, const struct update_slice *b)
{
    return a->weight_decay == b->weight_decay && a->trust == 0 && b->trust == 0;
}

int step_slices(const struct program *p, const struct optimizer *o, struct update_slice **ret, int *ret_n,
                struct err *e)
{
    struct update_slice *v = calloc((size_t)p->nparams + 1, sizeof *v);
    if (!v)
        return err_errno(e, ENOMEM, "parameter slices");
    int n = 0;
    for (size_t at = 0; at < p->n_train;) { /* parameters lie in the arena in no particular order of the list */
        const struct param *next = NULL;
        for (int i = 0; i < p->nparams; i++) {
            const struct param *q = &p->params[i];
            if (q->role == PARAM_TRAIN && q->offset >= at && (!next || q->offset < next->offset))
                next = q;
        }
        if (!next)
            break;
        const struct update_slice one = slice_of(next, o);
        if (n == 0 || !alike(&v[n - 1], &one))
            v[n++] = one;
        at = next->offset + next->count;
        v[n - 1].n = at - v[n - 1].first;
    }
    *ret = v;
    *ret_n = n;
    return 0;
}

/* Scale and shift of a batch norm. */
static bool of_bn(const struct program *p, int param)
{
    const struct plan_options with = {.compute = DT_F16, .half_bn = true}, without = {.compute = DT_F16};
    return half_weight(p, &with, param) && !half_weight(p, &without, param);
}

static int round_param(struct state *s, const struct param *q, enum dtype t, struct err *e)
{
    void *arenas[] = {s->params, s->momentum};
    for (int i = 0; i < 2; i++)
        TRY(s->device->ops->round(s->device, (char *)arenas[i] + state_bytes(s, q->offset), q->count, t, e));
    return 0;
}

int step_round(struct state *s, const struct precision *p, struct err *e)
{
    const struct program *program = s->program;
    for (int i = 0; i < program->nparams && p->half_weights; i++) {
        const struct param *q = &program->params[i];
        if (q->role == PARAM_TRAIN && (p->half_bn || !of_bn(program, i)))
            TRY(round_param(s, q, p->half, e));
    }
    return p->half_bn ? s->device->ops->round(s->device, s->stats, program->n_stats, p->half, e) : 0;
}

static int update_average(struct step *t, struct err *e)
{
    struct state *s = t->state;
    const struct program *p = s->program;
    const double weight = 1 - t->optimizer.ema;
    if (!s->ema_params)
        return 0;
    TRY(s->device->ops->blend(s->device, s->ema_params, s->params, p->n_train, weight, e));
    return s->device->ops->blend(s->device, s->ema_stats, s->stats, p->n_stats, weight, e);
}

void *step_metric(const struct step *t, int metric)
{
    const struct state *s = t->state;
    return (char *)s->reduce + state_bytes(s, s->program->n_train + s->program->n_stats + (size_t)metric);
}

static int update_slices(struct step *t, const struct update *all, const void *count, struct err *e)
{
    struct state *s = t->state;
    const struct device_ops *ops = s->device->ops;
    if (ops->update_all)
        return ops->update_all(s->device, all, t->slices, t->nslices, s->params, s->reduce, s->momentum, count, e);
    for (int i = 0; i < t->nslices; i++) {
        struct update u = *all;
        u.first = t->slices[i].first;
        u.n = t->slices[i].n;
        u.weight_decay = t->slices[i].weight_decay;
        u.trust = t->slices[i].trust;
        TRY(ops->update(s->device, &u, s->params, s->reduce, s->momentum, count, e));
    }
    return 0;
}

int step_update(struct step *t, double lr, struct err *e)
{
    struct state *s = t->state;
    const struct optimizer *o = &t->optimizer;
    const struct program *p = s->program;
    const struct device_ops *ops = s->device->ops;
    const char *tail = (const char *)s->reduce + state_bytes(s, p->n_train);
    const void *count = step_metric(t, METRIC_COUNT);
    const struct update u = {.rule = o->rule,
                             .lr = lr,
                             .momentum = o->momentum,
                             .grad_mul = 1 / t->grad_scale,
                             .beta2 = o->beta2,
                             .eps = o->eps,
                             .step = t->updates + 1,
                             .second = s->second,
                             .norm = o->clip_norm > 0 ? s->norm : NULL,
                             .max_norm = o->clip_norm};
    TRY(update_slices(t, &u, count, e));
    TRY(ops->update_stats(s->device, s->stats, tail, p->n_stats, t->bn_momentum, count, e));
    TRY(step_round(s, &t->precision, e));
    TRY(update_average(t, e));
    t->updates++;
    s->version++;
    return 0;
}

int step_run(struct step *t, const struct loader_batch *batch, struct err *e)
{
    const struct program *p = t->state->program;
    const size_t image = (size_t)p->channels * (size_t)p->height * (size_t)p->width, part = (size_t)t->part;
    for (int i = 0; i < t->parts; i++) {
        const bool last = i == t->parts - 1;
        const size_t first = (size_t)i * part;
        struct run_args run = {.batch = {.images = batch->b.images + first * image,
                                         .labels = batch->b.labels + first,
                                         .weights = batch->b.weights + first},
                               .grad_scale = t->grad_scale,
                               .smoothing = t->smoothing,
                               .accumulate = i > 0,
                               .params_version = t->state->version,
                               .hooks = last ? ddp_hooks(t->ddp) : ddp_idle_hooks(t->ddp),
                               .trace = trace_ops(t->trace)};
        ddp_begin(t->ddp, last);
        TRY(t->state->device->ops->run(t->plan, &run, e));
        if (!last)
            TRY(ddp_wait(t->ddp, e));
    }
    return 0;
}

int step_norm(struct step *t, double grad_scale, const void **ret_norm, struct err *e)
{
    struct state *s = t->state;
    *ret_norm = t->check || t->optimizer.clip_norm > 0 ? s->norm : NULL;
    return *ret_norm ? s->device->ops->grad_norm(s->device, s->reduce, s->program->n_train, 1 / grad_scale,
                                                 step_metric(t, METRIC_COUNT), s->norm, e)
                     : 0;
}

/* Are the summed gradients numbers? Sums are equal on all ranks, so all ranks find the same, whoever overflowed. Leaves
 * their norm. */
static int check_gradients(struct step *t, bool *ret_finite, double *ret_norm, struct err *e)
{
    const void *looked;
    double norm = 0;
    TRY(step_norm(t, t->grad_scale, &looked, e));
    if (looked)
        TRY(state_get_norm(t->state, &norm, e));
    *ret_finite = isfinite(norm);
    *ret_norm = norm;
    return 0;
}

/* Shall this step change anything? Ends training that diverged. */
static int judge(struct step *t, double *m, bool *ret_skipped, double *ret_norm, struct err *e)
{
    bool finite = true;
    TRY(check_gradients(t, &finite, ret_norm, e));
    const bool loss = isfinite(m[METRIC_LOSS]);
    switch (loss_scale_after(&t->state->loss_scale, finite && loss)) {
    case LOSS_SCALE_UPDATE:
        break;
    case LOSS_SCALE_SKIP:
        *ret_skipped = true;
        if (!loss)
            m[METRIC_LOSS] = m[METRIC_TOP1] = m[METRIC_TOP5] = m[METRIC_COUNT] = 0;
        break;
    case LOSS_SCALE_HOPELESS:
        return divergence_error(t->state, m[METRIC_LOSS], e);
    }
    return 0;
}

struct step_result step_result_of(const double m[METRIC_N])
{
    return (struct step_result){.done = true,
                                .loss = m[METRIC_LOSS],
                                .top1 = m[METRIC_TOP1],
                                .top5 = m[METRIC_TOP5],
                                .count = m[METRIC_COUNT],
                                .stop = m[METRIC_STOP],
                                .bad = m[METRIC_BAD]};
}

static int step_now(struct step *t, double lr, int stop, struct step_result *ret, struct err *e)
{
    struct state *s = t->state;
    struct loader_batch batch;
    double m[METRIC_N];
    int64_t start = clock_ns();

    TRY(loader_next(t->loader, &batch, e)); /* images (n, H, W, C) u8, labels (n), weights (n) */
    int64_t loaded = clock_ns();
    trace_span(t->trace, "data", "wait for the loader", start);
    t->grad_scale = precision_grad_scale(&t->precision, &s->loss_scale, t->grad_batch);
    int rc = step_run(t, &batch, e);
    loader_done(t->loader, &batch);
    TRY(rc);
    TRY(state_set_metric(s, METRIC_STOP, stop, e));
    TRY(state_set_metric(s, METRIC_BAD, (double)batch.bad, e));
    int64_t computed = clock_ns();
    TRY(ddp_wait(t->ddp, e)); /* gradients, statistics and metrics are sums over all ranks */
    trace_span(t->trace, "collective", "wait for reductions", computed);
    TRY(state_get_metrics(s, m, e));
    bool skipped = false;
    double norm = 0;
    TRY(judge(t, m, &skipped, &norm, e));
    int64_t reduced = clock_ns();
    if (!skipped)
        TRY(step_update(t, lr, e));
    trace_span(t->trace, "optimizer", "update", reduced);

    *ret = step_result_of(m);
    ret->lr = lr;
    ret->skipped = skipped;
    ret->grad_norm = norm;
    ret->wait_ns = loaded - start;
    ret->total_ns = clock_ns() - start;
    return 0;
}

int train_lag(const struct step *t)
{
    return t->state->device->ops->async ? 1 : 0;
}

int train_step(struct step *t, double lr, int stop, struct step_result *ret, struct err *e)
{
    return train_lag(t) ? step_ahead(t, lr, stop, ret, e) : step_now(t, lr, stop, ret, e);
}
