/* Rows of channels, included by kern_body.h. */

static INLINE float NAME(sum_of)(VF v)
{
#if L == 16
    v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#else
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
    v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
#endif
    return v[0];
}

static INLINE void NAME(storef)(float *p, VF v, int lanes)
{
    memcpy(p, &v, sizeof(float) * (size_t)lanes);
}

/* f(..., i, lanes) for values [0, n), a vector at a time. */
#define EACH_VECTOR(n, f, ...)                                                                                         \
    do {                                                                                                               \
        const int n_ = (n);                                                                                            \
        int i_ = 0;                                                                                                    \
        for (; i_ + L <= n_; i_ += L)                                                                                  \
            f(__VA_ARGS__, i_, L);                                                                                     \
        if (i_ < n_)                                                                                                   \
            f(__VA_ARGS__, i_, n_ - i_);                                                                               \
    } while (0)

/* --- norms */

static INLINE void NAME(norm_sum)(const T *x, VF *sum, int i, int lanes)
{
    *sum += NAME(load)(x + i, lanes);
}

static INLINE VF NAME(first_lanes)(VF v, float other, int lanes)
{
    VI number;
    memcpy(&number, lane_number, sizeof number);
    return lanes == L ? v : NAME(select)(number < lanes, v, (VF){0} + other);
}

/* Lanes that are not there are 0 when loaded: they must not count as far from the mean. */
static INLINE void NAME(norm_squares)(const T *x, VF mean, VF *sum, int i, int lanes)
{
    const VF d = NAME(first_lanes)(NAME(load)(x + i, lanes) - mean, 0, lanes);
    *sum += d * d;
}

struct NAME(moments) {
    float mean, inv;
};

static INLINE struct NAME(moments) NAME(norm_moments)(const T *x, int c, bool rms, float eps)
{
    VF sum = {0}, squares = {0};
    if (!rms)
        EACH_VECTOR(c, NAME(norm_sum), x, &sum);
    const float mean = NAME(sum_of)(sum) / (float)c;
    EACH_VECTOR(c, NAME(norm_squares), x, (VF){0} + mean, &squares);
    return (struct NAME(moments)){mean, 1 / sqrtf(NAME(sum_of)(squares) / (float)c + eps)};
}

static INLINE void NAME(norm_apply)(const struct norm_job *j, const T *x, T *y, VF mean, VF inv, int i, int lanes)
{
    VF v = (NAME(load)(x + i, lanes) - mean) * inv * NAME(loadf)(j->gamma + i, lanes);
    if (j->beta)
        v += NAME(loadf)(j->beta + i, lanes);
    NAME(store)(y + i, v, lanes);
}

static void NAME(norm)(const struct norm_job *j, int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads)
    for (size_t r = 0; r < j->rows; r++) {
        const T *x = (const T *)j->x + r * (size_t)j->c;
        T *y = (T *)j->y + r * (size_t)j->c;
        const struct NAME(moments) m = NAME(norm_moments)(x, j->c, j->rms, j->eps);
        EACH_VECTOR(j->c, NAME(norm_apply), j, x, y, (VF){0} + m.mean, (VF){0} + m.inv);
    }
}

/* Of g = dy * gamma: its sum, that of g * xhat; to the sums over rows dy * xhat and dy. */
static INLINE void NAME(norm_bwd_sums)(const struct norm_bwd_job *j, const T *x, const T *dy, VF mean, VF inv,
                                       float *dgamma, float *dbeta, VF *plain, VF *projected, int i, int lanes)
{
    const VF d = NAME(load)(dy + i, lanes), xhat = (NAME(load)(x + i, lanes) - mean) * inv, p = d * xhat,
             gamma = NAME(loadf)(j->gamma + i, lanes);
    NAME(storef)(dgamma + i, NAME(loadf)(dgamma + i, L) + p, L);
    NAME(storef)(dbeta + i, NAME(loadf)(dbeta + i, L) + d, L);
    *plain += d * gamma;
    *projected += p * gamma;
}

static INLINE void NAME(norm_bwd_apply)(const struct norm_bwd_job *j, const T *x, const T *dy, T *dx, VF mean, VF inv,
                                        VF plain, VF projected, int i, int lanes)
{
    const VF g = NAME(load)(dy + i, lanes) * NAME(loadf)(j->gamma + i, lanes),
             xhat = (NAME(load)(x + i, lanes) - mean) * inv;
    NAME(store)(dx + i, inv * (g - plain - xhat * projected), lanes);
}

