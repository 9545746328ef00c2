/* Makes the inputs of known.h, and compares results with what must come out. */
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

bool known_reduces(enum known_call c)
{
    return c == KNOWN_ALL_REDUCE || c == KNOWN_REDUCE_SCATTER || c == KNOWN_REDUCE;
}

bool known_has_root(enum known_call c)
{
    return c == KNOWN_BROADCAST || c == KNOWN_REDUCE || c == KNOWN_GATHER || c == KNOWN_SCATTER;
}

bool known_has_parts(enum known_call c)
{
    return c == KNOWN_ALL_GATHER || c == KNOWN_REDUCE_SCATTER || c == KNOWN_GATHER || c == KNOWN_SCATTER;
}

bool known_in_place(enum known_call c)
{
    return c == KNOWN_ALL_REDUCE || c == KNOWN_BROADCAST;
}

/* Where rank r's part begins; r = world: where the last one ends. */
static size_t start_of(const struct known *k, int r)
{
    const size_t rank = (size_t)r, world = (size_t)k->world;
    return k->uneven ? k->n * rank * (rank + 1) / (world * (world + 1)) : k->n / world * rank;
}

static size_t part_of(const struct known *k, int r)
{
    return start_of(k, r + 1) - start_of(k, r);
}

static size_t if_root(const struct known *k, size_t n)
{
    return k->rank == k->root ? n : 0;
}

size_t known_in(const struct known *k)
{
    switch (k->call) {
    case KNOWN_ALL_GATHER:
    case KNOWN_GATHER:
        return part_of(k, k->rank);
    case KNOWN_SCATTER:
        return if_root(k, k->n);
    default:
        return k->n;
    }
}

size_t known_out(const struct known *k)
{
    switch (k->call) {
    case KNOWN_REDUCE_SCATTER:
    case KNOWN_SCATTER:
        return part_of(k, k->rank);
    case KNOWN_REDUCE:
    case KNOWN_GATHER:
        return if_root(k, k->n);
    default:
        return k->n;
    }
}

/* What rank r has at place i of what it passes. */
static int value(const struct known *k, int r, size_t i)
{
    if (known_reduces(k->call) && k->op == COMM_PROD)
        return (i + (size_t)r + i / 1000) % 8 == 0 ? 2 : 1;
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

static int combined(enum comm_op op, int a, int b)
{
    switch (op) {
    case COMM_SUM:
        return a + b;
    case COMM_MAX:
        return a > b ? a : b;
    case COMM_MIN:
        return a < b ? a : b;
    default:
        return a * b;
    }
}

static int reduced(const struct known *k, size_t i)
{
    int all = value(k, 0, i);
    for (int r = 1; r < k->world; r++)
        all = combined(k->op, all, value(k, r, i));
    return all;
}

/* Element i of the parts of all ranks, one after the other. */
static int gathered(const struct known *k, size_t i)
{
    int r = 0;
    while (start_of(k, r + 1) <= i)
        r++;
    return value(k, r, i - start_of(k, r));
}

static int expected(const struct known *k, size_t i)
{
    switch (k->call) {
    case KNOWN_ALL_REDUCE:
    case KNOWN_REDUCE:
        return reduced(k, i);
    case KNOWN_REDUCE_SCATTER:
        return reduced(k, start_of(k, k->rank) + i);
    case KNOWN_ALL_GATHER:
    case KNOWN_GATHER:
        return gathered(k, i);
    case KNOWN_SCATTER:
        return value(k, k->root, start_of(k, k->rank) + i);
    case KNOWN_SENDRECV:
        return value(k, (k->rank + k->world - 1) % k->world, i);
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

/* Begun in one order, waited for in the other. */
static int send_and_receive(struct comm *c, enum comm_channel ch, void *in, void *out, size_t bytes, void *stream,
                            struct err *e)
{
    const int next = (c->rank + 1) % c->world, before = (c->rank + c->world - 1) % c->world;
    struct comm_request *both[2] = {NULL, NULL};
    int rc = c->ops->isend(c, ch, in, bytes, next, stream, &both[1], e);
    if (rc == 0)
        rc = c->ops->irecv(c, ch, out, bytes, before, stream, &both[0], e);
    return comm_wait_all(both, 2, rc, e);
}

static int with_parts(const struct known *k, struct comm *c, enum comm_channel ch, void *in, void *out, void *stream,
                      struct err *e)
{
    const size_t elem = dtype_size(k->type), each = part_of(k, 0);
    size_t counts[KNOWN_WORLD_MAX], bytes[KNOWN_WORLD_MAX];
    for (int r = 0; r < k->world; r++) {
        counts[r] = part_of(k, r);
        bytes[r] = counts[r] * elem;
    }
    switch (k->call) {
    case KNOWN_ALL_GATHER:
        return k->uneven ? c->ops->all_gather_v(c, ch, in, out, bytes, stream, e)
                         : c->ops->all_gather(c, ch, in, out, each * elem, stream, e);
    case KNOWN_REDUCE_SCATTER:
        return k->uneven ? c->ops->reduce_scatter_v(c, ch, in, out, counts, k->type, k->op, stream, e)
                         : c->ops->reduce_scatter(c, ch, in, out, each, k->type, k->op, stream, e);
    case KNOWN_GATHER:
        return comm_gather(c, ch, in, out, bytes, k->root, stream, e);
    default:
        return comm_scatter(c, ch, in, out, bytes, k->root, stream, e);
    }
}

int known_run(const struct known *k, struct comm *c, enum comm_channel ch, void *in, void *out, void *stream,
              struct err *e)
{
    const size_t bytes = k->n * dtype_size(k->type);
    switch (k->call) {
    case KNOWN_ALL_REDUCE:
        return c->ops->all_reduce(c, ch, in, k->n, k->type, k->op, stream, e);
    case KNOWN_REDUCE:
        return c->ops->reduce(c, ch, in, k->rank == k->root ? out : NULL, k->n, k->type, k->op, k->root, stream, e);
    case KNOWN_BROADCAST:
        return c->ops->broadcast(c, ch, in, bytes, k->root, stream, e);
    case KNOWN_SENDRECV:
        return send_and_receive(c, ch, in, out, bytes, stream, e);
    default:
        return with_parts(k, c, ch, in, out, stream, e);
    }
}

double known_bus_factor(enum known_call c, int world)
{
    const double others = (world - 1) / (double)world;
    return c == KNOWN_ALL_REDUCE ? 2 * others : known_has_parts(c) ? others : 1;
}
