/* Making, running and taking apart a plan; plan.h says how the pieces fit. */
#include "worker/device/cpu/plan.h"

#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/array.h"
#include "common/base/clock.h"
#include "worker/device/half.h"
#include "worker/device/host_common.h"

/* --- building blocks */

size_t store_size(enum store s)
{
    return s == STORE_BF16 ? 2 : 4;
}

enum dtype store_type(enum store s)
{
    return s == STORE_BF16 ? DT_BF16 : DT_F32;
}

static int take_block(struct cpu_plan *pl, size_t bytes, bool reserve, void **ret, struct err *e)
{
    TRY(ARRAY_GROW(pl->blocks, pl->cap_blocks, (size_t)pl->nblocks + 1, "blocks of a plan", e));
    if (!reserve)
        TRY(host_ask_room(&pl->o, pl->unused, bytes, e));
    pl->unused += reserve || bytes < HOST_LARGE ? 0 : bytes;
    const int rc = reserve ? host_reserve(bytes, ret, e) : host_alloc_as_used(bytes, ret, e);
    if (rc < 0)
        return err_wrap(e, "activations and work space of a plan");
    pl->blocks[pl->nblocks++] = (struct plan_block){.at = *ret, .reserved = reserve ? bytes : 0};
    return 0;
}

int cpu_plan_block(struct cpu_plan *pl, size_t bytes, void **ret, struct err *e)
{
    return take_block(pl, bytes, false, ret, e);
}

int cpu_plan_run_block(struct cpu_plan *pl, size_t bytes, void **ret, struct err *e)
{
    return take_block(pl, bytes, pl->o.forecast && bytes > 0, ret, e);
}

int cpu_plan_buffer(struct cpu_plan *pl, size_t bytes, struct err *e)
{
    TRY(ARRAY_GROW(pl->buffers, pl->cap_buffers, (size_t)pl->nbuffers + 1, "buffers of a plan", e));
    pl->buffers[pl->nbuffers] = (struct live_buffer){.bytes = bytes, .first = -1, .last = -1, .keep = pl->o.keep_all};
    return pl->nbuffers++;
}

int cpu_plan_step(struct cpu_plan *pl, step_fn *run, const char *label, int op, struct step **ret, struct err *e)
{
    TRY(ARRAY_GROW(pl->steps, pl->cap_steps, (size_t)pl->nsteps + 1, "steps of a plan", e));
    struct step *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(e, -ENOMEM, "no memory for a step");
    s->run = run;
    s->label = label;
    s->op = op;
    s->store = pl->store;
    pl->steps[pl->nsteps++] = *ret = s;
    return 0;
}

int cpu_plan_kernel(struct cpu_plan *pl, struct dnn_kernel *k, struct err *e)
{
    int rc = ARRAY_GROW(pl->kernels, pl->cap_kernels, (size_t)pl->nkernels + 1, "kernels of a plan", e);
    if (rc < 0) {
        dnn_kernel_destroy(k);
        return rc;
    }
    pl->kernels[pl->nkernels++] = k;
    size_t scratch = dnn_bytes(k, DNN_SCRATCH);
    if (scratch > pl->scratch_bytes)
        pl->scratch_bytes = scratch;
    return 0;
}

static int patch(struct cpu_plan *pl, int buffer, void **pointer, struct dnn_kernel *k, enum dnn_slot s, struct err *e)
{
    TRY(ARRAY_GROW(pl->patches, pl->cap_patches, (size_t)pl->npatches + 1, "patches of a plan", e));
    pl->patches[pl->npatches++] = (struct patch){.buffer = buffer, .pointer = pointer, .kernel = k, .slot = s};
    struct live_buffer *b = &pl->buffers[buffer];
    int now = pl->nsteps - 1;
    if (b->first < 0)
        b->first = now;
    b->last = now;
    return 0;
}

int cpu_plan_use(struct cpu_plan *pl, int buffer, const void *pointer_to_pointer, struct err *e)
{
    return patch(pl, buffer, (void **)(uintptr_t)pointer_to_pointer, NULL, DNN_SRC, e);
}

int cpu_plan_use_kernel(struct cpu_plan *pl, int buffer, struct dnn_kernel *k, enum dnn_slot s, struct err *e)
{
    return patch(pl, buffer, NULL, k, s, e);
}

