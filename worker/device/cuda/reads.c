/* Parameters that come and go (ZeRO 3): which step reads what, declared once while the plan is made; and copies of it.
 *
 *   need(k) -> KERNEL_PACK: from where read k is to a copy -> release(k) -> steps on the copy, which lives by liveness
 *
 * So nothing but such a step, and a product that reads a layer of its own where it lies, depends on when what is
 * there. */
#include <errno.h>
#include <stdlib.h>

#include "common/base/array.h"
#include "worker/device/cuda/plan.h"

int reads_add(struct cuda_plan *pl, size_t first, size_t end, struct err *e)
{
    TRY(ARRAY_GROW(pl->reads, pl->cap_reads, (size_t)pl->nreads + 1, "reads of parameters", e));
    pl->reads[pl->nreads++] = (struct plan_range){first, end};
    pl->steps[pl->nsteps - 1]->read = pl->nreads;
    return 0;
}

/* The last step copies this of its read. */
static int add_copy(struct cuda_plan *pl, const struct k_tensor *form, size_t first, int buffer, struct err *e)
{
    TRY(ARRAY_GROW(pl->copies, pl->cap_copies, (size_t)pl->ncopies + 1, "copies of parameters", e));
    struct read_copy *c = &pl->copies[pl->ncopies++];
    *c = (struct read_copy){.form = *form, .read = pl->nreads, .first = first};
    c->form.copy = (void *)(intptr_t)buffer;
    pl->steps[pl->nsteps - 1]->entries++;
    return 0;
}

/* A step of copies, none yet, of parameters [first, end). */
static int copying_step(struct cuda_plan *pl, int op, size_t first, size_t end, struct err *e)
{
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_PACK, "copy parameters", op, &s, e));
    s->table_at = pl->ncopies;
    return reads_add(pl, first, end, e);
}

/* It is written by the last step; whoever reads it makes it live longer. */
static void touch(struct cuda_plan *pl, int buffer)
{
    struct live_buffer *b = &pl->buffers[buffer];
    b->first = b->first < 0 ? pl->nsteps - 1 : b->first;
    b->last = pl->nsteps - 1;
}

int reads_copy(struct cuda_plan *pl, int op, int param, const struct k_tensor *form, struct err *e)
{
    const struct param *q = &pl->p->params[param];
    const int b = cuda_plan_buffer(pl, cuda_plan_form_elements(form) * dtype_size(form->type), false, e);
    TRY(b);
    TRY(copying_step(pl, op, q->offset, q->offset + q->count, e));
    TRY(add_copy(pl, form, q->offset, b, e));
    touch(pl, b);
    return b;
}

int emit_read(struct cuda_plan *pl, int op, int param, int *ret, struct err *e)
{
    *ret = NO_BUFFER;
    if (param < 0 || !pl->o.needs)
        return 0;
    TRY(*ret = cuda_plan_weight_copy(pl, op, param, e));
    return 0;
}

int emit_use_read(struct cuda_plan *pl, int param, int copy, const void *pointer_to_pointer, struct err *e)
{
    if (param < 0)
        return 0;
    *(float **)(uintptr_t)pointer_to_pointer = pl->params ? pl->params + pl->p->params[param].offset : NULL;
    return cuda_plan_use(pl, copy, 0, pointer_to_pointer, e);
}

/* Scale and shift lie side by side, padded alike. */
int reads_copy_bn(struct cuda_plan *pl, int bn, struct err *e)
{
    struct bn_state *b = &pl->bns[bn];
    const struct param *scale = &pl->p->params[pl->p->ops[bn].param[0]],
                       *shift = &pl->p->params[pl->p->ops[bn].param[1]];
    if (!pl->o.needs || b->params != NO_BUFFER)
        return 0;
    const struct k_tensor form = {
        .k = (int)(shift->offset + shift->count - scale->offset), .c = 1, .rs = 1, .padded_c = 1, .type = DT_F32};
    TRY(b->params = cuda_plan_buffer(pl, (size_t)form.k * sizeof(float), false, e));
    TRY(copying_step(pl, bn, scale->offset, shift->offset + shift->count, e));
    TRY(add_copy(pl, &form, scale->offset, b->params, e));
    touch(pl, b->params);
    return 0;
}

int cuda_plan_use_factor(struct cuda_plan *pl, int bn, int which, const void *pointer_to_pointer, struct err *e)
{
    const struct op *op = &pl->p->ops[bn];
    const size_t at = pl->p->params[op->param[which]].offset, scale = pl->p->params[op->param[0]].offset;
    if (pl->bns[bn].params != NO_BUFFER)
        return cuda_plan_use(pl, pl->bns[bn].params, (at - scale) * sizeof(float), pointer_to_pointer, e);
    *(float **)(uintptr_t)pointer_to_pointer = pl->params ? pl->params + at : NULL;
    return 0;
}

int reads_tell(struct cuda_plan *pl, struct err *e)
{
    const struct plan_needs *needs = pl->o.needs, *back = pl->o.needs_back;
    const int forward = pl->o.chunk ? pl->forward_reads : pl->nreads;
    TRY(needs ? needs->order(needs->ctx, pl->reads, forward, e) : 0);
    return back ? back->order(back->ctx, pl->reads + forward, pl->nreads - forward, e) : 0;
}

struct read_of { /* whose it is, and its number there */
    const struct plan_needs *needs;
    int k;
};

static struct read_of read_of(const struct cuda_plan *pl, int read)
{
    const bool back = pl->o.chunk && read > pl->forward_reads;
    return (struct read_of){back ? pl->o.needs_back : pl->o.needs, read - 1 - (back ? pl->forward_reads : 0)};
}

const float *reads_at(const struct cuda_plan *pl, int read, size_t element)
{
    const struct read_of r = read_of(pl, read);
    const size_t first = pl->reads[read - 1].first;
    const float *at = r.needs->at ? r.needs->at(r.needs->ctx, r.k) : pl->params + first;
    return at + (element - first);
}

int reads_run_step(struct cuda_plan *pl, struct step *s, const struct variant_key *v, const struct run_hooks *h,
                   struct err *e)
{
    if (!s->read || !pl->o.needs)
        return cuda_plan_run_step(pl, s, v, h, e);
    const struct read_of r = read_of(pl, s->read);
    TRY(r.needs->need(r.needs->ctx, r.k, e));
    TRY(cuda_plan_run_step(pl, s, v, h, e));
    r.needs->release(r.needs->ctx, r.k);
    return 0;
}
