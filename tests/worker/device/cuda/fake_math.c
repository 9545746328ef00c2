/* The convolutions and products of fake_gpu.c: definitions, written out, in double. */
#include "tests/worker/device/cuda/fake_math.h"
#include "tests/worker/device/cuda/fake_gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double fake_get(const void *p, enum dtype t, size_t i)
{
    switch (t) {
    case DT_F16:
        return (double)f32_from_f16(((const uint16_t *)p)[i]);
    case DT_BF16:
        return (double)f32_from_bf16(((const uint16_t *)p)[i]);
    default:
        return (double)((const float *)p)[i];
    }
}

/* What tensor cores see of a float: 10 bits of its mantissa, the nearest value, away from 0 where two are as near. */
static double tf32(double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u)
        bits = (bits + 0x1000u) & ~0x1fffu;
    float r;
    memcpy(&r, &bits, sizeof r);
    return (double)r;
}

/* Element i as a product sees it. */
static double operand(const void *p, enum dtype t, bool rounded, size_t i)
{
    const double x = fake_get(p, t, i);
    return rounded && t == DT_F32 ? tf32(x) : x;
}

static void add_row(double *restrict to, double a, const double *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += a * from[i];
}

void fake_set(void *p, enum dtype t, size_t i, double x)
{
    switch (t) {
    case DT_F16:
        ((uint16_t *)p)[i] = f16_from_f32((float)x);
        break;
    case DT_BF16:
        ((uint16_t *)p)[i] = bf16_from_f32((float)x);
        break;
    default:
        ((float *)p)[i] = (float)x;
    }
}

/* Index of (n, c, h, w) in a tensor of c_all x h_all x w_all a sample. */
static size_t at(bool nhwc, int n, int c, int h, int w, int c_all, int h_all, int w_all)
{
    return nhwc ? (((size_t)n * (size_t)h_all + (size_t)h) * (size_t)w_all + (size_t)w) * (size_t)c_all + (size_t)c
                : (((size_t)n * (size_t)c_all + (size_t)c) * (size_t)h_all + (size_t)h) * (size_t)w_all + (size_t)w;
}

struct sizes {
    size_t x, w, y;
    int oh, ow;
};

static struct sizes sizes_of(const struct cudnn_shape *s)
{
    const int oh = (s->h + 2 * s->pad[0] - s->r) / s->stride[0] + 1,
              ow = (s->w + 2 * s->pad[1] - s->s) / s->stride[1] + 1;
    return (struct sizes){.x = (size_t)s->n * (size_t)s->c * (size_t)s->h * (size_t)s->w,
                          .w = (size_t)s->k * (size_t)(s->groups > 1 ? s->c / s->groups : s->c) * (size_t)s->r *
                               (size_t)s->s,
                          .y = (size_t)s->n * (size_t)s->k * (size_t)oh * (size_t)ow,
                          .oh = oh,
                          .ow = ow};
}

/* A product walks images pixel by pixel, then channel by channel, and filters tap by tap, then by outputs and inputs
 * (by inputs and outputs where outputs are the sum), so that the innermost loop is over neighbours in memory. */

/* Images of c channels, h x w, in this order; zeros where p is NULL. */
static double *images(const struct cudnn_shape *s, const void *p, int c, int h, int w)
{
    double *out = calloc((size_t)s->n * (size_t)h * (size_t)w * (size_t)c + 1, sizeof *out), *to = out;
    for (int n = 0; p && n < s->n; n++)
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++)
                for (int i = 0; i < c; i++)
                    *to++ = operand(p, s->type, s->tf32, at(s->nhwc, n, i, y, x, c, h, w));
    return out;
}

static void store_images(const struct cudnn_shape *s, const double *from, void *to, int c, int h, int w)
{
    for (int n = 0; n < s->n; n++)
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++)
                for (int i = 0; i < c; i++)
                    fake_set(to, s->type, at(s->nhwc, n, i, y, x, c, h, w), *from++);
}

/* Where weight (k, c) of a tap is, of all that the tap has. */
static size_t weight(const struct cudnn_shape *s, bool by_input, int k, int c)
{
    return by_input ? (size_t)c * (size_t)s->k + (size_t)k : (size_t)k * (size_t)s->c + (size_t)c;
}

