#include "worker/device/half.h"

#include "worker/program/program.h"

bool half_compute(const struct plan_options *o)
{
    return o->compute == DT_F16 || o->compute == DT_BF16;
}

static bool is_forward_product(enum op_kind k)
{
    return k == OP_CONV || k == OP_LINEAR;
}

bool half_casts(const struct op *op)
{
    return op_is_product(op->kind);
}

static const struct op *writer(const struct program *p, int tensor)
{
    for (int i = 0; i < p->nops; i++)
        if (p->ops[i].out == tensor)
            return &p->ops[i];
    return NULL;
}

/* The tensor that op's result is the gradient of; -1: it is none, or a sum of several. */
static int gradient_of(const struct program *p, const struct op *op)
{
    if (op->kind == OP_XENT_BWD || op->kind == OP_XENT_PARTS_BWD)
        return p->logits;
    return op->fwd >= 0 ? p->ops[op->fwd].in[0] : -1;
}

/* On its way into a sum over ranks, or just out of one with a bias to come: rounded once, when the sum is whole. */
static bool is_term(const struct program *p, int tensor)
{
    for (int i = 0; i < p->nops; i++) {
        const enum op_kind k = p->ops[i].kind;
        if (p->ops[i].in[0] == tensor && (k == OP_SCATTER || k == OP_PAD || k == OP_BIAS))
            return true;
    }
    return false;
}

/* Made of what is counted and summed for the loss. */
static bool of_loss(enum op_kind k)
{
    return k == OP_LABELS || k == OP_XENT_TOP || k == OP_XENT_SUMS || k == OP_XENT_PARTS || k == OP_SUM || k == OP_MAX;
}

bool half_tensor(const struct program *p, const struct plan_options *o, int tensor)
{
    if (!half_compute(o) || tensor == p->logits || is_term(p, tensor))
        return false;
    const struct op *made_by = writer(p, tensor);
    if (made_by && of_loss(made_by->kind))
        return false;
    if (made_by && (made_by->kind == OP_GATHER || made_by->kind == OP_SLICE))
        return half_tensor(p, o, made_by->in[0]);
    if (made_by && made_by->kind == OP_SCATTER) /* what a product would have written, whose sum it is */
        return true;
    if (o->half == HALF_STORED)
        return true;
    const struct op *op = made_by;
    if (!op)
        return false;
    const int of = gradient_of(p, op);
    const struct op *made = of >= 0 ? writer(p, of) : NULL;
    return half_casts(op) || (made && (is_forward_product(made->kind) || made->kind == OP_BIAS));
}

bool half_weight(const struct program *p, const struct plan_options *o, int param)
{
    for (int i = 0; i < p->nfwd && half_compute(o); i++) {
        const struct op *op = &p->ops[i];
        if (is_forward_product(op->kind) && op->param[0] == param)
            return true;
        if (op->kind == OP_BN && (op->param[0] == param || op->param[1] == param))
            return o->half_bn;
    }
    return false;
}

bool half_gradients(const struct plan_options *o, const struct op *op)
{
    const bool product = op->kind == OP_LINEAR_BWD_PARAM || op->kind == OP_CONV_BWD_PARAM || op->kind == OP_BIAS_BWD;
    return (o->compute == DT_F16 && product) || (half_compute(o) && o->half_bn && op->kind == OP_BN_BWD);
}
