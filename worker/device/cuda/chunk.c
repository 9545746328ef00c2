/* Parts of a model (program_chunk): a forward and a backward pass that are runs of their own, what goes into them and
 * comes out, and sets of activations, of which one is in use.
 *
 *   pass        rows of the caller -> come in -> steps of the pass, which may be captured -> go out -> rows
 *   memory      what both passes may use one after another, then for each set what lives from one to the other
 *
 * A step is made once. Which set it works on is a matter of the addresses that it has, so a captured graph belongs to a
 * set; what comes in and goes out does not, and stays outside. */
#include <errno.h>
#include <stdlib.h>

#include "worker/device/cuda/plan.h"

int cuda_plan_sets(const struct cuda_plan *pl)
{
    return pl->o.chunk && pl->o.sets > 1 ? pl->o.sets : 1;
}

int cuda_plan_variants(const struct cuda_plan *pl)
{
    return VARIANTS_OF_SET * cuda_plan_sets(pl);
}

/* --- planning */

/* A step that turns what comes in into this device's layout, or back. */
static int emit_boundary(struct cuda_plan *pl, int t, bool in, struct step **ret, struct err *e)
{
    struct step *s;
    if (t < 0)
        return 0;
    TRY(emit_kernel(pl, KERNEL_ROWS, in ? "come in" : "go out", in ? pl->o.chunk->first : pl->o.chunk->end - 1, &s, e));
    struct k_rows *a = &s->args.as_KERNEL_ROWS;
    *a = (struct k_rows){.v = cuda_plan_view(pl, t), .rows = device_boundary_type(&pl->o, DT_F32), .back = !in};
    *ret = s;
    return in ? emit_use(pl, t, &a->out, e) : emit_use(pl, t, &a->in, e);
}

static int emit_pass(struct cuda_plan *pl, enum run_pass pass, int first, int end, struct err *e)
{
    struct span *s = &pl->spans[pass];
    TRY(emit_boundary(pl, host_boundary_in(pl->o.chunk, pass), true, &s->in, e));
    s->first = pl->nsteps;
    TRY(pass == RUN_FORWARD ? cuda_plan_emit_clear(pl, e) : 0);
    TRY(cuda_plan_emit(pl, first, end, e));
    s->end = pl->nsteps;
    return emit_boundary(pl, host_boundary_out(pl->o.chunk, pass), false, &s->out, e);
}

int chunk_emit(struct cuda_plan *pl, struct err *e)
{
    TRY(emit_pass(pl, RUN_FORWARD, pl->ops.first, pl->ops.end, e));
    pl->forward_reads = pl->nreads;
    return pl->o.training ? emit_pass(pl, RUN_BACKWARD, pl->ops.first_back, pl->ops.end_back, e) : 0;
}

/* --- memory */

/* Copies of weights live all the time, and belong to no set. */
static bool crosses(const struct cuda_plan *pl, const struct live_buffer *b)
{
    const struct span *s = &pl->spans[RUN_FORWARD];
    const int forward = s->end + (s->out != NULL); /* steps of the forward pass */
    return !b->keep && b->first >= 0 && b->first < forward && b->last >= forward;
}

static int place_some(struct cuda_plan *pl, bool of_set, size_t *ret_bytes, struct err *e)
{
    struct live_buffer *some = calloc((size_t)pl->nbuffers + 1, sizeof *some);
    int n = 0;
    if (!some)
        return err_set(e, -ENOMEM, "no memory for a plan of %d buffers", pl->nbuffers);
    for (int i = 0; i < pl->nbuffers; i++)
        if (pl->of_set[i] == of_set)
            some[n++] = pl->buffers[i];
    const int rc = liveness_place(some, n, ALIGN, ret_bytes, e);
    for (int i = 0, k = 0; i < pl->nbuffers && rc == 0; i++)
        if (pl->of_set[i] == of_set)
            pl->buffers[i].offset = some[k++].offset;
    free(some);
    return rc;
}

int chunk_place(struct cuda_plan *pl, struct err *e)
{
    const int sets = cuda_plan_sets(pl);
    if (pl->o.keep_all)
        return err_set(e, -EINVAL, "%d sets of activations of a plan that keeps all tensors", sets);
    pl->of_set = calloc((size_t)pl->nbuffers + 1, sizeof *pl->of_set);
    if (!pl->of_set)
        return err_set(e, -ENOMEM, "no memory for a plan of %d buffers", pl->nbuffers);
    for (int i = 0; i < pl->nbuffers; i++)
        pl->of_set[i] = crosses(pl, &pl->buffers[i]);
    TRY(place_some(pl, false, &pl->shared_bytes, e));
    TRY(place_some(pl, true, &pl->set_bytes, e));
    pl->memory_bytes = pl->shared_bytes + (size_t)sets * pl->set_bytes;
    return 0;
}

char *cuda_plan_at(const struct cuda_plan *pl, int buffer)
{
    const size_t set = pl->of_set && pl->of_set[buffer] ? pl->shared_bytes + (size_t)pl->set * pl->set_bytes : 0;
    return (char *)pl->memory + set + pl->buffers[buffer].offset;
}

/* --- running */

void chunk_use_set(struct cuda_plan *pl, int set)
{
    if (set == pl->set)
        return;
    pl->set = set;
    for (int i = 0; i < pl->npatches; i++) {
        const struct patch *x = &pl->patches[i];
        if (pl->of_set[x->buffer])
            *x->pointer = cuda_plan_at(pl, x->buffer) + x->offset;
    }
}

int chunk_cross(struct cuda_plan *pl, struct step *s, const void *rows, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    if (!s || !rows)
        return 0;
    struct k_rows *a = &s->args.as_KERNEL_ROWS;
    if (a->back)
        a->out = (void *)(uintptr_t)rows;
    else
        a->in = rows;
    return g->ops->kernel(g, pl->cuda->compute, KERNEL_ROWS, a, e);
}
