/* The cpu device's own kernels give the same numbers in every layout and on every instruction set: layouts that oneDNN
 * does not choose on this machine (NHWC, where there are AMX units) and older processors are covered here. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/device/cpu/kern/kern.h"
#include "worker/program/program.h"

enum { N = 3, H = 7, W = 5, HW = H * W, OH = 4, OW = 3, C_MAX = 40, THREADS = 2, VALUES = N * C_MAX * HW };

/* Results by logical index. */
struct results {
    float y[VALUES], dx[VALUES], dz[VALUES], pooled[VALUES], dpool[VALUES], mean_pool[N * C_MAX], dmean[VALUES];
    double sum[C_MAX], squares[C_MAX], bsum[C_MAX], bsum_x[C_MAX];
};

static float value(int seed, int i)
{
    uint32_t u = (uint32_t)i * 2654435761u + (uint32_t)seed * 40503u;
    u ^= u >> 15;
    u *= 2246822519u;
    return (float)(int32_t)(u >> 8) / 0x1p23f - 1;
}

static float *scatter(const struct layout *l, int seed)
{
    float *to = calloc(layout_count(l) + 16, sizeof(*to));
    for (int n = 0, i = 0; n < l->n; n++)
        for (int c = 0; c < l->c; c++)
            for (int p = 0; p < l->h * l->w; p++)
                to[layout_offset(l, n, c, p)] = value(seed, i++);
    return to;
}

static void gather(const struct layout *l, float *from, float *out)
{
    for (int n = 0; n < l->n; n++)
        for (int c = 0; c < l->c; c++)
            for (int p = 0; p < l->h * l->w; p++)
                *out++ = from[layout_offset(l, n, c, p)];
    free(from);
}

static float *channels(int seed)
{
    float *v = calloc(64, sizeof(*v));
    for (int c = 0; c < 64; c++)
        v[c] = value(seed, c);
    return v;
}

static void normalise(const struct kern *k, const struct layout *l, struct results *r)
{
    static const float weights[N] = {1, 0, 1};
    struct view v = layout_view(l);
    double *partial = calloc(kern_partial(&v, THREADS), sizeof(*partial)), sums[4][64];
    float *x = scatter(l, 1), *add = scatter(l, 2), *dy = scatter(l, 3), *dy2 = scatter(l, 4), *y = scatter(l, 5),
          *dx = scatter(l, 6), *dz = scatter(l, 7), *mean = channels(8), *scale = channels(9), *beta = channels(10);
    k->bn_stats(&(struct bn_stats_job){v, x, weights, sums[0], sums[1], partial}, STORE_F32, THREADS);
    k->bn_apply(&(struct bn_apply_job){v, x, add, y, mean, scale, beta, .relu = true}, STORE_F32, THREADS);
    k->bn_bwd_sums(
        &(struct bn_bwd_sums_job){v, x, dy, dy2, y, dz, weights, mean, NULL, NULL, sums[2], sums[3], partial},
        STORE_F32, THREADS);
    k->bn_bwd_apply(&(struct bn_bwd_apply_job){v, x, dy, dy2, y, dx, weights, mean, scale, NULL, beta, mean}, STORE_F32,
                    THREADS);
    memcpy(r->sum, sums[0], sizeof(double) * (size_t)l->c);
    memcpy(r->squares, sums[1], sizeof(double) * (size_t)l->c);
    memcpy(r->bsum, sums[2], sizeof(double) * (size_t)l->c);
    memcpy(r->bsum_x, sums[3], sizeof(double) * (size_t)l->c);
    gather(l, y, r->y);
    gather(l, dx, r->dx);
    gather(l, dz, r->dz);
    free(partial);
    free(x);
    free(add);
    free(dy);
    free(dy2);
    free(mean);
    free(scale);
    free(beta);
}