static INLINE void NAME(norm_bwd_row)(const struct norm_bwd_job *j, size_t r, float *dgamma, float *dbeta)
{
    const T *x = (const T *)j->x + r * (size_t)j->c, *dy = (const T *)j->dy + r * (size_t)j->c;
    const struct NAME(moments) m = NAME(norm_moments)(x, j->c, j->rms, j->eps);
    const VF mean = (VF){0} + m.mean, inv = (VF){0} + m.inv;
    VF plain = {0}, projected = {0};
    EACH_VECTOR(j->c, NAME(norm_bwd_sums), j, x, dy, mean, inv, dgamma, dbeta, &plain, &projected);
    if (!j->dx)
        return;
    plain = (VF){0} + (j->rms ? 0 : NAME(sum_of)(plain) / (float)j->c);
    projected = (VF){0} + NAME(sum_of)(projected) / (float)j->c;
    EACH_VECTOR(j->c, NAME(norm_bwd_apply), j, x, dy, (T *)j->dx + r * (size_t)j->c, mean, inv, plain, projected);
}

/* Sums in floats over a run of rows go on in doubles. */
static void NAME(flush)(float *run, double *to, int n)
{
    for (int i = 0; i < n; i++) {
        to[i] += (double)run[i];
        run[i] = 0;
    }
}

static inline int NAME(padded)(int c)
{
    return (c + LANES_MAX - 1) / LANES_MAX * LANES_MAX;
}

static void NAME(norm_bwd)(const struct norm_bwd_job *j, int threads)
{
    const int c = NAME(padded)(j->c);
    memset(j->partial, 0, sizeof(double) * 2 * (size_t)c * (size_t)threads);
    memset(j->runs, 0, sizeof(float) * 2 * (size_t)c * (size_t)threads);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int part = 0; part < threads; part++) {
        const size_t end = j->rows * (size_t)(part + 1) / (size_t)threads;
        float *run = j->runs + (size_t)part * 2 * (size_t)c;
        double *sums = j->partial + (size_t)part * 2 * (size_t)c;
        for (size_t r = j->rows * (size_t)part / (size_t)threads, k = 0; r < end; r++, k++) {
            NAME(norm_bwd_row)(j, r, run, run + c);
            if (k % RUN == RUN - 1)
                NAME(flush)(run, sums, 2 * c);
        }
        NAME(flush)(run, sums, 2 * c);
    }
    combine(j->partial, threads, c, j->dgamma, j->dbeta);
}

/* --- functions */

/* x, or the nearer bound; NaN stays. */
static INLINE VF NAME(within)(VF x, float least, float most)
{
    const VF l = (VF){0} + least, m = (VF){0} + most;
#if defined __AVX512F__ && L == 16
    return (VF)_mm512_min_ps((__m512)m, _mm512_max_ps((__m512)l, (__m512)x));
#elif defined __AVX__ && L == 8
    return (VF)_mm256_min_ps((__m256)m, _mm256_max_ps((__m256)l, (__m256)x));
#else
    x = NAME(select)(x < l, l, x);
    return NAME(select)(x > m, m, x);
#endif
}

/* exp_of_float() of each lane, but that it does not fall below e^-87.3, 1e-38, nor rise above e^88. */
static INLINE VF NAME(exp)(VF x)
{
    const VF c = NAME(within)(x, -87.33654f, 88.0f);
    const VF shifted = c * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    const VF r = c - n * 0.693359375f + n * 2.12194440e-4f;
    VF p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    return p * (VF)(((VU)shifted + 127u) << 23);
}

/* 1 / x, to two units in the last place: a division takes as long as sixteen products. Not of infinity. */
static INLINE VF NAME(reciprocal)(VF x)
{
#if defined __AVX512F__ && L == 16
    const VF r = (VF)_mm512_rcp14_ps((__m512)x);
    return r * (2 - x * r);
#elif defined __AVX__ && L == 8
    const VF r = (VF)_mm256_rcp_ps((__m256)x);
    return r * (2 - x * r);
#else
    return 1 / x;
#endif
}

/* And its derivative s (1 - s), where 1 - s would lose digits. */
static INLINE VF NAME(sigmoid)(VF x, VF *ret_slope)
{
    const VF e = NAME(exp)(-x), s = NAME(reciprocal)(1 + e);
    *ret_slope = e * s * s;
    return s;
}

