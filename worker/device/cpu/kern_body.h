/* Kernels over one storage type and one vector width, included by kern_isa.c with
 *   T      element type in memory      ROUND  1, 2: round to bf16, fp16 at every store      L  lanes of a vector: 8 or 16
 *   NAME(x) gives each function its own name.
 * Groups with all their lanes take the path where `lanes` is a constant; the rest (odd channel counts, plain layouts, ends of
 * NHWC pixels) goes element by element. */

typedef float NAME(vf) __attribute__((vector_size(4 * L)));
typedef uint32_t NAME(vu) __attribute__((vector_size(4 * L)));
typedef int32_t NAME(vi) __attribute__((vector_size(4 * L)));
typedef uint16_t NAME(vh) __attribute__((vector_size(2 * L)));
typedef uint8_t NAME(vb) __attribute__((vector_size(L)));
#define VF NAME(vf)
#define VU NAME(vu)
#define VI NAME(vi)
#define VH NAME(vh)
#define VB NAME(vb)

static INLINE VF NAME(select)(VI mask, VF a, VF b)
{
    return (VF)(((VI)a & mask) | ((VI)b & ~mask));
}

static INLINE VU NAME(bf16_bits)(VF v) /* upper half of every lane: the nearest bf16 */
{
    VU u = (VU)v;
    VU nan = (VU)(v != v);
    VU rounded = u + 0x7fffu + ((u >> 16) & 1u);
    return (((u | 0x400000u) & nan) | (rounded & ~nan)) & 0xffff0000u;
}

#if ROUND == 2
/* Every lane the nearest fp16. A subnormal one is a multiple of 2^-24, the ulp of 0.5. */
static INLINE VU NAME(f16_bits)(VF v)
{
    VU u = (VU)v, a = u & 0x7fffffffu;
    VI tiny = (VI)a<0x38800000, large = (VI)a >= 0x477ff000, nan = (VI)a> 0x7f800000;
    VF small = ((VF)a + 0.5f) - 0.5f;
    VU r = (a + 0xfffu + ((a >> 13) & 1u)) & ~0x1fffu;
    r = ((VU)small & (VU)tiny) | (r & ~(VU)tiny);
    r = (((VU){0} + 0x7f800000u) & (VU)large) | (r & ~(VU)large);
    r = (((a | 0x400000u) & (VU)nan) | (r & ~(VU)nan));
    return r | (u & 0x80000000u);
}
#endif

static INLINE VF NAME(load)(const T *p, int lanes)
{
    if (lanes == L) {
#if T_BF16
        VH h;
        memcpy(&h, p, sizeof(h));
        return (VF)(__builtin_convertvector(h, VU) << 16);
#else
        VF v;
        memcpy(&v, p, sizeof(v));
        return v;
#endif
    }
    VF v = {0};
    for (int i = 0; i < lanes; i++)
#if T_BF16
        v[i] = f32_from_bf16(p[i]);
#else
        v[i] = p[i];
#endif
    return v;
}

static INLINE VF NAME(rounded)(VF v) /* what load() will give back after store() */
{
#if ROUND == 2
    return (VF)NAME(f16_bits)(v);
#elif T_BF16 && HARDWARE_BF16 && L == 16
    VH h = (VH)_mm512_cvtneps_pbh((__m512)v);
    return (VF)(__builtin_convertvector(h, VU) << 16);
#elif T_BF16 || ROUND
    return (VF)NAME(bf16_bits)(v);
#else
    return v;
#endif
}

#if T_BF16
static INLINE VH NAME(bf16_of)(VF v)
{
#if HARDWARE_BF16 && L == 16
    return (VH)_mm512_cvtneps_pbh((__m512)v);
#else
    return __builtin_convertvector(NAME(bf16_bits)(v) >> 16, VH);
#endif
}
#endif

static INLINE void NAME(store)(T *p, VF v, int lanes)
{
#if T_BF16
    VH h = NAME(bf16_of)(v);
    if (lanes == L) {
        memcpy(p, &h, sizeof(h));
        return;
    }
    for (int i = 0; i < lanes; i++)
        p[i] = h[i];
#else
    v = NAME(rounded)(v);
    if (lanes == L) {
        memcpy(p, &v, sizeof(v));
        return;
    }
    for (int i = 0; i < lanes; i++)
        p[i] = v[i];
#endif
}

/* Past the caches, for what is too large to be found there again. p is aligned to a whole vector. */
static INLINE void NAME(stream)(T *p, VF v)
{
#if T_BF16
    VH h = NAME(bf16_of)(v);
    stream_bytes(p, &h, sizeof h);
#else
    v = NAME(rounded)(v);
    stream_bytes(p, &v, sizeof v);
#endif
}

