/* Convolutions (cuDNN; a data gradient that is added to something, cuBLASLt) and linear layers (cuBLASLt), forward and
 * backward. A bias is added, and its gradient summed, by the batch-norm kernels. */
#include <errno.h>

#include "worker/device/cuda/plan.h"
#include "worker/device/half.h"

struct cudnn_shape cuda_plan_shape(const struct cuda_plan *pl, int op)
{
    const struct op *o = &pl->p->ops[op], *f = o->fwd >= 0 ? &pl->p->ops[o->fwd] : o;
    const struct view4 x = cuda_plan_view(pl, f->in[0]), y = cuda_plan_view(pl, f->out);
    const struct fold_window w = fold_window(&pl->fold, pl->p, op);
    return (struct cudnn_shape){.n = x.n,
                                .c = x.c,
                                .h = x.h,
                                .w = x.w,
                                .k = y.c,
                                .r = w.filter[0],
                                .s = w.filter[1],
                                .stride = {w.stride[0], w.stride[1]},
                                .pad = {w.pad[0], w.pad[1]},
                                .type = pl->product,
                                .nhwc = pl->nhwc,
                                .tf32 = pl->cuda->options.tf32,
                                .groups = f->groups > 1 ? f->groups : 0};
}

/* A step that runs a cuDNN graph; slots are filled in by the caller with cuda_plan_use(). */
static int cudnn_step(struct cuda_plan *pl, int op, enum cudnn_pattern pattern, struct step **ret, struct err *e)
{
    struct step *s;
    TRY(cuda_plan_step(pl, STEP_DNN, cudnn_pattern_name(pattern), op, &s, e));
    s->dnn.pattern = pattern;
    s->dnn.shape = cuda_plan_shape(pl, op);
    if (pl->cuda->dnn)
        TRY(cudnn_find(pl->cuda->dnn, pattern, &s->dnn.shape, &s->dnn.plan, e));
    *ret = s;
    return 0;
}

int emit_convert(struct cuda_plan *pl, int i, const char *label, struct k_convert how, int from, int to, struct err *e)
{
    struct step *s;
    TRY(cuda_plan_step(pl, STEP_KERNEL, label, i, &s, e));
    s->kernel = KERNEL_CONVERT;
    struct k_convert *c = &s->args.as_KERNEL_CONVERT;
    *c = how;
    TRY(cuda_plan_use(pl, from, 0, &c->in, e));
    return cuda_plan_use(pl, to, 0, &c->out, e);
}

/* The buffer that a product reads a tensor from: its value, or a copy in the products' type, made once. */
int emit_operand(struct cuda_plan *pl, int i, int t, struct err *e)
{
    const enum dtype type = cuda_plan_view(pl, t).type;
    const int value = cuda_plan_value(pl, t, e);
    TRY(value);
    if (type == pl->product || pl->operand[t] != NO_BUFFER)
        return type == pl->product ? value : pl->operand[t];
    const size_t n = cuda_plan_elements(pl, t);
    const int copy = cuda_plan_buffer(pl, n * dtype_size(pl->product), false, e);
    TRY(copy);
    TRY(emit_convert(pl, i, "cast", (struct k_convert){.n = n, .from = type, .to = pl->product}, value, copy, e));
    return pl->operand[t] = copy;
}

/* The buffer that a product writes a tensor to, and what brings it into its own where that is of another type. */
int emit_result(struct cuda_plan *pl, int t, struct err *e)
{
    if (cuda_plan_view(pl, t).type == pl->product)
        return cuda_plan_value(pl, t, e);
    return cuda_plan_buffer(pl, cuda_plan_elements(pl, t) * dtype_size(pl->product), false, e);
}

