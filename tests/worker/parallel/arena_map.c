#include "tests/worker/parallel/arena_map.h"

#include <stdlib.h>

int64_t arena_model_elements(const struct arena_model *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->nparams; i++)
        n += (int64_t)m->params[i].rows * m->params[i].columns;
    return n;
}

/* A rank's part of a parameter, as a parameter. */
static struct param part_of(const struct arena_model *m, int i, const struct layout *l, int t)
{
    struct param q = {.role = PARAM_TRAIN,
                      .ndim = 2,
                      .shape = {m->params[i].rows, m->params[i].columns},
                      .sharded = m->params[i].sharded && l->tensor > 1,
                      .shard_dim = m->params[i].by_columns};
    if (q.sharded) {
        const struct layout_part part = layout_part((size_t)q.shape[q.shard_dim], l->tensor, t);
        q.shard_whole = q.shape[q.shard_dim];
        q.shard_first = (int64_t)part.first;
        q.shape[q.shard_dim] = (int64_t)part.n;
    }
    q.count = (size_t)(q.shape[0] * q.shape[1]);
    return q;
}

/* Element k of a part, in the whole. */
static int64_t place_of(const struct param *q, size_t k)
{
    const int64_t columns = q->shape[1], row = (int64_t)k / columns, column = (int64_t)k % columns;
    if (!q->sharded)
        return (int64_t)k;
    return q->shard_dim == 0 ? (q->shard_first + row) * columns + column
                             : row * q->shard_whole + q->shard_first + column;
}

/* Padding is whose the parameter is that it follows. */
static int64_t padding_id(const struct param *q, int i, const struct layout_place *at, size_t k)
{
    const int64_t owner = q->sharded ? at->tensor : 99;
    return -1 - (((at->stage * ARENA_PARAMS_MAX + i) * 100 + owner) * 1000000 + (int64_t)k);
}

void arena_map_init(struct arena_map *a, const struct arena_model *m, const struct layout *l, int rank)
{
    const struct layout_place at = layout_place(l, rank);
    *a = (struct arena_map){.program = {.nparams = m->nparams}};
    a->program.params = a->params;
    for (int i = 0; i < m->nparams; i++) {
        a->params[i] = part_of(m, i, l, at.tensor);
        a->params[i].offset = a->program.n_train;
        a->program.n_train += (a->params[i].count + 15) / 16 * 16;
    }
    a->id = calloc(a->program.n_train + 1, sizeof *a->id);
    int64_t before = at.stage * arena_model_elements(m);
    for (int i = 0; i < m->nparams; i++) {
        const size_t end = i + 1 < m->nparams ? a->params[i + 1].offset : a->program.n_train;
        for (size_t x = a->params[i].offset, k = 0; x < end; x++, k++)
            a->id[x] =
                k < a->params[i].count ? before + place_of(&a->params[i], k) : padding_id(&a->params[i], i, &at, k);
        before += (int64_t)m->params[i].rows * m->params[i].columns;
    }
}

void arena_map_finish(struct arena_map *a)
{
    free(a->id);
}