static void pool(const struct kern *k, const struct layout *l, struct results *r)
{
    struct layout small = *l, plain = *l;
    small.h = OH;
    small.w = OW;
    plain.h = plain.w = plain.b = 1;
    struct view v = layout_view(l), vs = layout_view(&small);
    float *x = scatter(l, 1), *y = scatter(&small, 2), *dy = scatter(&small, 3), *dx = scatter(l, 4),
          *dm = scatter(l, 5), *mean = scatter(&plain, 6), *dmean = scatter(&plain, 7),
          *plane = calloc((size_t)THREADS * HW * LANES_MAX, sizeof(*plane));
    uint8_t *index = calloc((size_t)vs.n * (size_t)vs.groups * (size_t)(vs.hw * vs.lanes), 1);
    struct pool_job j = {.vx = v,
                         .vy = vs,
                         .x = x,
                         .y = y,
                         .index = index,
                         .dy = dy,
                         .dx = dx,
                         .plane = plane,
                         .kh = 3,
                         .kw = 3,
                         .sh = 2,
                         .sw = 2,
                         .ph = 1,
                         .pw = 1};
    k->maxpool(&j, STORE_F32, THREADS);
    k->maxpool_bwd(&j, STORE_F32, THREADS);
    j.y = mean;
    j.dy = dmean;
    j.dx = dm;
    k->avgpool(&j, STORE_F32, THREADS);
    k->avgpool_bwd(&j, STORE_F32, THREADS);
    gather(&small, y, r->pooled);
    gather(l, dx, r->dpool);
    gather(&plain, mean, r->mean_pool);
    gather(l, dm, r->dmean);
    free(x);
    free(dy);
    free(dmean);
    free(plane);
    free(index);
}

static void run_all(const struct kern *k, int c, int block, struct results *r)
{
    struct layout l = {N, c, H, W, block};
    memset(r, 0, sizeof(*r));
    normalise(k, &l, r);
    pool(k, &l, r);
}

static void close_to(const char *what, const struct kern *k, int c, int block, double got, double want)
{
    if (!(fabs(got - want) <= 2e-6 * (1 + fabs(want)))) /* a sum of up to 70 numbers below 2, in another order */
        fail_msg("%s, %s, %d channels in blocks of %d: %.9g, expected %.9g", what, k->name, c, block, got, want);
}