int emit_written(struct cuda_plan *pl, int i, int t, int written, struct err *e)
{
    const enum dtype type = cuda_plan_view(pl, t).type;
    const int value = cuda_plan_value(pl, t, e);
    TRY(value);
    if (written == value)
        return 0;
    return emit_convert(pl, i, "cast",
                        (struct k_convert){.n = cuda_plan_elements(pl, t), .from = pl->product, .to = type}, written,
                        value, e);
}

int emit_vector(struct cuda_plan *pl, int i, int param, int x, int y, enum dtype type, struct err *e)
{
    struct step *s;
    int copy;
    if (param < 0)
        return 0;
    TRY(emit_read(pl, i, param, &copy, e));
    TRY(cuda_plan_step(pl, STEP_KERNEL, "bias", i, &s, e));
    s->kernel = KERNEL_BN_APPLY;
    struct k_bn_apply *a = &s->args.as_KERNEL_BN_APPLY;
    struct view4 v = cuda_plan_view(pl, pl->p->ops[i].out);
    v.type = type;
    *a = (struct k_bn_apply){.v = v};
    TRY(emit_use_read(pl, param, copy, &a->shift, e));
    TRY(cuda_plan_use(pl, x, 0, &a->x, e));
    return cuda_plan_use(pl, y, 0, &a->y, e);
}

/* y += bias, channel by channel. */
static int emit_bias(struct cuda_plan *pl, int i, int y, enum dtype type, struct err *e)
{
    return emit_vector(pl, i, pl->p->ops[i].param[1], y, y, type, e);
}

int emit_vector_gradient(struct cuda_plan *pl, int i, int param, int t, struct err *e)
{
    struct view4 v = cuda_plan_view(pl, t);
    struct step *sum;
    if (param < 0)
        return 0;
    const int dy = emit_operand(pl, i, t, e);
    TRY(dy);
    v.type = pl->product;
    TRY(cuda_plan_step(pl, STEP_KERNEL, "bias gradient", i, &sum, e));
    sum->kernel = KERNEL_BN_BWD_SUMS;
    struct k_bn_bwd_sums *a = &sum->args.as_KERNEL_BN_BWD_SUMS;
    *a = (struct k_bn_bwd_sums){.v = v, .mean = pl->zeros}; /* the second sum is not used */
    cuda_plan_need_partial(pl, &v);
    const int sums = cuda_plan_buffer(pl, (2 * (size_t)v.c + 1) * sizeof(double), false, e);
    TRY(sums);
    TRY(cuda_plan_use(pl, dy, 0, &a->x, e));
    TRY(cuda_plan_use(pl, dy, 0, &a->g.dy, e));
    TRY(cuda_plan_use(pl, sums, 0, &a->sums, e));
    const int out = cuda_plan_weight_gradient(pl, i, param, DT_F32, e);
    TRY(out);
    return emit_convert(pl, i, "bias gradient", (struct k_convert){.n = (size_t)v.c, .from = DT_F64, .to = DT_F32},
                        sums, out, e);
}

/* The gradient of a bias: sums of dy. */
static int emit_bias_gradient(struct cuda_plan *pl, int i, int t, struct err *e)
{
    return emit_vector_gradient(pl, i, pl->p->ops[i].param[1], t, e);
}

/* The tensor that the convolution reads: its operand, or what lies before the BN and ReLU that it applies itself. */
static int source(const struct cuda_plan *pl, int i)
{
    const int bn = pl->rungs[i].prologue;
    return pl->p->ops[bn >= 0 ? bn : i].in[0];
}

