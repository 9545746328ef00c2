/* Vectors of one storage type and one width, included by kern_body.h: loads, stores and rounding. */

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

/* gcc 12 makes vectors of 16 wider in two halves, which takes five instructions. */
static INLINE VU NAME(widened)(VH h)
{
#if defined __AVX512F__ && L == 16
    return (VU)_mm512_cvtepu16_epi32((__m256i)h);
#else
    return __builtin_convertvector(h, VU);
#endif
}

static INLINE VI NAME(widened_bytes)(VB b)
{
#if defined __AVX512F__ && L == 16
    return (VI)_mm512_cvtepu8_epi32((__m128i)b);
#else
    return __builtin_convertvector(b, VI);
#endif
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

/* Fewer lanes than a vector has: the others are 0 when loaded and left alone when stored. */
static INLINE VF NAME(load_some_floats)(const float *p, int lanes)
{
#if defined __AVX512VL__ && L == 16
    return (VF)_mm512_maskz_loadu_ps((__mmask16)((1u << lanes) - 1), p);
#elif defined __AVX512VL__ && L == 8
    return (VF)_mm256_maskz_loadu_ps((__mmask8)((1u << lanes) - 1), p);
#elif defined __AVX2__ && L == 8
    return (VF)_mm256_maskload_ps(p, first_of_8(lanes));
#else
    VF v = {0};
    for (int i = 0; i < lanes; i++)
        v[i] = p[i];
    return v;
#endif
}

static INLINE VF NAME(loadf)(const float *p, int lanes)
{
    if (lanes != L)
        return NAME(load_some_floats)(p, lanes);
    VF v;
    memcpy(&v, p, sizeof(v));
    return v;
}

#if T_BF16
static INLINE VH NAME(load_halves)(const T *p, int lanes)
{
    VH h = {0};
    if (lanes == L) {
        memcpy(&h, p, sizeof(h));
        return h;
    }
#if defined __AVX512BW__ && defined __AVX512VL__ && L == 16
    return (VH)_mm256_maskz_loadu_epi16((__mmask16)((1u << lanes) - 1), p);
#elif defined __AVX512BW__ && defined __AVX512VL__ && L == 8
    return (VH)_mm_maskz_loadu_epi16((__mmask8)((1u << lanes) - 1), p);
#else
    for (int i = 0; i < lanes; i++)
        h[i] = p[i];
    return h;
#endif
}
#endif

static INLINE VF NAME(load)(const T *p, int lanes)
{
#if T_BF16
    return (VF)(NAME(widened)(NAME(load_halves)(p, lanes)) << 16);
#else
    return NAME(loadf)(p, lanes);
#endif
}

static INLINE VF NAME(rounded)(VF v) /* what load() will give back after store() */
{
#if ROUND == 2
    return (VF)NAME(f16_bits)(v);
#elif T_BF16 && HARDWARE_BF16 && L == 16
    VH h = (VH)_mm512_cvtneps_pbh((__m512)v);
    return (VF)(NAME(widened)(h) << 16);
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

#if !T_BF16
static INLINE void NAME(store_some)(T *p, VF v, int lanes)
{
#if defined __AVX512VL__ && L == 16
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << lanes) - 1), (__m512)v);
#elif defined __AVX512VL__ && L == 8
    _mm256_mask_storeu_ps(p, (__mmask8)((1u << lanes) - 1), (__m256)v);
#elif defined __AVX2__ && L == 8
    _mm256_maskstore_ps(p, first_of_8(lanes), (__m256)v);
#else
    for (int i = 0; i < lanes; i++)
        p[i] = v[i];
#endif
}
#else
static INLINE void NAME(store_some)(T *p, VH h, int lanes)
{
#if defined __AVX512BW__ && defined __AVX512VL__ && L == 16
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << lanes) - 1), (__m256i)h);
#elif defined __AVX512BW__ && defined __AVX512VL__ && L == 8
    _mm_mask_storeu_epi16(p, (__mmask8)((1u << lanes) - 1), (__m128i)h);
#else
    for (int i = 0; i < lanes; i++)
        p[i] = h[i];
#endif
}
#endif