/* P(N(0,1) < x), to three units of 2^-24: 1 / 2 and an odd function, x times a quotient of polynomials in x^2, fitted
 * to 1e-8 up to 5.5; beyond it is 0 or 1. */
static INLINE VF NAME(normal)(VF x)
{
    const VF y = NAME(within)(x, -5.5f, 5.5f), s = y * y;
    VF p = s * 2.274935262e-8f + 6.352126093e-6f, q = s * 1.197504162e-6f + 7.364780322e-5f;
    p = p * s + 1.688265766e-4f;
    q = q * s + 1.884449855e-3f;
    p = p * s + 4.677266348e-3f;
    q = q * s + 2.864592150e-2f;
    p = p * s + 3.385273367e-2f;
    q = q * s + 2.515221238e-1f;
    p = p * s + 3.989422321e-1f;
    q = q * s + 1;
    const VF inside = y * p * NAME(reciprocal)(q) + 0.5f;
    return NAME(select)(s >= 30.25f, NAME(where_positive)(x, (VF){0} + 1.0f), inside);
}

/* GELU's derivative P(N(0,1) < x) + x e^(-x^2 / 2) / sqrt(2 pi) in the same way, fitted to 4e-9 up to 6, to five units
 * of 2^-24. */
static INLINE VF NAME(normal_slope)(VF x)
{
    const VF y = NAME(within)(x, -6.0f, 6.0f), s = y * y;
    VF p = s * 1.704494957e-8f + 9.224934336e-7f, q = s * 1.314653015e-9f + 3.389541381e-7f;
    p = p * s + 3.409233246e-5f;
    q = q * s + 1.030786281e-5f;
    p = p * s + 2.027240988e-4f;
    q = q * s + 2.453221141e-4f;
    p = p * s + 1.38573657e-2f;
    q = q * s + 3.971503172e-3f;
    p = p * s - 2.237145631e-2f;
    q = q * s + 4.41335375e-2f;
    p = p * s + 7.978845313e-1f;
    q = q * s + 3.052945006e-1f;
    q = q * s + 1;
    return NAME(select)(s >= 36.0f, NAME(where_positive)(x, (VF){0} + 1.0f), y * p * NAME(reciprocal)(q) + 0.5f);
}

/* 2 sqrt(2 / pi) (x + 0.044715 x^3): of its sigmoid GELU's approximation is made. */
static INLINE VF NAME(tanh_argument)(VF x)
{
    return x * (x * x * (1.59576912f * 0.044715f) + 1.59576912f);
}

static INLINE VF NAME(act)(enum op_act act, VF x)
{
    VF slope;
    if (act == ACT_GELU)
        return x * NAME(normal)(x);
    return x * NAME(sigmoid)(act == ACT_SILU ? x : NAME(tanh_argument)(x), &slope);
}

static INLINE VF NAME(slope)(enum op_act act, VF x)
{
    VF slope;
    if (act == ACT_GELU)
        return NAME(normal_slope)(x);
    if (act == ACT_SILU) {
        const VF s = NAME(sigmoid)(x, &slope);
        return s + x * slope;
    }
    const VF s = NAME(sigmoid)(NAME(tanh_argument)(x), &slope);
    return s + x * slope * (x * x * (1.59576912f * 3 * 0.044715f) + 1.59576912f);
}

/* --- chains: links, each over a strip of values */

/* The first link reads x, the last one writes y; between two of them values lie in floats v. */
struct NAME(strip) {
    const T *x; /* NULL but for the first link */
    float *v;
    T *y; /* NULL but for the last link, and where nobody wants the result */
};

static INLINE VF NAME(take)(struct NAME(strip) s, int i, int lanes)
{
    return s.x ? NAME(load)(s.x + i, lanes) : NAME(loadf)(s.v + i, L);
}

static INLINE void NAME(keep)(struct NAME(strip) s, VF x, int i, int lanes)
{
    if (s.y)
        NAME(store)(s.y + i, x, lanes);
    else
        NAME(storef)(s.v + i, NAME(rounded)(x), L);
}

static INLINE void NAME(link_none)(struct NAME(strip) s, int i, int lanes)
{
    NAME(keep)(s, NAME(take)(s, i, lanes), i, lanes);
}

static INLINE void NAME(link_relu)(struct NAME(strip) s, int i, int lanes)
{
    NAME(keep)(s, NAME(relu)(NAME(take)(s, i, lanes)), i, lanes);
}