int emit_conv(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct rung *r = &pl->rungs[i];
    if (emit_is_own_group(pl, i))
        return emit_group_conv(pl, i, e);
    const enum cudnn_pattern pattern = r->prologue >= 0 ? DNN_SBR_CONV_STATS
                                       : r->stats >= 0  ? DNN_CONV_STATS
                                                        : DNN_CONV;
    struct step *s;
    int k = 0;
    const int x = emit_operand(pl, i, source(pl, i), e), w = cuda_plan_weight_copy(pl, i, op->param[0], e),
              y = emit_result(pl, op->out, e);
    TRY(x);
    TRY(w);
    TRY(y);
    TRY(cudnn_step(pl, i, pattern, &s, e)); /* x (N, h, w, C), w (K, r, s, C) -> y (N, oh, ow, K); or planes */
    TRY(cuda_plan_use(pl, x, 0, &s->dnn.slot[k++], e));
    if (r->prologue >= 0) {
        TRY(cuda_plan_use_bn(pl, r->prologue, BN_HALF_SCALE, &s->dnn.slot[k++], e));
        TRY(cuda_plan_use_bn(pl, r->prologue, BN_HALF_SHIFT, &s->dnn.slot[k++], e));
    }
    TRY(cuda_plan_use(pl, w, 0, &s->dnn.slot[k++], e));
    TRY(cuda_plan_use(pl, y, 0, &s->dnn.slot[k++], e));
    if (r->stats >= 0) {
        TRY(cuda_plan_use_bn(pl, r->stats, BN_SUM, &s->dnn.slot[k++], e));
        TRY(cuda_plan_use_bn(pl, r->stats, BN_SQUARES, &s->dnn.slot[k++], e));
    }
    TRY(emit_bias(pl, i, y, pl->product, e));
    return emit_written(pl, i, op->out, y, e);
}

/* Through the convolution, the ReLU before it and into the sums of the BN before that; BN_BWD goes on from dz. */
static int emit_dgrad_drelu_bn(struct cuda_plan *pl, int i, int bn, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct op *norm = &pl->p->ops[bn];
    struct step *s;
    const int dy = cuda_plan_value(pl, op->in[0], e), w = cuda_plan_weight_copy(pl, i, op->param[0], e),
              x = cuda_plan_value(pl, norm->in[0], e), dz = cuda_plan_value(pl, op->out, e);
    TRY(dy);
    TRY(w);
    TRY(x);
    TRY(dz);
    TRY(cudnn_step(pl, i, DNN_DGRAD_DRELU_BN, &s, e));
    TRY(cuda_plan_use(pl, dy, 0, &s->dnn.slot[0], e));
    TRY(cuda_plan_use(pl, w, 0, &s->dnn.slot[1], e));
    TRY(cuda_plan_use(pl, x, 0, &s->dnn.slot[2], e));
    TRY(cuda_plan_use(pl, dz, 0, &s->dnn.slot[7], e));
    static const enum bn_part rest[DNN_SLOTS_MAX] = {
        [3] = BN_MEAN,      [4] = BN_INVSTD,    [8] = BN_DSCALE,   [9] = BN_DBIAS,
        [10] = BN_UNREAD_A, [11] = BN_UNREAD_B, [12] = BN_UNREAD_K};
    TRY(cuda_plan_use_factor(pl, bn, 0, &s->dnn.slot[5], e));
    TRY(cuda_plan_use_factor(pl, bn, 1, &s->dnn.slot[6], e));
    for (int k = 0; k < DNN_SLOTS_MAX; k++)
        if (k == 3 || k == 4 || k >= 8)
            TRY(cuda_plan_use_bn(pl, bn, rest[k], &s->dnn.slot[k], e));
    return 0;
}

int emit_gemm(struct cuda_plan *pl, int i, const struct gpu_gemm *m, struct operand a, struct operand b,
              struct operand c, struct err *e)
{
    struct step *s;
    TRY(cuda_plan_step(pl, STEP_GEMM, op_name(pl->p->ops[i].kind), i, &s, e));
    s->gemm = *m;
    s->in_arena = m->c != NULL;
    s->adds = m->add;
    s->of_arena = m->b != NULL;
    TRY(cuda_plan_use(pl, a.buffer, a.at, &s->gemm.a, e));
    TRY(m->b ? 0 : cuda_plan_use(pl, b.buffer, b.at, &s->gemm.b, e));
    if (m->b && pl->o.needs) { /* where it is then: cuda_plan_place() */
        const struct param *q = &pl->p->params[pl->p->ops[i].param[0]];
        TRY(reads_add(pl, q->offset, q->offset + q->count, e));
    }
    return m->c ? 0 : cuda_plan_use(pl, c.buffer, c.at, &s->gemm.c, e);
}

