/* Which ops ride along with another one (no memory traffic of their own):
 *
 *   forward   BN, ADD with something else, RELU   done by the last of them; ADD and RELU may be absent
 *   backward  gradient ADD, RELU_BWD, BN_BWD      done by BN_BWD; the result of RELU_BWD is stored if others read it, too
 *
 * An op is taken along only if nobody else reads what it makes. */
#include "worker/device/cpu/plan.h"

static int producer(const struct cpu_plan *pl, int tensor)
{
    for (int i = pl->first_op; i < pl->end_op; i++)
        if (pl->p->ops[i].out == tensor)
            return i;
    return -1;
}

/* The only op that reads what op i makes, in this slice; -1 if there are several or none. */
static int only_reader(const struct cpu_plan *pl, int i)
{
    int t = pl->p->ops[i].out;
    if (t < 0 || pl->readers[t] != 1 || t == pl->p->logits)
        return -1;
    for (int k = i + 1; k < pl->end_op; k++)
        if (pl->p->ops[k].in[0] == t || pl->p->ops[k].in[1] == t)
            return k;
    return -1;
}

static bool kind_is(const struct cpu_plan *pl, int i, enum op_kind kind)
{
    return i >= 0 && pl->p->ops[i].kind == kind;
}

static void fuse_forward(struct cpu_plan *pl, int bn)
{
    int reader = only_reader(pl, bn), add = -1, relu = -1;
    if (kind_is(pl, reader, OP_ADD)) {
        const struct op *op = &pl->p->ops[reader];
        int other = producer(pl, op->in[0] == pl->p->ops[bn].out ? op->in[1] : op->in[0]);
        if (op->in[0] == op->in[1] || other > bn) /* the later one of two BNs takes the sum along */
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
    pl->fused[last].relu = relu;
}

static void fuse_backward(struct cpu_plan *pl, int relu)
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

void plan_fuse(struct cpu_plan *pl)
{
    for (int i = 0; i < pl->p->nops; i++)
        pl->fused[i] = (struct fused){.bn = -1, .add = -1, .relu = -1, .relu_bwd = -1, .add_bwd = -1};
    if (pl->o.keep_all)
        return;
    for (int i = pl->first_op; i < pl->end_op; i++) {
        if (pl->p->ops[i].kind == OP_BN)
            fuse_forward(pl, i);
        else if (pl->p->ops[i].kind == OP_RELU_BWD)
            fuse_backward(pl, i);
    }
}
