#include "worker/device/fuse.h"

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
        out[i] = (struct fused){.bn = -1, .add = -1, .other = -1, .relu = -1, .relu_bwd = -1, .add_bwd = -1};
    for (int i = first_op; i < end_op && !nothing; i++) {
        if (p->ops[i].kind == OP_BN)
            fuse_forward(&pl, i);
        else if (p->ops[i].kind == OP_RELU_BWD)
            fuse_backward(&pl, i);
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
