/* Looking into a plan from outside: tensors as logical NCHW doubles, and where the time went. */
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
    const void *at = pl->memory + pl->buffers[v->buffer].offset;
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
    void *at = pl->memory + pl->buffers[v->buffer].offset;
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
