/* Chooses the values of a plan that are stored as halves. */
#include "worker/device/half.h"

bool half_compute(const struct plan_options *o)
{
    return o->compute == DT_F16 || o->compute == DT_BF16;
}

static bool is_forward_product(enum op_kind k)
{
    return op_facts(k)->work == WORK_FORWARD;
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
        const bool reads = p->ops[i].in[0] == tensor || p->ops[i].in[1] == tensor;
        if (reads && (k == OP_SCATTER || k == OP_PAD || k == OP_BIAS || (k == OP_ADD && is_term(p, p->ops[i].out))))
            return true;
    }
    return false;
}

bool half_tensor(const struct program *p, const struct plan_options *o, int tensor)
{
    if (!half_compute(o) || tensor == p->logits || is_term(p, tensor))
        return false;
    const struct op *made_by = writer(p, tensor);
    if (made_by && op_is(made_by->kind, OP_OF_LOSS))
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
    return op_is_product(op->kind) || op->kind == OP_BIAS ||
           (made && (is_forward_product(made->kind) || made->kind == OP_BIAS));
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
    if (op->kind == OP_BN_BWD)
        return half_compute(o) && o->half_bn;
    return o->compute == DT_F16 && (op->kind == OP_BIAS_BWD || op_facts(op->kind)->work == WORK_PARAM);
}

/* A head asks while its logits are there: in the backward pass, if there is one. */
static bool has_backward(const struct program *p, const struct op *head)
{
    for (int i = p->nfwd; i < p->nops; i++)
        if (p->ops[i].kind == OP_HEAD_BWD && p->ops[i].fwd == head - p->ops)
            return true;
    return false;
}

static int calls_of_head(const struct program *p, const struct plan_options *o, const struct op *op, double real,
                         struct half_call ret[HALF_CALLS_MOST])
{
    const struct tensor *x = &p->tensors[op->in[0]];
    const int rows = x->h * x->w * x->ranks * o->batch, blocks = (rows + HEAD_ROWS - 1) / HEAD_ROWS;
    if (op->in[1] < 0 || (op->kind == OP_HEAD && o->training && has_backward(p, op)))
        return 0;
    ret[0] = (struct half_call){CALL_MAX, blocks, rows * TOP_N * real};
    ret[1] = (struct half_call){CALL_SUM, blocks, rows * SUMS_N * real};
    return 2;
}

int half_calls(const struct program *p, const struct plan_options *o, const struct op *op, double real,
               struct half_call ret[HALF_CALLS_MOST])
{
    const enum op_call call = op_facts(op->kind)->call;
    if (p->group < 2)
        return 0;
    if (op->kind == OP_HEAD || op->kind == OP_HEAD_BWD)
        return calls_of_head(p, o, op, real, ret);
    if (call == CALL_NONE)
        return 0;
    const struct tensor *t = &p->tensors[call == CALL_SCATTER ? op->in[0] : op->out];
    const bool half = call == CALL_GATHER && half_tensor(p, o, op->in[0]) && !o->emulate;
    ret[0] = (struct half_call){call, 1, (double)t->c * t->h * t->w * t->ranks * o->batch * (half ? 2 : real)};
    return 1;
}