static double *filter(const struct cudnn_shape *s, const void *p, bool by_input)
{
    const size_t tap = (size_t)s->c * (size_t)s->k;
    double *out = calloc(sizes_of(s).w + 1, sizeof *out), *to = out;
    for (int r = 0; p && r < s->r; r++)
        for (int t = 0; t < s->s; t++, to += tap)
            for (int k = 0; k < s->k; k++)
                for (int c = 0; c < s->c; c++)
                    to[weight(s, by_input, k, c)] =
                        operand(p, s->type, s->tf32, at(s->nhwc, k, c, r, t, s->c, s->r, s->s));
    return out;
}

static void store_filter(const struct cudnn_shape *s, const double *from, void *to)
{
    const size_t tap = (size_t)s->c * (size_t)s->k;
    for (int r = 0; r < s->r; r++)
        for (int t = 0; t < s->s; t++, from += tap)
            for (int k = 0; k < s->k; k++)
                for (int c = 0; c < s->c; c++)
                    fake_set(to, s->type, at(s->nhwc, k, c, r, t, s->c, s->r, s->s), from[weight(s, false, k, c)]);
}

enum sum { SUM_Y, SUM_X, SUM_W };

/* One tap of the filter (tap t of its row, at w) over a row of outputs y and the row of inputs x that it meets. */
static void add_tap(const struct cudnn_shape *s, enum sum sum, int t, int outputs, double *x, double *w, double *y)
{
    const size_t c = (size_t)s->c, k = (size_t)s->k, outer = sum == SUM_Y ? c : k;
    for (size_t i = 0; i < outer; i++)
        for (int q = 0; q < outputs; q++) {
            const int at_x = q * s->stride[1] - s->pad[1] + t;
            if (at_x < 0 || at_x >= s->w)
                continue;
            double *px = x + (size_t)at_x * c, *py = y + (size_t)q * k;
            if (sum == SUM_Y)
                add_row(py, px[i], w + i * k, k);
            else if (sum == SUM_X)
                add_row(px, py[i], w + i * c, c);
            else
                add_row(w + i * c, py[i], px, c);
        }
}

/* The same of groups, term by term. */
static void product_of_groups(const struct cudnn_shape *s, const void *x, const void *w, const void *y, void *to)
{
    const struct sizes z = sizes_of(s);
    const int cg = s->c / s->groups, kg = s->k / s->groups;
    const size_t n_to = !y ? z.y : !x ? z.x : z.w;
    double *sum = calloc(n_to + 1, sizeof *sum);
    for (int n = 0; n < s->n; n++)
        for (int p = 0; p < z.oh; p++)
            for (int q = 0; q < z.ow; q++)
                for (int k = 0; k < s->k; k++)
                    for (int i = 0; i < cg * s->r * s->s; i++) {
                        const int c = i / s->s / s->r, r = i / s->s % s->r, t = i % s->s;
                        const int h = p * s->stride[0] - s->pad[0] + r, v = q * s->stride[1] - s->pad[1] + t;
                        if (h < 0 || h >= s->h || v < 0 || v >= s->w)
                            continue;
                        const size_t ax = at(s->nhwc, n, k / kg * cg + c, h, v, s->c, s->h, s->w),
                                     aw = at(s->nhwc, k, c, r, t, cg, s->r, s->s),
                                     ay = at(s->nhwc, n, k, p, q, s->k, z.oh, z.ow);
                        const double fx = x ? operand(x, s->type, s->tf32, ax) : 1,
                                     fw = w ? operand(w, s->type, s->tf32, aw) : 1,
                                     fy = y ? operand(y, s->type, s->tf32, ay) : 1;
                        sum[!y ? ay : !x ? ax : aw] += fx * fw * fy;
                    }
    for (size_t i = 0; i < n_to; i++)
        fake_set(to, s->type, i, sum[i]);
    free(sum);
}