/* Of whole buffers, or errors that have happened. */
static int gemm_step(struct cuda_plan *pl, int i, const struct gpu_gemm *m, int a, int b, int c, struct err *e)
{
    TRY(a);
    TRY(m->b ? 0 : b);
    TRY(m->c ? 0 : c);
    return emit_gemm(pl, i, m, (struct operand){a, 0}, (struct operand){b, 0}, (struct operand){c, 0}, e);
}

/* To what is there: rows of pixels, dx (N h w, C) += dy (N h w, K) . w (K, C). */
static int emit_dgrad_onto(struct cuda_plan *pl, int i, int sum, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct view4 dy = cuda_plan_view(pl, op->in[0]), dx = cuda_plan_view(pl, sum);
    const struct gpu_gemm m = {.in = pl->product,
                               .out = pl->product,
                               .tf32 = pl->cuda->options.tf32,
                               .m = (int64_t)dx.n * dx.h * dx.w,
                               .n = dx.c,
                               .k = dy.c,
                               .alpha = 1,
                               .add = true};
    TRY(gemm_step(pl, i, &m, cuda_plan_value(pl, op->in[0], e), cuda_plan_weight_copy(pl, i, op->param[0], e),
                  cuda_plan_value(pl, sum, e), e));
    pl->steps[pl->nsteps - 1]->label = "dgrad+add";
    return 0;
}

int emit_conv_bwd_data(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct step *s;
    if (emit_is_own_group(pl, i))
        return emit_group_conv(pl, i, e);
    if (pl->rungs[i].drelu >= 0)
        return emit_dgrad_drelu_bn(pl, i, pl->rungs[i].drelu, e);
    if (pl->rungs[i].onto >= 0)
        return emit_dgrad_onto(pl, i, pl->rungs[i].onto, e);
    const int dy = emit_operand(pl, i, op->in[0], e), w = cuda_plan_weight_copy(pl, i, op->param[0], e),
              dx = emit_result(pl, op->out, e);
    TRY(dy);
    TRY(w);
    TRY(dx);
    TRY(cudnn_step(pl, i, DNN_DGRAD, &s, e)); /* dy (N, oh, ow, K), w (K, r, s, C) -> dx (N, h, w, C) */
    TRY(cuda_plan_use(pl, dy, 0, &s->dnn.slot[0], e));
    TRY(cuda_plan_use(pl, w, 0, &s->dnn.slot[1], e));
    TRY(cuda_plan_use(pl, dx, 0, &s->dnn.slot[2], e));
    return emit_written(pl, i, op->out, dx, e);
}

int emit_conv_bwd_param(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const int bn = pl->rungs[i].prologue;
    struct step *s;
    int k = 0;
    if (emit_is_own_group(pl, i))
        return emit_group_conv(pl, i, e);
    const int x = emit_operand(pl, i, source(pl, i), e), dy = emit_operand(pl, i, op->in[1], e),
              dw = cuda_plan_weight_gradient(pl, i, op->param[0], pl->product, e);
    TRY(x);
    TRY(dy);
    TRY(dw);
    TRY(cudnn_step(pl, i, bn >= 0 ? DNN_SBR_WGRAD : DNN_WGRAD, &s, e)); /* x, dy -> dw (K, r, s, C) */
    TRY(cuda_plan_use(pl, x, 0, &s->dnn.slot[k++], e));
    if (bn >= 0) {
        TRY(cuda_plan_use_bn(pl, bn, BN_HALF_SCALE, &s->dnn.slot[k++], e));
        TRY(cuda_plan_use_bn(pl, bn, BN_HALF_SHIFT, &s->dnn.slot[k++], e));
    }
    TRY(cuda_plan_use(pl, dy, 0, &s->dnn.slot[k++], e));
    TRY(cuda_plan_use(pl, dw, 0, &s->dnn.slot[k++], e));
    TRY(emit_bias_gradient(pl, i, op->in[1], e));
    return cuda_plan_gradients_ready(pl, i, e);
}