int cpu_plan_read(struct cpu_plan *pl, size_t first, size_t end, struct err *e)
{
    if (!pl->o.needs)
        return 0;
    struct step *s = pl->steps[pl->nsteps - 1];
    TRY(ARRAY_GROW(pl->reads, pl->cap_reads, (size_t)pl->nreads + 1, "reads of parameters", e));
    pl->reads[pl->nreads++] = (struct plan_range){first, end};
    s->read = s->read ? s->read : pl->nreads;
    s->reads++;
    return 0;
}

int cpu_plan_read_param(struct cpu_plan *pl, int param, struct err *e)
{
    const struct param *q = &pl->p->params[param];
    return cpu_plan_read(pl, q->offset, q->offset + q->count, e);
}

struct layout cpu_plan_layout(const struct cpu_plan *pl, int t, int block)
{
    const struct tensor *x = &pl->p->tensors[t];
    return (struct layout){.n = pl->o.batch * x->ranks, .c = x->c, .h = x->h, .w = x->w, .b = block};
}

int cpu_plan_format(const struct cpu_plan *pl, int t)
{
    if (pl->o.format == MEMORY_NHWC || (pl->o.format == MEMORY_AUTO && pl->by_positions))
        return pl->p->tensors[t].c;
    return pl->o.format == MEMORY_NCHW ? LAYOUT_PLAIN : LAYOUT_ANY;
}

int cpu_plan_value(struct cpu_plan *pl, int t, int block, struct err *e)
{
    struct value *v = &pl->values[t];
    if (v->buffer != NO_BUFFER)
        return 0;
    v->layout = cpu_plan_layout(pl, t, block);
    v->store = half_tensor(pl->p, &pl->o, t) ? pl->store : STORE_F32;
    int b = cpu_plan_buffer(pl, layout_count(&v->layout) * store_size(v->store), e);
    TRY(b);
    v->buffer = b;
    return 0;
}

int cpu_plan_in_block(struct cpu_plan *pl, int op, int t, int block, struct err *e)
{
    struct value *v = &pl->values[t];
    struct layout want = cpu_plan_layout(pl, t, block);
    struct dnn_kernel *k;
    struct step *s;
    if (layout_same(&v->layout, &want))
        return v->buffer;
    if (v->alt_buffer != NO_BUFFER && v->alt_block == block)
        return v->alt_buffer;
    TRY(dnn_reorder_create(pl->cpu->dnn, &v->layout, store_type(v->store), &want, store_type(v->store), &k, e));
    TRY(cpu_plan_kernel(pl, k, e));
    int b = cpu_plan_buffer(pl, layout_count(&want) * store_size(v->store), e);
    TRY(b);
    TRY(cpu_plan_step(pl, cpu_step_dnn, "reorder", op, &s, e));
    s->kernel = k;
    TRY(cpu_plan_use_kernel(pl, v->buffer, k, DNN_SRC, e));
    TRY(cpu_plan_use_kernel(pl, b, k, DNN_DST, e));
    v->alt_block = block;
    v->alt_buffer = b;
    return b;
}

int cpu_plan_operand(struct cpu_plan *pl, int op, int t, int block, struct err *e)
{
    struct value *v = &pl->values[t];
    struct layout want = cpu_plan_layout(pl, t, block);
    struct dnn_kernel *k;
    struct step *s;
    if (v->store == pl->store)
        return cpu_plan_in_block(pl, op, t, block, e);
    if (v->cast_buffer != NO_BUFFER && v->cast_block == block)
        return v->cast_buffer;
    TRY(dnn_reorder_create(pl->cpu->dnn, &v->layout, DT_F32, &want, DT_F32, &k, e));
    TRY(cpu_plan_kernel(pl, k, e));
    int b = cpu_plan_buffer(pl, layout_count(&want) * sizeof(float), e);
    TRY(b);
    TRY(cpu_plan_step(pl, cpu_step_dnn, "cast", op, &s, e));
    s->kernel = k;
    s->count = layout_count(&want);
    TRY(cpu_plan_use_kernel(pl, v->buffer, k, DNN_SRC, e));
    TRY(cpu_plan_use_kernel(pl, b, k, DNN_DST, e));
    TRY(cpu_plan_use(pl, b, &s->out, e));
    v->cast_block = block;
    v->cast_buffer = b;
    return b;
}