/* The direction whose operand is NULL is run, and its result stored at `to`. */
static void product(const struct cudnn_shape *s, const void *x, const void *w, const void *y, void *to)
{
    if (s->groups > 1) {
        product_of_groups(s, x, w, y, to);
        return;
    }
    const struct sizes z = sizes_of(s);
    const enum sum sum = !y ? SUM_Y : !x ? SUM_X : SUM_W;
    double *vx = images(s, x, s->c, s->h, s->w), *vw = filter(s, w, sum == SUM_Y), *vy = images(s, y, s->k, z.oh, z.ow);
    for (int n = 0; n < s->n; n++)
        for (int p = 0; p < z.oh; p++)
            for (int r = 0; r < s->r; r++) {
                const int h = p * s->stride[0] - s->pad[0] + r;
                for (int t = 0; h >= 0 && h < s->h && t < s->s; t++)
                    add_tap(s, sum, t, z.ow, vx + at(true, n, 0, h, 0, s->c, s->h, s->w),
                            vw + (size_t)(r * s->s + t) * (size_t)s->c * (size_t)s->k,
                            vy + at(true, n, 0, p, 0, s->k, z.oh, z.ow));
            }
    if (sum == SUM_Y)
        store_images(s, vy, to, s->k, z.oh, z.ow);
    else if (sum == SUM_X)
        store_images(s, vx, to, s->c, s->h, s->w);
    else
        store_filter(s, vw, to);
    free(vx);
    free(vw);
    free(vy);
}

/* The channel of element i; fused patterns are NHWC. */
static size_t channel(const struct cudnn_shape *s, size_t i, int c)
{
    (void)s;
    return i % (size_t)c;
}

/* relu(x * scale + shift) in the graph's precision; malloc'ed. */
static void *activated(const struct cudnn_shape *s, const void *x, const void *scale, const void *shift)
{
    const size_t n = sizes_of(s).x;
    void *out = calloc(n + 1, dtype_size(s->type));
    for (size_t i = 0; i < n; i++) {
        const size_t c = channel(s, i, s->c);
        const double v = fake_get(x, s->type, i) * fake_get(scale, s->type, c) + fake_get(shift, s->type, c);
        fake_set(out, s->type, i, v > 0 ? v : 0);
    }
    return out;
}

static void statistics(const struct cudnn_shape *s, const void *y, float *sum, float *squares)
{
    const size_t n = sizes_of(s).y;
    double *a = calloc(2 * (size_t)s->k, sizeof *a);
    for (size_t i = 0; i < n; i++) {
        const double v = fake_get(y, s->type, i);
        a[channel(s, i, s->k)] += v;
        a[(size_t)s->k + channel(s, i, s->k)] += v * v;
    }
    for (int k = 0; k < s->k; k++) {
        sum[k] = (float)a[k];
        squares[k] = (float)a[s->k + k];
    }
    free(a);
}

/* Slots as in dnn.h: dy, w, x, mean, invstd, scale, shift -> dz, dscale, dbias, a, b, c. */
static void dgrad_drelu_bn(const struct cudnn_shape *s, void *const *p)
{
    const size_t n = sizes_of(s).x, channels = (size_t)s->c;
    const float *mean = p[3], *invstd = p[4], *gamma = p[5], *beta = p[6];
    float *dscale = p[8], *dbias = p[9], *a = p[10], *b = p[11], *c = p[12];
    double *sums = calloc(2 * channels, sizeof *sums);
    product(s, NULL, p[1], p[0], p[7]);
    for (size_t i = 0; i < n; i++) {
        const size_t k = channel(s, i, s->c);
        const double unit = (fake_get(p[2], s->type, i) - (double)mean[k]) * (double)invstd[k];
        const double dz = unit * (double)gamma[k] + (double)beta[k] > 0 ? fake_get(p[7], s->type, i) : 0;
        fake_set(p[7], s->type, i, dz);
        sums[k] += dz;
        sums[channels + k] += dz * unit;
    }
    const double count = (double)(n / channels);
    for (size_t k = 0; k < channels; k++) {
        dbias[k] = (float)sums[k];
        dscale[k] = (float)sums[channels + k];
        a[k] = gamma[k] * invstd[k];
        b[k] = (float)(-(double)a[k] * (double)invstd[k] * sums[channels + k] / count);
        c[k] = (float)(-(double)a[k] * sums[k] / count - (double)b[k] * (double)mean[k]);
    }
    free(sums);
}

