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
#define X(kind, word, ...) [kind] = ref_##word,
#include "worker/program/ops.def"
#undef X
};

static void give_doubles(const struct ref_plan *pl, double *p)
{
    if (p != &pl->nothing)
        free(p);
}

/* Gradients are the first set's. */
static void give_set(const struct ref_plan *pl, int k)
{
    const struct ref_set *s = &pl->sets[k];
    for (int t = 0; s->value && t < pl->p->ntensors; t++)
        if (k == 0 || !pl->p->tensors[t].gradient)
            give_doubles(pl, s->value[t]);
    for (int i = 0; s->saved && i < pl->p->nops; i++) {
        give_doubles(pl, s->saved[i].mean);
        give_doubles(pl, s->saved[i].inv_std);
    }
    free(s->value);
    free(s->saved);
}

static void ref_plan_close(struct plan *base)
{
    struct ref_plan *pl = (struct ref_plan *)base;
    if (!pl)
        return;
    for (int k = 0; pl->sets && k < pl->nsets; k++)
        give_set(pl, k);
    ref_rounding_destroy(pl->rounding);
    free(pl->sets);
    give_doubles(pl, pl->col);
    give_doubles(pl, pl->scratch);
    give_doubles(pl, pl->exchange);
    free(pl);
}

static int take_doubles(struct ref_plan *pl, size_t n, double **ret, struct err *e)
{
    void *p = &pl->nothing;
    TRY(pl->forecast ? 0 : host_ask_room(&pl->o, 0, n * sizeof(double), e));
    if (!pl->forecast && host_alloc(n * sizeof(double), &p, e) < 0)
        return err_wrap(e, "activations and work space of a plan");
    *ret = p;
    return 0;
}

struct shared { /* elements of what ops share */
    size_t col, scratch, exchange;
};

static size_t exchange_elements(const struct ref_plan *pl, const struct op *op)
{
    const enum op_call call = op_facts(op->kind)->call;
    if (call == CALL_GATHER)
        return ref_elements(pl, op->out);
    return call == CALL_SCATTER ? ref_elements(pl, op->in[0]) : 0;
}

static void widen(size_t *most, size_t n)
{
    *most = n > *most ? n : *most;
}

/* Memory for the tensors and the saved statistics that op touches; widens what is shared. */
static int take_op(struct ref_plan *pl, const struct op *op, struct shared *all, struct err *e)
{
    int used[3] = {op->in[0], op->in[1], op->out};
    for (int k = 0; k < 3; k++) {
        if (used[k] < 0 || pl->value[used[k]])
            continue;
        if (pl->p->tensors[used[k]].gradient && pl->value != pl->sets[0].value)
            pl->value[used[k]] = pl->sets[0].value[used[k]];
        else
            TRY(take_doubles(pl, ref_elements(pl, used[k]), &pl->value[used[k]], e));
    }
    size_t channels = used[0] >= 0 ? (size_t)pl->p->tensors[used[0]].c : 0;
    widen(&all->col, ref_col_elements(pl, op));
    widen(&all->scratch, 2 * channels + 1);
    widen(&all->scratch, ref_attention_elements(pl, op));
    widen(&all->scratch, ref_head_elements(pl, op));
    widen(&all->exchange, exchange_elements(pl, op));
    if (op->kind != OP_BN && op->kind != OP_BN_BWD)
        return 0;
    struct bn_saved *b = &pl->saved[op->kind == OP_BN ? op - pl->p->ops : op->fwd];
    if (b->mean)
        return 0;
    TRY(take_doubles(pl, channels, &b->mean, e));
    return take_doubles(pl, channels, &b->inv_std, e);
}

static void use_set(struct ref_plan *pl, int k)
{
    pl->value = pl->sets[k].value;
    pl->saved = pl->sets[k].saved;
}

static int take_set(struct ref_plan *pl, int k, struct shared *all, struct err *e)
{
    struct ref_set *s = &pl->sets[k];
    s->value = calloc((size_t)pl->p->ntensors + 1, sizeof *s->value);
    s->saved = calloc((size_t)pl->p->nops, sizeof *s->saved);
    if (!s->value || !s->saved)
        return err_set(e, -ENOMEM, "no memory for a plan of %d operations", pl->p->nops);
    use_set(pl, k);
    for (int i = pl->ops.first; i < pl->ops.end; i++)
        TRY(take_op(pl, &pl->p->ops[i], all, e));
    for (int i = pl->ops.first_back; i < pl->ops.end_back; i++)
        TRY(take_op(pl, &pl->p->ops[i], all, e));
    return 0;
}

static int take_memory(struct ref_plan *pl, struct err *e)
{
    struct shared all = {0};
    pl->sets = calloc((size_t)pl->nsets, sizeof *pl->sets);
    if (!pl->sets)
        return err_set(e, -ENOMEM, "no memory for a plan of %d operations", pl->p->nops);
    for (int k = 0; k < pl->nsets; k++)
        TRY(take_set(pl, k, &all, e));
    pl->col_cap = all.col;
    pl->workspace = all.col + all.scratch + all.exchange;
    TRY(take_doubles(pl, all.col, &pl->col, e));
    TRY(take_doubles(pl, all.exchange, &pl->exchange, e));
    return take_doubles(pl, all.scratch, &pl->scratch, e);
}

