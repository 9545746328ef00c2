/* Pooling, included by kern_body.h. */

static INLINE float NAME(load_one)(const T *p)
{
#if T_BF16
    return f32_from_bf16(*p);
#else
    return *p;
#endif
}

static INLINE VI NAME(lane_numbers)(void)
{
#if L == 16
    return (VI){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
    return (VI){0, 1, 2, 3, 4, 5, 6, 7};
#endif
}

/* Every other lane of a and then of b. */
static INLINE VF NAME(even_lanes)(VF a, VF b)
{
#if L == 16
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#else
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
#endif
}

static INLINE void NAME(store_row)(T *to, const float *from, int n)
{
    int i = 0;
    for (; i + L <= n; i += L)
        NAME(store)(to + i, NAME(loadf)(from + i, L), L);
    if (i < n)
        NAME(store)(to + i, NAME(loadf)(from + i, n - i), n - i);
}

static INLINE void NAME(maxpool_plane)(const struct pool_job *j, const T *x, T *y, uint8_t *index, int lanes)
{
    const struct view *vx = &j->vx, *vy = &j->vy;
    for (int oh = 0; oh < vy->h; oh++) {
        struct span r = window(oh, j->sh, j->ph, j->kh, vx->h);
        for (int ow = 0; ow < vy->w; ow++) {
            struct span c = window(ow, j->sw, j->pw, j->kw, vx->w);
            VF best = NAME(load)(x + ((size_t)r.first * vx->w + c.first) * vx->sp, lanes);
            VI won = (VI){0} + (r.skipped * j->kw + c.skipped);
            for (int ih = r.first; ih < r.end; ih++) {
                for (int iw = c.first; iw < c.end; iw++) {
                    VF v = NAME(load)(x + ((size_t)ih * vx->w + iw) * vx->sp, lanes);
                    VI greater =
                        (v > best) | ((v != v) & (best == best)); /* the first maximum in row order stays; NaN wins */
                    int k = (ih - r.first + r.skipped) * j->kw + iw - c.first + c.skipped;
                    best = NAME(select)(greater, v, best);
                    won = (greater & k) | (~greater & won);
                }
            }
            size_t o = (size_t)oh * vy->w + ow;
            NAME(store)(y + o * vy->sp, best, lanes);
            if (index) {
                VB b = __builtin_convertvector(won, VB);
                memcpy(index + o * vy->lanes, &b, (size_t)lanes);
            }
        }
    }
}

/* `n` lanes at most from elements that are `step` apart. */
static INLINE VF NAME(load_every)(const T *p, int step, int n)
{
    if (step == 1)
        return n < L ? NAME(load)(p, n) : NAME(load)(p, L);
    VF v = {0};
    if (step == 2) {
        const int span = 2 * n - 1; /* nothing behind the last one is read */
        const VF a = span < L ? NAME(load)(p, span) : NAME(load)(p, L), b = span > L ? NAME(load)(p + L, span - L) : v;
        return NAME(even_lanes)(a, b);
    }
    for (int i = 0; i < n; i++)
        v[i] = NAME(load_one)(p + (size_t)i * (size_t)step);
    return v;
}

/* Raise the maxima of `n` windows by one element of each, the k-th; they are `step` apart. What lies behind the n-th
 * stays, but is touched up to a whole vector. */
static INLINE void NAME(raise)(const T *x, float *best, int32_t *won, int n, int step, int k)
{
    for (int i = 0; i < n; i += L) {
        const int lanes = n - i < L ? n - i : L;
        const VF v = NAME(load_every)(x + (size_t)i * (size_t)step, step, lanes), b = NAME(loadf)(best + i, L);
        VI w;
        memcpy(&w, won + i, sizeof(w));
        const VI greater = ((v > b) | ((v != v) & (b == b))) & (NAME(lane_numbers)() < lanes);
        const VF higher = NAME(select)(greater, v, b);
        w = (greater & k) | (~greater & w);
        memcpy(best + i, &higher, sizeof(higher));
        memcpy(won + i, &w, sizeof(w));
    }
}

/* `n` windows of one row in a plain plane, the first at column `from`; best and won have room for a vector more. */
static INLINE void NAME(maxpool_windows)(const struct pool_job *j, const T *x, struct span r, int from, int n,
                                         float *best, int32_t *won)
{
    const int w = j->vx.w, sw = j->sw;
    for (int i = 0; i < n + L; i++) {
        best[i] = -INFINITY;
        const int left = j->pw - (from + i) * sw; /* in the padding */
        won[i] = r.skipped * j->kw + (left > 0 ? left : 0);
    }
    for (int ih = r.first; ih < r.end; ih++)
        for (int kw = 0; kw < j->kw; kw++) {
            const int shift = kw - j->pw, k = (ih - r.first + r.skipped) * j->kw + kw;
            const int all =
                shift >= w ? 0 : (w - 1 - shift) / sw + 1; /* windows before those that end in the padding */
            int lo = shift < 0 ? (sw - 1 - shift) / sw : 0, hi = all < from + n ? all : from + n;
            lo = lo > from ? lo : from;
            const T *at = x + ((ptrdiff_t)ih * w + (ptrdiff_t)lo * sw + shift);
            if (sw == 1)
                NAME(raise)(at, best + lo - from, won + lo - from, hi - lo, 1, k);
            else if (sw == 2)
                NAME(raise)(at, best + lo - from, won + lo - from, hi - lo, 2, k);
            else
                NAME(raise)(at, best + lo - from, won + lo - from, hi - lo, sw, k);
        }
}

static void NAME(maxpool_rows)(const struct pool_job *j, const T *x, T *y, uint8_t *index)
{
    enum { CHUNK = 4 * L };
    const struct view *vx = &j->vx, *vy = &j->vy;
    float best[CHUNK + L];
    int32_t won[CHUNK + L];
    for (int oh = 0; oh < vy->h; oh++) {
        const struct span r = window(oh, j->sh, j->ph, j->kh, vx->h);
        for (int from = 0; from < vy->w; from += CHUNK) {
            const int n = vy->w - from < CHUNK ? vy->w - from : CHUNK;
            const size_t o = (size_t)oh * vy->w + from;
            NAME(maxpool_windows)(j, x, r, from, n, best, won);
            NAME(store_row)(y + o, best, n);
            for (int i = 0; index && i < n; i++)
                index[o + i] = (uint8_t)won[i];
        }
    }
}

static void NAME(maxpool)(const struct pool_job *j, int threads)
{
    const struct view *vx = &j->vx, *vy = &j->vy;
    int items = vx->n * vx->groups;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < items; item++) {
        int n = item / vx->groups, g = item % vx->groups;
        const T *x = (const T *)j->x + (size_t)n * vx->sn + (size_t)g * vx->sg;
        T *y = (T *)j->y + (size_t)n * vy->sn + (size_t)g * vy->sg;
        uint8_t *index = j->index ? j->index + (size_t)item * vy->hw * vy->lanes : NULL;
        if (view_is_plain(vx))
            NAME(maxpool_rows)(j, x, y, index);
        else
            EACH_WIDTH(vx, g, NAME(maxpool_plane), j, x, y, index);
    }
}

