/* Runs an engine on inputs of chance, and judges what it wrote. */
#include "worker/device/cuda/engines/prove.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/device/cuda/graph.h"
#include "worker/device/cuda/plan.h"

enum { SAMPLES_MOST = 512, SAMPLES_LEAST = 256, SEED = 20, ONTO = 0x3f /* each byte of what is added to: about 1 */ };
#define TERMS_MOST ((int64_t)1 << 27) /* of all samples: a few milliseconds */

/* What own sums are taken over: the result, whose channels they belong to. */
static struct view4 result_view(const struct k_product *p)
{
    const bool forward = p->direction == PRODUCT_FORWARD;
    return (struct view4){.n = p->n,
                          .c = forward ? p->k : p->c,
                          .h = forward ? p->oh : p->h,
                          .w = forward ? p->ow : p->w,
                          .nhwc = p->nhwc,
                          .type = p->type};
}

/* --- scratch */

struct cutter {
    char *base;
    size_t at;
};

static void *cut(struct cutter *c, size_t n, size_t size)
{
    char *p = c->base ? c->base + c->at : NULL;
    c->at += (n * size + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static void cut_all(struct prover *v, struct cutter *c)
{
    const struct view4 view = result_view(&v->product);
    v->exact = cut(c, SAMPLES_MOST, sizeof(double));
    v->stored = cut(c, SAMPLES_MOST, sizeof(double));
    v->out = cut(c, 3, sizeof(double));
    v->bad = cut(c, (size_t)2 * KERNEL_BAD_BLOCKS, sizeof(double));
    v->sums = cut(c, 2 * (size_t)view.c + 1, sizeof(double));
    v->gamma = cut(c, (size_t)v->product.c, sizeof(float));
    v->beta = cut(c, (size_t)v->product.c, sizeof(float));
    v->partial = cut(c, kernel_partial(&view), sizeof(double));
    v->counters = cut(c, kernel_counters(&view), sizeof(unsigned));
    v->parts = cut(c, KERNEL_BAD_BLOCKS, sizeof(uint64_t));
    v->attention = cut(c, v->of_attention ? prove_attention_floats(v) : 0, sizeof(float));
}

static int take_scratch(struct prover *v, struct err *e)
{
    struct cutter size = {0};
    cut_all(v, &size);
    if (size.at > v->bytes) {
        prove_finish(v);
        TRY(cuda_take(v->pl->cuda, size.at, &v->memory, e));
        v->bytes = size.at;
    }
    struct cutter c = {.base = v->memory};
    cut_all(v, &c);
    struct gpu *g = v->pl->cuda->gpu; /* what lay there before */
    const struct view4 view = result_view(&v->product);
    return g->ops->fill(g, v->pl->cuda->compute, v->counters, 0, kernel_counters(&view) * sizeof(unsigned), e);
}

void prove_finish(struct prover *v)
{
    cuda_give(v->pl->cuda, v->memory, v->bytes);
    v->memory = NULL;
    v->bytes = 0;
}

/* --- inputs */

/* A ReLU whose input is near 0 may be on for one engine and off for another, by rounding alone. So batch norm's inputs
 * are multiples of 1/128 off by 1/256: none is nearer to 0 than that. */
static enum noise_kind noise_of(enum role r)
{
    switch (r) {
    case ROLE_BEFORE:
    case ROLE_MEAN:
        return NOISE_GRID;
    case ROLE_INVSTD:
    case ROLE_GAMMA:
        return NOISE_POSITIVE;
    case ROLE_BETA:
        return NOISE_ODD;
    default:
        return NOISE_UNIT;
    }
}

static int launch(struct prover *v, enum kernel k, const void *args, struct err *e)
{
    struct gpu *g = v->pl->cuda->gpu;
    return g->ops->kernel(g, v->pl->cuda->compute, k, args, e);
}

static int fill_inputs(struct prover *v, const struct gpu_dnn *d, struct err *e)
{
    for (int i = 0; graph_role(d->pattern, i); i++) {
        const enum role r = graph_role(d->pattern, i);
        if (graph_is_result(d->pattern, r))
            continue;
        const struct k_noise k = {.n = graph_elements(&v->product, r),
                                  .type = graph_type(&v->product, r),
                                  .kind = noise_of(r),
                                  .seed = SEED + (uint32_t)r,
                                  .out = d->slot[i]};
        TRY(launch(v, KERNEL_NOISE, &k, e));
    }
    return 0;
}

/* What elements hold whose bytes are all the same. */
static float read_as(enum dtype t, uint8_t byte)
{
    const uint32_t bits = byte * 0x01010101u;
    float f;
    memcpy(&f, &bits, sizeof f);
    return t == DT_F16 ? f32_from_f16((uint16_t)bits) : t == DT_BF16 ? f32_from_bf16((uint16_t)bits) : f;
}

int prove_begin(struct prover *v, struct gpu_dnn *d, struct err *e)
{
    const int gamma = graph_slot(d->pattern, ROLE_GAMMA), beta = graph_slot(d->pattern, ROLE_BETA);
    v->product = graph_product(d);
    v->product.onto = d->shape.add ? read_as(v->product.out, ONTO) : 0;
    v->of_attention = cudnn_pattern_attention(d->pattern);
    TRY(take_scratch(v, e));
    if (v->of_attention)
        return prove_attention_begin(v, d, e);
    if (gamma >= 0) { /* parameters */
        d->slot[gamma] = v->gamma;
        d->slot[beta] = v->beta;
        v->product.gamma = v->gamma;
        v->product.beta = v->beta;
    }
    const int64_t most = TERMS_MOST / graph_terms(&v->product);
    v->samples = most > SAMPLES_MOST ? SAMPLES_MOST : most < SAMPLES_LEAST ? SAMPLES_LEAST : (int)most;
    TRY(fill_inputs(v, d, e));
    const struct k_expect k = {
        .product = v->product, .samples = v->samples, .seed = SEED, .exact = v->exact, .stored = v->stored};
    return launch(v, KERNEL_EXPECT, &k, e);
}

/* Bytes of what is to be written: no numbers, but where the engine adds to what is there. */
static int poison_of(const struct gpu_dnn *d, enum role r)
{
    return r == ROLE_DSUMS ? 0 : d->shape.add ? ONTO : 0xff;
}

int prove_poison(struct prover *v, const struct gpu_dnn *d, struct err *e)
{
    struct gpu *g = v->pl->cuda->gpu;
    for (int i = 0; graph_role(d->pattern, i); i++) {
        const enum role r = graph_role(d->pattern, i);
        if (!graph_is_result(d->pattern, r))
            continue;
        const size_t bytes = graph_elements(&v->product, r) * dtype_size(graph_type(&v->product, r));
        TRY(g->ops->fill(g, v->pl->cuda->compute, d->slot[i], poison_of(d, r), bytes, e));
    }
    return 0;
}

/* --- the verdict */

static int download(struct prover *v, void *to, const void *from, size_t bytes, struct err *e)
{
    struct gpu *g = v->pl->cuda->gpu;
    TRY(g->ops->copy_out(g, v->pl->cuda->compute, to, from, bytes, e));
    return g->ops->stream_sync(g, v->pl->cuda->compute, e);
}

static int wrong(const struct gpu_dnn *d, struct err *e, const char *what, double got, double allowed)
{
    return err_set(e, ERR_MISMATCH, "%s: %s is %.2g off (relative), %.2g is allowed", cudnn_pattern_name(d->pattern),
                   what, got, allowed);
}

static int find_unwritten(struct prover *v, const struct gpu_dnn *d, struct err *e)
{
    const enum role r = graph_result(d->pattern);
    double pairs[2 * KERNEL_BAD_BLOCKS] = {0}, bad = 0;
    const size_t n = graph_elements(&v->product, r);
    const struct k_count k = {.n = n, .type = v->product.out, .x = graph_at(d, r), .out = v->bad};
    TRY(launch(v, KERNEL_COUNT_BAD, &k, e));
    const int blocks = kernel_bad_blocks(n);
    TRY(download(v, pairs, v->bad, 2 * (size_t)blocks * sizeof *pairs, e));
    for (int i = 0; i < 2 * blocks; i++)
        bad += pairs[i];
    if (bad == 0)
        return 0;
    return err_set(e, ERR_MISMATCH, "%s: %.0f of %zu elements of its result are unwritten or no numbers",
                   cudnn_pattern_name(d->pattern), bad, n);
}

/* Of sums in fp32; tensor cores cut off what they add, which shows where no rounding to a half follows. */
static double unit_of(const struct k_product *p)
{
    return ldexp(1, p->type != DT_F32 && p->out == DT_F32 ? -21 : -24);
}

static int look_at_samples(struct prover *v, const struct gpu_dnn *d, double *ret_ratio, struct err *e)
{
    double s[3] = {0}; /* squares: of what it is off, of what storing costs, of the exact result */
    const struct k_distance k = {.product = v->product,
                                 .samples = v->samples,
                                 .seed = SEED,
                                 .exact = v->exact,
                                 .stored = v->stored,
                                 .result = graph_at(d, graph_result(d->pattern)),
                                 .out = v->out};
    TRY(launch(v, KERNEL_DISTANCE, &k, e));
    TRY(download(v, s, v->out, sizeof s, e));
    const double unit = unit_of(&v->product),
                 allowed = 4 * s[1] + unit * unit * (double)graph_terms(&v->product) * s[2];
    *ret_ratio = allowed > 0 ? sqrt(s[0] / allowed) : 0;
    return s[0] <= allowed ? 0 : wrong(d, e, "its result", sqrt(s[0] / s[2]), sqrt(allowed / s[2]));
}

static int own_sums(struct prover *v, const struct gpu_dnn *d, struct err *e)
{
    const struct k_partial partial = {.values = v->partial, .counters = v->counters};
    const struct view4 view = result_view(&v->product);
    if (v->product.direction == PRODUCT_FORWARD) {
        const struct k_bn_stats k = {.v = view, .x = graph_at(d, ROLE_Y), .sums = v->sums, .partial = partial};
        return launch(v, KERNEL_BN_STATS, &k, e);
    }
    const struct k_bn_bwd_sums k = {.v = view,
                                    .x = graph_at(d, ROLE_BEFORE),
                                    .g = {.dy = graph_at(d, ROLE_X)},
                                    .mean = graph_at(d, ROLE_MEAN),
                                    .sums = v->sums,
                                    .partial = partial};
    return launch(v, KERNEL_BN_BWD_SUMS, &k, e);
}

/* A vector that the graph made, against `own`, each times `times` (NULL: 1), over the channels. */
static int compare_sums(struct prover *v, const struct gpu_dnn *d, const char *what, const float *made,
                        const double *own, const float *times, struct err *e)
{
    const struct view4 view = result_view(&v->product);
    const double elements = (double)view.n * view.h * view.w,
                 allowed = 2 * ldexp(1, -11) / sqrt(3) + ldexp(1, -24) * sqrt(elements);
    double off = 0, all = 0;
    for (int c = 0; c < view.c; c++) {
        const double want = own[c] * (times ? (double)times[c] : 1), x = (double)made[c] - want;
        off += x * x;
        all += want * want;
    }
    return off <= allowed * allowed * all ? 0 : wrong(d, e, what, sqrt(off / all), allowed);
}

struct vectors { /* on the host, in one block */
    double *sums;
    float *first, *second, *invstd;
};

static int fetch_vectors(struct prover *v, const struct gpu_dnn *d, struct vectors *h, struct err *e)
{
    const bool forward = v->product.direction == PRODUCT_FORWARD;
    const size_t c = (size_t)result_view(&v->product).c;
    h->sums = calloc(1, (2 * c + 1) * sizeof(double) + 3 * c * sizeof(float));
    if (!h->sums)
        return err_set(e, -ENOMEM, "no memory for sums of %zu channels", c);
    h->first = (float *)(void *)(h->sums + 2 * c + 1);
    h->second = h->first + c;
    h->invstd = h->second + c;
    TRY(download(v, h->sums, v->sums, (2 * c + 1) * sizeof(double), e));
    TRY(download(v, h->first, graph_at(d, forward ? ROLE_SUM : ROLE_DBIAS), c * sizeof(float), e));
    TRY(download(v, h->second, graph_at(d, forward ? ROLE_SQUARES : ROLE_DSCALE), c * sizeof(float), e));
    return forward ? 0 : download(v, h->invstd, graph_at(d, ROLE_INVSTD), c * sizeof(float), e);
}

static int look_at_sums(struct prover *v, const struct gpu_dnn *d, struct err *e)
{
    const bool forward = graph_slot(d->pattern, ROLE_SUM) >= 0;
    const size_t c = (size_t)result_view(&v->product).c;
    struct vectors h = {0};
    if (!forward && graph_slot(d->pattern, ROLE_DBIAS) < 0)
        return 0;
    TRY(own_sums(v, d, e));
    int rc = fetch_vectors(v, d, &h, e);
    if (rc == 0)
        rc = compare_sums(v, d, forward ? "the sum" : "the gradient of the shift", h.first, h.sums, NULL, e);
    if (rc == 0)
        rc = compare_sums(v, d, forward ? "the sum of squares" : "the gradient of the scale", h.second, h.sums + c,
                          forward ? NULL : h.invstd, e);
    free(h.sums);
    return rc;
}

int prove_result(struct prover *v, const struct gpu_dnn *d, double *ret_ratio, struct err *e)
{
    TRY(find_unwritten(v, d, e));
    if (v->of_attention)
        return prove_attention_result(v, d, ret_ratio, e);
    TRY(look_at_samples(v, d, ret_ratio, e));
    return look_at_sums(v, d, e);
}

/* --- once more */

static int checksum(struct prover *v, const struct gpu_dnn *d, enum role r, uint64_t *ret, struct err *e)
{
    uint64_t parts[KERNEL_BAD_BLOCKS] = {0}, sum = 0;
    const struct k_checksum k = {
        .n = graph_elements(&v->product, r), .type = graph_type(&v->product, r), .x = graph_at(d, r), .out = v->parts};
    const int blocks = kernel_bad_blocks(k.n);
    TRY(launch(v, KERNEL_CHECKSUM, &k, e));
    TRY(download(v, parts, v->parts, (size_t)blocks * sizeof *parts, e));
    for (int i = 0; i < blocks; i++)
        sum += parts[i];
    *ret = sum;
    return 0;
}

static int read_bits(struct prover *v, const struct gpu_dnn *d, uint64_t bits[DNN_SLOTS_MAX], struct err *e)
{
    for (int i = 0; graph_role(d->pattern, i); i++) {
        const enum role r = graph_role(d->pattern, i);
        if (graph_is_result(d->pattern, r) && r != ROLE_UNREAD)
            TRY(checksum(v, d, r, &bits[i], e));
    }
    return 0;
}

static const char *name_of(enum role r)
{
    switch (r) {
    case ROLE_SUM:
        return "the sum";
    case ROLE_SQUARES:
        return "the sum of squares";
    case ROLE_DSCALE:
        return "the gradient of the scale";
    case ROLE_DBIAS:
        return "the gradient of the shift";
    default:
        return "its result";
    }
}

int prove_remember(struct prover *v, const struct gpu_dnn *d, struct err *e)
{
    return read_bits(v, d, v->bits, e);
}

int prove_same(struct prover *v, const struct gpu_dnn *d, struct err *e)
{
    uint64_t bits[DNN_SLOTS_MAX];
    TRY(read_bits(v, d, bits, e));
    for (int i = 0; graph_role(d->pattern, i); i++) {
        const enum role r = graph_role(d->pattern, i);
        if (graph_is_result(d->pattern, r) && r != ROLE_UNREAD && bits[i] != v->bits[i])
            return err_set(e, ERR_MISMATCH, "%s: %s has other bits when it runs again on the same inputs",
                           cudnn_pattern_name(d->pattern), name_of(r));
    }
    return 0;
}
