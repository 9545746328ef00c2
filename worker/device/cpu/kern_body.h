/* Kernels over one storage type and one vector width, included by kern_isa.c with
 *   T      element type in memory
 *   ROUND  1, 2: round to bf16, fp16 at every store
 *   L      lanes of a vector: 8 or 16
 *   NAME(x) gives each function its own name.
 * Vectors lie along channels, in plain NCHW along pixels. Where all lanes are there `lanes` is a constant; ends (odd
 * channel counts, the last pixels of a row) take as many as there are. */
#include "worker/device/cpu/kern_vec.h"

/* --- batch normalisation */

/* Sums over one run of vectors and of squared distances from its mean. */
static INLINE void NAME(stats_run)(const T *x, size_t step, int len, int lanes, VF *ret_sum, VF *ret_squares)
{
    VF s0 = {0}, s1 = {0}, q0 = {0}, q1 = {0};
    int p = 0;
    for (; p + 1 < len; p += 2) {
        s0 += NAME(load)(x + (size_t)p * step, lanes);
        s1 += NAME(load)(x + (size_t)(p + 1) * step, lanes);
    }
    if (p < len)
        s0 += NAME(load)(x + (size_t)p * step, lanes);
    const VF s = s0 + s1, mean = s / (float)len;
    for (p = 0; p + 1 < len; p += 2) {
        VF a = NAME(load)(x + (size_t)p * step, lanes) - mean, b = NAME(load)(x + (size_t)(p + 1) * step, lanes) - mean;
        q0 += a * a;
        q1 += b * b;
    }
    if (p < len) {
        VF a = NAME(load)(x + (size_t)p * step, lanes) - mean;
        q0 += a * a;
    }
    *ret_sum = s;
    *ret_squares = q0 + q1;
}

static INLINE void NAME(stats_walk)(const T *x, double *sum, double *squares, struct walk w, bool row, int lanes)
{
    double row_sum[L] = {0}, row_squares[L] = {0};
    double *to = row ? row_sum : sum, *to_squares = row ? row_squares : squares;
    const int count = row ? L : lanes; /* missing lanes are 0 */
    for (int p0 = 0; p0 < w.n; p0 += RUN) {
        const int len = w.n - p0 < RUN ? w.n - p0 : RUN;
        VF s, q;
        NAME(stats_run)(x + w.at + (size_t)p0 * w.step, w.step, len, lanes, &s, &q);
        for (int i = 0; i < count; i++) { /* squares about 0 = squares about m + 2 m sum - len m^2, in double */
            double sd = s[i], m = s[i] / (float)len;
            to[i] += sd;
            to_squares[i] += q[i] + m * (2 * sd - len * m);
        }
    }
    if (row) {
        *sum += NAME(sum_lanes)(row_sum);
        *squares += NAME(sum_lanes)(row_squares);
    }
}

static void NAME(bn_stats)(const struct bn_stats_job *j, int threads)
{
    const struct view *v = &j->v;
    const struct pieces c = cut(v, threads);
    const int channels = view_channels(v);
    memset(j->partial, 0, sizeof(double) * 2 * (size_t)channels * (size_t)c.by_samples);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < c.by_samples * c.by_groups; item++) {
        const int part = item / c.by_groups, g0 = share(v->groups, item % c.by_groups, c.by_groups),
                  g1 = share(v->groups, item % c.by_groups + 1, c.by_groups);
        double *sum = j->partial + (size_t)part * 2 * channels, *squares = sum + channels;
        for (int n = share(v->n, part + 1, c.by_samples); n-- > share(v->n, part, c.by_samples);)
            for (int g = g0; g < g1 && j->weights[n] != 0; g++) {
                const int channel = g * v->lanes;
                EACH_WALK(v, g, (size_t)n * v->sn + (size_t)g * v->sg, NAME(stats_walk), j->x, sum + channel,
                          squares + channel);
            }
    }
    combine(j->partial, c.by_samples, channels, j->sum, j->squares);
}

