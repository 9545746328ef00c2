/* Where buffers lie; their addresses are filled into the steps. */
#include "worker/device/cpu/plan.h"

enum { ALIGN = 64 };

int cpu_plan_place(struct cpu_plan *pl, struct err *e)
{
    TRY(liveness_place(pl->buffers, pl->nbuffers, ALIGN, &pl->memory_bytes, e));
    void *memory;
    TRY(cpu_plan_run_block(pl, pl->memory_bytes, &memory, e));
    pl->memory = memory;
    for (int i = 0; i < pl->npatches; i++) {
        const struct patch *p = &pl->patches[i];
        void *at = pl->memory + pl->buffers[p->buffer].offset;
        if (p->pointer)
            *p->pointer = at;
        else
            TRY(dnn_bind(p->kernel, p->slot, at, e));
    }
    for (int i = 0; i < pl->nweights; i++) {
        struct weight_copy *w = &pl->weights[i];
        w->at = (float *)(void *)(pl->memory + pl->buffers[w->buffer].offset);
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
    TRY(cpu_plan_run_block(pl, (size_t)pl->o.batch * METRIC_N * sizeof(double), &metrics, e));
    pl->partial = partial;
    pl->plane = plane;
    pl->metrics = metrics;
    for (int i = 0; i < pl->nkernels; i++)
        TRY(dnn_bind(pl->kernels[i], DNN_SCRATCH, scratch, e));
    return 0;
}
