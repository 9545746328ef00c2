#include "worker/parallel/placement.h"

const char *transfer_name(enum transfer_kind k)
{
#define X(kind, name) name,
    static const char *const names[] = { TRANSFERS(X) };
#undef X
    return k < TRANSFER_KINDS ? names[k] : "?";
}

bool placement_equal(struct placement a, struct placement b)
{
    return a.kind == b.kind && (a.kind != PLACE_SPLIT || a.dim == b.dim);
}

struct transfer placement_transfer(struct placement from, struct placement to)
{
    static const enum transfer_kind kinds[][3] = {
        /* to               whole                split                    partial */
        [PLACE_WHOLE] = {TRANSFER_NONE, TRANSFER_SLICE, TRANSFER_FIRST},
        [PLACE_SPLIT] = {TRANSFER_ALL_GATHER, TRANSFER_ALL_TO_ALL, TRANSFER_PAD},
        [PLACE_PARTIAL] = {TRANSFER_ALL_REDUCE, TRANSFER_REDUCE_SCATTER, TRANSFER_NONE},
    };
    if (placement_equal(from, to))
        return (struct transfer){.kind = TRANSFER_NONE};
    return (struct transfer){.kind = kinds[from.kind][to.kind],
                             .from_dim = from.kind == PLACE_SPLIT ? from.dim : 0,
                             .to_dim = to.kind == PLACE_SPLIT ? to.dim : 0};
}

bool placement_is_pair(struct placement_pair p)
{
    switch (p.value.kind) {
    case PLACE_SPLIT:
        return placement_equal(p.value, p.gradient);
    case PLACE_PARTIAL:
        return p.gradient.kind == PLACE_WHOLE;
    case PLACE_WHOLE:
        break;
    }
    return p.gradient.kind != PLACE_SPLIT;
}

struct transfer placement_transfer_back(struct placement_pair from, struct placement_pair to)
{
    return placement_transfer(to.gradient, from.gradient);
}

/* May the data axis go from a to b while the tensor axis, which is nested in it, is placed as `inner`? */
static bool is_free(struct placement inner, struct placement a, struct placement b)
{
    return placement_equal(a, b) || inner.kind != PLACE_SPLIT ||
           (!placement_equal(inner, a) && !placement_equal(inner, b));
}

static int add_step(struct transfer_step *steps, int n, enum placement_axis axis, struct placement from,
                    struct placement to)
{
    if (placement_equal(from, to))
        return n;
    steps[n] = (struct transfer_step){axis, placement_transfer(from, to)};
    return n + 1;
}

int placement_steps(const struct placement from[AXES], const struct placement to[AXES],
                    struct transfer_step steps[TRANSFER_STEPS])
{
    const struct placement a = from[AXIS_DATA], b = to[AXIS_DATA], whole = {.kind = PLACE_WHOLE};
    struct placement between = whole;
    if (is_free(to[AXIS_TENSOR], a, b))
        between = to[AXIS_TENSOR];
    else if (is_free(from[AXIS_TENSOR], a, b))
        between = from[AXIS_TENSOR];
    int n = add_step(steps, 0, AXIS_TENSOR, from[AXIS_TENSOR], between);
    n = add_step(steps, n, AXIS_DATA, a, b);
    return add_step(steps, n, AXIS_TENSOR, between, to[AXIS_TENSOR]);
}
