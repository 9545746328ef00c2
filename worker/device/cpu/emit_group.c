/* Ops over a group of ranks, and the linear layer that the group shares: all on plain rows, (n, c), so that a
 * rank's rows travel as they lie. The layer reads its weights where they are and writes their gradients into the
 * arena: at millions of classes a copy of either would be most of the memory. Only halves take a copy, of what they
 * make of the weights. */
#include "worker/device/cpu/plan.h"
#include "worker/device/half.h"
#include "worker/device/host_common.h"

static bool is_linear(enum op_kind k)
{
    return k == OP_LINEAR || k == OP_LINEAR_BWD_DATA || k == OP_LINEAR_BWD_PARAM;
}

/* The buffer of an operand as plain rows; NO_BUFFER: there is none. */
static int operand(struct cpu_plan *pl, int i, int t, struct err *e)
{
    if (t < 0)
        return NO_BUFFER;
    TRY(cpu_plan_value(pl, t, LAYOUT_PLAIN, e));
    return is_linear(pl->p->ops[i].kind) ? cpu_plan_operand(pl, i, t, LAYOUT_PLAIN, e)
                                         : cpu_plan_in_block(pl, i, t, LAYOUT_PLAIN, e);
}

/* Ops that compute with what they read or write, where the others copy it. */
static bool computes(enum op_kind k)
{
    return is_linear(k) || k == OP_BIAS_BWD || k == OP_SCATTER;
}

/* fp32 beside a tensor that is stored as bf16: the last step, of op i, has it for itself. */
static int widen(struct cpu_plan *pl, int i, int t, float **at, struct err *e)
{
    if (t < 0 || !computes(pl->p->ops[i].kind) || pl->values[t].store != STORE_BF16)
        return 0;
    const struct layout l = cpu_plan_layout(pl, t, LAYOUT_PLAIN);
    int b = cpu_plan_buffer(pl, layout_count(&l) * sizeof(float), e);
    TRY(b);
    return cpu_plan_use(pl, b, at, e);
}

/* What halves make of a weight: kept, or made by the step that reads it. */
static int round_weight(struct cpu_plan *pl, struct step *s, int param, struct err *e)
{
    void *copy;
    if (pl->store == STORE_F32 || pl->rounded[param])
        return 0;
    if (pl->o.needs) {
        const int b = cpu_plan_buffer(pl, pl->p->params[param].count * sizeof(float), e);
        TRY(b);
        return cpu_plan_use(pl, b, &s->group.rounded, e);
    }
    TRY(cpu_plan_run_block(pl, pl->p->params[param].count * sizeof(float), &copy, e));
    pl->rounded_bytes += pl->p->params[param].count * sizeof(float);
    pl->rounded[param] = copy;
    return 0;
}

/* Gradients that are rounded before they are added are made elsewhere first. */
static int make_scratch(struct cpu_plan *pl, int i, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    if (op->kind != OP_LINEAR_BWD_PARAM || !half_gradients(&pl->o, op))
        return 0;
    int b = cpu_plan_buffer(pl, pl->p->params[op->param[0]].count * sizeof(float), e);
    TRY(b);
    return cpu_plan_use(pl, b, &s->out, e);
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
    TRY(widen(pl, i, op->kind == OP_SCATTER ? op->out : op->in[0], &s->group.wide_a, e));
    TRY(widen(pl, i, op->in[1], &s->group.wide_b, e));
    if (op->kind == OP_LINEAR || op->kind == OP_LINEAR_BWD_DATA)
        TRY(round_weight(pl, s, op->param[0], e));
    if (program_reads(pl->p, op, &reads))
        TRY(cpu_plan_read(pl, reads.first, reads.end, e));
    return make_scratch(pl, i, s, e);
}