#define CLOSE(field)                                                                                                   \
    for (size_t i = 0; i < sizeof(want.field) / sizeof(want.field[0]); i++)                                            \
    close_to(#field, k, c, block, (double)got.field[i], (double)want.field[i])

static void every_layout_and_instruction_set_agrees(void **state)
{
    static const int channel_counts[] = {1, 8, 21, 32, 40};
    static struct results want, got;
    const struct kern *const *all = kern_all(), *plain = NULL;
    (void)state;
    for (int i = 0; all[i]; i++)
        plain = all[i]; /* the last: plain C */
    for (size_t q = 0; q < sizeof(channel_counts) / sizeof(channel_counts[0]); q++) {
        int c = channel_counts[q];
        const int blocks[] = {LAYOUT_PLAIN, 8, 16, c};
        run_all(plain, c, LAYOUT_PLAIN, &want);
        for (int t = 0; all[t]; t++)
            for (int b = 0; b < 4; b++) {
                const struct kern *k = all[t];
                int block = blocks[b];
                run_all(k, c, block, &got);
                CLOSE(y);
                CLOSE(dx);
                CLOSE(dz);
                CLOSE(pooled);
                CLOSE(dpool);
                CLOSE(mean_pool);
                CLOSE(dmean);
                CLOSE(sum);
                CLOSE(squares);
                CLOSE(bsum);
                CLOSE(bsum_x);
            }
    }
}

/* Memory for a tensor of any type, aligned as a plan's; small numbers of both signs, some zeros. */
static void *typed(const struct layout *l, enum store t, int seed)
{
    const size_t count = layout_count(l);
    void *to = aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
    for (size_t i = 0; i < count; i++) {
        const float v = i % 7 ? value(seed, (int)i) : 0;
        if (t == STORE_BF16)
            ((uint16_t *)to)[i] = bf16_from_f32(v);
        else
            ((float *)to)[i] = store_value(t, v);
    }
    return to;
}

struct backward {
    void *dz, *dx;
    double sum[C_MAX], sum_x[C_MAX];
};

static void same_backward(const struct kern *k, const struct layout *l, enum store t)
{
    const size_t bytes = layout_count(l) * (t == STORE_BF16 ? sizeof(uint16_t) : sizeof(float));
    const struct view v = layout_view(l);
    static const float weights[N] = {1, 0, 1};
    double *partial = calloc(kern_partial(&v, THREADS), sizeof(*partial));
    float *mean = channels(8), *scale = channels(9), *beta = channels(10), *k1 = channels(11), *k2 = channels(12);
    void *x = typed(l, t, 1), *dy = typed(l, t, 2), *y[2] = {typed(l, t, 3), typed(l, t, 4)};
    struct backward b[2] = {{typed(l, t, 5), typed(l, t, 6), {0}, {0}}, {typed(l, t, 7), typed(l, t, 8), {0}, {0}}};
    beta[1] = scale[1] = 0; /* all of a channel at the edge */
    static const float tiny[] = {0x1p-126f, 0x1p-133f, 0x1p-134f, 0x1p-149f, 0x1p-24f, 0x1p-25f};
    for (int c = 0; c < 6; c++) { /* what a store may leave nothing of */
        mean[2 + c] = beta[2 + c] = 0;
        scale[2 + c] = tiny[c];
    }
    for (int i = 0; i < 2; i++) {
        const bool past = i && l->b != LAYOUT_PLAIN, with_y = !i;
        k->bn_apply(&(struct bn_apply_job){v, x, NULL, y[i], mean, scale, beta, true, past}, t, THREADS);
        k->bn_bwd_sums(&(struct bn_bwd_sums_job){v, x, dy, NULL, with_y ? y[i] : NULL, b[i].dz, weights, mean, scale,
                                                 with_y ? NULL : beta, b[i].sum, b[i].sum_x, partial, past},
                       t, THREADS);
        k->bn_bwd_apply(&(struct bn_bwd_apply_job){v, x, dy, NULL, with_y ? y[i] : NULL, b[i].dx, weights, mean, scale,
                                                   with_y ? NULL : beta, k1, k2, past},
                        t, THREADS);
    }
    if (memcmp(y[0], y[1], bytes) || memcmp(b[0].dz, b[1].dz, bytes) || memcmp(b[0].dx, b[1].dx, bytes) ||
        memcmp(b[0].sum, b[1].sum, sizeof b[0].sum) || memcmp(b[0].sum_x, b[1].sum_x, sizeof b[0].sum_x))
        fail_msg("%s, type %d, blocks of %d: not the same bits", k->name, (int)t, l->b);
    void *const all[] = {partial, mean, scale, beta, k1, k2, x, dy, y[0], y[1], b[0].dz, b[0].dx, b[1].dz, b[1].dx};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

/* What lets the backward leave y alone and write past the caches. */
static void the_sign_of_y_is_told_from_x(void **state)
{
    (void)state;
    static const int blocks[] = {LAYOUT_PLAIN, 8, 16, 32};
    for (int i = 0; kern_all()[i]; i++)
        for (int t = 0; t < STORES; t++)
            for (int b = 0; b < 4; b++)
                same_backward(kern_all()[i], &(struct layout){N, 32, H, W, blocks[b]}, (enum store)t);
}

/* y of these x by logical index, as fp32 */
static void applied(const struct kern *k, const struct layout *l, enum store t, float *out)
{
    const struct view v = layout_view(l);
    float *mean = channels(8), *scale = channels(9), *beta = channels(10), *x = scatter(l, 1);
    uint16_t *half = calloc(layout_count(l) + 16, sizeof(*half));
    for (size_t i = 0; i < layout_count(l); i++)
        half[i] = bf16_from_f32(x[i]);
    void *in = t == STORE_BF16 ? (void *)half : (void *)x;
    k->bn_apply(&(struct bn_apply_job){v, in, in, in, mean, scale, beta, .relu = true}, t, THREADS);
    for (size_t i = 0; t == STORE_BF16 && i < layout_count(l); i++)
        x[i] = f32_from_bf16(half[i]);
    gather(l, x, out);
    free(half);
    free(mean);
    free(scale);
    free(beta);
}

static void what_is_stored_does_not_depend_on_the_layout(void **state)
{
    (void)state;
    enum { C = 21 };
    static const int blocks[] = {LAYOUT_PLAIN, 8, C};
    static float want[N * C * HW], got[N * C * HW];
    for (int i = 0; kern_all()[i]; i++)
        for (int t = 0; t < STORES; t++) {
            const struct kern *k = kern_all()[i];
            applied(k, &(struct layout){N, C, H, W, 16}, (enum store)t, want);
            for (int b = 0; b < 3; b++) {
                applied(k, &(struct layout){N, C, H, W, blocks[b]}, (enum store)t, got);
                if (memcmp(got, want, sizeof(want)) != 0)
                    fail_msg("%s, type %d, blocks of %d: not the same bits", k->name, t, blocks[b]);
            }
        }
}

/* --- NHWC of more pixels than a run, and of more channels than have their sums taken side by side */

enum { LONG_C = 1044, LONG_PADDED = 1056, LONG_H = 10, LONG_W = 13, LONG_VALUES = N * LONG_C * LONG_H * LONG_W };

struct long_results {
    float y[LONG_VALUES], dz[LONG_VALUES], dx[LONG_VALUES];
    double sums[4][LONG_PADDED];
};

/* Values by logical index, as halves are kept. */
static void fill(const struct layout *l, int seed, enum store t, void *to)
{
    for (int n = 0, i = 0; n < l->n; n++)
        for (int c = 0; c < l->c; c++)
            for (int p = 0; p < l->h * l->w; p++, i++) {
                if (t == STORE_BF16)
                    ((uint16_t *)to)[layout_offset(l, n, c, p)] = bf16_from_f32(value(seed, i));
                else
                    ((float *)to)[layout_offset(l, n, c, p)] = store_value(t, value(seed, i));
            }
}

static void take(const struct layout *l, enum store t, const void *from, float *out)
{
    for (int n = 0; n < l->n; n++)
        for (int c = 0; c < l->c; c++)
            for (int p = 0; p < l->h * l->w; p++) {
                const size_t o = layout_offset(l, n, c, p);
                *out++ = t == STORE_BF16 ? f32_from_bf16(((const uint16_t *)from)[o]) : ((const float *)from)[o];
            }
}

static void normalise_long(const struct kern *k, int block, enum store t, int threads, struct long_results *r)
{
    const struct layout l = {N, LONG_C, LONG_H, LONG_W, block};
    const struct view v = layout_view(&l);
    static const float weights[N] = {1, 0, 1};
    static float coefficients[5][LONG_PADDED];
    const float *mean = coefficients[0], *scale = coefficients[1], *beta = coefficients[2], *k1 = coefficients[3],
                *k2 = coefficients[4];
    void *at[7]; /* x, add, dy, dy2, y, dz, dx */
    double *partial = calloc(kern_partial(&v, threads), sizeof(*partial));
    const bool past = block != LONG_C; /* a row has a part of a vector at its end */
    const bool from_x = threads == 2;  /* what the ReLU passed follows from x, and dz is not kept */
    for (int i = 0; i < 5; i++)
        for (int c = 0; c < LONG_C; c++)
            coefficients[i][c] = value(20 + i, c);
    for (int i = 0; i < 7; i++) {
        const size_t bytes = (layout_count(&l) * sizeof(float) + 63) / 64 * 64;
        at[i] = aligned_alloc(64, bytes);
        memset(at[i], 0, bytes);
        if (i < 4)
            fill(&l, i, t, at[i]);
    }
    k->bn_stats(&(struct bn_stats_job){v, at[0], weights, r->sums[0], r->sums[1], partial}, t, threads);
    k->bn_apply(&(struct bn_apply_job){v, at[0], at[1], at[4], mean, scale, beta, true, past}, t, threads);
    k->bn_bwd_sums(&(struct bn_bwd_sums_job){v, at[0], at[2], at[3], from_x ? NULL : at[4], from_x ? NULL : at[5],
                                             weights, mean, scale, from_x ? beta : NULL, r->sums[2], r->sums[3],
                                             partial, past},
                   t, threads);
    k->bn_bwd_apply(
        &(struct bn_bwd_apply_job){v, at[0], at[5], NULL, NULL, at[6], weights, mean, scale, NULL, k1, k2, past}, t,
        threads);
    take(&l, t, at[4], r->y);
    take(&l, t, at[5], r->dz);
    take(&l, t, at[6], r->dx);
    for (int i = 0; i < 7; i++)
        free(at[i]);
    free(partial);
}

static void nhwc_of_many_channels_is_as_blocks(void **state)
{
    (void)state;
    static struct long_results want, got;
    static const int counts[] = {1, 2, 12}; /* 12: more than samples; each takes some groups of one */
    for (int i = 0; kern_all()[i]; i++)
        for (int t = 0; t < STORES; t++)
            for (int q = 0; q < 3; q++) {
                const struct kern *k = kern_all()[i];
                const int threads = counts[q];
                normalise_long(k, 16, (enum store)t, threads, &want);
                normalise_long(k, LONG_C, (enum store)t, threads, &got);
                if (memcmp(got.y, want.y, sizeof want.y) || memcmp(got.dz, want.dz, sizeof want.dz) ||
                    memcmp(got.dx, want.dx, sizeof want.dx))
                    fail_msg("%s, type %d, %d threads: not the same bits", k->name, t, threads);
                for (int s = 0; s < 4; s++)
                    for (int c = 0; c < LONG_C; c++) /* of 260 numbers below 4 */
                        if (!(fabs(got.sums[s][c] - want.sums[s][c]) <= 1e-5 * (1 + fabs(want.sums[s][c]))))
                            fail_msg("%s, type %d, %d threads: sum %d of channel %d: %.9g, expected %.9g", k->name, t,
                                     threads, s, c, got.sums[s][c], want.sums[s][c]);
            }
}

static void statistics_survive_a_mean_far_from_zero(void **state)
{
    (void)state;
    enum { CHANNELS = 16, PIXELS = 1024 };
    struct layout l = {2, CHANNELS, 32, 32, CHANNELS};
    struct view v = layout_view(&l);
    float *x = calloc(layout_count(&l), sizeof(*x)), weights[2] = {1, 1};
    double *partial = calloc(kern_partial(&v, 1), sizeof(*partial)), sum[CHANNELS], squares[CHANNELS];
    for (size_t i = 0; i < layout_count(&l); i++)
        x[i] = 4096 + (float)(i / CHANNELS % 2); /* variance 1/4 exactly, at 4096: squares need 26 bits */
    for (int t = 0; kern_all()[t]; t++) {
        kern_all()[t]->bn_stats(&(struct bn_stats_job){v, x, weights, sum, squares, partial}, STORE_F32, 1);
        for (int c = 0; c < CHANNELS; c++) {
            double mean = sum[c] / (2 * PIXELS), var = squares[c] / (2 * PIXELS) - mean * mean;
            if (fabs(mean - 4096.5) > 1e-6 || fabs(var - 0.25) > 1e-6)
                fail_msg("%s: mean %.9g, variance %.9g, expected 4096.5 and 0.25", kern_all()[t]->name, mean, var);
        }
    }
    free(x);
    free(partial);
}

/* Distance in memory of neighbours along N, C, H and W. */
static void expect_strides(const struct layout *l, size_t n, size_t c, size_t h, size_t w)
{
    const size_t at = layout_offset(l, 0, 0, 0);
    assert_int_equal(layout_offset(l, 1, 0, 0) - at, n);
    assert_int_equal(layout_offset(l, 0, 1, 0) - at, c);
    assert_int_equal(layout_offset(l, 0, 0, l->w) - at, h);
    assert_int_equal(layout_offset(l, 0, 0, 1) - at, w);
}

/* torch's examples of channels_last: 10 images of 3 x 16 x 16, and of 3 x 32 x 32. */
static void nhwc_has_the_strides_of_channels_last(void **state)
{
    (void)state;
    expect_strides(&(struct layout){10, 3, 16, 16, 3}, 768, 1, 48, 3);
    expect_strides(&(struct layout){10, 3, 32, 32, 3}, 3072, 1, 96, 3);
    expect_strides(&(struct layout){10, 3, 32, 32, LAYOUT_PLAIN}, 3072, 1024, 32, 1);
}

/* In all lanes and instruction sets: the bits of dtype.h, for every fp32 number near a half and for the edges. */
static void rounding_to_fp16_has_the_bits_of_the_scalar_one(void **state)
{
    (void)state;
    enum { FLOATS = 4 * 0x7c00 + 8 };
    float *in = malloc(sizeof(*in) * FLOATS), *out = malloc(sizeof(*out) * FLOATS);
    for (int i = 0; i < 0x7c00; i++) {
        const float half = f32_from_f16((uint16_t)i), next = f32_from_f16((uint16_t)(i + 1)),
                    mid = i == 0x7bff ? 65520 : half + (next - half) / 2;
        in[4 * i] = half;
        in[4 * i + 1] = -mid;
        in[4 * i + 2] = nextafterf(mid, 0);
        in[4 * i + 3] = nextafterf(mid, 1e9f);
    }
    const float edges[8] = {INFINITY, -INFINITY, 1e30f, -1e-30f, -0.0f, 65519.99f, 0x1p-25f, 0x1.8p-25f};
    memcpy(in + 4 * 0x7c00, edges, sizeof(edges));
    for (int t = 0; kern_all()[t]; t++) {
        memcpy(out, in, sizeof(*in) * FLOATS);
        kern_all()[t]->round(out, FLOATS - 3, STORE_ROUNDED_F16, 2);
        for (int i = 0; i < FLOATS - 3; i++) {
            const float want = f32_from_f16(f16_from_f32(in[i]));
            if (memcmp(&out[i], &want, 4) != 0)
                fail_msg("%s: %a becomes %a instead of %a", kern_all()[t]->name, (double)in[i], (double)out[i],
                         (double)want);
        }
        float nan = NAN;
        kern_all()[t]->round(&nan, 1, STORE_ROUNDED_F16, 1);
        assert_true(isnan(nan));
    }
    free(in);
    free(out);
}

/* --- a loss over parts of the logits */

enum { CLASSES = 1000, FIRST = 500 };

/* Logits from -60 to 60, some of them equal to the label's. */
static void halves_of_floats_have_the_bits_of_the_scalar_one(void **state)
{
    (void)state;
    enum { ALL = 1029 }; /* no multiple of a vector */
    static _Alignas(64) float from[ALL], floats[ALL];
    static _Alignas(64) uint16_t halves[ALL + 1];
    for (int i = 0; i < ALL; i++)
        from[i] = (float)sin(i) * powf(10, (float)(i % 60 - 30));
    for (int t = 0; kern_all()[t]; t++)
        for (int past = 0; past < 2; past++) {
            const struct kern *k = kern_all()[t];
            halves[ALL] = 7;
            k->give(from, halves, ALL, past, STORE_BF16, 2);
            k->give(from, floats, ALL, past, STORE_ROUNDED, 2);
            for (int i = 0; i < ALL; i++) {
                assert_int_equal(halves[i], bf16_from_f32(from[i]));
                assert_true(floats[i] == f32_from_bf16(halves[i]));
            }
            assert_int_equal(halves[ALL], 7);
        }
}

static void make_logits(float *z, int n, int seed)
{
    for (int j = 0; j < n; j++)
        z[j] = j % 37 == 5 ? 1.5f : 60 * value(seed, j);
}

/* exps: e^(z - top - 1) */
static void xent_sums(const float *z, int n, int first, const float *top, double *sums, double *exps)
{
    const int label = (int)top[TOP_CLASS];
    memset(sums, 0, SUMS_N * sizeof *sums);
    for (int j = 0; j < n; j++) {
        const double v = (double)z[j], target = (double)top[TOP_TARGET];
        sums[SUMS_EXP] += exp(v - (double)top[TOP_MAX]);
        sums[SUMS_LOGITS] += v;
        sums[SUMS_BETTER] += first + j != label && (v > target || (v == target && first + j < label));
        exps[j] = exp(v - ((double)top[TOP_MAX] + 1));
    }
}

static void row_is_that_of_doubles(const struct kern *k, int n, int label)
{
    float z[CLASSES] = {0}, top[TOP_N], sums[SUMS_N];
    double want[SUMS_N], gradient[CLASSES];
    make_logits(z, n, n);
    top[TOP_MAX] = k->largest(z, n);
    top[TOP_TARGET] = label >= FIRST && label < FIRST + n ? z[label - FIRST] : 1.5f; /* else another rank has it */
    top[TOP_CLASS] = (float)label;
    top[TOP_WEIGHT] = 1;
    float most = z[0];
    for (int j = 1; j < n; j++)
        most = fmaxf(most, z[j]);
    assert_true(top[TOP_MAX] == most);
    xent_sums(z, n, FIRST, top, want, gradient);
    k->xent_sums_of_part(z, n, FIRST, top, sums);
    assert_true(fabs((double)sums[SUMS_EXP] - want[SUMS_EXP]) <= 1e-6 * want[SUMS_EXP]);
    assert_true(fabs((double)sums[SUMS_LOGITS] - want[SUMS_LOGITS]) <= 60 * 1e-6 * n);
    assert_true((double)sums[SUMS_BETTER] == want[SUMS_BETTER]);
    float dz[CLASSES];
    k->xent_gradient_of_part(z, n, top[TOP_MAX] + 1, 0.25f, 8, dz);
    for (int j = 0; j < n; j++)
        assert_true(fabs((double)dz[j] - (gradient[j] - 0.25) * 8) <= 8 * 1e-6 * (gradient[j] + 0.25));
    double whole[SUMS_N], tops[TOP_N];
    for (int j = 0; j < TOP_N; j++)
        tops[j] = (double)top[j];
    k->xent_sums(z, n, FIRST, tops, whole);
    for (int j = 0; j < SUMS_N; j++)
        assert_true(fabs(whole[j] - want[j]) <= 1e-9 * (j == SUMS_LOGITS ? 60.0 * n : want[j]));
    k->xent_gradient(z, n, tops[TOP_MAX] + 1, 0.25, 8, dz);
    for (int j = 0; j < n; j++) /* rounded once */
        assert_true(fabs((double)dz[j] - (gradient[j] - 0.25) * 8) <= 8 * (0x1.01p-24 + 1e-9) * (gradient[j] + 0.25));
}

static void parts_of_a_loss_are_those_of_doubles(void **state)
{
    static const int sizes[] = {1, 2, 7, 16, 37, 127, 128, 129, 257, CLASSES};
    (void)state;
    for (int t = 0; kern_all()[t]; t++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int label = FIRST - 3; label < FIRST + sizes[i] + 3; label += 1 + sizes[i] / 9)
                row_is_that_of_doubles(kern_all()[t], sizes[i], label);
}

static void a_logit_that_is_not_a_number_is_not_lost(void **state)
{
    (void)state;
    for (int t = 0; kern_all()[t]; t++)
        for (int at = 0; at < 300; at += 23) {
            float z[300], sums[SUMS_N], dz[300];
            const float top[TOP_N] = {[TOP_MAX] = 60, [TOP_TARGET] = 1, [TOP_CLASS] = 3, [TOP_WEIGHT] = 1};
            make_logits(z, 300, 1);
            z[at] = NAN;
            kern_all()[t]->xent_sums_of_part(z, 300, 0, top, sums);
            kern_all()[t]->xent_gradient_of_part(z, 300, 61, 0, 1, dz);
            assert_true(isnan(sums[SUMS_EXP]) && isnan(dz[at]) && !isnan(dz[at ? 0 : 1]));
            const double tops[TOP_N] = {[TOP_MAX] = 60, [TOP_TARGET] = 1, [TOP_CLASS] = 3, [TOP_WEIGHT] = 1};
            double whole[SUMS_N];
            kern_all()[t]->xent_sums(z, 300, 0, tops, whole);
            kern_all()[t]->xent_gradient(z, 300, 61, 0, 1, dz);
            assert_true(isnan(whole[SUMS_EXP]) && isnan(dz[at]) && !isnan(dz[at ? 0 : 1]));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nhwc_has_the_strides_of_channels_last),
        cmocka_unit_test(halves_of_floats_have_the_bits_of_the_scalar_one),
        cmocka_unit_test(rounding_to_fp16_has_the_bits_of_the_scalar_one),
        cmocka_unit_test(every_layout_and_instruction_set_agrees),
        cmocka_unit_test(the_sign_of_y_is_told_from_x),
        cmocka_unit_test(what_is_stored_does_not_depend_on_the_layout),
        cmocka_unit_test(nhwc_of_many_channels_is_as_blocks),
        cmocka_unit_test(statistics_survive_a_mean_far_from_zero),
        cmocka_unit_test(parts_of_a_loss_are_those_of_doubles),
        cmocka_unit_test(a_logit_that_is_not_a_number_is_not_lost),
    };
    return cmocka_run_group_tests_name("kernels of the cpu device", tests, NULL, NULL);
}