static INLINE void NAME(store)(T *p, VF v, int lanes)
{
#if T_BF16
    const VH kept = NAME(bf16_of)(v);
#else
    const VF kept = NAME(rounded)(v);
#endif
    if (lanes == L)
        memcpy(p, &kept, sizeof(kept));
    else
        NAME(store_some)(p, kept, lanes);
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

static INLINE VF NAME(relu)(VF v) /* NaN stays NaN */
{
    return NAME(select)(v <= 0, (VF){0}, v);
}

static INLINE VF NAME(where_positive)(VF gate, VF v)
{
    return NAME(select)(gate > 0, v, (VF){0});
}

/* where_positive(rounded(gate), v) without rounding: the bound is the least normal number where the processor flushes
 * smaller ones, else half of the least number of the type, which becomes 0. */
static INLINE VF NAME(where_rounded_is_positive)(VF gate, VF v)
{
#if ROUND == 2
    return NAME(select)(gate > 0x1p-25f, v, (VF){0});
#elif T_BF16 && HARDWARE_BF16 && L == 16
    return NAME(select)(gate >= 0x1p-126f, v, (VF){0});
#elif T_BF16 || ROUND
    return NAME(select)(gate > 0x1p-134f, v, (VF){0});
#else
    return NAME(where_positive)(gate, v);
#endif
}

/* A coefficient: of every lane's channel, or of the one channel of a row of pixels. */
static INLINE VF NAME(coefficient)(const float *p, bool row, int lanes)
{
    return row ? (VF){0} + *p : NAME(loadf)(p, lanes);
}

/* Their sum, always in the same order. */
static INLINE double NAME(sum_lanes)(double *v)
{
    for (int half = L / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            v[i] += v[i + half];
    return v[0];
}

/* Call f(..., walk, row, lanes) for group g, which begins at element `at`. In plain NCHW, where a group is one channel,
 * vectors lie along its pixels (row is true), else along channels. Constants where all lanes are there. */
#define EACH_WALK(v, g, at, f, ...)                                                                                    \
    do {                                                                                                               \
        const size_t at_ = (at);                                                                                       \
        const int lanes_ = (g) == (v)->groups - 1 ? (v)->last_lanes : (v)->lanes, whole_ = (v)->hw / L;                \
        if (view_is_plain(v)) {                                                                                        \
            if (whole_ > 0)                                                                                            \
                f(__VA_ARGS__, (struct walk){at_, whole_, L}, true, L);                                                \
            if ((v)->hw % L > 0)                                                                                       \
                f(__VA_ARGS__, (struct walk){at_ + (size_t)whole_ * L, 1, L}, true, (v)->hw % L);                      \
        } else if (lanes_ == L) {                                                                                      \
            f(__VA_ARGS__, (struct walk){at_, (v)->hw, (v)->sp}, false, L);                                            \
        } else {                                                                                                       \
            f(__VA_ARGS__, (struct walk){at_, (v)->hw, (v)->sp}, false, lanes_);                                       \
        }                                                                                                              \
    } while (0)

/* Call f(..., p, pixels, group, lanes) for pixels [first, end) of NHWC, `some` at a time, and their vectors. `pixels`
 * is a constant, `lanes` is where all are there. They share what is loaded for a group. */
#define EACH_ROW(r, first, end, some, f, ...)                                                                          \
    do {                                                                                                               \
        int p_ = (first);                                                                                              \
        for (; p_ + (some) <= (end); p_ += (some))                                                                     \
            EACH_GROUP(r, f, __VA_ARGS__, p_, some);                                                                   \
        for (; p_ < (end); p_++)                                                                                       \
            EACH_GROUP(r, f, __VA_ARGS__, p_, 1);                                                                      \
    } while (0)
/* f(..., group, lanes) for the vectors of one pixel. */
#define EACH_GROUP(r, f, ...)                                                                                          \
    do {                                                                                                               \
        for (int g_ = 0; g_ < (r).whole; g_++)                                                                         \
            f(__VA_ARGS__, g_, L);                                                                                     \
        if ((r).rest)                                                                                                  \
            f(__VA_ARGS__, (r).whole, (r).rest);                                                                       \
    } while (0)

/* Call f(..., lanes) for group g, whose vectors lie along channels in every layout. */
#define EACH_WIDTH(v, g, f, ...)                                                                                       \
    do {                                                                                                               \
        int lanes_ = (g) == (v)->groups - 1 ? (v)->last_lanes : (v)->lanes;                                            \
        if (lanes_ == L)                                                                                               \
            f(__VA_ARGS__, L);                                                                                         \
        else                                                                                                           \
            f(__VA_ARGS__, lanes_);                                                                                    \
    } while (0)
