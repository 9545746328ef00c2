/* The memory of a plan: what is fixed, then buffers by liveness, then the table of weights. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "worker/device/cuda/plan.h"

/* Hand out pieces of one block: first with base NULL, to learn the size, then for good. */
struct cutter {
    char *base;
    size_t at;
};

static void *cut(struct cutter *c, size_t bytes)
{
    char *p = c->base ? c->base + c->at : NULL;
    c->at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static void cut_fixed(struct cuda_plan *pl, struct cutter *c)
{
    const struct program *p = pl->p;
    const size_t n = (size_t)pl->o.batch, rows = n * input_row_labels(&p->input);
    int widest = 1;
    pl->images = cut(c, stage_rows_bytes(pl));
    pl->labels = cut(c, rows * sizeof(int32_t));
    pl->sample_weights = cut(c, n * sizeof(float));
    pl->numbers = cut(c, n * sizeof(uint32_t));
    pl->mix = pl->o.mixes ? cut(c, (n + (size_t)pl->o.others) * sizeof *pl->mix) : NULL;
    pl->draw = cut(c, sizeof *pl->draw);
    pl->samples = cut(c, rows * 4 * sizeof(float));
    pl->grad_scale = cut(c, sizeof(float));
    for (int t = 0; t < p->ntensors; t++)
        widest = p->tensors[t].c > widest ? p->tensors[t].c : widest;
    pl->zeros = cut(c, (size_t)widest * sizeof(float));
}

static int make_stage(struct cuda_plan *pl, struct stage *s, struct err *e)
{
    const struct gpu_ops *gpu = pl->cuda->gpu->ops;
    TRY(gpu->host_alloc(pl->cuda->gpu, pl->stage_bytes, (void **)&s->host, e));
    TRY(cuda_take(pl->cuda, pl->stage_bytes, &s->device, e));
    TRY(gpu->event_open(pl->cuda->gpu, false, &s->filled, e));
    return gpu->event_open(pl->cuda->gpu, false, &s->emptied, e);
}

int cuda_plan_fixed(struct cuda_plan *pl, struct err *e)
{
    struct cutter size = {0};
    void *block;
    cut_fixed(pl, &size);
    pl->fixed_bytes = size.at;
    TRY(cuda_take(pl->cuda, size.at, &block, e));
    pl->fixed = block;
    struct cutter c = {.base = pl->fixed};
    cut_fixed(pl, &c);
    pl->stage_bytes = (size_t)((char *)pl->samples - pl->fixed); /* the batch and the draw lie first */
    pl->labels_at = (size_t)((char *)pl->labels - pl->fixed);
    pl->weights_at = (size_t)((char *)pl->sample_weights - pl->fixed);
    pl->numbers_at = (size_t)((char *)pl->numbers - pl->fixed);
    pl->mix_at = pl->mix ? (size_t)((char *)pl->mix - pl->fixed) : 0;
    pl->draw_at = (size_t)((char *)pl->draw - pl->fixed);
    for (int i = 0; i < STAGES; i++)
        TRY(make_stage(pl, &pl->stage[i], e));
    return 0;
}

/* --- buffers */

/* What a buffer holds, for a message. */
static const char *tenant(const struct cuda_plan *pl, int buffer)
{
    for (int t = 0; t < pl->p->ntensors; t++)
        if (pl->value[t] == buffer)
            return pl->p->tensors[t].name;
    for (int i = 0; i < pl->p->nparams; i++)
        if (pl->weights[i].copy == buffer || pl->weights[i].gradient == buffer)
            return pl->p->params[i].name;
    return "scratch";
}

void cuda_plan_tenants(const struct cuda_plan *pl, char *out, size_t cap)
{
    enum { SHOWN = 4 };
    bool shown[SHOWN] = {0};
    int at[SHOWN];
    size_t used = 0;
    out[0] = '\0';
    for (int k = 0; k < SHOWN; k++) {
        at[k] = -1;
        for (int i = 0; i < pl->nbuffers; i++) {
            bool taken = false;
            for (int j = 0; j < k; j++)
                taken |= shown[j] && at[j] == i;
            if (!taken && (at[k] < 0 || pl->buffers[i].bytes > pl->buffers[at[k]].bytes))
                at[k] = i;
        }
        if (at[k] < 0 || used >= cap)
            return;
        shown[k] = true;
        const int n = snprintf(out + used, cap - used, "%s%s %zu MiB", k ? ", " : "", tenant(pl, at[k]),
                               pl->buffers[at[k]].bytes >> 20);
        used += n > 0 ? (size_t)n : 0;
    }
}

/* Weights' copies and gradients: the same for every batch. */
static size_t weights_bytes(const struct cuda_plan *pl)
{
    size_t n = 0;
    for (int i = 0; i < pl->p->nparams; i++) {
        const struct weight *w = &pl->weights[i];
        n += w->copy == NO_BUFFER ? 0 : pl->buffers[w->copy].bytes;
        n += w->gradient == NO_BUFFER ? 0 : pl->buffers[w->gradient].bytes;
    }
    return n;
}

/* What the largest of the chosen graphs wants, shared by all. */
static size_t workspace_wanted(const struct cuda_plan *pl)
{
    size_t most = 0;
    for (int i = 0; i < pl->nsteps; i++) {
        const struct step *s = pl->steps[i];
        const size_t n = s->kind == STEP_GEMM                 ? PLAN_GEMM_WORKSPACE
                         : s->kind == STEP_DNN && s->dnn.plan ? cudnn_plan_workspace(s->dnn.plan)
                                                              : 0;
        most = n > most ? n : most;
    }
    return most;
}

/* Of the sums that batch norm makes in parts: the same for every batch. */
static size_t partial_bytes(const struct cuda_plan *pl)
{
    return pl->partial_doubles * sizeof(double) + pl->counters * sizeof(unsigned);
}

/* All else that a plan needs is proportional to its batch, but for the workspace. */
static size_t batch_that_fits(const struct cuda_plan *pl, size_t free_bytes)
{
    const double weights = (double)weights_bytes(pl), taken = (double)(pl->fixed_bytes + STAGES * pl->stage_bytes),
                 buffers = (double)pl->memory_bytes, sums = pl->partial ? 0 : (double)partial_bytes(pl);
    const double room = (double)free_bytes + (pl->memory ? buffers : 0) + taken - weights - sums -
                        (double)workspace_wanted(pl),
                 whole = buffers + taken - weights;
    return room > 0 && whole > 0 ? (size_t)((double)pl->o.batch * 0.95 * room / whole) : 0;
}

static int out_of_memory(const struct cuda_plan *pl, struct err *e)
{
    struct cuda *c = pl->cuda;
    size_t left = 0, total = 0;
    char largest[256];
    if (c->gpu->ops->memory(c->gpu, &left, &total, NULL) < 0)
        left = total = 0;
    cuda_plan_tenants(pl, largest, sizeof largest);
    return err_set(
        e, -ENOMEM,
        "a batch of %d samples a rank needs %zu MiB of GPU memory, %zu of %zu MiB are free (largest: %s); %zu "
        "samples would fit",
        pl->o.batch, (pl->memory_bytes + partial_bytes(pl) + workspace_wanted(pl)) >> 20,
        (left + (pl->memory ? pl->memory_bytes : 0) + (pl->partial ? partial_bytes(pl) : 0)) >> 20, total >> 20,
        largest, batch_that_fits(pl, left));
}

/* What the plan cannot do without: where it does not fit, that is reported of the whole plan. */
static int need(struct cuda_plan *pl, size_t bytes, void **ret, struct err *e)
{
    const int rc = cuda_take(pl->cuda, bytes, ret, e);
    return rc == -ENOMEM ? out_of_memory(pl, e) : rc;
}

static int take_buffers(struct cuda_plan *pl, struct err *e)
{
    void *p;
    TRY(cuda_plan_sets(pl) > 1 ? chunk_place(pl, e)
                               : liveness_place(pl->buffers, pl->nbuffers, ALIGN, &pl->memory_bytes, e));
    TRY(need(pl, pl->memory_bytes, &pl->memory, e));
    TRY(need(pl, partial_bytes(pl), &p, e));
    pl->partial = p;
    return 0;
}

static void fill_in(struct cuda_plan *pl)
{
    const struct k_partial partial = {.values = pl->partial,
                                      .counters = (unsigned *)(void *)(pl->partial + pl->partial_doubles)};
    for (int i = 0; i < pl->npatches; i++) {
        const struct patch *x = &pl->patches[i];
        *x->pointer = cuda_plan_at(pl, x->buffer) + x->offset;
    }
    for (int i = 0; i < pl->nsteps; i++) {
        struct step *s = pl->steps[i];
        if (s->kind == STEP_GEMM && s->read)
            s->gemm.b = reads_at(pl, s->read, pl->reads[s->read - 1].first);
        if (s->kind == STEP_KERNEL && s->kernel == KERNEL_BN_STATS)
            s->args.as_KERNEL_BN_STATS.partial = partial;
        if (s->kind == STEP_KERNEL && s->kernel == KERNEL_BN_BWD_SUMS)
            s->args.as_KERNEL_BN_BWD_SUMS.partial = partial;
        if (s->kind == STEP_KERNEL && s->kernel == KERNEL_ROW_NORM_BWD)
            s->args.as_KERNEL_ROW_NORM_BWD.partial = partial;
        if (s->kind == STEP_KERNEL && s->kernel == KERNEL_GROUP_CONV_WEIGHT)
            s->args.as_KERNEL_GROUP_CONV_WEIGHT.partial = partial;
        if (s->kind == STEP_KERNEL && s->kernel == KERNEL_SCALE_BWD)
            s->args.as_KERNEL_SCALE_BWD.partial = partial;
    }
}

/* --- the table: groups of gradients came first, the weights' copies follow */

static int weights_entries(struct cuda_plan *pl, struct err *e)
{
    const int at = pl->pack_at = pl->ntable;
    TRY(ARRAY_GROW(pl->host_table, pl->cap_table, (size_t)at + (size_t)pl->p->nparams + 1, "weights of a plan", e));
    for (int k = 0; k < at; k++) /* buffers' numbers until now */
        pl->host_table[k].copy = cuda_plan_at(pl, (int)(intptr_t)pl->host_table[k].copy);
    for (int i = 0; i < pl->p->nparams; i++) {
        const struct weight *w = &pl->weights[i];
        if (w->copy == NO_BUFFER)
            continue;
        struct k_tensor *t = &pl->host_table[pl->ntable++];
        *t = w->form;
        t->arena = pl->params + pl->p->params[i].offset;
        t->copy = cuda_plan_at(pl, w->copy);
        pl->pack_elements += (size_t)t->k * (size_t)t->padded_c * (size_t)t->rs;
    }
    pl->npack = pl->ntable - at;
    return 0;
}

/* What steps copy of parameters that come and go, behind all of that: to the buffers of each set. */
static int copies_entries(struct cuda_plan *pl, struct err *e)
{
    const int sets = cuda_plan_sets(pl), was = pl->set;
    pl->copies_at = pl->ntable;
    TRY(ARRAY_GROW(pl->host_table, pl->cap_table, (size_t)pl->ntable + (size_t)sets * (size_t)pl->ncopies + 1,
                   "copies of a plan", e));
    for (pl->set = 0; pl->set < sets; pl->set++)
        for (int i = 0; i < pl->ncopies; i++) {
            const struct read_copy *c = &pl->copies[i];
            struct k_tensor *t = &pl->host_table[pl->ntable++];
            *t = c->form;
            t->arena = (float *)(uintptr_t)reads_at(pl, c->read, c->first);
            t->copy = cuda_plan_at(pl, (int)(intptr_t)c->form.copy);
        }
    pl->set = was;
    return 0;
}

static int make_table(struct cuda_plan *pl, struct err *e)
{
    void *p;
    struct cuda *c = pl->cuda;
    TRY(weights_entries(pl, e));
    TRY(copies_entries(pl, e));
    const size_t bytes = (size_t)pl->ntable * sizeof *pl->table;
    TRY(need(pl, bytes, &p, e));
    pl->table = p;
    TRY(c->base.ops->upload(&c->base, pl->table, pl->host_table, bytes, e));
    return 0;
}

static int take_workspace(struct cuda_plan *pl, struct err *e)
{
    const size_t bytes = workspace_wanted(pl);
    TRY(need(pl, bytes, &pl->workspace, e));
    pl->workspace_bytes = bytes;
    return 0;
}

int cuda_plan_place(struct cuda_plan *pl, struct err *e)
{
    TRY(take_buffers(pl, e));
    TRY(reads_tell(pl, e));
    fill_in(pl);
    TRY(make_table(pl, e));
    TRY(tune_plan(pl, e));
    TRY(cuda_plan_fill_tables(pl, e)); /* tuning writes over all buffers */
    return take_workspace(pl, e);
}

void cuda_plan_memory(const struct plan *plan, struct plan_memory *ret)
{
    const struct cuda_plan *pl = (const struct cuda_plan *)plan;
    *ret = (struct plan_memory){.workspace = pl->workspace_bytes + partial_bytes(pl)};
    for (int i = 0; i < pl->p->nparams; i++) {
        const struct weight *w = &pl->weights[i];
        ret->weights += w->copy == NO_BUFFER ? 0 : pl->buffers[w->copy].bytes;
    }
    ret->activations = pl->fixed_bytes + STAGES * pl->stage_bytes +
                       (pl->memory_bytes > ret->weights ? pl->memory_bytes - ret->weights : 0);
}

void cuda_plan_uncapture(struct plan *plan)
{
    struct cuda_plan *pl = (struct cuda_plan *)plan;
    struct gpu *g = pl->cuda->gpu;
    (void)g->ops->stream_sync(g, pl->cuda->compute, NULL); /* what fails has ended, too */
    for (int i = 0; i < pl->nvariants; i++)
        g->ops->graph_close(g, pl->variants[i].graph);
    pl->nvariants = 0;
}

void cuda_plan_release(struct cuda_plan *pl)
{
    struct gpu *g = pl->cuda->gpu;
    /* Whoever gives up after an error may have left a batch on its way to this memory. What fails here has ended,
     * too. */
    (void)g->ops->stream_sync(g, pl->cuda->copy, NULL);
    cuda_plan_uncapture(&pl->base);
    for (int i = 0; pl->marks && i <= pl->nsteps; i++)
        g->ops->event_close(g, pl->marks[i]);
    free(pl->marks);
    const struct watched watched = cuda_watched(pl->cuda);
    first_runs_close(&pl->first, &watched);
    for (int i = 0; i < STAGES; i++) {
        g->ops->host_release(g, pl->stage[i].host);
        cuda_give(pl->cuda, pl->stage[i].device, pl->stage_bytes);
        g->ops->event_close(g, pl->stage[i].filled);
        g->ops->event_close(g, pl->stage[i].emptied);
    }
    cuda_give(pl->cuda, pl->fixed, pl->fixed_bytes);
    cuda_give(pl->cuda, pl->memory, pl->memory_bytes);
    cuda_give(pl->cuda, pl->workspace, pl->workspace_bytes);
    cuda_give(pl->cuda, pl->partial, partial_bytes(pl));
    cuda_give(pl->cuda, pl->table, (size_t)pl->ntable * sizeof *pl->table);
}