static INLINE void NAME(link_relu_bwd)(struct NAME(strip) s, const T *with, int i, int lanes)
{
    NAME(keep)(s, NAME(where_positive)(NAME(load)(with + i, lanes), NAME(take)(s, i, lanes)), i, lanes);
}

static INLINE void NAME(link_act)(struct NAME(strip) s, enum op_act act, int i, int lanes)
{
    NAME(keep)(s, NAME(act)(act, NAME(take)(s, i, lanes)), i, lanes);
}

static INLINE void NAME(link_act_bwd)(struct NAME(strip) s, const T *with, enum op_act act, int i, int lanes)
{
    NAME(keep)(s, NAME(take)(s, i, lanes) * NAME(slope)(act, NAME(load)(with + i, lanes)), i, lanes);
}

static INLINE void NAME(link_add)(struct NAME(strip) s, const T *with, int i, int lanes)
{
    NAME(keep)(s, NAME(take)(s, i, lanes) + NAME(load)(with + i, lanes), i, lanes);
}

static INLINE void NAME(link_mul)(struct NAME(strip) s, const T *with, int i, int lanes)
{
    NAME(keep)(s, NAME(take)(s, i, lanes) * NAME(load)(with + i, lanes), i, lanes);
}

static INLINE void NAME(link_scale)(struct NAME(strip) s, const float *by, int i, int lanes)
{
    NAME(keep)(s, NAME(take)(s, i, lanes) * NAME(loadf)(by + i, lanes), i, lanes);
}

static INLINE void NAME(link_shift)(struct NAME(strip) s, const float *by, int i, int lanes)
{
    NAME(keep)(s, NAME(take)(s, i, lanes) + NAME(loadf)(by + i, lanes), i, lanes);
}

static INLINE void NAME(link_scale_bwd)(struct NAME(strip) s, const float *by, const T *with, float *run, int i,
                                        int lanes)
{
    const VF d = NAME(take)(s, i, lanes);
    NAME(storef)(run + i, NAME(loadf)(run + i, lanes) + d * NAME(load)(with + i, lanes), lanes);
    NAME(keep)(s, d * NAME(loadf)(by + i, lanes), i, lanes);
}

static INLINE void NAME(link_factor)(struct NAME(strip) s, float factor, int i, int lanes)
{
    NAME(keep)(s, factor == 0 ? (VF){0} : NAME(take)(s, i, lanes) * factor, i, lanes);
}

static INLINE void NAME(link_drop)(struct NAME(strip) s, const uint32_t *word, uint32_t bound, float kept, int i,
                                   int lanes)
{
    VU w; /* there are words for whole vectors */
    memcpy(&w, word + i, sizeof w);
    NAME(keep)(s, NAME(select)((VI)(w >= bound), NAME(take)(s, i, lanes) * kept, (VF){0}), i, lanes);
}

#define EACH_ACT(act, n, f, ...)                                                                                       \
    do {                                                                                                               \
        if ((act) == ACT_GELU)                                                                                         \
            EACH_VECTOR(n, f, __VA_ARGS__, ACT_GELU);                                                                  \
        else if ((act) == ACT_SILU)                                                                                    \
            EACH_VECTOR(n, f, __VA_ARGS__, ACT_SILU);                                                                  \
        else                                                                                                           \
            EACH_VECTOR(n, f, __VA_ARGS__, ACT_GELU_TANH);                                                             \
    } while (0)

/* Of n elements from number `at` of the tensor on, channel c0 of a row. */
static void NAME(drop_strip)(const struct chain_job *j, const struct link *k, struct NAME(strip) v, size_t at, int n)
{
    const size_t each = j->positions * j->c, s = at / each;
    uint32_t room[STRIP + 3 * DROP_RUN];
    if (k->factor) {
        EACH_VECTOR(n, NAME(link_factor), v, k->factor[s]);
        return;
    }
    const size_t in = at % each, element = k->whole ? in / j->c * k->whole + k->first + in % j->c : in;
    const uint32_t *word = drop_words_of(k, k->sample[s], element, n, room);
    EACH_VECTOR(n, NAME(link_drop), v, word, k->bound, k->kept);
}