static INLINE void NAME(put)(T *p, VF v, bool past, int lanes)
{
    if (past && lanes == L)
        NAME(stream)(p, v);
    else
        NAME(store)(p, v, lanes);
}

static INLINE VF NAME(loadf)(const float *p, int lanes)
{
    VF v = {0};
    if (lanes == L)
        memcpy(&v, p, sizeof(v));
    else
        for (int i = 0; i < lanes; i++)
            v[i] = p[i];
    return v;
}

static INLINE VF NAME(relu)(VF v) /* NaN stays NaN */
{
    return NAME(select)(v <= 0, (VF){0}, v);
}

/* Call f(..., lanes) for group g with a constant where all lanes are there. */
#define EACH_WIDTH(v, g, f, ...)                                                                                       \
    do {                                                                                                               \
        int lanes_ = (g) == (v)->groups - 1 ? (v)->last_lanes : (v)->lanes;                                            \
        if (lanes_ == L)                                                                                               \
            f(__VA_ARGS__, L);                                                                                         \
        else                                                                                                           \
            f(__VA_ARGS__, lanes_);                                                                                    \
    } while (0)

/* --- batch normalisation */

static INLINE void NAME(stats_plane)(const T *x, size_t sp, int hw, double *sum, double *squares, int lanes)
{
    for (int p0 = 0; p0 < hw; p0 += RUN) {
        int len = hw - p0 < RUN ? hw - p0 : RUN;
        const T *run = x + (size_t)p0 * sp;
        VF s0 = {0}, s1 = {0}, q0 = {0}, q1 = {0};
        int p = 0;
        for (; p + 1 < len; p += 2) {
            s0 += NAME(load)(run + (size_t)p * sp, lanes);
            s1 += NAME(load)(run + (size_t)(p + 1) * sp, lanes);
        }
        if (p < len)
            s0 += NAME(load)(run + (size_t)p * sp, lanes);
        VF s = s0 + s1, mean = s / (float)len;
        for (p = 0; p + 1 < len; p += 2) {
            VF a = NAME(load)(run + (size_t)p * sp, lanes) - mean,
               b = NAME(load)(run + (size_t)(p + 1) * sp, lanes) - mean;
            q0 += a * a;
            q1 += b * b;
        }
        if (p < len) {
            VF a = NAME(load)(run + (size_t)p * sp, lanes) - mean;
            q0 += a * a;
        }
        VF q = q0 + q1;
        for (int i = 0; i < lanes; i++) { /* squares about 0 = squares about m + 2 m sum - len m^2, in double */
            double m = mean[i], sd = s[i];
            sum[i] += sd;
            squares[i] += q[i] + m * (2 * sd - len * m);
        }
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
                const T *x = (const T *)j->x + (size_t)n * v->sn + (size_t)g * v->sg;
                const int channel = g * v->lanes;
                EACH_WIDTH(v, g, NAME(stats_plane), x, v->sp, v->hw, sum + channel, squares + channel);
            }
    }
    combine(j->partial, c.by_samples, channels, j->sum, j->squares);
}

