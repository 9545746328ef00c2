/* Finds the operations that ride along with another one. */
#include "worker/device/fuse.h"

#include "worker/device/half.h"
#include "worker/program/program.h"

struct fusing {
    const struct program *p;
    int first_op, end_op;
    const int *readers;
    struct fused *fused;
};

static int producer(const struct fusing *pl, int tensor)
{
    for (int i = pl->first_op; i < pl->end_op; i++)
        if (pl->p->ops[i].out == tensor)
            return i;
    return -1;
}

/* The only op that reads what op i makes, in this slice; -1 if there are several or none. */
static int only_reader(const struct fusing *pl, int i)
{
    int t = pl->p->ops[i].out;
    if (t < 0 || pl->readers[t] != 1 || t == pl->p->logits)
        return -1;
    for (int k = i + 1; k < pl->end_op; k++)
        if (pl->p->ops[k].in[0] == t || pl->p->ops[k].in[1] == t)
            return k;
    return -1;
}

static bool kind_is(const struct fusing *pl, int i, enum op_kind kind)
{
    return i >= 0 && pl->p->ops[i].kind == kind;
}

static void fuse_forward(const struct fusing *pl, int bn)
{
    int reader = only_reader(pl, bn), add = -1, other = -1, relu = -1;
    if (kind_is(pl, reader, OP_ADD)) {
        const struct op *op = &pl->p->ops[reader];
        other = op->in[0] == pl->p->ops[bn].out ? op->in[1] : op->in[0];
        if (op->in[0] == op->in[1] || producer(pl, other) > bn) /* the later one of two BNs takes the sum along */
            return;
        add = reader;
        reader = only_reader(pl, add);
    }
    if (kind_is(pl, reader, OP_RELU))
        relu = reader;
    int last = relu >= 0 ? relu : add;
    if (last < 0)
        return;
    pl->fused[bn].skip = true;
    if (add >= 0)
        pl->fused[add].skip = true;
    pl->fused[last].skip = false;
    pl->fused[last].bn = bn;
    pl->fused[last].add = add;
    pl->fused[last].other = other;
    pl->fused[last].relu = relu;
}

static void fuse_backward(const struct fusing *pl, int relu)
{
    const struct op *op = &pl->p->ops[relu];
    int host = -1;
    for (int i = relu + 1; i < pl->end_op && host < 0; i++)
        if (pl->p->ops[i].in[0] == op->out || pl->p->ops[i].in[1] == op->out)
            host = i;
    if (!kind_is(pl, host, OP_BN_BWD) || pl->p->ops[host].in[1] != op->out)
        return;
    struct fused *f = &pl->fused[host];
    f->relu_bwd = relu;
    f->store_dz = pl->readers[op->out] > 1;
    pl->fused[relu].skip = true;
    int add = producer(pl, op->in[1]);
    if (kind_is(pl, add, OP_ADD) && only_reader(pl, add) == relu) {
        f->add_bwd = add;
        pl->fused[add].skip = true;
    }
}

void fuse_ops(const struct program *p, int first_op, int end_op, const int *readers, bool nothing, struct fused *out)
{
    const struct fusing pl = {.p = p, .first_op = first_op, .end_op = end_op, .readers = readers, .fused = out};
    for (int i = first_op; i < end_op; i++)
        out[i] = (struct fused){
            .bn = -1, .add = -1, .other = -1, .relu = -1, .relu_bwd = -1, .add_bwd = -1, .chain = -1, .next = -1};
    for (int i = first_op; i < end_op && !nothing; i++) {
        if (p->ops[i].kind == OP_BN)
            fuse_forward(&pl, i);
        else if (p->ops[i].kind == OP_RELU_BWD)
            fuse_backward(&pl, i);
    }
}

/* --- chains */

static bool works_by_element(enum op_kind k)
{
    switch (k) {
    case OP_ACT:
    case OP_ACT_BWD:
    case OP_ADD:
    case OP_DROP:
    case OP_DROP_BWD:
    case OP_MUL:
    case OP_RELU:
    case OP_RELU_BWD:
    case OP_SCALE:
    case OP_SCALE_BWD:
        return true;
    default:
        return false;
    }
}

int fuse_value(const struct program *p, const struct op *op, const struct op *from)
{
    if (from)
        return from->out;
    return op->kind == OP_ACT_BWD || op->kind == OP_RELU_BWD || op->kind == OP_SCALE_BWD ? op->in[1] : op->in[0];
}

static bool may_chain(const struct fusing *pl, int i)
{
    return i >= 0 && works_by_element(pl->p->ops[i].kind) && !pl->fused[i].skip && pl->fused[i].bn < 0 &&
           pl->fused[i].chain < 0;
}

/* Can op i, which is all that reads op `from`, go on with its result? */
static bool goes_on(const struct fusing *pl, const struct plan_options *o, int from, int i, bool has_params)
{
    const struct op *a = &pl->p->ops[from], *b = &pl->p->ops[i];
    const bool value =
        b->kind == OP_ADD || b->kind == OP_MUL ? b->in[0] != b->in[1] : fuse_value(pl->p, b, NULL) == a->out;
    return value && !op_writes_gradients(a->kind) && b->out >= 0 && !(has_params && b->param[0] >= 0) &&
           half_tensor(pl->p, o, a->out) == half_tensor(pl->p, o, b->out);
}

void fuse_chains(const struct program *p, const struct plan_options *o, int first_op, int end_op, const int *readers,
                 struct fused *out)
{
    const struct fusing pl = {.p = p, .first_op = first_op, .end_op = end_op, .readers = readers, .fused = out};
    for (int i = first_op; i < end_op; i++) {
        int last = i, n = 1;
        bool has_params = may_chain(&pl, i) && p->ops[i].param[0] >= 0;
        while (may_chain(&pl, last) && n < FUSE_CHAIN_MAX) {
            const int next = only_reader(&pl, last);
            if (!may_chain(&pl, next) || !goes_on(&pl, o, last, next, has_params))
                break;
            has_params |= p->ops[next].param[0] >= 0;
            out[last].skip = true;
            out[last].next = next;
            last = next;
            n++;
        }
        if (last != i)
            out[last].chain = i;
    }
}

void fuse_readers(const struct program *p, bool training, int *readers)
{
    const int limit = training ? p->nops : p->nfwd;
    for (int t = 0; t < p->ntensors; t++)
        readers[t] = 0;
    for (int i = 0; i < limit; i++)
        for (int k = 0; k < 2; k++)
            if (p->ops[i].in[k] >= 0)
                readers[p->ops[i].in[k]]++;
}

bool fuse_outlives(const struct program *p, int first_op, int end_op, const int *readers, int tensor)
{
    int inside = 0;
    bool made = false;
    for (int i = first_op; i < end_op; i++) {
        inside += (p->ops[i].in[0] == tensor) + (p->ops[i].in[1] == tensor);
        made |= p->ops[i].out == tensor;
    }
    return !made || inside < readers[tensor] || readers[tensor] == 0 || tensor == p->logits;
}