/* A step that makes the copy, for the next step alone. */
static int emit_copy(struct cpu_plan *pl, struct dnn_kernel *k, int param, int op, struct err *e)
{
    struct dnn_kernel *reorder;
    struct step *s;
    TRY(dnn_weights_reorder_create(pl->cpu->dnn, k, false, false, &reorder, e));
    TRY(cpu_plan_kernel(pl, reorder, e));
    TRY(dnn_bind(reorder, DNN_SRC, pl->params + pl->p->params[param].offset, e));
    const int b = cpu_plan_buffer(pl, dnn_bytes(k, DNN_WEIGHTS), e);
    TRY(b);
    TRY(cpu_plan_step(pl, cpu_step_dnn, "weights", op, &s, e));
    TRY(cpu_plan_read_param(pl, param, e));
    s->kernel = reorder;
    s->count = dnn_bytes(k, DNN_WEIGHTS) / sizeof(float);
    TRY(cpu_plan_use_kernel(pl, b, reorder, DNN_DST, e));
    if (store_rounds(pl->store))
        TRY(cpu_plan_use(pl, b, &s->out, e));
    return b;
}

int cpu_plan_weights(struct cpu_plan *pl, struct dnn_kernel *k, int param, int op, struct err *e)
{
    if (pl->o.needs || (pl->o.fresh_weights && !pl->o.keep_all))
        return emit_copy(pl, k, param, op, e);
    for (int i = 0; i < pl->nweights; i++)
        if (pl->weights[i].param == param && dnn_same_weights(pl->weights[i].user, k))
            return pl->weights[i].buffer;
    TRY(ARRAY_GROW(pl->weights, pl->cap_weights, (size_t)pl->nweights + 1, "weights of a plan", e));
    struct weight_copy *w = &pl->weights[pl->nweights];
    *w = (struct weight_copy){.user = k, .param = param, .count = dnn_bytes(k, DNN_WEIGHTS) / sizeof(float)};
    TRY(dnn_weights_reorder_create(pl->cpu->dnn, k, false, false, &w->reorder, e));
    TRY(cpu_plan_kernel(pl, w->reorder, e));
    TRY(dnn_bind(w->reorder, DNN_SRC, pl->params + pl->p->params[param].offset, e));
    int b = cpu_plan_buffer(pl, dnn_bytes(k, DNN_WEIGHTS), e);
    TRY(b);
    w->buffer = b;
    pl->buffers[b].keep = true;
    pl->nweights++;
    return b;
}

/* --- creating */

static void keep_results(struct cpu_plan *pl)
{
    for (int t = 0; t < pl->p->ntensors; t++)
        if (pl->values[t].buffer != NO_BUFFER && fuse_outlives(pl->p, pl->ops.first, pl->ops.end, pl->readers, t))
            pl->buffers[pl->values[t].buffer].keep = true;
}

static int check_type(const struct cpu *c, const struct plan_options *o, enum store *ret, struct err *e)
{
    if (o->compute == DT_F32)
        *ret = STORE_F32;
    else if (half_compute(o) && o->emulate)
        *ret = o->compute == DT_F16 ? STORE_ROUNDED_F16 : STORE_ROUNDED;
    else if (o->compute == DT_BF16 && c->native_bf16 && o->half == HALF_STORED)
        *ret = STORE_BF16;
    else if (half_compute(o))
        return err_set(e, -ENOTSUP, "convolutions in %s: this processor or oneDNN has none; they can be emulated",
                       dtype_name(o->compute));
    else
        return err_set(e, -ENOTSUP, "the cpu device computes in F32, BF16 or F16, not in %s", dtype_name(o->compute));
    return 0;
}

/* Has the program ops that want the channels of a position side by side? */
static bool works_by_positions(const struct program *p)
{
    for (int i = 0; i < p->nops; i++)
        if (op_is(p->ops[i].kind, OP_OF_POSITIONS) || p->ops[i].groups > 1 || p->ops[i].each)
            return true;
    return false;
}

