#include "tests/conformance/device_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"

const struct mode mode_f64 = {.name = "fp64", .compute = DT_F64};
const struct mode mode_f32 = {.name = "fp32", .compute = DT_F32};
const struct mode mode_bf16 = {.name = "bf16", .compute = DT_BF16};
const struct mode mode_fp16 = {.name = "fp16", .compute = DT_F16};
const struct mode mode_emulated = {.name = "emulated bf16", .compute = DT_BF16, .emulate = true};
const struct mode mode_bf16_o1 = {.name = "bf16 O1", .compute = DT_BF16, .emulate = true, .half = HALF_OPERANDS};
const struct mode mode_fp16_o1 = {.name = "fp16 O1", .compute = DT_F16, .emulate = true, .half = HALF_OPERANDS};
const struct mode mode_native_fp16_o1 = {.name = "fp16 O1", .compute = DT_F16, .half = HALF_OPERANDS};
const struct mode mode_native_bf16_o1 = {.name = "bf16 O1", .compute = DT_BF16, .half = HALF_OPERANDS};
const struct mode mode_fp16_o2 = {.name = "fp16 O2", .compute = DT_F16, .emulate = true};
const struct mode mode_fp16_o3 = {.name = "fp16 O3", .compute = DT_F16, .emulate = true, .half_bn = true};
const struct mode mode_nchw = {.name = "nchw", .compute = DT_F32, .format = MEMORY_NCHW};
const struct mode mode_fp16_nchw = {.name = "fp16 nchw", .compute = DT_F16, .format = MEMORY_NCHW};
const struct mode mode_bf16_nchw = {.name = "bf16 nchw", .compute = DT_BF16, .format = MEMORY_NCHW};
const struct mode mode_tf32 = {.name = "tf32", .compute = DT_F32, .tf32 = true};
const struct mode mode_nhwc = {.name = "nhwc", .compute = DT_F32, .format = MEMORY_NHWC};

void side_open(struct side *s, const char *device, const struct program *p, const struct mode *m, int batch,
               bool training, bool keep_all, int threads)
{
    *s = (struct side){.p = p, .mode = *m, .n = batch, .training = training};
    const struct device_options options = {
        .threads = threads,
        .gpu = {.tf32 = m->tf32, .fused = !m->unfused, .tune = m->timed, .deterministic = !m->timed}};
    MUST(rig_open(&s->d, device, &options, e));
    size_t real = dtype_size(s->d->ops->real);
    MUST(s->d->ops->alloc(s->d, program_params(p) * real, &s->params, e));
    MUST(s->d->ops->alloc(s->d, program_statistics(p) * real, &s->stats, e));
    MUST(s->d->ops->alloc(s->d, p->n_reduce * real, &s->reduce, e));
    MUST(s->d->ops->alloc(s->d, p->n_train * real, &s->momentum, e));
    struct plan_options o = {.batch = batch,
                             .others = m->others,
                             .mixes = m->mixes,
                             .training = training,
                             .compute = m->compute,
                             .emulate = m->emulate,
                             .half = m->half,
                             .half_bn = m->half_bn,
                             .format = m->format,
                             .keep_all = keep_all,
                             .params = s->params,
                             .stats = s->stats,
                             .reduce = s->reduce};
    MUST(s->d->ops->plan(s->d, p, &o, &s->plan, e));
}

void side_close(struct side *s)
{
    s->d->ops->plan_close(s->plan);
    s->d->ops->release(s->d, s->params);
    s->d->ops->release(s->d, s->stats);
    s->d->ops->release(s->d, s->reduce);
    s->d->ops->release(s->d, s->momentum);
    s->d->ops->close(s->d);
}

void arena_put(const struct side *s, void *arena, size_t first, const double *in, size_t n)
{
    if (s->d->ops->real == DT_F64) {
        MUST(s->d->ops->upload(s->d, (double *)arena + first, in, n * sizeof(double), e));
        return;
    }
    float *f = malloc(n * sizeof(*f) + 1);
    for (size_t i = 0; i < n; i++)
        f[i] = (float)in[i];
    MUST(s->d->ops->upload(s->d, (float *)arena + first, f, n * sizeof(*f), e));
    free(f);
}