/* What ops [first, end) read of the parameters, op after op. */
static int tell_needs(const struct ref_plan *pl, const struct plan_needs *needs, int first, int end, struct err *e)
{
    struct plan_range *reads = calloc(((size_t)pl->p->nops + 1) * PROGRAM_READS_MOST, sizeof *reads);
    int n = 0;
    if (!reads)
        return err_set(e, -ENOMEM, "no memory for a plan of %d operations", pl->p->nops);
    for (int i = first; i < end; i++)
        n += program_reads(pl->p, &pl->p->ops[i], &reads[n]);
    int rc = needs->order(needs->ctx, reads, n, e);
    free(reads);
    return rc;
}

static int ref_plan(struct device *d, const struct program *p, const struct plan_options *o, struct plan **ret,
                    struct err *e)
{
    struct host_ops ops;
    if (o->compute != DT_F64 && !(half_compute(o) && o->emulate))
        return err_set(e, -ENOTSUP, "the ref device computes in F64 only, not in %s%s", dtype_name(o->compute),
                       half_compute(o) ? "; it can be emulated" : "");
    if (o->format != MEMORY_AUTO)
        return err_set(e, -ENOTSUP, "the ref device has a memory format of its own");
    TRY(host_plan_ops(p, o, &ops, e));
    struct ref_plan *pl = calloc(1, sizeof *pl);
    if (!pl)
        return err_set(e, -ENOMEM, "no memory for a plan");
    *pl = (struct ref_plan){.base = {&device_ref_ops},
                            .p = p,
                            .threads = ((struct ref_device *)d)->threads,
                            .n = o->batch,
                            .training = o->training,
                            .ops = ops,
                            .o = *o,
                            .nsets = o->chunk && o->sets > 1 ? o->sets : 1,
                            .params = o->params,
                            .stats = o->stats,
                            .reduce = o->reduce,
                            .group = o->group,
                            .forecast = o->forecast};
    int rc = take_memory(pl, e);
    if (rc == 0 && half_compute(o))
        rc = ref_rounding_create(pl, o, e);
    if (rc == 0 && o->needs)
        rc = tell_needs(pl, o->needs, ops.first, ops.end, e);
    if (rc == 0 && o->needs_back)
        rc = tell_needs(pl, o->needs_back, ops.first_back, ops.end_back, e);
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
            ret->activations +=
                ref_elements(pl, i) * sizeof(double) * (pl->p->tensors[i].gradient ? 1 : (size_t)pl->nsets);
}

/* Tell the caller that the gradients of op's parameters, padding included, are final. */
static int tell_ready(const struct ref_plan *pl, const struct op *op, const struct run_hooks *hooks, struct err *e)
{
    struct plan_range r;
    return program_gradients(pl->p, op, &r) ? hooks->ready(hooks->ctx, r.first, r.end, NULL, e) : 0;
}

/* reads: of how many parameters a run has asked for. */
static int run_op(struct ref_plan *pl, const struct op *op, const struct run_args *a, int *reads, struct err *e)
{
    ref_kernel *kernel = kernels[op->kind];
    struct plan_range ranges[PROGRAM_READS_MOST];
    const struct plan_needs *needs = pl->needs;
    const int n = needs ? program_reads(pl->p, op, ranges) : 0;
    for (int i = 0; i < n; i++)
        TRY(needs->need(needs->ctx, *reads + i, e));
    TRY(pl->rounding ? ref_rounded(pl, kernel, op, a, e) : kernel(pl, op, a, e));
    for (int i = 0; i < n; i++)
        needs->release(needs->ctx, (*reads)++);
    return 0;
}

/* What a chunk is given comes in; what it makes goes out. */
static void come_in(struct ref_plan *pl, const struct run_args *a)
{
    const int t = pl->o.chunk ? host_boundary_in(pl->o.chunk, a->pass) : -1;
    if (t >= 0)
        memcpy(pl->value[t], a->boundary.in, ref_elements(pl, t) * sizeof(double));
}

static void go_out(const struct ref_plan *pl, const struct run_args *a)
{
    const int t = pl->o.chunk ? host_boundary_out(pl->o.chunk, a->pass) : -1;
    if (t >= 0 && !a->again)
        memcpy(a->boundary.out, pl->value[t], ref_elements(pl, t) * sizeof(double));
}

static int ref_run(struct plan *base, const struct run_args *a, struct err *e)
{
    struct ref_plan *pl = (struct ref_plan *)base;
    int first, end, reads = 0;
    TRY(host_run_ops(&pl->ops, &pl->o, a, &first, &end, e));
    TRY(host_check_batch(pl->p, first, end, &pl->o, &a->batch, e));
    use_set(pl, a->set);
    pl->needs = a->pass == RUN_BACKWARD ? pl->o.needs_back : pl->o.needs;
    come_in(pl, a);
    for (int i = first; i < end; i++) {
        const struct op *op = &pl->p->ops[i];
        const int64_t start = a->trace ? clock_ns() : 0;
        TRY(run_op(pl, op, a, &reads, e));
        if (a->trace)
            a->trace->op(
                a->trace->ctx,
                &(struct run_span){.label = op_name(op->kind), .op = i, .start_ns = start, .end_ns = clock_ns()});
        if (a->hooks && a->hooks->ready)
            TRY(tell_ready(pl, op, a->hooks, e));
    }
    go_out(pl, a);
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
    const double samples = count ? *(const double *)count : 1,
                 squares = rule_squares(grads, n, ((struct ref_device *)d)->threads);
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
