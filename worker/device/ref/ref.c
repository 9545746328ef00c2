/* The reference device: memory, plans, the run loop and the updates. ref.h says how it computes. */
#include "worker/device/ref/ref.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/device/half.h"
#include "worker/device/host_common.h"

#define REAL double
#include "worker/device/rules.h"

struct ref_device {
    struct device base;
    int threads;
};

static int ref_open(struct device **ret, const struct device_options *o, struct err *e)
{
    struct ref_device *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(e, -ENOMEM, "no memory for a device");
    d->base.ops = &device_ref_ops;
    d->threads = o->threads;
    *ret = &d->base;
    return 0;
}

static void ref_close(struct device *d)
{
    free(d);
}

static int ref_alloc(struct device *d, size_t bytes, void **ret, struct err *e)
{
    return host_alloc(bytes, ret, e);
}

static void ref_release(struct device *d, void *p)
{
    free(p);
}

static int ref_copy(struct device *d, void *dst, const void *src, size_t bytes, struct err *e)
{
    if (bytes)
        memcpy(dst, src, bytes);
    return 0;
}

static int ref_sync(struct device *d, struct err *e)
{
    return 0;
}

static ref_kernel *const kernels[OP_KINDS] = {
    [OP_INPUT] = ref_input,
    [OP_CONV] = ref_product,
    [OP_BN] = ref_bn,
    [OP_RELU] = ref_relu,
    [OP_ADD] = ref_add,
    [OP_MAXPOOL] = ref_maxpool,
    [OP_AVGPOOL] = ref_avgpool,
    [OP_LINEAR] = ref_product,
    [OP_XENT] = ref_xent,
    [OP_XENT_BWD] = ref_xent_bwd,
    [OP_LINEAR_BWD_DATA] = ref_product_bwd_data,
    [OP_LINEAR_BWD_PARAM] = ref_product_bwd_param,
    [OP_AVGPOOL_BWD] = ref_avgpool_bwd,
    [OP_MAXPOOL_BWD] = ref_maxpool_bwd,
    [OP_RELU_BWD] = ref_relu_bwd,
    [OP_BN_BWD] = ref_bn_bwd,
    [OP_CONV_BWD_DATA] = ref_product_bwd_data,
    [OP_CONV_BWD_PARAM] = ref_product_bwd_param,
    [OP_SLICE] = ref_slice,
    [OP_PAD] = ref_pad,
    [OP_GATHER] = ref_gather,
    [OP_SCATTER] = ref_scatter,
    [OP_SUM] = ref_sum,
    [OP_MAX] = ref_max,
    [OP_BIAS] = ref_bias,
    [OP_BIAS_BWD] = ref_bias_bwd,
    [OP_LABELS] = ref_labels,
    [OP_XENT_TOP] = ref_xent_top,
    [OP_XENT_SUMS] = ref_xent_sums,
    [OP_XENT_PARTS] = ref_xent_parts,
    [OP_XENT_PARTS_BWD] = ref_xent_parts_bwd,
};

static void give_doubles(const struct ref_plan *pl, double *p)
{
    if (p != &pl->nothing)
        free(p);
}

static void ref_plan_close(struct plan *base)
{
    struct ref_plan *pl = (struct ref_plan *)base;
    if (!pl)
        return;
    for (int t = 0; pl->value && t < pl->p->ntensors; t++)
        give_doubles(pl, pl->value[t]);
    for (int i = 0; pl->saved && i < pl->p->nops; i++) {
        give_doubles(pl, pl->saved[i].mean);
        give_doubles(pl, pl->saved[i].inv_std);
    }
    ref_rounding_destroy(pl->rounding);
    free(pl->value);
    free(pl->saved);
    give_doubles(pl, pl->col);
    give_doubles(pl, pl->scratch);
    give_doubles(pl, pl->exchange);
    free(pl);
}

static int take_doubles(struct ref_plan *pl, size_t n, double **ret, struct err *e)
{
    void *p = &pl->nothing;
    TRY(pl->forecast ? 0 : host_alloc(n * sizeof(double), &p, e));
    *ret = p;
    return 0;
}

struct shared { /* elements of what ops share */
    size_t col, scratch, exchange;
};

static size_t exchange_elements(const struct ref_plan *pl, const struct op *op)
{
    if (op->kind == OP_GATHER)
        return ref_elements(pl, op->out);
    return op->kind == OP_SCATTER ? ref_elements(pl, op->in[0]) : 0;
}

static void widen(size_t *most, size_t n)
{
    *most = n > *most ? n : *most;
}

