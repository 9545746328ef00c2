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
    if (op->kind == OP_XENT_BWD)
        return p->logits;
    return op->fwd >= 0 ? p->ops[op->fwd].in[0] : -1;
}

bool half_tensor(const struct program *p, const struct plan_options *o, int tensor)
{
    if (!half_compute(o) || tensor == p->logits)
        return false;
    if (o->half == HALF_STORED)
        return true;
    const struct op *op = writer(p, tensor);
    if (!op)
        return false;
    const int of = gradient_of(p, op);
    const struct op *made = of >= 0 ? writer(p, of) : NULL;
    return half_casts(op) || (made && is_forward_product(made->kind));
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
    const bool product = op->kind == OP_LINEAR_BWD_PARAM || op->kind == OP_CONV_BWD_PARAM;
    return (o->compute == DT_F16 && product) || (half_compute(o) && o->half_bn && op->kind == OP_BN_BWD);
}
