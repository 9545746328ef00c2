/* Where buffers lie, sets of activations among them; their addresses are filled into the steps. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "worker/device/cpu/plan.h"

enum { ALIGN = 64 };

int cpu_plan_sets(const struct cpu_plan *pl)
{
    return pl->o.chunk && pl->o.sets > 1 ? pl->o.sets : 1;
}

/* Does a buffer live from the forward to the backward pass? Copies of weights do, but they belong to no set. */
static bool crosses(const struct cpu_plan *pl, const struct live_buffer *b)
{
    return !b->keep && b->first >= 0 && b->first < pl->forward_steps && b->last >= pl->forward_steps;
}

/* The buffers for which of_set is `sets`, by themselves. */
static int place_some(struct cpu_plan *pl, bool sets, size_t *ret_bytes, struct err *e)
{
    struct live_buffer *some = calloc((size_t)pl->nbuffers + 1, sizeof *some);
    int n = 0;
    if (!some)
        return err_set(e, -ENOMEM, "no memory for a plan of %d buffers", pl->nbuffers);
    for (int i = 0; i < pl->nbuffers; i++)
        if (pl->of_set[i] == sets)
            some[n++] = pl->buffers[i];
    int rc = liveness_place(some, n, ALIGN, ret_bytes, e);
    for (int i = 0, k = 0; i < pl->nbuffers && rc == 0; i++)
        if (pl->of_set[i] == sets)
            pl->buffers[i].offset = some[k++].offset;
    free(some);
    return rc;
}

/* Several sets: what crosses is there for each of them, the rest once. */
static int place_sets(struct cpu_plan *pl, struct err *e)
{
    pl->of_set = calloc((size_t)pl->nbuffers + 1, sizeof *pl->of_set);
    if (!pl->of_set)
        return err_set(e, -ENOMEM, "no memory for a plan of %d buffers", pl->nbuffers);
    for (int i = 0; i < pl->nbuffers; i++)
        pl->of_set[i] = crosses(pl, &pl->buffers[i]);
    TRY(place_some(pl, false, &pl->shared_bytes, e));
    TRY(place_some(pl, true, &pl->set_bytes, e));
    pl->memory_bytes = pl->shared_bytes + (size_t)cpu_plan_sets(pl) * pl->set_bytes;
    return 0;
}

char *cpu_plan_at(const struct cpu_plan *pl, int buffer)
{
    const size_t set = pl->of_set && pl->of_set[buffer] ? pl->shared_bytes + (size_t)pl->set * pl->set_bytes : 0;
    return pl->memory + set + pl->buffers[buffer].offset;
}

int cpu_plan_patch(struct cpu_plan *pl, const struct patch *p, struct err *e)
{
    void *at = cpu_plan_at(pl, p->buffer);
    if (!p->pointer)
        return dnn_bind(p->kernel, p->slot, at, e);
    *p->pointer = at;
    return 0;
}

int cpu_plan_place(struct cpu_plan *pl, struct err *e)
{
    TRY(cpu_plan_sets(pl) > 1 ? place_sets(pl, e)
                              : liveness_place(pl->buffers, pl->nbuffers, ALIGN, &pl->memory_bytes, e));
    void *memory;
    TRY(cpu_plan_run_block(pl, pl->memory_bytes, &memory, e));
    pl->memory = memory;
    for (int i = 0; i < pl->npatches; i++)
        TRY(cpu_plan_patch(pl, &pl->patches[i], e));
    for (int i = 0; i < pl->nweights; i++) {
        struct weight_copy *w = &pl->weights[i];
        w->at = (float *)(void *)cpu_plan_at(pl, w->buffer);
        TRY(dnn_bind(w->reorder, DNN_DST, w->at, e));
    }
    return 0;
}

void cpu_plan_memory(const struct plan *plan, struct plan_memory *ret)
{
    const struct cpu_plan *pl = (const struct cpu_plan *)plan;
    *ret = (struct plan_memory){.workspace = pl->scratch_bytes + pl->partial_doubles * sizeof(double) +
                                             pl->plane_floats * sizeof(float),
                                .weights = pl->rounded_bytes};
    for (int i = 0; i < pl->nweights; i++)
        ret->weights += pl->buffers[pl->weights[i].buffer].bytes;
    ret->activations = pl->memory_bytes - (ret->weights - pl->rounded_bytes);
}

/* Memory that steps share: they run one after another. */
int cpu_plan_shared_memory(struct cpu_plan *pl, struct err *e)
{
    void *scratch, *partial, *plane, *metrics;
    TRY(cpu_plan_run_block(pl, pl->scratch_bytes, &scratch, e));
    TRY(cpu_plan_run_block(pl, pl->partial_doubles * sizeof(double), &partial, e));
    TRY(cpu_plan_run_block(pl, pl->plane_floats * sizeof(float), &plane, e));
    TRY(cpu_plan_run_block(pl, (size_t)pl->o.batch * input_row_labels(&pl->p->input) * METRIC_N * sizeof(double),
                           &metrics, e));
    pl->partial = partial;
    pl->plane = plane;
    pl->metrics = metrics;
    for (int i = 0; i < pl->nkernels; i++)
        TRY(dnn_bind(pl->kernels[i], DNN_SCRATCH, scratch, e));
    return 0;
}

/* --- sets of activations, of which one is in use */

int cpu_plan_keep_bn(struct cpu_plan *pl, struct err *e)
{
    const int sets = cpu_plan_sets(pl);
    if (sets == 1)
        return 0;
    if (pl->o.keep_all)
        return err_set(e, -EINVAL, "%d sets of activations of a plan that keeps all tensors", sets);
    pl->kept = calloc((size_t)sets * (size_t)pl->p->nops, sizeof *pl->kept);
    if (!pl->kept)
        return err_set(e, -ENOMEM, "no memory for a plan");
    for (int k = 0; k < sets; k++)
        for (int i = pl->ops.first; i < pl->ops.end; i++) {
            void *values = NULL;
            if (pl->bns[i].mean)
                TRY(cpu_plan_block(pl, 4 * (size_t)pl->bns[i].channels * sizeof(float), &values, e));
            pl->kept[k * pl->p->nops + i].values = values;
        }
    return 0;
}

static void copy_bn(struct cpu_plan *pl, int set, bool back)
{
    for (int i = pl->ops.first; i < pl->ops.end; i++) {
        struct bn_state *b = &pl->bns[i];
        struct bn_kept *k = &pl->kept[set * pl->p->nops + i];
        const size_t bytes = 4 * (size_t)b->channels * sizeof(float); /* mean to beta, side by side */
        if (!b->mean)
            continue;
        memcpy(back ? b->mean : k->values, back ? k->values : b->mean, bytes);
        if (back)
            b->count = k->count;
        else
            k->count = b->count;
    }
}

int cpu_plan_use_set(struct cpu_plan *pl, const struct run_args *a, struct err *e)
{
    const bool other = pl->of_set && pl->set != a->set;
    pl->set = a->set;
    for (int i = 0; i < pl->npatches && other; i++)
        if (pl->of_set[pl->patches[i].buffer])
            TRY(cpu_plan_patch(pl, &pl->patches[i], e));
    if (pl->kept && a->pass == RUN_BACKWARD)
        copy_bn(pl, a->set, true);
    return 0;
}

void cpu_plan_leave_set(struct cpu_plan *pl, const struct run_args *a)
{
    if (pl->kept && a->pass == RUN_FORWARD)
        copy_bn(pl, a->set, false);
}
