/* Where buffers lie: largest first, each at the lowest offset where nobody lives at the same time; then their addresses are filled
 * into the steps. */
#include <errno.h>
#include <stdlib.h>

#include "worker/device/cpu/plan.h"

enum { ALIGN = 64 };

static int by_size(const void *a, const void *b, void *buffers)
{
    int i = *(const int *)a, j = *(const int *)b;
    size_t x = ((struct buffer *)buffers)[i].bytes, y = ((struct buffer *)buffers)[j].bytes;
    return x != y ? (x < y ? 1 : -1) : i - j;
}

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static bool overlap(const struct buffer *a, const struct buffer *b)
{
    return a->keep || b->keep || (a->first <= b->last && b->first <= a->last);
}

/* Largest first, each at the lowest offset where nobody lives at the same time. */
static size_t place(struct buffer *v, const int *order, int n)
{
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        struct buffer *b = &v[order[i]];
        size_t at = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (int k = 0; k < i; k++) {
                const struct buffer *o = &v[order[k]];
                if (overlap(b, o) && at < o->offset + padded(o->bytes) && o->offset < at + padded(b->bytes)) {
                    at = o->offset + padded(o->bytes);
                    moved = true;
                }
            }
        }
        b->offset = at;
        if (at + padded(b->bytes) > total)
            total = at + padded(b->bytes);
    }
    return total;
}

int plan_place(struct cpu_plan *pl, struct err *e)
{
    int *order = malloc(sizeof(int) * ((size_t)pl->nbuffers + 1));
    if (!order)
        return err_set(e, -ENOMEM, "no memory for a plan of %d buffers", pl->nbuffers);
    for (int i = 0; i < pl->nbuffers; i++)
        order[i] = i;
    qsort_r(order, (size_t)pl->nbuffers, sizeof(int), by_size, pl->buffers);
    pl->memory_bytes = place(pl->buffers, order, pl->nbuffers);
    free(order);
    void *memory;
    TRY(plan_block(pl, pl->memory_bytes, &memory, e));
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
                                             pl->plane_floats * sizeof(float)};
    for (int i = 0; i < pl->nweights; i++)
        ret->weights += pl->buffers[pl->weights[i].buffer].bytes;
    ret->activations = pl->memory_bytes - ret->weights;
}

/* Memory that steps share: they run one after another. */
int plan_shared_memory(struct cpu_plan *pl, struct err *e)
{
    void *scratch, *partial, *plane, *metrics, *logits;
    TRY(plan_block(pl, pl->scratch_bytes, &scratch, e));
    TRY(plan_block(pl, pl->partial_doubles * sizeof(double), &partial, e));
    TRY(plan_block(pl, pl->plane_floats * sizeof(float), &plane, e));
    TRY(plan_block(pl, (size_t)pl->o.batch * METRIC_N * sizeof(double), &metrics, e));
    TRY(plan_block(pl, (size_t)pl->cpu->threads * (size_t)pl->p->classes * sizeof(double), &logits, e));
    pl->partial = partial;
    pl->plane = plane;
    pl->metrics = metrics;
    pl->logits = logits;
    for (int i = 0; i < pl->nkernels; i++)
        TRY(dnn_bind(pl->kernels[i], DNN_SCRATCH, scratch, e));
    return 0;
}
