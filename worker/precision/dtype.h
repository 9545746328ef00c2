/* Element types of tensors, arenas, collectives and checkpoints. */
#ifndef CRUN_WORKER_DTYPE_H
#define CRUN_WORKER_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DTYPES(X) /* name, bytes, safetensors name */                                                                  \
    X(DT_F64, 8, "F64")                                                                                                \
    X(DT_F32, 4, "F32")                                                                                                \
    X(DT_BF16, 2, "BF16")                                                                                              \
    X(DT_F16, 2, "F16")                                                                                                \
    X(DT_I64, 8, "I64")                                                                                                \
    X(DT_I32, 4, "I32")                                                                                                \
    X(DT_U8, 1, "U8")

enum dtype {
#define X(name, bytes, text) name,
    DTYPES(X)
#undef X
};

static inline size_t dtype_size(enum dtype t)
{
    static const unsigned char size[] = {
#define X(name, bytes, text) bytes,
        DTYPES(X)
#undef X
    };
    return size[t];
}

static inline const char *dtype_name(enum dtype t)
{
    static const char *const name[] = {
#define X(n, bytes, text) text,
        DTYPES(X)
#undef X
    };
    return name[t];
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t bf16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float f32_from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* IEEE half. Round to nearest even; from 65520 on it is infinity; NaN stays NaN. */
static inline uint16_t f16_from_f32(float f)
{
    uint32_t u, a;
    memcpy(&u, &f, 4);
    a = u & 0x7fffffffu;
    const uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    if (a > 0x7f800000u)
        return sign | 0x7e00u;
    if (a >= 0x477ff000u)
        return sign | 0x7c00u;
    if (a >= 0x38800000u) /* 2^-14 and above: normal */
        return sign | (uint16_t)((a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13);
    float x;
    memcpy(&x, &a, 4);
    x += 0.5F; /* an ulp is 2^-24 there: the sum rounds as a subnormal half does */
    memcpy(&a, &x, 4);
    return sign | (uint16_t)(a - 0x3f000000u);
}

static inline float f32_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, m = h & 0x3ffu;
    uint32_t u = sign | (exponent == 0x1f ? 0x7f800000u : (exponent + 112) << 23) | m << 13;
    float f;
    memcpy(&f, &u, 4);
    return exponent ? f : (sign ? -1.0F : 1.0F) * (float)m * 0x1p-24F;
}

/* The value that storing v as t leaves of it; t: DT_F16 or DT_BF16, any other keeps v. Rounds once, also from
 * double. */
static inline double dtype_rounded(enum dtype t, double v)
{
    if (t != DT_F16 && t != DT_BF16)
        return v;
    float f = (float)v; /* to odd, so that the second rounding sees what the first one dropped */
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((double)f != v && f == f && (u & 0x7fffffffu) != 0x7f800000u && !(u & 1u)) {
        const int away = ((double)f < v) == (v > 0); /* f lies nearer to 0 than v */
        u = (u & 0x7fffffffu) == 0 ? (v < 0 ? 0x80000001u : 1u) : away ? u + 1 : u - 1;
        memcpy(&f, &u, 4);
    }
    return (double)(t == DT_F16 ? f32_from_f16(f16_from_f32(f)) : f32_from_bf16(bf16_from_f32(f)));
}

#endif
