/* A plan from outside: tensors as logical NCHW doubles, what parts of a model are given and give, and where the time
 * went. */
#include <errno.h>
#include <string.h>

#include "worker/device/cpu/plan.h"

static int reachable(const struct cpu_plan *pl, int t, bool get, struct err *e)
{
    if (t < 0 || t >= pl->p->ntensors || pl->values[t].buffer == NO_BUFFER)
        return err_set(e, -EINVAL, "tensor %d has no place in this plan", t);
    if (get && !pl->buffers[pl->values[t].buffer].keep)
        return err_set(e, -EINVAL, "tensor '%s' is not kept (expected the logits, or a plan that keeps all)",
                       pl->p->tensors[t].name);
    return 0;
}

int cpu_plan_get(struct plan *plan, int t, double *out, struct err *e)
{
    const struct cpu_plan *pl = (const struct cpu_plan *)plan;
    TRY(reachable(pl, t, true, e));
    const struct value *v = &pl->values[t];
    const struct layout *l = &v->layout;
    const void *at = cpu_plan_at(pl, v->buffer);
    for (int n = 0; n < l->n; n++)
        for (int c = 0; c < l->c; c++)
            for (int p = 0; p < l->h * l->w; p++) {
                size_t o = layout_offset(l, n, c, p);
                *out++ = v->store == STORE_BF16 ? f32_from_bf16(((const uint16_t *)at)[o]) : ((const float *)at)[o];
            }
    return 0;
}

int cpu_plan_put(struct plan *plan, int t, const double *in, struct err *e)
{
    struct cpu_plan *pl = (struct cpu_plan *)plan;
    TRY(reachable(pl, t, false, e));
    const struct value *v = &pl->values[t];
    const struct layout *l = &v->layout;
    void *at = cpu_plan_at(pl, v->buffer);
    memset(at, 0, pl->buffers[v->buffer].bytes);
    for (int n = 0; n < l->n; n++)
        for (int c = 0; c < l->c; c++)
            for (int p = 0; p < l->h * l->w; p++) {
                size_t o = layout_offset(l, n, c, p);
                float f = (float)*in++;
                if (v->store == STORE_BF16)
                    ((uint16_t *)at)[o] = bf16_from_f32(f);
                else
                    ((float *)at)[o] = store_value(v->store, f);
            }
    return 0;
}

/* --- what comes into a part of a model and goes out of it, in plain rows */

static int step_come_in(struct cpu_plan *pl, struct step *s, struct err *e)
{
    TRY(dnn_bind(s->kernel, DNN_SRC, (void *)(uintptr_t)pl->args->boundary.in, e));
    return dnn_run(s->kernel, e);
}

static int step_go_out(struct cpu_plan *pl, struct step *s, struct err *e)
{
    if (pl->args->again) /* it has gone */
        return 0;
    TRY(dnn_bind(s->kernel, DNN_DST, pl->args->boundary.out, e));
    return dnn_run(s->kernel, e);
}

/* The layout that a tensor from elsewhere takes: a gradient that of its tensor, an activation what the convolution that
 * reads it likes best, as its producer would have found in the whole model. */
static int block_of(struct cpu_plan *pl, enum run_pass pass, int t, struct err *e)
{
    const struct tensor *x = &pl->p->tensors[t];
    if (pass == RUN_BACKWARD)
        return pl->values[pl->o.chunk->out].layout.b;
    for (int k = pl->ops.first; k < pl->ops.end; k++)
        if (pl->p->ops[k].kind == OP_CONV && pl->p->ops[k].in[0] == t)
            return cpu_plan_conv_source_block(pl, k, e);
    if (cpu_plan_format(pl, t))
        return cpu_plan_format(pl, t);
    return x->h * x->w == 1 ? LAYOUT_PLAIN : pl->cpu->lanes;
}

int cpu_plan_emit_boundary(struct cpu_plan *pl, enum run_pass pass, bool in, struct err *e)
{
    const struct program_chunk *c = pl->o.chunk;
    const int t = in ? host_boundary_in(c, pass) : host_boundary_out(c, pass);
    struct dnn_kernel *k;
    struct step *s;
    if (t < 0)
        return 0;
    if (in) {
        const int block = block_of(pl, pass, t, e);
        TRY(block);
        TRY(cpu_plan_value(pl, t, block, e));
    }
    const struct value *v = &pl->values[t];
    const struct layout rows = cpu_plan_layout(pl, t, LAYOUT_PLAIN);
    const enum dtype type = store_type(v->store);
    TRY(dnn_reorder_create(pl->cpu->dnn, in ? &rows : &v->layout, type, in ? &v->layout : &rows, type, &k, e));
    TRY(cpu_plan_kernel(pl, k, e));
    TRY(cpu_plan_step(pl, in ? step_come_in : step_go_out, in ? "come in" : "go out", c->first, &s, e));
    s->kernel = k;
    return cpu_plan_use_kernel(pl, v->buffer, k, in ? DNN_DST : DNN_SRC, e);
}

/* --- where the time went */

void cpu_plan_profile(const struct plan *plan, FILE *out)
{
    const struct cpu_plan *pl = (const struct cpu_plan *)plan;
    double runs = pl->runs ? (double)pl->runs : 1;
    fprintf(out, "%10.3f ms  weight copies\n", 1e3 * pl->refresh_seconds / runs);
    for (int i = 0; i < pl->nsteps; i++) {
        const struct step *s = pl->steps[i];
        const struct op *op = &pl->p->ops[s->op];
        int t = op->fwd >= 0 ? pl->p->ops[op->fwd].out : op->out;
        fprintf(out, "%10.3f ms  %-18s %-28s %s\n", 1e3 * s->seconds / runs, s->label,
                t >= 0 ? pl->p->tensors[t].name : "", s->kernel ? dnn_implementation(s->kernel) : "");
    }
    fprintf(out, "%10.1f MB  activations and weight copies in %d buffers\n", (double)pl->memory_bytes / 1e6,
            pl->nbuffers);
}

size_t cpu_plan_bytes(const struct plan *plan)
{
    return ((const struct cpu_plan *)plan)->memory_bytes;
}