static INLINE void NAME(maxpool_bwd_plane)(const struct pool_job *j, const T *dy, T *dx, const uint8_t *index,
                                           float *plane, int lanes)
{
    const struct view *vx = &j->vx, *vy = &j->vy;
    memset(plane, 0, sizeof(float) * (size_t)vx->hw * L);
    for (int oh = 0; oh < vy->h; oh++) {
        struct span r = window(oh, j->sh, j->ph, j->kh, vx->h);
        for (int ow = 0; ow < vy->w; ow++) {
            struct span c = window(ow, j->sw, j->pw, j->kw, vx->w);
            size_t o = (size_t)oh * vy->w + ow;
            VF d = NAME(load)(dy + o * vy->sp, lanes);
            VB b = {0};
            memcpy(&b, index + o * vy->lanes, (size_t)lanes);
            VI won = NAME(widened_bytes)(b);
            for (int ih = r.first; ih < r.end; ih++) {
                for (int iw = c.first; iw < c.end; iw++) {
                    int k = (ih - r.first + r.skipped) * j->kw + iw - c.first + c.skipped;
                    float *at = plane + ((size_t)ih * vx->w + iw) * L;
                    VF sum;
                    memcpy(&sum, at, sizeof(sum));
                    sum += NAME(select)(won == k, d, (VF){0});
                    memcpy(at, &sum, sizeof(sum));
                }
            }
        }
    }
    for (int p = 0; p < vx->hw; p++) {
        VF sum;
        memcpy(&sum, plane + (size_t)p * L, sizeof(sum));
        NAME(store)(dx + (size_t)p * vx->sp, sum, lanes);
    }
}

