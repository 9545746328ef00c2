/* Plain loops that the compiler vectorises (this file is built with -O3): reductions are bound by memory, not by
 * arithmetic. */
#include "worker/comm/reduce.h"

#include <errno.h>
#include <string.h>

#include "common/base/err.h"

#define ADD(x, y) ((x) + (y))
#define MAX(x, y) ((x) > (y) ? (x) : (y))
#define MIN(x, y) ((x) < (y) ? (x) : (y))

#define SAME(x) (x)

#define MUL(x, y) ((x) * (y))

/* Signed overflow is undefined in C: integers wrap, as they do in every other implementation. */
#define ADD_WRAP(x, y) ((int64_t)((uint64_t)(x) + (uint64_t)(y)))
#define MUL_WRAP(x, y) ((int64_t)((uint64_t)(x) * (uint64_t)(y)))

#define REDUCERS(X) /* dtype, element, load, store, op, arithmetic */                                                  \
    X(DT_F32, float, SAME, SAME, COMM_SUM, ADD)                                                                        \
    X(DT_F32, float, SAME, SAME, COMM_MAX, MAX)                                                                        \
    X(DT_F32, float, SAME, SAME, COMM_MIN, MIN)                                                                        \
    X(DT_F32, float, SAME, SAME, COMM_PROD, MUL)                                                                       \
    X(DT_F64, double, SAME, SAME, COMM_SUM, ADD)                                                                       \
    X(DT_F64, double, SAME, SAME, COMM_MAX, MAX)                                                                       \
    X(DT_F64, double, SAME, SAME, COMM_MIN, MIN)                                                                       \
    X(DT_F64, double, SAME, SAME, COMM_PROD, MUL)                                                                      \
    X(DT_I64, int64_t, SAME, SAME, COMM_SUM, ADD_WRAP)                                                                 \
    X(DT_I64, int64_t, SAME, SAME, COMM_MAX, MAX)                                                                      \
    X(DT_I64, int64_t, SAME, SAME, COMM_MIN, MIN)                                                                      \
    X(DT_I64, int64_t, SAME, SAME, COMM_PROD, MUL_WRAP)                                                                \
    X(DT_BF16, uint16_t, f32_from_bf16, bf16_from_f32, COMM_SUM, ADD)                                                  \
    X(DT_BF16, uint16_t, f32_from_bf16, bf16_from_f32, COMM_MAX, MAX)                                                  \
    X(DT_BF16, uint16_t, f32_from_bf16, bf16_from_f32, COMM_MIN, MIN)                                                  \
    X(DT_BF16, uint16_t, f32_from_bf16, bf16_from_f32, COMM_PROD, MUL)                                                 \
    X(DT_F16, uint16_t, f32_from_f16, f16_from_f32, COMM_SUM, ADD)                                                     \
    X(DT_F16, uint16_t, f32_from_f16, f16_from_f32, COMM_MAX, MAX)                                                     \
    X(DT_F16, uint16_t, f32_from_f16, f16_from_f32, COMM_MIN, MIN)                                                     \
    X(DT_F16, uint16_t, f32_from_f16, f16_from_f32, COMM_PROD, MUL)

#define X(dtype, element, load, store, op, arithmetic)                                                                 \
    static void reduce_##dtype##_##op(void *restrict acc, const void *restrict in, size_t n)                           \
    {                                                                                                                  \
        element *restrict a = acc;                                                                                     \
        const element *restrict x = in;                                                                                \
        for (size_t i = 0; i < n; i++)                                                                                 \
            a[i] = store(arithmetic(load(a[i]), load(x[i])));                                                          \
    }
REDUCERS(X)
#undef X

reduce_fn *reduce_find(enum dtype t, enum comm_op op)
{
    static const struct {
        enum dtype t;
        enum comm_op op;
        reduce_fn *fn;
    } table[] = {
#define X(dtype, element, load, store, op, arithmetic) {dtype, op, reduce_##dtype##_##op},
        REDUCERS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].t == t && table[i].op == op)
            return table[i].fn;
    return NULL;
}

int reduce_check(enum dtype t, enum comm_op op, struct err *e)
{
    if (reduce_find(t, op))
        return 0;
    return err_set(e, -EINVAL, "elements of type %s cannot be reduced (operation %d): F32, F64, BF16, F16 and I64 can",
                   dtype_name(t), (int)op);
}

enum { BLOCK = 1024 }; /* elements: accumulators stay in the first-level cache */

#define HALF_SUM_BLOCK(name, load, store)                                                                              \
    static void name(uint16_t *out, const void *const *parts, int count, size_t first, size_t n)                       \
    {                                                                                                                  \
        float acc[BLOCK];                                                                                              \
        for (size_t i = 0; i < n; i++)                                                                                 \
            acc[i] = load(((const uint16_t *)parts[0])[first + i]);                                                    \
        for (int p = 1; p < count; p++) {                                                                              \
            const uint16_t *x = (const uint16_t *)parts[p] + first;                                                    \
            for (size_t i = 0; i < n; i++)                                                                             \
                acc[i] += load(x[i]);                                                                                  \
        }                                                                                                              \
        for (size_t i = 0; i < n; i++)                                                                                 \
            out[first + i] = store(acc[i]);                                                                            \
    }
HALF_SUM_BLOCK(bf16_sum_block, f32_from_bf16, bf16_from_f32)
HALF_SUM_BLOCK(f16_sum_block, f32_from_f16, f16_from_f32)

static const void *at(const void *p, size_t bytes)
{
    return (const char *)p + bytes;
}

void reduce_many(void *out, const void *const *parts, int count, size_t n, enum dtype t, enum comm_op op)
{
    size_t size = dtype_size(t);
    reduce_fn *fn = reduce_find(t, op);
    _Alignas(16) char acc[BLOCK * 8];
    for (size_t first = 0; first < n; first += BLOCK) {
        size_t k = n - first < BLOCK ? n - first : BLOCK;
        if ((t == DT_BF16 || t == DT_F16) && op == COMM_SUM) {
            (t == DT_BF16 ? bf16_sum_block : f16_sum_block)(out, parts, count, first, k);
            continue;
        }
        memcpy(acc, at(parts[0], first * size), k * size);
        for (int p = 1; p < count; p++)
            fn(acc, at(parts[p], first * size), k);
        memcpy((char *)out + first * size, acc, k * size);
    }
}
