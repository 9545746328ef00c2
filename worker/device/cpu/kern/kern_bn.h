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

static INLINE void NAME(add_sums)(VF s, VF t, int count, double *sum, double *sum_x)
{
    for (int i = 0; i < count; i++) {
        sum[i] += s[i];
        sum_x[i] += t[i];
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

/* What dz follows from. by_x: where the ReLU passed is told by x, with scale and beta, not by y. */
struct NAME(upstream) {
    const T *x, *dy, *dy2, *y;
    bool by_x;
};

/* dy [+ dy2], rounded as a sum that is kept; 0 where the ReLU did not pass. */
static INLINE VF NAME(dz_at)(const struct NAME(upstream) * u, size_t o, VF centred, VF scale, VF beta, int lanes)
{
    VF d = NAME(load)(u->dy + o, lanes);
    if (u->dy2)
        d = NAME(rounded)(d + NAME(load)(u->dy2 + o, lanes));
    if (u->y)
        return NAME(where_positive)(NAME(load)(u->y + o, lanes), d);
    return u->by_x ? NAME(where_rounded_is_positive)(centred * scale + beta, d) : d;
}

static INLINE void NAME(bwd_sums_walk)(const struct bn_bwd_sums_job *j, int channel, bool counts, double *sum,
                                       double *sum_x, struct walk w, bool row, int lanes)
{
    const struct NAME(upstream) u = {j->x, j->dy, j->dy2, j->y, j->beta};
    VF mean = NAME(coefficient)(j->mean + channel, row, lanes), scale = {0}, beta = {0};
    double row_sum[L] = {0}, row_sum_x[L] = {0};
    const int count = !counts ? 0 : row ? L : lanes; /* missing lanes are 0 */
    if (u.by_x) {
        scale = NAME(coefficient)(j->scale + channel, row, lanes);
        beta = NAME(coefficient)(j->beta + channel, row, lanes);
    }
    for (int p0 = 0; p0 < w.n; p0 += RUN) {
        int end = w.n - p0 < RUN ? w.n : p0 + RUN;
        VF s = {0}, t = {0};
        for (int p = p0; p < end; p++) {
            const size_t o = w.at + (size_t)p * w.step;
            const VF centred = NAME(load)(u.x + o, lanes) - mean, d = NAME(dz_at)(&u, o, centred, scale, beta, lanes);
            if (j->dz)
                NAME(put)((T *)j->dz + o, d, j->past, lanes);
            s += d;
            t += d * centred;
        }
        NAME(add_sums)(s, t, count, row ? row_sum : sum, row ? row_sum_x : sum_x);
    }
    if (row && counts) {
        *sum += NAME(sum_lanes)(row_sum);
        *sum_x += NAME(sum_lanes)(row_sum_x);
    }
}

static INLINE void NAME(bwd_sums_group)(const struct bn_bwd_sums_job *j, const struct NAME(upstream) * u, size_t at,
                                        int channel, VF *sum, VF *sum_x, int p, int pixels, int g, int lanes)
{
    const int c = channel + g * L;
    const VF mean = NAME(loadf)(j->mean + c, lanes), scale = u->by_x ? NAME(loadf)(j->scale + c, lanes) : (VF){0},
             beta = u->by_x ? NAME(loadf)(j->beta + c, lanes) : (VF){0};
    VF s = sum[g], t = sum_x[g];
    for (int i = p; i < p + pixels; i++) {
        const size_t o = at + (size_t)i * j->v.sp + (size_t)c;
        const VF centred = NAME(load)(u->x + o, lanes) - mean, d = NAME(dz_at)(u, o, centred, scale, beta, lanes);
        if (j->dz)
            NAME(put)((T *)j->dz + o, d, j->past, lanes);
        s += d;
        t += d * centred;
    }
    sum[g] = s;
    sum_x[g] = t;
}

/* Of one sample, which begins at element `at`, from a channel on. */
static void NAME(bwd_sums_rows)(const struct bn_bwd_sums_job *j, size_t at, int channel, bool counts, struct row r,
                                double *sum, double *sum_x)
{
    const struct NAME(upstream) u = {j->x, j->dy, j->dy2, j->y, j->beta};
    const int groups = r.whole + (r.rest > 0), hw = j->v.hw;
    VF s[ROW], t[ROW];
    for (int p0 = 0; p0 < hw; p0 += RUN) {
        const int end = hw - p0 < RUN ? hw : p0 + RUN;
        for (int g = 0; g < groups; g++)
            s[g] = t[g] = (VF){0};
        if (j->dz) /* with five tensors at once pixel by pixel is faster */
            EACH_ROW(r, p0, end, 1, NAME(bwd_sums_group), j, &u, at, channel, s, t);
        else
            EACH_ROW(r, p0, end, 4, NAME(bwd_sums_group), j, &u, at, channel, s, t);
        for (int g = 0; counts && g < groups; g++)
            NAME(add_sums)(s[g], t[g], L, sum + g * L, sum_x + g * L);
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
        for (int n = share(v->n, part + 1, c.by_samples); n-- > share(v->n, part, c.by_samples);) {
            const bool counts = j->weights[n] != 0;
            const size_t at = (size_t)n * v->sn;
            if (!counts && !j->dz)
                continue;
            for (int g = g0; view_is_nhwc(v) && g < g1; g += ROW)
                NAME(bwd_sums_rows)
            (j, at, g * L, counts, row_of(v, g, g + ROW < g1 ? g + ROW : g1), sum + g * L, sum_x + g * L);
            for (int g = g0; !view_is_nhwc(v) && g < g1; g++)
                EACH_WALK(v, g, at + (size_t)g * v->sg, NAME(bwd_sums_walk), j, g * v->lanes, counts,
                          sum + g * v->lanes, sum_x + g * v->lanes);
        }
    }
    combine(j->partial, c.by_samples, channels, j->sum, j->sum_x);
}

/* Coefficients of a vector of channels. */
struct NAME(bwd_apply) {
    VF mean, scale, beta, k1, k2;
};

static INLINE void NAME(bwd_apply_at)(const struct bn_bwd_apply_job *j, const struct NAME(bwd_apply) * k, size_t o,
                                      int lanes)
{
    const struct NAME(upstream) u = {j->x, j->dy, j->dy2, j->y, j->beta};
    const VF centred = NAME(load)(u.x + o, lanes) - k->mean, d = NAME(dz_at)(&u, o, centred, k->scale, k->beta, lanes);
    NAME(put)((T *)j->dx + o, k->scale * (d - k->k1 - centred * k->k2), j->past, lanes);
}

static INLINE struct NAME(bwd_apply)
    NAME(bwd_coefficients)(const struct bn_bwd_apply_job *j, int c, bool row, int lanes)
{
    return (struct NAME(bwd_apply)){NAME(coefficient)(j->mean + c, row, lanes),
                                    NAME(coefficient)(j->scale + c, row, lanes),
                                    j->beta ? NAME(coefficient)(j->beta + c, row, lanes) : (VF){0},
                                    NAME(coefficient)(j->k1 + c, row, lanes), NAME(coefficient)(j->k2 + c, row, lanes)};
}

static INLINE void NAME(bwd_apply_walk)(const struct bn_bwd_apply_job *j, int channel, float weight, struct walk w,
                                        bool row, int lanes)
{
    const struct NAME(bwd_apply) k = NAME(bwd_coefficients)(j, channel, row, lanes);
    for (int p = 0; p < w.n; p++) {
        const size_t o = w.at + (size_t)p * w.step;
        if (weight == 0)
            NAME(store)((T *)j->dx + o, (VF){0}, lanes);
        else
            NAME(bwd_apply_at)(j, &k, o, lanes);
    }
}

static INLINE void NAME(bwd_apply_group)(const struct bn_bwd_apply_job *j, size_t at, int p, int pixels, int g,
                                         int lanes)
{
    const struct NAME(bwd_apply) k = NAME(bwd_coefficients)(j, g * L, false, lanes);
    for (int i = p; i < p + pixels; i++)
        NAME(bwd_apply_at)(j, &k, at + (size_t)i * j->v.sp + (size_t)g * L, lanes);
}

static void NAME(bn_bwd_apply)(const struct bn_bwd_apply_job *j, int threads)
{
    const struct view *v = &j->v;
    const int parts = parts_of(v, threads);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < v->n * parts; item++) {
        const int n = item / parts, part = item % parts;
        const size_t at = (size_t)n * v->sn;
        if (!view_is_nhwc(v)) {
            EACH_WALK(v, part, at + (size_t)part * v->sg, NAME(bwd_apply_walk), j, part * v->lanes, j->weights[n]);
            continue;
        }
        const struct row r = row_of(v, 0, v->groups);
        const int first = share(v->hw, part, parts), end = share(v->hw, part + 1, parts);
        if (j->weights[n] == 0)
            memset((T *)j->dx + at + (size_t)first * v->sp, 0, sizeof(T) * (size_t)(end - first) * v->sp);
        else
            EACH_ROW(r, first, end, 4, NAME(bwd_apply_group), j, at);
    }
}
