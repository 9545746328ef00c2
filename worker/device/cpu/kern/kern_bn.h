/* Batch normalisation, included by kern_body.h.
 *
 * Where the pixels of a group are adjacent (blocks, plain NCHW) a pass takes group after group: walks. In NHWC the
 * groups of a pixel are adjacent and share cache lines, so a pass takes pixel after pixel: rows. Their sums stay in
 * arrays of vectors, one for each group, until a run of pixels ends. */

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

/* Add the sums of a run of len pixels: squares about 0 = squares about m + 2 m sum - len m^2, in double. */
static INLINE void NAME(add_stats)(VF s, VF q, int len, int count, double *sum, double *squares)
{
    for (int i = 0; i < count; i++) {
        double sd = s[i], m = s[i] / (float)len;
        sum[i] += sd;
        squares[i] += q[i] + m * (2 * sd - len * m);
    }
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
        NAME(add_stats)(s, q, len, count, to, to_squares);
    }
    if (row) {
        *sum += NAME(sum_lanes)(row_sum);
        *squares += NAME(sum_lanes)(row_squares);
    }
}

static INLINE void NAME(stats_sum)(const T *x, size_t step, VF *sum, int p, int pixels, int g, int lanes)
{
    VF s = sum[g];
    for (int i = p; i < p + pixels; i++)
        s += NAME(load)(x + (size_t)i * step + (size_t)g * L, lanes);
    sum[g] = s;
}

static INLINE void NAME(stats_squares)(const T *x, size_t step, const VF *mean, VF *squares, int p, int pixels, int g,
                                       int lanes)
{
    VF q = squares[g];
    for (int i = p; i < p + pixels; i++) {
        const VF a = NAME(load)(x + (size_t)i * step + (size_t)g * L, lanes) - mean[g];
        q += a * a;
    }
    squares[g] = q;
}

/* Of one sample. */
static void NAME(stats_rows)(const T *x, const struct view *v, struct row r, double *sum, double *squares)
{
    VF s[ROW], mean[ROW], q[ROW];
    const int groups = r.whole + (r.rest > 0);
    for (int p0 = 0; p0 < v->hw; p0 += RUN) {
        const int end = v->hw - p0 < RUN ? v->hw : p0 + RUN;
        for (int g = 0; g < groups; g++)
            s[g] = q[g] = (VF){0};
        EACH_ROW(r, p0, end, 4, NAME(stats_sum), x, v->sp, s);
        for (int g = 0; g < groups; g++)
            mean[g] = s[g] / (float)(end - p0);
        EACH_ROW(r, p0, end, 4, NAME(stats_squares), x, v->sp, mean, q);
        for (int g = 0; g < groups; g++)
            NAME(add_stats)(s[g], q[g], end - p0, L, sum + g * L, squares + g * L);
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
        for (int n = share(v->n, part + 1, c.by_samples); n-- > share(v->n, part, c.by_samples);) {
            if (j->weights[n] == 0)
                continue;
            const size_t at = (size_t)n * v->sn;
            for (int g = g0; view_is_nhwc(v) && g < g1; g += ROW)
                NAME(stats_rows)
            ((const T *)j->x + at + (size_t)g * v->sg, v, row_of(v, g, g + ROW < g1 ? g + ROW : g1), sum + g * L,
             squares + g * L);
            for (int g = g0; !view_is_nhwc(v) && g < g1; g++)
                EACH_WALK(v, g, at + (size_t)g * v->sg, NAME(stats_walk), j->x, sum + g * v->lanes,
                          squares + g * v->lanes);
        }
    }
    combine(j->partial, c.by_samples, channels, j->sum, j->squares);
}

/* Not rounded yet: put() does that, and ReLU before it or after gives the same bits. */
static INLINE VF NAME(applied)(const struct bn_apply_job *j, size_t o, VF mean, VF scale, VF beta, int lanes)
{
    VF r = (NAME(load)((const T *)j->x + o, lanes) - mean) * scale + beta;
    if (j->add)
        r = NAME(rounded)(r) + NAME(load)((const T *)j->add + o, lanes);
    return j->relu ? NAME(relu)(r) : r;
}

static INLINE void NAME(apply_walk)(const struct bn_apply_job *j, int channel, struct walk w, bool row, int lanes)
{
    VF mean = NAME(coefficient)(j->mean + channel, row, lanes),
       scale = NAME(coefficient)(j->scale + channel, row, lanes);
    VF beta = NAME(coefficient)(j->beta + channel, row, lanes);
    for (int p = 0; p < w.n; p++) {
        const size_t o = w.at + (size_t)p * w.step;
        NAME(put)((T *)j->y + o, NAME(applied)(j, o, mean, scale, beta, lanes), j->past, lanes);
    }
}

static INLINE void NAME(apply_group)(const struct bn_apply_job *j, size_t at, int p, int pixels, int g, int lanes)
{
    const VF mean = NAME(loadf)(j->mean + g * L, lanes), scale = NAME(loadf)(j->scale + g * L, lanes),
             beta = NAME(loadf)(j->beta + g * L, lanes);
    for (int i = p; i < p + pixels; i++) {
        const size_t o = at + (size_t)i * j->v.sp + (size_t)g * L;
        NAME(put)((T *)j->y + o, NAME(applied)(j, o, mean, scale, beta, lanes), j->past, lanes);
    }
}

static void NAME(bn_apply)(const struct bn_apply_job *j, int threads)
{
    const struct view *v = &j->v;
    const int parts = parts_of(v, threads);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < v->n * parts; item++) {
        const int n = item / parts, part = item % parts;
        const size_t at = (size_t)n * v->sn;
        if (!view_is_nhwc(v)) {
            EACH_WALK(v, part, at + (size_t)part * v->sg, NAME(apply_walk), j, part * v->lanes);
            continue;
        }
        const struct row r = row_of(v, 0, v->groups);
        const int first = share(v->hw, part, parts), end = share(v->hw, part + 1, parts);
        EACH_ROW(r, first, end, 4, NAME(apply_group), j, at);
    }
}