/* Matrices of a linear layer: x (N, C), w (K, C), y (N, K); of each position, N of them all. */
static struct gpu_gemm linear(const struct cuda_plan *pl, const struct op *f, enum dtype out)
{
    const struct view4 x = cuda_plan_view(pl, f->in[0]), y = cuda_plan_view(pl, f->out);
    const int64_t positions = (int64_t)x.h * x.w;
    return (struct gpu_gemm){.in = pl->product,
                             .out = out,
                             .tf32 = pl->cuda->options.tf32,
                             .m = x.n * (f->each ? positions : 1),
                             .n = y.c,
                             .k = x.c * (f->each ? 1 : positions),
                             .alpha = 1};
}

/* Does a weight of this linear layer lie in the arenas as its products have it? */
static bool lies_alike(const struct cuda_plan *pl, int i)
{
    const struct op *op = &pl->p->ops[i], *f = op->fwd >= 0 ? &pl->p->ops[op->fwd] : op;
    const struct view4 x = cuda_plan_view(pl, f->in[0]);
    return f->each || x.h * x.w == 1 || !pl->nhwc;
}

/* The weight of a linear layer as its products read it: m->b, or a buffer. At millions of classes a copy would be most
 * of the memory; halves take one of what they make of the weights. */
static int linear_weight(struct cuda_plan *pl, int i, struct gpu_gemm *m, struct err *e)
{
    const int param = pl->p->ops[i].param[0];
    if (pl->product != DT_F32 || !pl->p->params[param].sharded || !lies_alike(pl, i))
        return cuda_plan_weight_copy(pl, i, param, e);
    m->b = pl->params + pl->p->params[param].offset;
    return 0;
}

/* Can a product of each position do this on the way? Not if nothing is to be fused, nor where bits must repeat, as it
 * is not among those that are tried; nor of halves among wide values, where a bias stays wide. */
static bool has_epilogue(const struct cuda_plan *pl, int i, enum gemm_epilogue epilogue, struct gpu_gemm m)
{
    struct cuda *c = pl->cuda;
    const struct op *op = &pl->p->ops[i], *f = op->fwd >= 0 ? &pl->p->ops[op->fwd] : op;
    struct dnn_algo first;
    int n = 0;
    m.epilogue = epilogue;
    return f->each && op->param[1] >= 0 && pl->type == pl->product && !pl->o.keep_all && c->options.fused_patterns &&
           !(c->dnn && cudnn_deterministic(c->dnn)) &&
           c->gpu->ops->gemm_algos(c->gpu, &m, PLAN_GEMM_WORKSPACE, false, &first, 1, &n, NULL) == 0 && n > 0;
}

/* The bias is of the result's type. */
static int emit_linear_biased(struct cuda_plan *pl, int i, struct gpu_gemm m, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const int y = m.out == DT_F32 ? cuda_plan_value(pl, op->out, e) : emit_result(pl, op->out, e),
              w = linear_weight(pl, i, &m, e), x = emit_operand(pl, i, op->in[0], e);
    int bias = NO_BUFFER;
    TRY(y);
    if (m.out != DT_F32 || pl->o.needs)
        TRY(bias = cuda_plan_vector_copy(pl, i, op->param[1], m.out, e));
    m.epilogue = GEMM_BIAS;
    TRY(gemm_step(pl, i, &m, x, w, y, e));
    struct step *s = pl->steps[pl->nsteps - 1];
    s->label = "linear+bias";
    TRY(emit_use_read(pl, op->param[1], bias, &s->gemm.bias, e));
    return m.out == DT_F32 ? 0 : emit_written(pl, i, op->out, y, e);
}

