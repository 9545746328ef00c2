/* Applies the optimizer to the parts of the state that a rank owns. */
#include "worker/optim/update.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/device/half.h"
#include "worker/optim/layers.h"
#include "worker/optim/norm.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/ownership.h"
#include "worker/precision/precision.h"
#include "worker/program/patterns.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

/* Of the whole arena. */
struct whole_slice {
    struct update_slice s;
    double factor;
};

static bool decays_by_layer(const struct optimizer *o)
{
    return o->model && o->layer_decay != 1;
}

static bool has_factors(const struct optimizer *o)
{
    return o->lr_mul || decays_by_layer(o);
}

/* Biases and the scales and shifts of batch norm are vectors. */
static struct whole_slice slice_of(const struct param *q, const struct optimizer *o)
{
    const bool vector = q->ndim < 2,
               decays = q->decay && (!vector || o->decay_vectors) && !patterns_fit(o->no_decay, q->name);
    const bool trusts = o->rule == UPDATE_LAMB ? decays && o->weight_decay > 0 : !vector; /* as timm's Lamb has it */
    return (struct whole_slice){
        {.first = q->offset, .weight_decay = decays ? o->weight_decay : 0, .trust = trusts ? o->trust : 0},
        patterns_factor(o->lr_mul, q->name) *
            (decays_by_layer(o) ? layers_factor(o->model, o->layer_decay, q->name) : 1)};
}

static bool alike(const struct whole_slice *a, const struct whole_slice *b)
{
    return a->s.weight_decay == b->s.weight_decay && a->s.trust == 0 && b->s.trust == 0 && a->factor == b->factor;
}

/* Slices of the whole arena; how many. */
static int slice_all(const struct optimizer *o, const struct program *p, struct whole_slice *v)
{
    int n = 0;
    size_t at = 0;
    for (const struct param *q; (q = program_param_from(p, at)) && !q->frozen; at = q->offset + q->count) {
        const struct whole_slice one = slice_of(q, o);
        if (n == 0 || !alike(&v[n - 1], &one))
            v[n++] = one;
        v[n - 1].s.n = q->offset + q->count - v[n - 1].s.first;
    }
    return n;
}

/* What the k-th owned range has of slice j of the whole arena becomes a slice. */
static void add_owned(struct optimizer *o, const struct ownership *own, int k, int j, const struct whole_slice *all)
{
    const struct ownership_range r = ownership_clip(own, k, all[j].s.first, all[j].s.first + all[j].s.n);
    struct update_slice one = all[j].s;
    if (r.first == r.end)
        return;
    one.first = r.first;
    one.n = r.end - r.first;
    one.skipped = r.first - ownership_place(own, OWNERSHIP_MOMENTS, r.first);
    one.params_skipped = r.first - ownership_place(own, OWNERSHIP_PARAMS, r.first);
    o->whole[o->nslices] = j;
    if (o->factors)
        o->factors[o->nslices] = all[j].factor;
    o->slices[o->nslices++] = one;
}

static void free_slices(struct optimizer *o)
{
    free(o->slices);
    free(o->whole);
    free(o->rates);
    free(o->factors);
}

int optimizer_slice(struct optimizer *o, const struct program *p, const struct ownership *own, struct err *e)
{
    const size_t most = (size_t)p->nparams + 1, cut = most + (size_t)own->nowned; /* a range cuts one slice more */
    struct whole_slice *all = calloc(most, sizeof *all);
    free_slices(o);
    o->slices = calloc(cut, sizeof *o->slices);
    o->whole = calloc(cut, sizeof *o->whole);
    o->rates = calloc(cut, sizeof *o->rates);
    o->factors = has_factors(o) ? calloc(cut, sizeof *o->factors) : NULL;
    o->nslices = 0;
    if (!all || !o->slices || !o->whole || !o->rates || (has_factors(o) && !o->factors)) {
        free(all);
        return err_errno(e, ENOMEM, "parameter slices");
    }
    o->nwhole = slice_all(o, p, all);
    for (int k = 0, i = 0; k < own->nowned; k++) {
        for (; i < o->nwhole && all[i].s.first + all[i].s.n <= own->owned[k].first; i++)
            ;
        for (int j = i; j < o->nwhole && all[j].s.first < own->owned[k].end; j++)
            add_owned(o, own, k, j, all);
    }
    free(all);
    return 0;
}

void optimizer_finish(struct optimizer *o)
{
    free_slices(o);
    *o = (struct optimizer){0};
}

/* Scale and shift of a batch norm. */
static bool of_bn(const struct program *p, int param)
{
    const struct plan_options with = {.compute = DT_F16, .half_bn = true}, without = {.compute = DT_F16};
    return half_weight(p, &with, param) && !half_weight(p, &without, param);
}

