/* Computes which rank belongs to which replica, tensor group and stage. */
#include "worker/parallel/layout.h"

#include <assert.h>
#include <stdint.h>

#include "common/base/err.h"
#include "worker/program/split.h"

int layout_plan(struct layout *ret, int world, int tensor, int stages, int zero, struct err *e)
{
    const int64_t replica = (int64_t)tensor * stages;
    if (world < 1 || tensor < 1 || stages < 1)
        return err_set(e, ERR_USAGE,
                       "a layout of %d ranks, tensor groups of %d and %d stages: expected at least 1 of each", world,
                       tensor, stages);
    if (zero < 0 || zero > 3)
        return err_set(e, ERR_USAGE, "level %d of ZeRO: expected 0, 1, 2 or 3", zero);
    if (world < replica)
        return err_set(e, ERR_USAGE,
                       "%d rank%s cannot hold a model over %d stage%s of tensor groups of %d: that takes at "
                       "least %lld",
                       world, world == 1 ? "" : "s", stages, stages == 1 ? "" : "s", tensor, (long long)replica);
    *ret = (struct layout){
        .world = world, .data = world / (int)replica, .tensor = tensor, .stages = stages, .zero = zero, .nodes = 1};
    return 0;
}

bool layout_equal(const struct layout *a, const struct layout *b)
{
    return a->world == b->world && a->data == b->data && a->tensor == b->tensor && a->stages == b->stages &&
           a->zero == b->zero && a->seconds == b->seconds && a->nodes == b->nodes;
}

int layout_members(const struct layout *l)
{
    return l->data * l->tensor * l->stages;
}

bool layout_is_spare(const struct layout *l, int rank)
{
    return rank >= layout_members(l);
}

struct layout_place layout_place(const struct layout *l, int rank)
{
    assert(rank >= 0 && !layout_is_spare(l, rank));
    return (struct layout_place){
        .stage = rank / l->tensor / l->data, .data = rank / l->tensor % l->data, .tensor = rank % l->tensor};
}

int layout_rank(const struct layout *l, struct layout_place p)
{
    return (p.stage * l->data + p.data) * l->tensor + p.tensor;
}

struct layout_ranks layout_group(const struct layout *l, enum layout_group g, int rank)
{
    const struct layout_place p = layout_place(l, rank);
    const int stage = l->data * l->tensor;
    switch (g) {
    case LAYOUT_BATCH:
        return (struct layout_ranks){p.stage * stage, 1, stage, rank % stage};
    case LAYOUT_DATA:
        return (struct layout_ranks){p.stage * stage + p.tensor, l->tensor, l->data, p.data};
    case LAYOUT_TENSOR:
        return (struct layout_ranks){rank - p.tensor, 1, l->tensor, p.tensor};
    case LAYOUT_STAGES:
        return (struct layout_ranks){rank % stage, stage, l->stages, p.stage};
    case LAYOUT_ENDS:
        if (l->stages == 1 || (p.stage > 0 && p.stage < l->stages - 1))
            return (struct layout_ranks){rank, 1, 1, 0};
        return (struct layout_ranks){rank % stage, stage * (l->stages - 1), 2, p.stage > 0};
    case LAYOUT_ALL:
    case LAYOUT_GROUPS:
        break;
    }
    return (struct layout_ranks){0, 1, layout_members(l), rank};
}

int layout_group_rank(const struct layout_ranks *g, int index)
{
    return g->first + index * g->stride;
}

static int node_of(const struct layout *l, int rank)
{
    return rank / ((l->world + l->nodes - 1) / l->nodes);
}

/* Parts whose owners would both lie on one node. */
static int shared_nodes(const struct layout *l, const struct layout_ranks *g, int distance)
{
    int n = 0;
    for (int i = 0; i < g->count; i++) {
        const int second = layout_group_rank(g, (i + distance) % g->count);
        n += node_of(l, layout_group_rank(g, i)) == node_of(l, second);
    }
    return n;
}

int layout_second_distance(const struct layout *l, const struct layout_ranks *g)
{
    int best = l->seconds && g->count > 1, least = best ? shared_nodes(l, g, best) : 0;
    for (int d = 2; best && least > 0 && d < g->count; d++) {
        const int n = shared_nodes(l, g, d);
        if (n < least) {
            best = d;
            least = n;
        }
    }
    return best;
}

int layout_neighbour(const struct layout *l, int rank, int by)
{
    struct layout_place p = layout_place(l, rank);
    p.stage += by;
    return p.stage < 0 || p.stage >= l->stages ? -1 : layout_rank(l, p);
}

int layout_writer(const struct layout *l)
{
    return layout_rank(l, (struct layout_place){0});
}

struct layout_part layout_part(size_t n, int parts, int index)
{
    const struct split_part p = split_part(n, parts, index);
    return (struct layout_part){.first = p.first, .n = p.n};
}