static void NAME(chain_strip)(const struct chain_job *j, const struct link *k, struct NAME(strip) v, size_t at,
                              size_t c0, int n, float *run)
{
    const T *with = k->with ? (const T *)k->with + at : NULL;
    switch (k->kind) {
    case LINK_RELU:
        EACH_VECTOR(n, NAME(link_relu), v);
        break;
    case LINK_RELU_BWD:
        EACH_VECTOR(n, NAME(link_relu_bwd), v, with);
        break;
    case LINK_ACT:
        EACH_ACT(k->act, n, NAME(link_act), v);
        break;
    case LINK_ACT_BWD:
        EACH_ACT(k->act, n, NAME(link_act_bwd), v, with);
        break;
    case LINK_ADD:
        EACH_VECTOR(n, NAME(link_add), v, with);
        break;
    case LINK_MUL:
        EACH_VECTOR(n, NAME(link_mul), v, with);
        break;
    case LINK_SCALE:
        EACH_VECTOR(n, NAME(link_scale), v, k->by + c0);
        break;
    case LINK_SHIFT:
        EACH_VECTOR(n, NAME(link_shift), v, k->by + c0);
        break;
    case LINK_SCALE_BWD:
        EACH_VECTOR(n, NAME(link_scale_bwd), v, k->by + c0, with, run + c0);
        break;
    case LINK_DROP:
        NAME(drop_strip)(j, k, v, at, n);
        break;
    }
}

/* A row, or what is there of the last one. */
static void NAME(chain_row)(const struct chain_job *j, size_t r, float *run)
{
    float between[STRIP];
    const size_t first = r * j->c, len = j->count - first < j->c ? j->count - first : j->c;
    for (size_t c0 = 0; c0 < len; c0 += STRIP) {
        const int n = len - c0 < STRIP ? (int)(len - c0) : STRIP;
        const T *x = (const T *)j->x + first + c0;
        T *y = j->y ? (T *)j->y + first + c0 : NULL;
        for (int i = 0; i < j->n; i++) {
            const struct NAME(strip) v = {i ? NULL : x, between, i == j->n - 1 ? y : NULL};
            NAME(chain_strip)(j, &j->links[i], v, first + c0, c0, n, run);
        }
        if (!j->n && y)
            EACH_VECTOR(n, NAME(link_none), ((struct NAME(strip)){x, between, y}));
    }
}

static void NAME(chain)(const struct chain_job *j, int threads)
{
    const size_t rows = (j->count + j->c - 1) / j->c;
    const int c = j->sums ? NAME(padded)((int)j->c) : 0; /* sums lie as those of norms, of which one half is not used */
    if (j->sums)
        memset(j->partial, 0, sizeof(double) * 2 * (size_t)c * (size_t)threads);
    if (j->sums)
        memset(j->runs, 0, sizeof(float) * 2 * (size_t)c * (size_t)threads);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int part = 0; part < threads; part++) {
        const size_t end = rows * (size_t)(part + 1) / (size_t)threads;
        float *run = j->runs + (size_t)part * 2 * (size_t)c;
        double *sums = j->partial + (size_t)part * 2 * (size_t)c;
        for (size_t r = rows * (size_t)part / (size_t)threads, k = 0; r < end; r++, k++) {
            NAME(chain_row)(j, r, run);
            if (j->sums && k % RUN == RUN - 1)
                NAME(flush)(run, sums, c);
        }
        if (j->sums)
            NAME(flush)(run, sums, c);
    }
    if (j->sums)
        combine(j->partial, threads, c, j->sums, j->partial + (size_t)c);
}

/* --- sums over rows */

static INLINE void NAME(add_to_run)(const T *x, float *run, int i, int lanes)
{
    NAME(storef)(run + i, NAME(loadf)(run + i, L) + NAME(load)(x + i, lanes), L);
}

static void NAME(columns)(const struct columns_job *j, int threads)
{
    const int c = NAME(padded)(j->c);
    memset(j->partial, 0, sizeof(double) * 2 * (size_t)c * (size_t)threads);
    memset(j->runs, 0, sizeof(float) * 2 * (size_t)c * (size_t)threads);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int part = 0; part < threads; part++) {
        const size_t end = j->rows * (size_t)(part + 1) / (size_t)threads;
        float *run = j->runs + (size_t)part * 2 * (size_t)c;
        double *sums = j->partial + (size_t)part * 2 * (size_t)c;
        for (size_t r = j->rows * (size_t)part / (size_t)threads, k = 0; r < end; r++, k++) {
            EACH_VECTOR(j->c, NAME(add_to_run), (const T *)j->x + r * (size_t)j->c, run);
            if (k % RUN == RUN - 1)
                NAME(flush)(run, sums, c);
        }
        NAME(flush)(run, sums, c);
    }
    combine(j->partial, threads, c, j->sums, j->partial + (size_t)c);
}

