/* Batch normalisation backward, included by kern_body.h; walks and rows as in kern_bn.h. */

static INLINE void NAME(add_sums)(VF s, VF t, int count, double *sum, double *sum_x)
{
    for (int i = 0; i < count; i++) {
        sum[i] += s[i];
        sum_x[i] += t[i];
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