/* offset: from the first element of a window to the k-th */
static void NAME(maxpool_bwd_rows)(const struct pool_job *j, const T *dy, T *dx, const uint8_t *index,
                                   const int offset[256], float *plane)
{
    const struct view *vx = &j->vx, *vy = &j->vy;
    memset(plane, 0, sizeof(float) * (size_t)vx->hw);
    for (int oh = 0; oh < vy->h; oh++)
        for (int ow = 0; ow < vy->w; ow++) {
            const int o = oh * vy->w + ow;
            const int at = (oh * j->sh - j->ph) * vx->w + ow * j->sw - j->pw + offset[index[o]];
            if (at >= 0 && at < vx->hw) /* wherever it is not, forward had another window */
                plane[at] += NAME(load_one)(dy + o);
        }
    NAME(store_row)(dx, plane, vx->hw);
}

static void NAME(maxpool_bwd)(const struct pool_job *j, int threads)
{
    const struct view *vx = &j->vx, *vy = &j->vy;
    int items = vx->n * vx->groups, offset[256] = {0};
    for (int k = 0; k < j->kh * j->kw; k++)
        offset[k] = k / j->kw * vx->w + k % j->kw;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < items; item++) {
        int n = item / vx->groups, g = item % vx->groups;
        T *dx = (T *)j->dx + (size_t)n * vx->sn + (size_t)g * vx->sg;
        const T *dy = (const T *)j->dy + (size_t)n * vy->sn + (size_t)g * vy->sg;
        const uint8_t *index = j->index + (size_t)item * vy->hw * vy->lanes;
        float *plane = j->plane + (size_t)omp_get_thread_num() * vx->hw * LANES_MAX;
        if (view_is_plain(vx))
            NAME(maxpool_bwd_rows)(j, dy, dx, index, offset, plane);
        else
            EACH_WIDTH(vx, g, NAME(maxpool_bwd_plane), j, dy, dx, index, plane);
    }
}

static INLINE void NAME(avgpool_plane)(const T *x, T *y, const struct view *v, int channels, int lanes)
{
    VF total = {0};
    for (int p0 = 0; p0 < v->hw; p0 += RUN) {
        int end = v->hw - p0 < RUN ? v->hw : p0 + RUN;
        VF s = {0};
        for (int p = p0; p < end; p++)
            s += NAME(load)(x + (size_t)p * v->sp, lanes);
        total += s;
    }
    NAME(store)(y, total / (float)v->hw, lanes < channels ? lanes : channels);
}

static INLINE void NAME(avgpool_row)(const T *x, T *y, int hw)
{
    double total[L] = {0};
    for (int p0 = 0; p0 < hw; p0 += RUN * L) {
        const int end = hw - p0 < RUN * L ? hw : p0 + RUN * L;
        int p = p0;
        VF s = {0};
        for (; p + L <= end; p += L)
            s += NAME(load)(x + p, L);
        if (p < end)
            s += NAME(load)(x + p, end - p);
        for (int i = 0; i < L; i++)
            total[i] += s[i];
    }
    NAME(store)(y, (VF){0} + (float)(NAME(sum_lanes)(total) / hw), 1);
}

static void NAME(avgpool)(const struct pool_job *j, int threads)
{
    const struct view *v = &j->vx;
    int items = v->n * v->groups;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < items; item++) {
        int n = item / v->groups, g = item % v->groups;
        const T *x = (const T *)j->x + (size_t)n * v->sn + (size_t)g * v->sg;
        T *y = (T *)j->y + (size_t)n * v->c + (size_t)g * v->lanes;
        if (view_is_plain(v))
            NAME(avgpool_row)(x, y, v->hw);
        else
            EACH_WIDTH(v, g, NAME(avgpool_plane), x, y, v, v->c - g * v->lanes);
    }
}

static INLINE void NAME(avgpool_bwd_walk)(const T *dy, T *dx, int hw, int channels, struct walk w, bool row, int lanes)
{
    const int there = lanes < channels ? lanes : channels;
    VF d = (row ? (VF){0} + NAME(load_one)(dy) : NAME(load)(dy, there)) / (float)hw;
    for (int p = 0; p < w.n; p++)
        NAME(store)(dx + w.at + (size_t)p * w.step, d, lanes);
}

static void NAME(avgpool_bwd)(const struct pool_job *j, int threads)
{
    const struct view *v = &j->vx;
    int items = v->n * v->groups;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < items; item++) {
        int n = item / v->groups, g = item % v->groups;
        const T *dy = (const T *)j->dy + (size_t)n * v->c + (size_t)g * v->lanes;
        EACH_WALK(v, g, (size_t)n * v->sn + (size_t)g * v->sg, NAME(avgpool_bwd_walk), dy, j->dx, v->hw,
                  v->c - g * v->lanes);
    }
}