static int round_range(struct state *s, void *arena, size_t first, size_t n, enum dtype t, struct err *e)
{
    return s->device->ops->round(s->device, (char *)arena + state_bytes(s, first), n, t, e);
}

static int round_param(struct state *s, const struct param *q, enum dtype t, struct err *e)
{
    const bool cut = ownership_is_cut(s->own, OWNERSHIP_PARAMS);
    if (!cut)
        TRY(round_range(s, s->params, q->offset, q->count, t, e));
    for (int k = 0; k < s->own->nowned; k++) {
        const struct ownership_range r = ownership_clip(s->own, k, q->offset, q->offset + q->count);
        if (cut && r.first < r.end)
            TRY(round_range(s, s->params, ownership_place(s->own, OWNERSHIP_PARAMS, r.first), r.end - r.first, t, e));
        if (r.first < r.end && !q->frozen)
            TRY(round_range(s, s->momentum, ownership_place(s->own, OWNERSHIP_MOMENTS, r.first), r.end - r.first, t,
                            e));
    }
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
    return p->half_bn ? s->device->ops->round(s->device, s->stats, program_statistics(program), p->half, e) : 0;
}

/* Is it LARS or LAMB of tensors that ranks hold parts of? Then its rates are those of norms over all ranks. */
static bool has_cut_rates(const struct optimizer *o, const struct state *s)
{
    return (o->rule == UPDATE_LARS || o->rule == UPDATE_LAMB) && ownership_cuts_tensors(s->own);
}

static struct update update_of(const struct optimizer *o, const struct state *s, double lr, double grad_scale,
                               int64_t count)
{
    return (struct update){.rule = o->rule,
                           .lr = lr,
                           .momentum = o->momentum,
                           .grad_mul = 1 / grad_scale,
                           .beta2 = o->beta2,
                           .eps = o->eps,
                           .step = count,
                           .second = s->second,
                           .norm = o->clip_norm > 0 ? s->norm : NULL,
                           .max_norm = o->clip_norm};
}

/* *sum += squares of what LAMB would move slice i by: of those elements that this rank saves. */
static int add_directions(const struct optimizer *o, struct state *s, struct update u, int i, double *sum,
                          struct err *e)
{
    const struct update_slice *slice = &o->slices[i];
    u.weight_decay = slice->weight_decay;
    u.trust = slice->trust;
    u.skipped = slice->skipped;
    u.params_skipped = slice->params_skipped;
    u.measure = state_metric(s, METRIC_MEASURE);
    for (int k = 0; k < s->own->npieces; k++) {
        const struct ownership_range r = s->own->pieces[k].saved;
        const size_t end = r.end < slice->first + slice->n ? r.end : slice->first + slice->n;
        double m[METRIC_N];
        u.first = r.first > slice->first ? r.first : slice->first;
        if (u.first >= end)
            continue;
        u.n = end - u.first;
        TRY(s->device->ops->update(s->device, &u, s->params, s->reduce, s->momentum,
                                   state_metric(s, optimizer_divisor(o)), e));
        TRY(state_get_metrics(s, m, e));
        *sum += m[METRIC_MEASURE] * m[METRIC_MEASURE];
    }
    return 0;
}

/* Squares of slice i's parameters, and of its gradients' sums or LAMB's directions. */
static int add_slice(const struct optimizer *o, struct state *s, const struct update *u, int i, const double *m,
                     double squares[2], struct err *e)
{
    const size_t first = o->slices[i].first, end = first + o->slices[i].n;
    if (o->slices[i].trust == 0)
        return 0;
    TRY(norm_add_squares(s, s->params, OWNERSHIP_PARAMS, first, end, m[METRIC_COUNT], &squares[0], e));
    if (o->rule == UPDATE_LARS)
        return norm_add_squares(s, s->reduce, OWNERSHIP_GRADIENTS, first, end, m[METRIC_COUNT], &squares[1], e);
    TRY(state_set_metric(s, METRIC_NORM, m[METRIC_NORM], e)); /* directions are clipped by it */
    return m[optimizer_divisor(o)] > 0 ? add_directions(o, s, *u, i, &squares[1], e) : 0;
}

/* LARS: r = eta |w| / (|g| + wd |w|); LAMB: |w| / |d|; 1 where that says nothing. */
static double rate_of(const struct optimizer *o, const struct update_slice *slice, const double squares[2],
                      double scale)
{
    const double weight = sqrt(squares[0]), other = sqrt(squares[1]) * (o->rule == UPDATE_LARS ? scale : 1);
    if (slice->trust == 0 || !(weight > 0) || !(other > 0))
        return 1;
    return slice->trust * weight / (other + (o->rule == UPDATE_LARS ? slice->weight_decay * weight : 0));
}