/* Memory for the tensors and the saved statistics that op touches; widens what is shared. */
static int take_op(struct ref_plan *pl, const struct op *op, struct shared *all, struct err *e)
{
    int used[3] = {op->in[0], op->in[1], op->out};
    for (int k = 0; k < 3; k++)
        if (used[k] >= 0 && !pl->value[used[k]])
            TRY(take_doubles(pl, ref_elements(pl, used[k]), &pl->value[used[k]], e));
    size_t channels = used[0] >= 0 ? (size_t)pl->p->tensors[used[0]].c : 0;
    widen(&all->col, ref_col_elements(pl, op));
    widen(&all->scratch, 2 * channels + 1);
    widen(&all->exchange, exchange_elements(pl, op));
    if (op->kind != OP_BN && op->kind != OP_BN_BWD)
        return 0;
    struct bn_saved *b = &pl->saved[op->kind == OP_BN ? op - pl->p->ops : op->fwd];
    if (b->mean)
        return 0;
    TRY(take_doubles(pl, channels, &b->mean, e));
    return take_doubles(pl, channels, &b->inv_std, e);
}

static int take_memory(struct ref_plan *pl, struct err *e)
{
    struct shared all = {0};
    pl->value = calloc((size_t)pl->p->ntensors + 1, sizeof *pl->value);
    pl->saved = calloc((size_t)pl->p->nops, sizeof *pl->saved);
    if (!pl->value || !pl->saved)
        return err_set(e, -ENOMEM, "no memory for a plan of %d operations", pl->p->nops);
    for (int i = pl->first; i < pl->end; i++)
        TRY(take_op(pl, &pl->p->ops[i], &all, e));
    pl->col_cap = all.col;
    pl->workspace = all.col + all.scratch + all.exchange;
    TRY(take_doubles(pl, all.col, &pl->col, e));
    TRY(take_doubles(pl, all.exchange, &pl->exchange, e));
    return take_doubles(pl, all.scratch, &pl->scratch, e);
}

/* What ops read of the parameters, op after op. */
static int tell_needs(const struct ref_plan *pl, struct err *e)
{
    struct plan_range *reads = calloc((size_t)pl->p->nops + 1, sizeof *reads);
    int n = 0;
    if (!reads)
        return err_set(e, -ENOMEM, "no memory for a plan of %d operations", pl->p->nops);
    for (int i = pl->first; i < pl->end; i++)
        n += host_reads(pl->p, &pl->p->ops[i], &reads[n]);
    int rc = pl->needs->order(pl->needs->ctx, reads, n, e);
    free(reads);
    return rc;
}

static int ref_plan(struct device *d, const struct program *p, const struct plan_options *o, struct plan **ret,
                    struct err *e)
{
    int first, end;
    if (o->compute != DT_F64 && !(half_compute(o) && o->emulate))
        return err_set(e, -ENOTSUP, "the ref device computes in F64 only, not in %s%s", dtype_name(o->compute),
                       half_compute(o) ? "; it can be emulated" : "");
    if (o->format != MEMORY_AUTO)
        return err_set(e, -ENOTSUP, "the ref device has a memory format of its own");
    TRY(host_plan_slice(p, o, &first, &end, e));
    struct ref_plan *pl = calloc(1, sizeof *pl);
    if (!pl)
        return err_set(e, -ENOMEM, "no memory for a plan");
    *pl = (struct ref_plan){.base = {&device_ref_ops},
                            .p = p,
                            .threads = ((struct ref_device *)d)->threads,
                            .n = o->batch,
                            .training = o->training,
                            .first = first,
                            .end = end,
                            .params = o->params,
                            .stats = o->stats,
                            .reduce = o->reduce,
                            .group = o->group,
                            .needs = o->needs,
                            .forecast = o->forecast};
    int rc = take_memory(pl, e);
    if (rc == 0 && half_compute(o))
        rc = ref_rounding_create(pl, o, e);
    if (rc == 0 && pl->needs)
        rc = tell_needs(pl, e);
    if (rc < 0) {
        ref_plan_close(&pl->base);
        return rc;
    }
    *ret = &pl->base;
    return 0;
}

static void ref_plan_memory(const struct plan *base, struct plan_memory *ret)
{
    const struct ref_plan *pl = (const struct ref_plan *)base;
    *ret = (struct plan_memory){.workspace = pl->workspace * sizeof(double)};
    for (int i = 0; i < pl->p->ntensors; i++)
        if (pl->value[i])
            ret->activations += ref_elements(pl, i) * sizeof(double);
}

/* Tell the caller that the gradients of op's parameters, padding included, are final. */
static int tell_ready(const struct ref_plan *pl, const struct op *op, const struct run_hooks *hooks, struct err *e)
{
    if (op->kind != OP_BN_BWD && op->kind != OP_CONV_BWD_PARAM && op->kind != OP_LINEAR_BWD_PARAM &&
        op->kind != OP_BIAS_BWD)
        return 0;
    const struct param *from = &pl->p->params[op->param[0]];
    const struct param *last = op->param[1] >= 0 ? &pl->p->params[op->param[1]] : from;
    return hooks->ready(hooks->ctx, from->offset, program_param_end(pl->p, last), NULL, e);
}

/* reads: of how many parameters a run has asked for. */
static int run_op(struct ref_plan *pl, const struct op *op, const struct run_args *a, int *reads, struct err *e)
{
    ref_kernel *kernel = kernels[op->kind];
    struct plan_range range;
    const struct plan_needs *needs = pl->needs && host_reads(pl->p, op, &range) ? pl->needs : NULL;
    if (needs)
        TRY(needs->need(needs->ctx, *reads, e));
    TRY(pl->rounding ? ref_rounded(pl, kernel, op, a, e) : kernel(pl, op, a, e));
    if (needs)
        needs->release(needs->ctx, (*reads)++);
    return 0;
}