static INLINE void NAME(apply_walk)(const struct bn_apply_job *j, int channel, struct walk w, bool row, int lanes)
{
    const T *x = (const T *)j->x + w.at, *add = j->add ? (const T *)j->add + w.at : NULL;
    T *y = (T *)j->y + w.at;
    VF mean = NAME(coefficient)(j->mean + channel, row, lanes),
       scale = NAME(coefficient)(j->scale + channel, row, lanes);
    VF beta = NAME(coefficient)(j->beta + channel, row, lanes);
    for (int p = 0; p < w.n; p++) {
        size_t o = (size_t)p * w.step;
        VF r = NAME(rounded)((NAME(load)(x + o, lanes) - mean) * scale + beta);
        if (add)
            r = NAME(rounded)(r + NAME(load)(add + o, lanes));
        if (j->relu)
            r = NAME(relu)(r);
        NAME(put)(y + o, r, j->past, lanes);
    }
}

static void NAME(bn_apply)(const struct bn_apply_job *j, int threads)
{
    const struct view *v = &j->v;
    int items = v->n * v->groups;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < items; item++) {
        int n = item / v->groups, g = item % v->groups;
        EACH_WALK(v, g, (size_t)n * v->sn + (size_t)g * v->sg, NAME(apply_walk), j, g * v->lanes);
    }
}

/* dy [+ dy2], rounded as a sum that is kept. */
static INLINE VF NAME(sum_dy)(const T *dy, const T *dy2, size_t o, int lanes)
{
    VF r = NAME(load)(dy + o, lanes);
    return dy2 ? NAME(rounded)(r + NAME(load)(dy2 + o, lanes)) : r;
}

static INLINE VF NAME(where_positive)(VF gate, VF v)
{
    return NAME(select)(gate > 0, v, (VF){0});
}

static INLINE void NAME(bwd_sums_walk)(const struct bn_bwd_sums_job *j, int channel, bool counts, double *sum,
                                       double *sum_x, struct walk w, bool row, int lanes)
{
    const T *x = (const T *)j->x + w.at, *dy = (const T *)j->dy + w.at, *dy2 = j->dy2 ? (const T *)j->dy2 + w.at : NULL;
    const T *y = j->y ? (const T *)j->y + w.at : NULL;
    T *dz = j->dz ? (T *)j->dz + w.at : NULL;
    VF mean = NAME(coefficient)(j->mean + channel, row, lanes), scale = {0}, beta = {0};
    double row_sum[L] = {0}, row_sum_x[L] = {0};
    double *to = row ? row_sum : sum, *to_x = row ? row_sum_x : sum_x;
    const int count = !counts ? 0 : row ? L : lanes; /* missing lanes are 0 */
    if (j->beta) {
        scale = NAME(coefficient)(j->scale + channel, row, lanes);
        beta = NAME(coefficient)(j->beta + channel, row, lanes);
    }
    for (int p0 = 0; p0 < w.n; p0 += RUN) {
        int end = w.n - p0 < RUN ? w.n : p0 + RUN;
        VF s = {0}, t = {0};
        for (int p = p0; p < end; p++) {
            size_t o = (size_t)p * w.step;
            VF d = NAME(sum_dy)(dy, dy2, o, lanes), centred = NAME(load)(x + o, lanes) - mean;
            if (y)
                d = NAME(where_positive)(NAME(load)(y + o, lanes), d);
            else if (j->beta)
                d = NAME(where_positive)(NAME(rounded)(centred * scale + beta), d);
            if (dz)
                NAME(put)(dz + o, d, j->past, lanes);
            s += d;
            t += d * centred;
        }
        for (int i = 0; i < count; i++) {
            to[i] += s[i];
            to_x[i] += t[i];
        }
    }
    if (row && counts) {
        *sum += NAME(sum_lanes)(row_sum);
        *sum_x += NAME(sum_lanes)(row_sum_x);
    }
}

static void NAME(bn_bwd_sums)(const struct bn_bwd_sums_job *j, int threads)
{
    const struct view *v = &j->v;
    const struct pieces c = cut(v, threads);
    const int channels = view_channels(v);
    memset(j->partial, 0, sizeof(double) * 2 * (size_t)channels * (size_t)c.by_samples);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < c.by_samples * c.by_groups; item++) {
        const int part = item / c.by_groups, g0 = share(v->groups, item % c.by_groups, c.by_groups),
                  g1 = share(v->groups, item % c.by_groups + 1, c.by_groups);
        double *sum = j->partial + (size_t)part * 2 * channels, *sum_x = sum + channels;
        for (int n = share(v->n, part + 1, c.by_samples); n-- > share(v->n, part, c.by_samples);)
            for (int g = g0; g < g1 && (j->weights[n] != 0 || j->dz); g++) {
                const int channel = g * v->lanes;
                EACH_WALK(v, g, (size_t)n * v->sn + (size_t)g * v->sg, NAME(bwd_sums_walk), j, channel,
                          j->weights[n] != 0, sum + channel, sum_x + channel);
            }
    }
    combine(j->partial, c.by_samples, channels, j->sum, j->sum_x);
}