void arena_get(const struct side *s, const void *arena, size_t first, double *out, size_t n)
{
    if (s->d->ops->real == DT_F64) {
        MUST(s->d->ops->download(s->d, out, (const double *)arena + first, n * sizeof(double), e));
        return;
    }
    float *f = malloc(n * sizeof(*f) + 1);
    MUST(s->d->ops->download(s->d, f, (const float *)arena + first, n * sizeof(*f), e));
    for (size_t i = 0; i < n; i++)
        out[i] = f[i];
    free(f);
}

void side_initialise(const struct side *s, uint64_t seed)
{
    for (int i = 0; i < s->p->nparams; i++) {
        const struct param *q = &s->p->params[i];
        double *v = malloc(sizeof(*v) * q->count);
        param_initial_fill(q, seed, 0, q->count, v);
        for (size_t k = 0; k < q->count; k++)
            v[k] = (float)v[k];
        arena_put(s, q->role == PARAM_TRAIN ? s->params : s->stats, q->offset, v, q->count);
        free(v);
    }
}

size_t side_count(const struct side *s, int tensor)
{
    const struct tensor *t = &s->p->tensors[tensor];
    return (size_t)s->n * (size_t)t->c * (size_t)t->h * (size_t)t->w;
}

void side_put(const struct side *s, int tensor, const double *in)
{
    MUST(s->d->ops->put(s->plan, tensor, in, e));
}

double *side_get(const struct side *s, int tensor)
{
    double *out = malloc(sizeof(*out) * side_count(s, tensor));
    MUST(s->d->ops->get(s->plan, tensor, out, e));
    return out;
}

void side_run(const struct side *s, const struct batch *b, double grad_scale, bool accumulate, uint64_t version,
              const struct run_hooks *h)
{
    struct run_args a = {
        .batch = *b, .grad_scale = grad_scale, .accumulate = accumulate, .params_version = version, .hooks = h};
    MUST(s->d->ops->run(s->plan, &a, e));
}

void side_poison(const struct side *s)
{
    for (int i = 0; i < s->p->nops; i++) {
        const int t = s->p->ops[i].out;
        if (t < 0 || (!s->training && i >= s->p->nfwd))
            continue;
        const size_t n = side_count(s, t);
        double *v = malloc(sizeof(*v) * n);
        for (size_t k = 0; k < n; k++)
            v[k] = NAN;
        side_put(s, t, v);
        free(v);
    }
    const size_t sums = s->p->n_train + s->p->n_stats + METRIC_STOP; /* the metrics from there on are not a plan's */
    double *v = malloc(sizeof(*v) * sums);
    for (size_t k = 0; k < sums; k++)
        v[k] = NAN;
    arena_put(s, s->reduce, 0, v, sums);
    free(v);
}

static uint64_t more_seed(void)
{
    const char *text = getenv("CRUN_TEST_SEED");
    return text ? strtoull(text, NULL, 10) << 20 : 0;
}

void noise(double *out, size_t n, uint64_t seed, enum dtype t)
{
    struct param p = {.name = "noise", .init = INIT_UNIFORM, .init_scale = 1};
    param_initial_fill(&p, seed + more_seed(), 0, n, out);
    for (size_t i = 0; i < n; i++)
        out[i] = dtype_rounded(t, (double)(float)out[i]);
}

double relative_distance(const double *a, const double *b, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += (a[i] - b[i]) * (a[i] - b[i]);
        s += b[i] * b[i];
    }
    return sqrt(d / s);
}

void images_make(struct images *im, const struct program *p, int n, uint64_t seed)
{
    size_t count = (size_t)n * input_row_bytes(&p->input);
    double *v = malloc(sizeof(*v) * count);
    noise(v, count, seed, DT_F32);
    im->pixels = malloc(count);
    im->labels = malloc(sizeof(*im->labels) * (size_t)n);
    im->weights = malloc(sizeof(*im->weights) * (size_t)n);
    im->numbers = malloc(sizeof(*im->numbers) * (size_t)n);
    for (size_t i = 0; i < count; i++)
        im->pixels[i] = (uint8_t)(127.5 + 127.5 * v[i]);
    for (int i = 0; i < n; i++) {
        im->labels[i] = p->classes ? i % p->classes : 0;
        im->weights[i] = 1;
        im->numbers[i] = (uint32_t)(7 * i + 3);
    }
    im->b = (struct batch){im->pixels, im->labels, im->weights, im->numbers};
    free(v);
}

void images_free(struct images *im)
{
    free(im->pixels);
    free(im->labels);
    free(im->weights);
    free(im->numbers);
}