static int ref_run(struct plan *base, const struct run_args *a, struct err *e)
{
    struct ref_plan *pl = (struct ref_plan *)base;
    TRY(host_check_batch(pl->p, pl->first, pl->end, &a->batch, pl->n, e));
    int reads = 0;
    for (int i = pl->first; i < pl->end; i++) {
        const struct op *op = &pl->p->ops[i];
        const int64_t start = a->trace ? clock_ns() : 0;
        TRY(run_op(pl, op, a, &reads, e));
        if (a->trace)
            a->trace->op(a->trace->ctx, op_name(op->kind), NULL, i, start, clock_ns());
        if (a->hooks && a->hooks->ready)
            TRY(tell_ready(pl, op, a->hooks, e));
    }
    return 0;
}

/* A tensor that this plan holds; NULL with *e set. */
static double *held(struct ref_plan *pl, int t, struct err *e)
{
    if (t >= 0 && t < pl->p->ntensors && pl->value[t])
        return pl->value[t];
    err_set(e, -EINVAL, "tensor %d is not part of this plan", t);
    return NULL;
}

/* Call with the index of each element in NCHW order and in the order of ref. */
#define EACH_ELEMENT(pl, t, logical, stored)                                                                           \
    for (size_t n_ = ref_samples(pl, t), c_ = (size_t)(pl)->p->tensors[t].c, plane_ = ref_plane(pl, t), logical = 0,   \
                stored = 0;                                                                                            \
         logical < n_ * c_ * plane_ &&                                                                                 \
         (stored = (logical / plane_ % c_ * n_ + logical / plane_ / c_) * plane_ + logical % plane_, true);            \
         logical++)

static int ref_get(struct plan *base, int tensor, double *out, struct err *e)
{
    struct ref_plan *pl = (struct ref_plan *)base;
    const double *value = held(pl, tensor, e);
    if (!value)
        return -EINVAL;
    EACH_ELEMENT(pl, tensor, i, at) out[i] = value[at];
    return 0;
}

static int ref_put(struct plan *base, int tensor, const double *in, struct err *e)
{
    struct ref_plan *pl = (struct ref_plan *)base;
    double *value = held(pl, tensor, e);
    if (!value)
        return -EINVAL;
    EACH_ELEMENT(pl, tensor, i, at) value[at] = in[i];
    return 0;
}

static int ref_update(struct device *d, const struct update *u, void *params, const void *grads, void *momentum,
                      const void *count, struct err *e)
{
    const double samples = *(const double *)count;
    if (samples != 0)
        rule_update(u, params, grads, momentum, samples, ((struct ref_device *)d)->threads);
    return 0;
}

static int ref_grad_norm(struct device *d, const void *grads, size_t n, double grad_mul, const void *count, void *norm,
                         struct err *e)
{
    const double samples = *(const double *)count, squares = rule_squares(grads, n, ((struct ref_device *)d)->threads);
    *(double *)norm = samples != 0 ? sqrt(squares) * fabs(grad_mul) / samples : 0;
    return 0;
}

static int ref_blend(struct device *d, void *to, const void *from, size_t n, double weight, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        ((double *)to)[i] = (1 - weight) * ((double *)to)[i] + weight * ((const double *)from)[i];
    return 0;
}

static int ref_round(struct device *d, void *x, size_t n, enum dtype t, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        ((double *)x)[i] = dtype_rounded(t, ((const double *)x)[i]);
    return 0;
}

static int ref_update_stats(struct device *d, void *stats, const void *sums, size_t n, double momentum,
                            const void *count, struct err *e)
{
    double samples = *(const double *)count, *to = stats;
    for (size_t i = 0; i < n && samples != 0; i++)
        to[i] = (1 - momentum) * to[i] + momentum * (((const double *)sums)[i] / samples);
    return 0;
}

static int ref_describe(struct device *d, char *out, size_t cap)
{
    snprintf(out, cap, "ref: plain C in double precision, %d threads", ((struct ref_device *)d)->threads);
    return 0;
}

static bool ref_native(struct device *d, enum dtype compute, enum half_rule half)
{
    return compute == DT_F64;
}

const struct device_ops device_ref_ops = {
    .name = "ref",
    .real = DT_F64,
    .open = ref_open,
    .close = ref_close,
    .alloc = ref_alloc,
    .release = ref_release,
    .upload = ref_copy,
    .download = ref_copy,
    .sync = ref_sync,
    .plan = ref_plan,
    .plan_close = ref_plan_close,
    .plan_memory = ref_plan_memory,
    .run = ref_run,
    .get = ref_get,
    .put = ref_put,
    .update = ref_update,
    .grad_norm = ref_grad_norm,
    .blend = ref_blend,
    .round = ref_round,
    .update_stats = ref_update_stats,
    .describe = ref_describe,
    .native = ref_native,
};
