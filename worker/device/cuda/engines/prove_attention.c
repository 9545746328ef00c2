/* Attention's engines are proven on inputs of chance, too, against own kernels in fp32 (kern_attention.cu), over the
 * first and the last sample: the distance may be twice what rounding each value to a half amounts to. What a backward
 * engine reads of the forward pass own kernels make. */
#include <math.h>

#include "worker/device/cuda/engines/prove.h"
#include "worker/device/cuda/graph.h"
#include "worker/device/cuda/plan.h"

enum { NOISE = 40 };

static int launch(struct prover *v, enum kernel k, const void *args, struct err *e)
{
    struct gpu *g = v->pl->cuda->gpu;
    return g->ops->kernel(g, v->pl->cuda->compute, k, args, e);
}

/* Over all samples, as d has them. */
static struct k_attention attention_of(const struct gpu_dnn *d)
{
    const struct cudnn_shape *s = &d->shape;
    return (struct k_attention){.n = s->n,
                                .t = s->h,
                                .heads = s->k,
                                .kv_heads = s->groups,
                                .d = s->c,
                                .scale = (float)(1 / sqrt((double)s->c)),
                                .causal = s->causal,
                                .type = s->type,
                                .x = graph_at(d, ROLE_QKV),
                                .y = graph_at(d, ROLE_HEADS),
                                .dy = graph_at(d, ROLE_DHEADS),
                                .lse = graph_at(d, ROLE_LSE)};
}

/* Elements of a sample. */
static size_t of_sample(const struct prover *v, enum role r)
{
    return graph_elements(&v->product, r) / (size_t)v->product.n;
}

size_t prove_attention_floats(const struct prover *v)
{
    return 2 * (of_sample(v, ROLE_QKV) + 2 * of_sample(v, ROLE_LSE));
}

/* Which of the samples the k-th is that is looked at. */
static size_t sample_of(const struct prover *v, int k)
{
    return k == 0 ? 0 : (size_t)v->product.n - 1;
}

/* Expected results of it: rows as the result has them, then logarithms, then deltas. */
static float *expected(const struct prover *v, int k, enum role r)
{
    float *p = v->attention + (size_t)k * (of_sample(v, ROLE_QKV) + 2 * of_sample(v, ROLE_LSE));
    return r == ROLE_LSE     ? p + of_sample(v, ROLE_QKV)
           : r == ROLE_DELTA ? p + of_sample(v, ROLE_QKV) + of_sample(v, ROLE_LSE)
                             : p;
}

static int fill(struct prover *v, const struct gpu_dnn *d, enum role r, struct err *e)
{
    const struct k_noise k = {.n = graph_elements(&v->product, r),
                              .type = v->product.type,
                              .kind = NOISE_UNIT,
                              .seed = NOISE + (uint32_t)r,
                              .out = graph_at(d, r)};
    return launch(v, KERNEL_NOISE, &k, e);
}

static const char *at_sample(const void *p, size_t sample, size_t elements, size_t size)
{
    return (const char *)p + sample * elements * size;
}

static int expect_one(struct prover *v, const struct gpu_dnn *d, int k, struct err *e)
{
    const size_t s = sample_of(v, k), half = dtype_size(v->product.type);
    struct k_attention a = attention_of(d);
    a.n = 1;
    a.wide = true;
    a.x = at_sample(a.x, s, of_sample(v, ROLE_QKV), half);
    a.y = at_sample(a.y, s, of_sample(v, ROLE_HEADS), half);
    a.out = expected(v, k, ROLE_QKV);
    if (d->pattern == DNN_SDPA) {
        a.lse = expected(v, k, ROLE_LSE);
        return launch(v, KERNEL_ATTENTION, &a, e);
    }
    a.dy = at_sample(a.dy, s, of_sample(v, ROLE_HEADS), half);
    a.lse = (float *)(void *)(uintptr_t)at_sample(a.lse, s, of_sample(v, ROLE_LSE), sizeof(float));
    a.delta = expected(v, k, ROLE_DELTA);
    TRY(launch(v, KERNEL_ATTENTION_BWD_QUERIES, &a, e));
    return launch(v, KERNEL_ATTENTION_BWD_KEYS, &a, e);
}

int prove_attention_begin(struct prover *v, const struct gpu_dnn *d, struct err *e)
{
    struct k_attention a = attention_of(d);
    TRY(fill(v, d, ROLE_QKV, e));
    if (cudnn_pattern_attention_bwd(d->pattern)) {
        TRY(fill(v, d, ROLE_DHEADS, e));
        a.out = graph_at(d, ROLE_HEADS);
        TRY(launch(v, KERNEL_ATTENTION, &a, e));
    }
    for (int k = 0; k < 2; k++)
        TRY(expect_one(v, d, k, e));
    return 0;
}

/* *ret: how far off, as a part of what is expected. */
static int distance(struct prover *v, const void *at, enum dtype type, const float *want, size_t n, double *ret,
                    struct err *e)
{
    struct gpu *g = v->pl->cuda->gpu;
    double s[2] = {0};
    const struct k_gap k = {.n = n, .type = type, .a = at, .b = want, .out = v->out};
    TRY(launch(v, KERNEL_GAP, &k, e));
    TRY(g->ops->copy_out(g, v->pl->cuda->compute, s, v->out, sizeof s, e));
    TRY(g->ops->stream_sync(g, v->pl->cuda->compute, e));
    *ret = s[1] > 0 ? sqrt(s[0] / s[1]) : s[0] > 0 ? INFINITY : 0;
    return 0;
}

static int look_at(struct prover *v, const struct gpu_dnn *d, enum role r, double allowed, const char *what,
                   double *ret_ratio, struct err *e)
{
    const enum dtype type = graph_type(&v->product, r);
    const size_t n = of_sample(v, r);
    for (int k = 0; k < 2; k++) {
        double off = 0;
        TRY(distance(v, at_sample(graph_at(d, r), sample_of(v, k), n, dtype_size(type)), type,
                     expected(v, k, r == ROLE_LSE ? ROLE_LSE : ROLE_QKV), n, &off, e));
        *ret_ratio = off / allowed > *ret_ratio ? off / allowed : *ret_ratio;
        if (!(off <= allowed))
            return err_set(e, ERR_MISMATCH, "%s: %s is %.2g off (relative), %.2g is allowed",
                           cudnn_pattern_name(d->pattern), what, off, allowed);
    }
    return 0;
}

int prove_attention_result(struct prover *v, const struct gpu_dnn *d, double *ret_ratio, struct err *e)
{
    const double allowed = 2 * (v->product.type == DT_F16 ? 0x1p-11 : 0x1p-8);
    *ret_ratio = 0;
    TRY(look_at(v, d, graph_result(d->pattern), allowed, "its result", ret_ratio, e));
    return d->pattern == DNN_SDPA ? look_at(v, d, ROLE_LSE, 0x1p-12, "the logarithm of its sums", ret_ratio, e) : 0;
}