/* --- softmax */

static INLINE void NAME(softmax_most)(const float *s, VF *most, int i, int lanes)
{
    const VF v = NAME(first_lanes)(NAME(loadf)(s + i, lanes), -INFINITY, lanes);
    *most = NAME(select)(v <= *most, *most, v);
}

static INLINE void NAME(softmax_exp)(float *s, VF scale, VF most, VF *sum, int i, int lanes)
{
    const VF e = NAME(exp)(NAME(loadf)(s + i, lanes) * scale - most);
    *sum += NAME(first_lanes)(e, 0, lanes);
    NAME(storef)(s + i, e, lanes);
}

static INLINE void NAME(softmax_give)(const float *s, VF mul, T *p, int i, int lanes)
{
    NAME(store)(p + i, NAME(loadf)(s + i, lanes) * mul, lanes);
}

/* How many of row r count. */
static INLINE int NAME(softmax_there)(const struct softmax_job *j, int r)
{
    return j->causal && j->first + r + 1 < j->n ? j->first + r + 1 : j->n;
}

static void NAME(softmax)(const struct softmax_job *j)
{
    for (int r = 0; r < j->rows; r++) {
        const int n = NAME(softmax_there)(j, r);
        float *s = j->scores + (size_t)r * j->stride;
        T *p = (T *)j->p + (size_t)r * j->stride;
        VF most = (VF){0} - INFINITY, sum = {0};
        EACH_VECTOR(n, NAME(softmax_most), s, &most);
        float top = most[0];
        for (int i = 1; i < L; i++)
            top = most[i] <= top ? top : most[i];
        top *= j->scale;
        EACH_VECTOR(n, NAME(softmax_exp), s, (VF){0} + j->scale, (VF){0} + top, &sum);
        const float all = NAME(sum_of)(sum);
        j->lse[r] = top + logf(all);
        EACH_VECTOR(n, NAME(softmax_give), s, (VF){0} + 1 / all, p);
        memset(p + n, 0, sizeof(T) * (size_t)(j->n - n));
    }
}

static INLINE void NAME(softmax_again)(float *s, const float *dp, VF scale, VF lse, T *p, VF *sum, int i, int lanes)
{
    const VF e = NAME(exp)(NAME(loadf)(s + i, lanes) * scale - lse);
    NAME(storef)(s + i, e, lanes);
    NAME(store)(p + i, e, lanes);
    *sum += NAME(first_lanes)(e * NAME(loadf)(dp + i, lanes), 0, lanes);
}

static INLINE void NAME(softmax_ds)(const float *s, const float *dp, VF mean, VF scale, T *ds, int i, int lanes)
{
    NAME(store)(ds + i, NAME(loadf)(s + i, lanes) * (NAME(loadf)(dp + i, lanes) - mean) * scale, lanes);
}

static void NAME(softmax_bwd)(const struct softmax_job *j)
{
    for (int r = 0; r < j->rows; r++) {
        const int n = NAME(softmax_there)(j, r);
        const size_t at = (size_t)r * j->stride;
        T *p = (T *)j->p + at, *ds = (T *)j->ds + at;
        VF sum = {0};
        EACH_VECTOR(n, NAME(softmax_again), j->scores + at, j->dp + at, (VF){0} + j->scale, (VF){0} + j->lse[r], p,
                    &sum);
        const VF mean = (VF){0} + NAME(sum_of)(sum);
        EACH_VECTOR(n, NAME(softmax_ds), j->scores + at, j->dp + at, mean, (VF){0} + j->scale, ds);
        memset(p + n, 0, sizeof(T) * (size_t)(j->n - n));
        memset(ds + n, 0, sizeof(T) * (size_t)(j->n - n));
    }
}

static void NAME(give_rows)(const float *from, T *to, size_t rows, int n, size_t stride)
{
    for (size_t r = 0; r < rows; r++)
        for (int i = 0; i < n; i += L) {
            const int lanes = n - i < L ? n - i : L;
            const VF v = NAME(loadf)(from + r * (size_t)n + (size_t)i, lanes);
            if (lanes == L)
                NAME(store)(to + r * stride + (size_t)i, v, L);
            else
                NAME(store)(to + r * stride + (size_t)i, v, lanes);
        }
}

#undef EACH_VECTOR
#undef EACH_ACT