/* The bias is added in fp32, and the result rounded once. */
int emit_linear(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const enum dtype type = half_tensor(pl->p, &pl->o, op->out) ? pl->product : DT_F32;
    struct gpu_gemm m = linear(pl, op, DT_F32); /* y (N, K) = x (N, C) . w^T (C, K) */
    m.trans_b = true;
    m.out = type;
    if (has_epilogue(pl, i, GEMM_BIAS, m))
        return emit_linear_biased(pl, i, m, e);
    m.out = DT_F32;
    const size_t n = (size_t)(m.m * m.n);
    const int y = type == DT_F32 ? cuda_plan_value(pl, op->out, e) : emit_result(pl, op->out, e),
              sum = type == DT_F32 ? y : cuda_plan_buffer(pl, n * sizeof(float), false, e),
              w = linear_weight(pl, i, &m, e);
    TRY(gemm_step(pl, i, &m, emit_operand(pl, i, op->in[0], e), w, sum, e));
    TRY(emit_bias(pl, i, sum, DT_F32, e));
    if (sum == y)
        return 0;
    TRY(emit_convert(pl, i, "round", (struct k_convert){.n = n, .from = DT_F32, .to = type}, sum, y, e));
    return emit_written(pl, i, op->out, y, e);
}

/* A term of a sum over ranks stays wide. */
int emit_linear_bwd_data(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const bool wide = !half_tensor(pl->p, &pl->o, op->out);
    struct gpu_gemm m =
        linear(pl, &pl->p->ops[op->fwd], wide ? DT_F32 : pl->product); /* dx (N, C) = dy (N, K) . w (K, C) */
    const int64_t k = m.n;
    const int dx = wide ? cuda_plan_value(pl, op->out, e) : emit_result(pl, op->out, e),
              w = linear_weight(pl, i, &m, e);
    m.n = m.k;
    m.k = k;
    TRY(gemm_step(pl, i, &m, emit_operand(pl, i, op->in[0], e), w, dx, e));
    return wide ? 0 : emit_written(pl, i, op->out, dx, e);
}

int emit_linear_bwd_param(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct gpu_gemm m = linear(pl, &pl->p->ops[op->fwd], DT_F32); /* dw (K, C) = dy^T (K, N) . x (N, C) */
    const int64_t batch = m.m, classes = m.n, features = m.k;
    int dw = NO_BUFFER;
    m.trans_a = true;
    m.m = classes;
    m.n = features;
    m.k = batch;
    if (lies_alike(pl, i))
        m.c = pl->reduce + pl->p->params[op->param[0]].offset;
    else
        TRY(dw = cuda_plan_weight_gradient(pl, i, op->param[0], DT_F32, e));
    const bool on_the_way = pl->product != DT_F32 && /* where fusing may change the order of a sum */
                            has_epilogue(pl, i, GEMM_BIAS_GRADIENT, m);
    m.epilogue = on_the_way ? GEMM_BIAS_GRADIENT : GEMM_PLAIN;
    TRY(gemm_step(pl, i, &m, emit_operand(pl, i, op->in[1], e), emit_operand(pl, i, op->in[0], e), dw, e));
    if (on_the_way) {
        struct step *s = pl->steps[pl->nsteps - 1];
        const int db = cuda_plan_weight_gradient(pl, i, op->param[1], DT_F32, e);
        TRY(db);
        s->label = "linear_bwd_param+bias";
        TRY(cuda_plan_use(pl, db, 0, &s->gemm.bias, e));
    } else {
        TRY(emit_bias_gradient(pl, i, op->in[1], e));
    }
    return cuda_plan_gradients_ready(pl, i, e);
}