static int allocate_tables(struct cpu_plan *pl, struct err *e)
{
    size_t nops = (size_t)pl->p->nops, nt = (size_t)pl->p->ntensors;
    void *fused, *readers, *values, *forward, *bns, *index, *rounded;
    TRY(cpu_plan_block(pl, nops * sizeof(*pl->fused), &fused, e));
    TRY(cpu_plan_block(pl, nt * sizeof(*pl->readers), &readers, e));
    TRY(cpu_plan_block(pl, nt * sizeof(*pl->values), &values, e));
    TRY(cpu_plan_block(pl, nops * sizeof(*pl->forward), &forward, e));
    TRY(cpu_plan_block(pl, nops * sizeof(*pl->bns), &bns, e));
    TRY(cpu_plan_block(pl, nops * sizeof(*pl->index_buffer), &index, e));
    TRY(cpu_plan_block(pl, ((size_t)pl->p->nparams + 1) * sizeof(*pl->rounded), &rounded, e));
    pl->rounded = rounded;
    pl->fused = fused;
    pl->readers = readers;
    pl->values = values;
    pl->forward = forward;
    pl->bns = bns;
    pl->index_buffer = index;
    for (size_t t = 0; t < nt; t++)
        pl->values[t] = (struct value){.buffer = NO_BUFFER, .alt_buffer = NO_BUFFER, .cast_buffer = NO_BUFFER};
    for (size_t i = 0; i < nops; i++)
        pl->index_buffer[i] = NO_BUFFER;
    return 0;
}

static int emit(struct cpu_plan *pl, int first, int end, struct err *e)
{
    fuse_ops(pl->p, first, end, pl->readers, pl->o.keep_all, pl->fused);
    if (!pl->o.keep_all)
        fuse_chains(pl->p, &pl->o, first, end, pl->readers, pl->fused);
    for (int i = first; i < end; i++) {
        if (!pl->fused[i].skip)
            TRY(cpu_plan_emit(pl, i, e));
    }
    return 0;
}

/* A part of a model: each pass begins with what comes in and ends with what goes out. */
static int emit_chunk(struct cpu_plan *pl, struct err *e)
{
    TRY(cpu_plan_emit_boundary(pl, RUN_FORWARD, true, e));
    TRY(emit(pl, pl->ops.first, pl->ops.end, e));
    TRY(cpu_plan_emit_boundary(pl, RUN_FORWARD, false, e));
    pl->forward_steps = pl->nsteps;
    pl->forward_reads = pl->nreads;
    if (!pl->o.training)
        return 0;
    TRY(cpu_plan_emit_boundary(pl, RUN_BACKWARD, true, e));
    TRY(emit(pl, pl->ops.first_back, pl->ops.end_back, e));
    TRY(cpu_plan_emit_boundary(pl, RUN_BACKWARD, false, e));
    return cpu_plan_keep_bn(pl, e);
}

static int tell_needs(struct cpu_plan *pl, struct err *e)
{
    const struct plan_needs *needs = pl->o.needs, *back = pl->o.needs_back;
    const int forward = pl->o.chunk ? pl->forward_reads : pl->nreads;
    TRY(needs ? needs->order(needs->ctx, pl->reads, forward, e) : 0);
    return back ? back->order(back->ctx, pl->reads + forward, pl->nreads - forward, e) : 0;
}

static int build(struct cpu_plan *pl, struct err *e)
{
    pl->by_positions = works_by_positions(pl->p);
    TRY(allocate_tables(pl, e));
    fuse_readers(pl->p, pl->o.training, pl->readers);
    TRY(pl->o.chunk ? emit_chunk(pl, e) : emit(pl, pl->ops.first, pl->ops.end, e));
    if (!pl->o.chunk)
        keep_results(pl);
    TRY(cpu_plan_place(pl, e));
    TRY(tell_needs(pl, e));
    return cpu_plan_shared_memory(pl, e);
}

int cpu_plan_create(struct device *d, const struct program *p, const struct plan_options *o, struct plan **ret,
                    struct err *e)
{
    struct cpu *c = (struct cpu *)d;
    struct cpu_plan *pl = calloc(1, sizeof(*pl));
    if (!pl)
        return err_set(e, -ENOMEM, "no memory for a plan");
    pl->base.ops = &device_cpu_ops;
    pl->cpu = c;
    pl->p = p;
    pl->o = *o;
    pl->params = o->params;
    pl->stats = o->stats;
    pl->reduce = o->reduce;
    omp_set_num_threads(c->threads);
    int rc = host_plan_ops(p, o, &pl->ops, e);
    if (rc == 0)
        rc = check_type(c, o, &pl->store, e);
    if (rc == 0)
        rc = build(pl, e);
    if (rc < 0) {
        cpu_plan_close(&pl->base);
        return rc;
    }
    *ret = &pl->base;
    return 0;
}