static INLINE void NAME(apply_plane)(const struct bn_apply_job *j, size_t at, int channel, int lanes)
{
    const struct view *v = &j->v;
    const T *x = (const T *)j->x + at, *add = j->add ? (const T *)j->add + at : NULL;
    T *y = (T *)j->y + at;
    VF mean = NAME(loadf)(j->mean + channel, lanes), scale = NAME(loadf)(j->scale + channel, lanes);
    VF beta = NAME(loadf)(j->beta + channel, lanes);
    for (int p = 0; p < v->hw; p++) {
        size_t o = (size_t)p * v->sp;
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
        EACH_WIDTH(v, g, NAME(apply_plane), j, (size_t)n * v->sn + (size_t)g * v->sg, g * v->lanes);
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

static INLINE void NAME(bwd_sums_plane)(const struct bn_bwd_sums_job *j, size_t at, int channel, bool counts,
                                        double *sum, double *sum_x, int lanes)
{
    const struct view *v = &j->v;
    const T *x = (const T *)j->x + at, *dy = (const T *)j->dy + at, *dy2 = j->dy2 ? (const T *)j->dy2 + at : NULL;
    const T *y = j->y ? (const T *)j->y + at : NULL;
    T *dz = j->dz ? (T *)j->dz + at : NULL;
    VF mean = NAME(loadf)(j->mean + channel, lanes), scale = {0}, beta = {0};
    if (j->beta) {
        scale = NAME(loadf)(j->scale + channel, lanes);
        beta = NAME(loadf)(j->beta + channel, lanes);
    }
    for (int p0 = 0; p0 < v->hw; p0 += RUN) {
        int end = v->hw - p0 < RUN ? v->hw : p0 + RUN;
        VF s = {0}, t = {0};
        for (int p = p0; p < end; p++) {
            size_t o = (size_t)p * v->sp;
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
        for (int i = 0; i < lanes && counts; i++) {
            sum[i] += s[i];
            sum_x[i] += t[i];
        }
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
                EACH_WIDTH(v, g, NAME(bwd_sums_plane), j, (size_t)n * v->sn + (size_t)g * v->sg, channel,
                           j->weights[n] != 0, sum + channel, sum_x + channel);
            }
    }
    combine(j->partial, c.by_samples, channels, j->sum, j->sum_x);
}

static INLINE void NAME(bwd_apply_plane)(const struct bn_bwd_apply_job *j, size_t at, int channel, float weight,
                                         int lanes)
{
    const struct view *v = &j->v;
    const T *x = (const T *)j->x + at, *dy = (const T *)j->dy + at, *dy2 = j->dy2 ? (const T *)j->dy2 + at : NULL;
    const T *y = j->y ? (const T *)j->y + at : NULL;
    T *dx = (T *)j->dx + at;
    VF mean = NAME(loadf)(j->mean + channel, lanes), scale = NAME(loadf)(j->scale + channel, lanes);
    VF k1 = NAME(loadf)(j->k1 + channel, lanes), k2 = NAME(loadf)(j->k2 + channel, lanes), beta = {0};
    if (j->beta)
        beta = NAME(loadf)(j->beta + channel, lanes);
    if (weight == 0) {
        for (int p = 0; p < v->hw; p++)
            NAME(store)(dx + (size_t)p * v->sp, (VF){0}, lanes);
        return;
    }
    for (int p = 0; p < v->hw; p++) {
        size_t o = (size_t)p * v->sp;
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
        EACH_WIDTH(v, g, NAME(bwd_apply_plane), j, (size_t)n * v->sn + (size_t)g * v->sg, g * v->lanes, j->weights[n]);
    }
}

/* --- pooling */

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
            VI won = __builtin_convertvector(b, VI);
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

static void NAME(maxpool_bwd)(const struct pool_job *j, int threads)
{
    const struct view *vx = &j->vx, *vy = &j->vy;
    int items = vx->n * vx->groups;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < items; item++) {
        int n = item / vx->groups, g = item % vx->groups;
        T *dx = (T *)j->dx + (size_t)n * vx->sn + (size_t)g * vx->sg;
        const T *dy = (const T *)j->dy + (size_t)n * vy->sn + (size_t)g * vy->sg;
        const uint8_t *index = j->index + (size_t)item * vy->hw * vy->lanes;
        float *plane = j->plane + (size_t)omp_get_thread_num() * vx->hw * LANES_MAX;
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

static void NAME(avgpool)(const struct pool_job *j, int threads)
{
    const struct view *v = &j->vx;
    int items = v->n * v->groups;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < items; item++) {
        int n = item / v->groups, g = item % v->groups;
        const T *x = (const T *)j->x + (size_t)n * v->sn + (size_t)g * v->sg;
        T *y = (T *)j->y + (size_t)n * v->c + (size_t)g * v->lanes;
        EACH_WIDTH(v, g, NAME(avgpool_plane), x, y, v, v->c - g * v->lanes);
    }
}

static INLINE void NAME(avgpool_bwd_plane)(const T *dy, T *dx, const struct view *v, int channels, int lanes)
{
    VF d = NAME(load)(dy, lanes < channels ? lanes : channels) / (float)v->hw;
    for (int p = 0; p < v->hw; p++)
        NAME(store)(dx + (size_t)p * v->sp, d, lanes);
}

static void NAME(avgpool_bwd)(const struct pool_job *j, int threads)
{
    const struct view *v = &j->vx;
    int items = v->n * v->groups;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int item = 0; item < items; item++) {
        int n = item / v->groups, g = item % v->groups;
        const T *dy = (const T *)j->dy + (size_t)n * v->c + (size_t)g * v->lanes;
        T *dx = (T *)j->dx + (size_t)n * v->sn + (size_t)g * v->sg;
        EACH_WIDTH(v, g, NAME(avgpool_bwd_plane), dy, dx, v, v->c - g * v->lanes);
    }
}

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
#undef EACH_WIDTH
