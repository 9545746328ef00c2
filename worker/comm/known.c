#include "worker/comm/known.h"

#include <assert.h>
#include <string.h>

const char *known_call_name(enum known_call c)
{
    static const char *const names[] = {
#define X(id, name) name,
        KNOWN_CALLS(X)
#undef X
    };
    return names[c];
}

size_t known_in(const struct known *k)
{
    return k->call == KNOWN_ALL_GATHER ? k->n / (size_t)k->world : k->n;
}

size_t known_out(const struct known *k)
{
    return k->call == KNOWN_REDUCE_SCATTER ? k->n / (size_t)k->world : k->n;
}

/* What rank r has at place i of what it passes. */
static int value(const struct known *k, int r, size_t i)
{
    return (int)((i + (size_t)r * (k->op == COMM_SUM ? 1 : 5) + i / 1000) % 3);
}

static void store_value(enum dtype t, void *to, size_t i, int v)
{
    switch (t) {
    case DT_F32:
        ((float *)to)[i] = (float)v;
        break;
    case DT_F64:
        ((double *)to)[i] = v;
        break;
    case DT_BF16:
        ((uint16_t *)to)[i] = bf16_from_f32((float)v);
        break;
    case DT_F16:
        ((uint16_t *)to)[i] = f16_from_f32((float)v);
        break;
    case DT_I64:
        ((int64_t *)to)[i] = v;
        break;
    default:
        assert(!"a type that is reduced");
    }
}

static bool holds(enum dtype t, const void *from, size_t i, int v)
{
    switch (t) {
    case DT_F32:
        return ((const float *)from)[i] == (float)v;
    case DT_F64:
        return ((const double *)from)[i] == v;
    case DT_BF16:
        return f32_from_bf16(((const uint16_t *)from)[i]) == (float)v;
    case DT_F16:
        return f32_from_f16(((const uint16_t *)from)[i]) == (float)v;
    case DT_I64:
        return ((const int64_t *)from)[i] == v;
    default:
        return false;
    }
}

static int reduced(const struct known *k, size_t i)
{
    int all = value(k, 0, i);
    for (int r = 1; r < k->world; r++) {
        const int v = value(k, r, i);
        all = k->op == COMM_SUM ? all + v : k->op == COMM_MAX ? (v > all ? v : all) : (v < all ? v : all);
    }
    return all;
}

static int expected(const struct known *k, size_t i)
{
    const size_t each = k->n / (size_t)k->world;
    switch (k->call) {
    case KNOWN_ALL_REDUCE:
        return reduced(k, i);
    case KNOWN_REDUCE_SCATTER:
        return reduced(k, (size_t)k->rank * each + i);
    case KNOWN_ALL_GATHER:
        return value(k, (int)(i / each), i % each);
    default:
        return value(k, k->root, i);
    }
}

void known_fill(const struct known *k, void *in)
{
    for (size_t i = 0; i < known_in(k); i++)
        store_value(k->type, in, i, value(k, k->rank, i));
}

size_t known_wrong(const struct known *k, const void *out)
{
    size_t wrong = 0;
    for (size_t i = 0; i < known_out(k); i++)
        wrong += !holds(k->type, out, i, expected(k, i));
    return wrong;
}

double known_bus_factor(enum known_call c, int world)
{
    const double others = (world - 1) / (double)world;
    return c == KNOWN_ALL_REDUCE ? 2 * others : c == KNOWN_BROADCAST ? 1 : others;
}