void cpu_plan_close(struct plan *plan)
{
    struct cpu_plan *pl = (struct cpu_plan *)plan;
    if (!pl)
        return;
    for (int i = 0; i < pl->nkernels; i++)
        dnn_kernel_destroy(pl->kernels[i]);
    for (int i = 0; i < pl->nsteps; i++)
        free(pl->steps[i]);
    for (int i = 0; i < pl->nblocks; i++)
        if (pl->blocks[i].reserved)
            host_unreserve(pl->blocks[i].at, pl->blocks[i].reserved);
        else
            free(pl->blocks[i].at);
    cpu_plan_close_attentions(pl);
    free(pl->kernels);
    free(pl->steps);
    free(pl->blocks);
    free(pl->buffers);
    free(pl->patches);
    free(pl->of_set);
    free(pl->kept);
    free(pl->weights);
    free(pl->reads);
    free(pl);
}

/* --- running */

static int refresh_weights(struct cpu_plan *pl, struct err *e)
{
    for (int i = 0; i < pl->nweights; i++) {
        const struct weight_copy *w = &pl->weights[i];
        TRY(dnn_run(w->reorder, e));
        if (store_rounds(pl->store))
            pl->cpu->kern->round(w->at, w->count, pl->store, pl->cpu->threads);
    }
    cpu_plan_round_weights(pl);
    return 0;
}

/* Processor time of this thread, which takes part in everything: a busy machine does not blur it. */
static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run_step(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const bool back = pl->args->pass == RUN_BACKWARD;
    const struct plan_needs *needs = s->read == 0 ? NULL : back ? pl->o.needs_back : pl->o.needs;
    const int read = s->read - 1 - (back ? pl->forward_reads : 0);
    for (int i = 0; needs && i < s->reads; i++)
        TRY(needs->need(needs->ctx, read + i, e));
    TRY(s->run(pl, s, e));
    for (int i = 0; needs && i < s->reads; i++)
        needs->release(needs->ctx, read + i);
    return 0;
}

int cpu_plan_prepare(struct plan *plan, uint64_t params_version, struct err *e)
{
    struct cpu_plan *pl = (struct cpu_plan *)plan;
    omp_set_num_threads(pl->cpu->threads); /* of this thread, whoever it is: oneDNN asks for it */
    if (pl->fresh && pl->version == params_version)
        return 0;
    const double start = seconds_now();
    TRY(refresh_weights(pl, e));
    pl->refresh_seconds += seconds_now() - start;
    pl->version = params_version;
    pl->fresh = true;
    return 0;
}

int cpu_plan_run(struct plan *plan, const struct run_args *a, struct err *e)
{
    struct cpu_plan *pl = (struct cpu_plan *)plan;
    int first, end;
    TRY(host_run_ops(&pl->ops, &pl->o, a, &first, &end, e));
    TRY(host_check_batch(pl->p, first, end, &pl->o, &a->batch, e));
    TRY(cpu_plan_use_set(pl, a, e));
    TRY(cpu_plan_prepare(plan, a->params_version, e));
    double start, now = seconds_now();
    pl->args = a;
    pl->weight_sum = host_batch_count(&a->batch, pl->o.batch);
    first = a->pass == RUN_BACKWARD ? pl->forward_steps : 0;
    end = a->pass == RUN_FORWARD ? pl->forward_steps : pl->nsteps;
    for (int i = first; i < end; i++) {
        struct step *s = pl->steps[i];
        const int64_t begun = a->trace ? clock_ns() : 0;
        start = now;
        TRY(run_step(pl, s, e));
        now = seconds_now();
        s->seconds += now - start;
        if (a->trace)
            a->trace->op(a->trace->ctx,
                         &(struct run_span){.label = s->label,
                                            .kernel = s->kernel ? dnn_implementation(s->kernel) : pl->cpu->kern->name,
                                            .op = s->op,
                                            .start_ns = begun,
                                            .end_ns = clock_ns()});
    }
    cpu_plan_leave_set(pl, a);
    pl->runs++;
    return 0;
}

int cpu_plan_ready(struct cpu_plan *pl, int op, struct err *e)
{
    const struct run_hooks *h = pl->args->hooks;
    if (!h || !h->ready)
        return 0;
    struct plan_range r;
    return program_gradients(pl->p, &pl->p->ops[op], &r) ? h->ready(h->ctx, r.first, r.end, NULL, e) : 0;
}