static INLINE void NAME(bwd_apply_walk)(const struct bn_bwd_apply_job *j, int channel, float weight, struct walk w,
                                        bool row, int lanes)
{
    const T *x = (const T *)j->x + w.at, *dy = (const T *)j->dy + w.at, *dy2 = j->dy2 ? (const T *)j->dy2 + w.at : NULL;
    const T *y = j->y ? (const T *)j->y + w.at : NULL;
    T *dx = (T *)j->dx + w.at;
    VF mean = NAME(coefficient)(j->mean + channel, row, lanes),
       scale = NAME(coefficient)(j->scale + channel, row, lanes);
    VF k1 = NAME(coefficient)(j->k1 + channel, row, lanes), k2 = NAME(coefficient)(j->k2 + channel, row, lanes);
    VF beta = {0};
    if (j->beta)
        beta = NAME(coefficient)(j->beta + channel, row, lanes);
    if (weight == 0) {
        for (int p = 0; p < w.n; p++)
            NAME(store)(dx + (size_t)p * w.step, (VF){0}, lanes);
        return;
    }
    for (int p = 0; p < w.n; p++) {
        size_t o = (size_t)p * w.step;
        VF d = NAME(sum_dy)(dy, dy2, o, lanes), centred = NAME(load)(x + o, lanes) - mean;
        if (y)
            d = NAME(where_positive)(NAME(load)(y + o, lanes), d);
        else if (j->beta)
            d = NAME(where_positive)(NAME(rounded)(centred * scale + beta), d);
        NAME(put)(dx + o, scale * (d - k1 - centred * k2), j->past, lanes);
    }
}

static void NAME(bn_bwd_apply)(const struct bn_bwd_apply_job *j, int threads)
{
    const struct view *v = &j->v;
    int items = v->n * v->groups;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < items; item++) {
        int n = item / v->groups, g = item % v->groups;
        EACH_WALK(v, g, (size_t)n * v->sn + (size_t)g * v->sg, NAME(bwd_apply_walk), j, g * v->lanes, j->weights[n]);
    }
}

#include "worker/device/cpu/kern_pool.h"

/* --- element by element */

static INLINE void NAME(add_piece)(const T *a, const T *b, T *y, bool relu, int lanes)
{
    VF r = NAME(load)(a, lanes);
    if (b)
        r = NAME(rounded)(r + NAME(load)(b, lanes));
    NAME(store)(y, relu ? NAME(relu)(r) : r, lanes);
}

static void NAME(add)(const T *a, const T *b, T *y, bool relu, size_t n, int threads)
{
    int64_t whole = (int64_t)(n / L);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < whole; i++)
        NAME(add_piece)(a + i * L, b ? b + i * L : NULL, y + i * L, relu, L);
    size_t at = (size_t)whole * L;
    if (at < n)
        NAME(add_piece)(a + at, b ? b + at : NULL, y + at, relu, (int)(n - at));
}

static INLINE void NAME(relu_bwd_piece)(const T *y, const T *dy, T *dx, int lanes)
{
    NAME(store)(dx, NAME(where_positive)(NAME(load)(y, lanes), NAME(load)(dy, lanes)), lanes);
}

static void NAME(relu_bwd)(const T *y, const T *dy, T *dx, size_t n, int threads)
{
    int64_t whole = (int64_t)(n / L);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < whole; i++)
        NAME(relu_bwd_piece)(y + i * L, dy + i * L, dx + i * L, L);
    size_t at = (size_t)whole * L;
    if (at < n)
        NAME(relu_bwd_piece)(y + at, dy + at, dx + at, (int)(n - at));
}

#undef VF
#undef VU
#undef VI
#undef VH
#undef VB
#undef EACH_WALK
#undef EACH_WIDTH