int optimizer_agree(const struct optimizer *o, struct state *s, struct ddp *d, double grad_scale, int64_t count,
                    struct err *e)
{
    if (!has_cut_rates(o, s))
        return 0;
    const struct update u = update_of(o, s, 1, grad_scale, count);
    double m[METRIC_N], clip = 1, *squares = calloc((size_t)o->nwhole * 2 + 1, sizeof *squares);
    if (!squares)
        return err_errno(e, ENOMEM, "norms of %d tensors", o->nwhole);
    int rc = state_get_metrics(s, m, e);
    for (int i = 0; i < o->nslices && rc == 0; i++)
        rc = add_slice(o, s, &u, i, m, &squares[2 * o->whole[i]], e);
    if (rc == 0)
        rc = state_set_metric(s, METRIC_NORM, m[METRIC_NORM], e); /* norms of tensors took its place */
    if (rc == 0)
        rc = ddp_sum(d, LAYOUT_BATCH, squares, (size_t)o->nwhole * 2, e);
    if (o->clip_norm > 0 && m[METRIC_NORM] > o->clip_norm)
        clip = o->clip_norm / (m[METRIC_NORM] + 1e-6);
    for (int i = 0; i < o->nslices && rc == 0; i++)
        o->rates[i] =
            rate_of(o, &o->slices[i], &squares[2 * o->whole[i]], fabs(1 / grad_scale * clip / m[optimizer_divisor(o)]));
    free(squares);
    return rc;
}

static int update_params(const struct optimizer *o, struct state *s, const struct update *all, const double *rates,
                         struct err *e)
{
    const struct device_ops *ops = s->device->ops;
    const void *count = state_metric(s, optimizer_divisor(o));
    if (ops->update_all && !rates && !o->factors && o->nslices > 0)
        return ops->update_all(s->device, all, o->slices, o->nslices, s->params, s->reduce, s->momentum, count, e);
    for (int i = 0; i < o->nslices; i++) {
        struct update u = *all;
        u.first = o->slices[i].first;
        u.n = o->slices[i].n;
        u.skipped = o->slices[i].skipped;
        u.params_skipped = o->slices[i].params_skipped;
        u.weight_decay = o->slices[i].weight_decay;
        u.trust = rates ? 0 : o->slices[i].trust;
        u.lr = all->lr * (rates ? rates[i] : 1) * (o->factors ? o->factors[i] : 1);
        TRY(ops->update(s->device, &u, s->params, s->reduce, s->momentum, count, e));
    }
    return 0;
}

static int blend_params(struct state *s, size_t first, size_t n, double weight, struct err *e)
{
    const size_t at = state_bytes(s, first);
    return s->device->ops->blend(s->device, (char *)s->ema_params + at, (const char *)s->params + at, n, weight, e);
}

double optimizer_kept(const struct optimizer *o, int64_t n)
{
    const double kept = (1 + (double)n) / (10 + (double)n);
    if (o->ema_every == 0)
        return kept < o->ema ? kept : o->ema;
    if ((n - 1) % o->epoch % o->ema_every != 0)
        return 1;
    return n - 1 <= o->ema_copied ? 0 : o->ema;
}

static int update_averages(const struct optimizer *o, struct state *s, int64_t steps, struct err *e)
{
    const double weight = 1 - optimizer_kept(o, steps);
    const struct device_ops *ops = s->device->ops;
    const bool cut = ownership_is_cut(s->own, OWNERSHIP_AVERAGES);
    if (!s->ema_params || weight == 0)
        return 0;
    if (!cut)
        TRY(blend_params(s, 0, s->program->n_train, weight, e));
    for (int k = 0; k < s->own->nowned && cut && s->own->owned[k].first < s->own->n_train; k++) {
        const struct ownership_range *r = &s->own->owned[k];
        TRY(blend_params(s, ownership_place(s->own, OWNERSHIP_AVERAGES, r->first), r->end - r->first, weight, e));
    }
    return ops->blend(s->device, s->ema_stats, s->stats, s->program->n_stats, weight, e);
}

int optimizer_update(const struct optimizer *o, struct state *s, const struct precision *p, double lr,
                     double grad_scale, int64_t count, struct err *e)
{
    const struct program *program = s->program;
    const void *sums = (const char *)s->reduce + state_bytes(s, program->n_train); /* (n_stats), of this step */
    const struct update u = update_of(o, s, lr, grad_scale, count);
    TRY(update_params(o, s, &u, has_cut_rates(o, s) ? o->rates : NULL, e));
    TRY(s->device->ops->update_stats(s->device, s->stats, sums, program->n_stats, o->bn_momentum,
                                     state_metric(s, METRIC_COUNT), e));
    return optimizer_round(s, p, e);
}

int optimizer_spread(const struct optimizer *o, struct state *s, struct ddp *d, int64_t steps, struct err *e)
{
    TRY(ownership_is_handed_out(s->own) ? ddp_gather(d, s->params, e) : 0);
    TRY(update_averages(o, s, steps, e));
    s->version++;
    return 0;
}
