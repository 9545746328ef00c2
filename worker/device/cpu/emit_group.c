/* Ops over a group of ranks, all on plain rows, (n, c), so that a rank's rows travel as they lie. */
#include "worker/device/cpu/plan.h"
#include "worker/device/host_common.h"

/* The buffer of an operand as plain rows; NO_BUFFER: there is none. */
static int operand(struct cpu_plan *pl, int i, int t, struct err *e)
{
    if (t < 0)
        return NO_BUFFER;
    TRY(cpu_plan_value(pl, t, LAYOUT_PLAIN, e));
    return cpu_plan_in_block(pl, i, t, LAYOUT_PLAIN, e);
}

/* The last step sums in fp32, beside a result t that is stored as bf16. */
static int widen(struct cpu_plan *pl, struct step *s, int t, struct err *e)
{
    if (pl->values[t].store != STORE_BF16)
        return 0;
    const struct layout l = cpu_plan_layout(pl, t, LAYOUT_PLAIN);
    int b = cpu_plan_buffer(pl, layout_count(&l) * sizeof(float), e);
    TRY(b);
    return cpu_plan_use(pl, b, &s->group.wide, e);
}

int cpu_plan_emit_group(struct cpu_plan *pl, int i, step_fn run, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct plan_range reads;
    struct step *s;
    const int a = operand(pl, i, op->in[0], e);
    if (a < NO_BUFFER)
        return a;
    const int b = operand(pl, i, op->in[1], e);
    if (b < NO_BUFFER)
        return b;
    if (op->out >= 0)
        TRY(cpu_plan_value(pl, op->out, LAYOUT_PLAIN, e));
    TRY(cpu_plan_step(pl, run, op_name(op->kind), i, &s, e));
    s->store = op->out >= 0 ? pl->values[op->out].store : STORE_F32;
    if (a != NO_BUFFER)
        TRY(cpu_plan_use(pl, a, &s->group.a, e));
    if (b != NO_BUFFER)
        TRY(cpu_plan_use(pl, b, &s->group.b, e));
    if (op->out >= 0)
        TRY(cpu_plan_use(pl, pl->values[op->out].buffer, &s->group.y, e));
    if (op->kind == OP_SCATTER)
        TRY(widen(pl, s, op->out, e));
    return program_reads(pl->p, op, &reads) ? cpu_plan_read(pl, reads.first, reads.end, e) : 0;
}