/* Attention by the own kernels, emulated. */
static void attention(const struct gpu_dnn *d)
{
    const struct cudnn_shape *s = &d->shape;
    void *const *p = d->slot;
    struct k_attention a = {.n = s->n,
                            .t = s->h,
                            .heads = s->k,
                            .kv_heads = s->groups,
                            .d = s->c,
                            .scale = (float)(1 / sqrt((double)s->c)),
                            .causal = s->causal,
                            .type = s->type,
                            .x = p[0]};
    if (d->pattern == DNN_SDPA) {
        a.out = p[1];
        a.lse = p[2];
        kernel_launch(KERNEL_ATTENTION, &a, NULL);
        return;
    }
    a.y = p[1];
    a.dy = p[2];
    a.lse = p[3];
    a.delta = p[4];
    a.out = p[5];
    kernel_launch(KERNEL_ATTENTION_BWD_QUERIES, &a, NULL);
    kernel_launch(KERNEL_ATTENTION_BWD_KEYS, &a, NULL);
}

void fake_dnn(const struct gpu_dnn *d)
{
    const struct cudnn_shape *s = &d->shape;
    void *const *p = d->slot;
    void *x;
    switch (d->pattern) {
    case DNN_CONV:
        product(s, p[0], p[1], NULL, p[2]);
        break;
    case DNN_CONV_STATS:
        product(s, p[0], p[1], NULL, p[2]);
        statistics(s, p[2], p[3], p[4]);
        break;
    case DNN_SBR_CONV_STATS:
        x = activated(s, p[0], p[1], p[2]);
        product(s, x, p[3], NULL, p[4]);
        statistics(s, p[4], p[5], p[6]);
        free(x);
        break;
    case DNN_DGRAD:
        product(s, NULL, p[1], p[0], p[2]);
        break;
    case DNN_WGRAD:
        product(s, p[0], NULL, p[1], p[2]);
        break;
    case DNN_SBR_WGRAD:
        x = activated(s, p[0], p[1], p[2]);
        product(s, x, NULL, p[3], p[4]);
        free(x);
        break;
    case DNN_DGRAD_DRELU_BN:
        dgrad_drelu_bn(s, p);
        break;
    case DNN_SDPA:
    case DNN_SDPA_BWD:
    case DNN_SDPA_BWD_FAST:
        attention(d);
        break;
    default:
        break;
    }
}

/* The main result: slot, and its elements; those of a sample, or of an output channel of a filter, are neighbours. */
struct outcome {
    void *at;
    size_t n, tail;
    int channels;
    int first, second; /* slots of sums, -1: none */
};
static struct outcome outcome_of_attention(const struct gpu_dnn *d)
{
    const struct cudnn_shape *s = &d->shape;
    const bool forward = d->pattern == DNN_SDPA;
    const int row = (forward ? s->k : s->k + 2 * s->groups) * s->c;
    const size_t sample = (size_t)s->h * (size_t)row;
    return (struct outcome){d->slot[forward ? 1 : 5], (size_t)s->n * sample, sample, row, -1, -1};
}

static struct outcome outcome_of(const struct gpu_dnn *d)
{
    if (cudnn_pattern_attention(d->pattern))
        return outcome_of_attention(d);
    const struct sizes z = sizes_of(&d->shape);
    const size_t samples = (size_t)d->shape.n;
    struct outcome forward = {NULL, z.y, z.y / samples, d->shape.k, -1, -1},
                   data = {NULL, z.x, z.x / samples, d->shape.c, -1, -1},
                   filter = {NULL,
                             z.w,
                             z.w / (size_t)d->shape.k,
                             d->shape.groups > 1 ? d->shape.c / d->shape.groups : d->shape.c,
                             -1,
                             -1},
                   *r = &forward;
    switch (d->pattern) {
    case DNN_CONV:
        r->at = d->slot[2];
        break;
    case DNN_CONV_STATS:
        *r = (struct outcome){d->slot[2], r->n, r->tail, r->channels, 3, 4};
        break;
    case DNN_SBR_CONV_STATS:
        *r = (struct outcome){d->slot[4], r->n, r->tail, r->channels, 5, 6};
        break;
    case DNN_PRODUCT:
        r->at = d->slot[2];
        break;
    case DNN_DGRAD:
    case DNN_PRODUCT_DATA:
        r = &data;
        r->at = d->slot[2];
        break;
    case DNN_DGRAD_DRELU_BN:
        *(r = &data) = (struct outcome){d->slot[7], data.n, data.tail, data.channels, 8, 9};
        break;
    default:
        r = &filter;
        r->at = d->slot[d->pattern == DNN_SBR_WGRAD ? 4 : 2];
    }
    return *r;
}

