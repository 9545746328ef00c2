#include "worker/optim/update.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/device/half.h"
#include "worker/parallel/ownership.h"
#include "worker/precision/precision.h"
#include "worker/program/program.h"
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

/* Slices of the whole arena; how many. */
static int slice_all(const struct optimizer *o, const struct program *p, struct update_slice *v)
{
    int n = 0;
    size_t at = 0;
    for (const struct param *q; (q = program_param_from(p, at)); at = q->offset + q->count) {
        const struct update_slice one = slice_of(q, o);
        if (n == 0 || !alike(&v[n - 1], &one))
            v[n++] = one;
        v[n - 1].n = q->offset + q->count - v[n - 1].first;
    }
    return n;
}

/* What the k-th owned range has of a slice becomes a slice. */
static void add_owned(struct optimizer *o, const struct ownership *own, int k, const struct update_slice *all)
{
    const struct ownership_range r = ownership_clip(own, k, all->first, all->first + all->n);
    struct update_slice one = *all;
    if (r.first == r.end)
        return;
    one.first = r.first;
    one.n = r.end - r.first;
    o->slices[o->nslices++] = one;
}

int optimizer_slice(struct optimizer *o, const struct program *p, const struct ownership *own, struct err *e)
{
    const size_t most = (size_t)p->nparams + 1; /* each range cuts one slice in two at most */
    struct update_slice *all = calloc(most, sizeof *all);
    o->slices = calloc(most + (size_t)own->nowned, sizeof *o->slices);
    o->nslices = 0;
    if (!all || !o->slices) {
        free(all);
        return err_errno(e, ENOMEM, "parameter slices");
    }
    const int n = slice_all(o, p, all);
    for (int k = 0, i = 0; k < own->nowned; k++) {
        for (; i < n && all[i].first + all[i].n <= own->owned[k].first; i++)
            ;
        for (int j = i; j < n && all[j].first < own->owned[k].end; j++)
            add_owned(o, own, k, &all[j]);
    }
    free(all);
    return 0;
}

void optimizer_finish(struct optimizer *o)
{
    free(o->slices);
    *o = (struct optimizer){0};
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

int optimizer_round(struct state *s, const struct precision *p, struct err *e)
{
    const struct program *program = s->program;
    for (int i = 0; i < program->nparams && p->half_weights; i++) {
        const struct param *q = &program->params[i];
        if (q->role == PARAM_TRAIN && (p->half_bn || !of_bn(program, i)))
            TRY(round_param(s, q, p->half, e));
    }
    return p->half_bn ? s->device->ops->round(s->device, s->stats, program->n_stats, p->half, e) : 0;
}

static int update_params(const struct optimizer *o, struct state *s, const struct update *all, struct err *e)
{
    const struct device_ops *ops = s->device->ops;
    const void *count = state_metric(s, METRIC_COUNT);
    if (ops->update_all)
        return ops->update_all(s->device, all, o->slices, o->nslices, s->params, s->reduce, s->momentum, count, e);
    for (int i = 0; i < o->nslices; i++) {
        struct update u = *all;
        u.first = o->slices[i].first;
        u.n = o->slices[i].n;
        u.weight_decay = o->slices[i].weight_decay;
        u.trust = o->slices[i].trust;
        TRY(ops->update(s->device, &u, s->params, s->reduce, s->momentum, count, e));
    }
    return 0;
}

static int update_averages(const struct optimizer *o, struct state *s, struct err *e)
{
    const struct device_ops *ops = s->device->ops;
    if (!s->ema_params)
        return 0;
    TRY(ops->blend(s->device, s->ema_params, s->params, s->program->n_train, 1 - o->ema, e));
    return ops->blend(s->device, s->ema_stats, s->stats, s->program->n_stats, 1 - o->ema, e);
}

int optimizer_update(const struct optimizer *o, struct state *s, const struct precision *p, double lr,
                     double grad_scale, int64_t count, struct err *e)
{
    const struct program *program = s->program;
    const void *sums = (const char *)s->reduce + state_bytes(s, program->n_train); /* (n_stats), of this step */
    const struct update u = {.rule = o->rule,
                             .lr = lr,
                             .momentum = o->momentum,
                             .grad_mul = 1 / grad_scale,
                             .beta2 = o->beta2,
                             .eps = o->eps,
                             .step = count,
                             .second = s->second,
                             .norm = o->clip_norm > 0 ? s->norm : NULL,
                             .max_norm = o->clip_norm};
    TRY(update_params(o, s, &u, e));
    TRY(s->device->ops->update_stats(s->device, s->stats, sums, program->n_stats, o->bn_momentum,
                                     state_metric(s, METRIC_COUNT), e));
    TRY(optimizer_round(s, p, e));
    TRY(update_averages(o, s, e));
    s->version++;
    return 0;
}
