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

#endif