static void coarsen(const struct outcome *o, enum dtype t)
{
    for (size_t i = 0; i < o->n; i++) {
        int exponent;
        const double m = frexp(fake_get(o->at, t, i), &exponent), bits = t == DT_F32 ? 512 : t == DT_F16 ? 128 : 16;
        fake_set(o->at, t, i, ldexp(rint(m * bits) / bits, exponent));
    }
}

void fake_spoil(const struct gpu_dnn *d, int how)
{
    const struct outcome o = outcome_of(d);
    const enum dtype t = cudnn_pattern_product(d->pattern) ? d->shape.out : d->shape.type;
    const bool nhwc = d->shape.nhwc;
    switch (how) {
    case FAKE_NO_TAIL:
        memset((char *)o.at + (o.n - o.tail) * dtype_size(t), 0xff, o.tail * dtype_size(t));
        break;
    case FAKE_CHANNEL:
        for (size_t i = 0; nhwc && i < o.n; i++)
            if (i % (size_t)o.channels == (size_t)o.channels - 1)
                fake_set(o.at, t, i, fake_get(o.at, t, i - 1));
        break;
    case FAKE_COARSE:
        coarsen(&o, t);
        break;
    case FAKE_SCALED:
        for (size_t i = 0; i < o.n; i++)
            fake_set(o.at, t, i, 1.01 * fake_get(o.at, t, i));
        break;
    case FAKE_INFINITE:
        fake_set(o.at, t, o.n / 2, (double)INFINITY);
        break;
    case FAKE_SUM:
        for (int k = 0; o.first >= 0 && k < o.channels; k++) {
            ((float *)d->slot[o.first])[k] *= 0.5f;
            ((float *)d->slot[o.second])[k] *= 0.5f;
        }
        break;
    case FAKE_BIT:
        *((char *)o.at + (o.n - 1) * dtype_size(t)) ^= 1;
        break;
    case FAKE_SUM_BIT:
        if (o.second >= 0)
            *((char *)d->slot[o.second] + (size_t)(o.channels - 1) * sizeof(float)) ^= 1;
        break;
    default:
        break;
    }
}

void fake_gemm(const struct gpu_gemm *g)
{
    const size_t m = (size_t)g->m, n = (size_t)g->n, depth = (size_t)g->k;
    const size_t a_row = g->a_row ? (size_t)g->a_row : g->trans_a ? m : depth, c_row = g->c_row ? (size_t)g->c_row : n;
    double *b = calloc(depth * n + 1, sizeof *b), *sum = calloc(n + 1, sizeof *sum);
    for (size_t k = 0; k < depth; k++)
        for (size_t j = 0; j < n; j++)
            b[k * n + j] = operand(g->b, g->in, g->tf32, g->trans_b ? j * depth + k : k * n + j);
    for (size_t i = 0; i < m; i++) {
        memset(sum, 0, n * sizeof *sum);
        for (size_t k = 0; k < depth; k++)
            add_row(sum, operand(g->a, g->in, g->tf32, g->trans_a ? k * a_row + i : i * a_row + k), b + k * n, n);
        for (size_t j = 0; j < n; j++) {
            const double x = (double)g->alpha * sum[j] + (g->add ? fake_get(g->c, g->out, i * c_row + j) : 0);
            const bool biased = g->epilogue == GEMM_BIAS; /* added to a sum in fp32 */
            fake_set(g->c, g->out, i * c_row + j, biased ? (double)(float)x + fake_get(g->bias, g->out, j) : x);
        }
    }
    for (size_t i = 0; i < m && g->epilogue == GEMM_BIAS_GRADIENT; i++) {
        double rows = 0;
        for (size_t k = 0; k < depth; k++)
            rows += fake_get(g->a, g->in, k * m + i);
        fake_set(g->bias, DT_F32, i, rows);
    }
    free(b);
    free(sum);
}
