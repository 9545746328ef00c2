/* Chooses how far convolutions and batch norms are pulled together. */
#include "worker/device/cuda/ladder.h"

#include <errno.h>
#include <stdlib.h>

#include "worker/device/cuda/plan.h"

static const struct op *op_at(const struct cuda_plan *pl, int i)
{
    return &pl->p->ops[i];
}

static int producer(const struct cuda_plan *pl, int tensor)
{
    for (int i = pl->first_op; i < pl->end_op; i++)
        if (op_at(pl, i)->out == tensor)
            return i;
    return -1;
}

/* The only op of a kind in [from, to) that reads tensor t as its operand `slot`; -1: none or several. */
static int reader(const struct cuda_plan *pl, enum op_kind kind, int slot, int t, int from, int to)
{
    int found = -1;
    for (int i = from; i < to; i++) {
        if (op_at(pl, i)->kind != kind || op_at(pl, i)->in[slot] != t)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

static bool find_plan(const struct cuda_plan *pl, int op, enum cudnn_pattern pattern)
{
    struct cudnn_plan *p;
    const struct cudnn_shape s = cuda_plan_shape(pl, op);
    if (!pl->cuda->dnn) /* nobody to ask: cuDNN has them for channels in eights (test_planning.c) */
        return s.c % 8 == 0 && s.k % 8 == 0;
    return cudnn_find(pl->cuda->dnn, pattern, &s, &p, NULL) == 0;
}

/* conv -> BN, and nobody else in the forward part reads the convolution. */
static void climb_statistics(struct cuda_plan *pl, int conv)
{
    const int y = op_at(pl, conv)->out, bn = reader(pl, OP_BN, 0, y, conv, pl->p->nfwd);
    if (pl->allowed == SEAMS_NONE || bn < 0 || op_at(pl, conv)->groups > 1 || op_at(pl, conv)->param[1] >= 0 ||
        bn >= pl->end_op || !find_plan(pl, conv, DNN_CONV_STATS))
        return;
    pl->rungs[conv].stats = bn;
    pl->rungs[bn].stats = conv;
}

/* Everything that touches the activation between a BN and the convolution that alone reads it. */
struct seam {
    int bn, relu, conv, relu_bwd, bn_bwd, data, param;
};

static bool find_seam(const struct cuda_plan *pl, int conv, struct seam *s)
{
    const struct program *p = pl->p;
    const int x = op_at(pl, conv)->in[0];
    s->conv = conv;
    s->relu = producer(pl, x);
    if (s->relu < 0 || pl->fused[s->relu].relu != s->relu || pl->fused[s->relu].add >= 0)
        return false;
    s->bn = pl->fused[s->relu].bn;
    s->param = reader(pl, OP_CONV_BWD_PARAM, 0, x, p->nfwd, pl->end_op);
    s->relu_bwd = reader(pl, OP_RELU_BWD, 0, x, p->nfwd, pl->end_op);
    if (s->param < 0 || s->relu_bwd < 0 || op_at(pl, s->param)->fwd != conv || pl->readers[x] != 3)
        return false;
    s->data = producer(pl, op_at(pl, s->relu_bwd)->in[1]);
    if (s->data < 0 || op_at(pl, s->data)->kind != OP_CONV_BWD_DATA || op_at(pl, s->data)->fwd != conv ||
        pl->readers[op_at(pl, s->data)->out] != 1)
        return false;
    s->bn_bwd = reader(pl, OP_BN_BWD, 1, op_at(pl, s->relu_bwd)->out, p->nfwd, pl->end_op);
    return s->bn_bwd >= 0 && pl->fused[s->bn_bwd].relu_bwd == s->relu_bwd && pl->fused[s->bn_bwd].add_bwd < 0 &&
           !pl->fused[s->bn_bwd].store_dz && op_at(pl, s->bn_bwd)->fwd == s->bn && op_at(pl, s->bn_bwd)->out >= 0;
}

static void climb_prologue(struct cuda_plan *pl, int conv)
{
    struct seam s;
    if (pl->allowed != SEAMS_ALL || pl->rungs[conv].stats < 0 || !find_seam(pl, conv, &s) ||
        !find_plan(pl, conv, DNN_SBR_CONV_STATS) || !find_plan(pl, conv, DNN_SBR_WGRAD) ||
        !find_plan(pl, conv, DNN_DGRAD_DRELU_BN))
        return;
    pl->rungs[conv].prologue = s.bn;
    pl->rungs[s.param].prologue = s.bn;
    pl->rungs[s.data].drelu = s.bn;
    pl->rungs[s.bn_bwd].drelu = s.data;
    pl->rungs[s.relu].unwritten = true;
}

/* last: of BN+ADD[+ReLU]. */
static void climb_dual(struct cuda_plan *pl, int last)
{
    const struct fused *f = &pl->fused[last];
    if (f->bn < 0 || f->add < 0)
        return;
    const int bn = producer(pl, f->other);
    if (bn < 0 || op_at(pl, bn)->kind != OP_BN || pl->fused[bn].skip || pl->readers[f->other] != 1)
        return;
    pl->rungs[last].dual = bn;
    pl->rungs[bn].unwritten = true;
}

/* Both batch norms behind such a sum take its gradient, and nobody else does. */
static void climb_twins(struct cuda_plan *pl, int first)
{
    const struct fused *f = &pl->fused[first];
    if (f->relu_bwd < 0 || !f->store_dz || op_at(pl, first)->out < 0 || pl->rungs[first].drelu >= 0)
        return;
    const int dz = op_at(pl, f->relu_bwd)->out;
    for (int i = first + 1; i < pl->end_op; i++) {
        if (op_at(pl, i)->kind != OP_BN_BWD || op_at(pl, i)->in[1] != dz || op_at(pl, i)->out < 0)
            continue;
        if (pl->readers[dz] == 2) {
            pl->rungs[first].twin = i;
            pl->rungs[i].twinned = true;
        }
        return;
    }
}

static void climb_mask(struct cuda_plan *pl, int bn_bwd)
{
    const int relu_bwd = pl->fused[bn_bwd].relu_bwd;
    if (relu_bwd < 0 || pl->rungs[bn_bwd].drelu >= 0 || pl->rungs[bn_bwd].pool >= 0)
        return;
    const int relu = producer(pl, op_at(pl, relu_bwd)->in[0]);
    if (relu >= 0 && pl->fused[relu].bn >= 0 && pl->fused[relu].relu == relu)
        pl->rungs[relu].mask = true;
}

/* Where the pooling goes back: all that reads the activation. */
struct pooled {
    int bwd, relu_bwd, bn_bwd;
};

static bool goes_back(const struct cuda_plan *pl, int relu, int pool, struct pooled *b)
{
    const int x = op_at(pl, relu)->out, nfwd = pl->p->nfwd;
    b->bwd = reader(pl, OP_MAXPOOL_BWD, 0, x, nfwd, pl->end_op);
    b->relu_bwd = reader(pl, OP_RELU_BWD, 0, x, nfwd, pl->end_op);
    if (pl->readers[x] != 3 || b->bwd < 0 || b->relu_bwd < 0 || op_at(pl, b->bwd)->fwd != pool ||
        op_at(pl, b->relu_bwd)->in[1] != op_at(pl, b->bwd)->out || pl->readers[op_at(pl, b->bwd)->out] != 1)
        return false;
    b->bn_bwd = reader(pl, OP_BN_BWD, 1, op_at(pl, b->relu_bwd)->out, nfwd, pl->end_op);
    return b->bn_bwd >= 0 && pl->fused[b->bn_bwd].relu_bwd == b->relu_bwd && !pl->fused[b->bn_bwd].store_dz &&
           pl->fused[b->bn_bwd].add_bwd < 0 && op_at(pl, b->bn_bwd)->fwd == pl->fused[relu].bn;
}

/* BN, ReLU and the pooling that reads them; in a slice that has the backward part too, or in none. */
static void climb_pool(struct cuda_plan *pl, int pool)
{
    const struct op *op = op_at(pl, pool);
    const int relu = producer(pl, op->in[0]);
    struct pooled back;
    if (relu < 0 || pl->fused[relu].relu != relu || pl->fused[relu].bn < 0 || pl->fused[relu].add >= 0 ||
        op->kh != op->kw || op->sh != op->sw || op->ph != op->pw)
        return;
    const struct view4 x = cuda_plan_view(pl, op->in[0]);
    if (pl->type == DT_F32 || !kernel_pools(&x, op->kh, op->sh, op->ph))
        return;
    if (pl->o.training ? !goes_back(pl, relu, pool, &back) : pl->readers[op->in[0]] != 1)
        return;
    pl->rungs[relu].pool = pool;
    pl->rungs[pool].pool = relu;
    if (!pl->o.training)
        return;
    pl->rungs[back.bn_bwd].pool = back.bwd;
    pl->fused[back.bwd].skip = true;
    const int add = producer(pl, op_at(pl, back.bwd)->in[1]);
    if (add >= 0 && op_at(pl, add)->kind == OP_ADD && add >= pl->p->nfwd && pl->readers[op_at(pl, add)->out] == 1)
        pl->fused[add].skip = true; /* the pooling's backward takes both summands */
}

/* The BN_BWD that a RELU_BWD rides along with; -1: none. */
static int fused_into(const struct cuda_plan *pl, int relu_bwd)
{
    for (int i = pl->p->nfwd; i < pl->end_op; i++)
        if (op_at(pl, i)->kind == OP_BN_BWD && pl->fused[i].relu_bwd == relu_bwd)
            return i;
    return -1;
}

/* BN [-> ADD] -> ReLU and the average pooling that alone reads them, after masks and twins: backward, the gradient that
 * reaches the ReLU is stored once its mask is applied, for the other summand. */
static void climb_mean(struct cuda_plan *pl, int pool)
{
    const int x = op_at(pl, pool)->in[0], relu = producer(pl, x), nfwd = pl->p->nfwd;
    if (relu < 0 || pl->type == DT_F32 || pl->fused[relu].relu != relu || pl->fused[relu].bn < 0 ||
        pl->readers[x] != (pl->o.training ? 2 : 1))
        return;
    const struct view4 v = cuda_plan_view(pl, x);
    if (!kernel_means(&v))
        return;
    int bwd = -1, bn_bwd = -1;
    if (pl->o.training) {
        const int relu_bwd = reader(pl, OP_RELU_BWD, 0, x, nfwd, pl->end_op);
        bwd = relu_bwd < 0 ? -1 : producer(pl, op_at(pl, relu_bwd)->in[1]);
        bn_bwd = relu_bwd < 0 ? -1 : fused_into(pl, relu_bwd);
        if (bwd < 0 || bn_bwd < 0 || op_at(pl, bwd)->kind != OP_AVGPOOL_BWD || pl->readers[op_at(pl, bwd)->out] != 1 ||
            pl->fused[bn_bwd].add_bwd >= 0 || !pl->fused[bn_bwd].store_dz || !pl->rungs[relu].mask ||
            pl->rungs[bn_bwd].twin >= 0 || pl->rungs[bn_bwd].drelu >= 0)
            return;
        pl->rungs[bn_bwd].mean = bwd;
        pl->fused[bwd].skip = true;
    }
    pl->rungs[relu].mean = pool;
    pl->rungs[pool].mean = relu;
}

/* A convolution's data gradient that is a matrix product of what lies in memory: dx (N h w, C) = dy (N h w, K) . w. */
static bool is_product(const struct cuda_plan *pl, int i)
{
    const struct op *op = op_at(pl, i);
    return op->kind == OP_CONV_BWD_DATA && op_at(pl, op->fwd)->groups < 2 && op->kh == 1 && op->kw == 1 &&
           op->sh == 1 && op->sw == 1 && op->ph == 0 && op->pw == 0 && pl->rungs[i].drelu < 0 &&
           pl->readers[op->out] == 1;
}

/* Has tensor t been written, and read by all but `last`, when op `now` is enqueued? */
static bool is_done_with(const struct cuda_plan *pl, int t, int last, int now)
{
    const int made = producer(pl, t), host = made >= 0 && pl->fused[made].skip ? fused_into(pl, made) : made;
    if (host < 0 || host >= now || fuse_outlives(pl->p, pl->first_op, pl->end_op, pl->readers, t))
        return false;
    for (int i = pl->first_op; i < pl->end_op; i++)
        if (i != last && (op_at(pl, i)->in[0] == t || op_at(pl, i)->in[1] == t) && (i >= now || pl->fused[i].skip))
            return false;
    return true;
}

/* The sum of gradients that a BN_BWD, or the pooling behind it, takes along; -1: none. */
static int sum_into(const struct cuda_plan *pl, int bn_bwd)
{
    if (pl->rungs[bn_bwd].pool < 0)
        return pl->fused[bn_bwd].add_bwd;
    const int add = producer(pl, op_at(pl, pl->rungs[bn_bwd].pool)->in[1]);
    return add >= 0 && pl->fused[add].skip ? add : -1;
}

static void climb_onto(struct cuda_plan *pl, int add)
{
    for (int k = 0; k < 2 && add >= 0; k++) {
        const int mine = op_at(pl, add)->in[k], other = op_at(pl, add)->in[1 - k], data = producer(pl, mine);
        if (data < 0 || other == mine || pl->types[mine] != pl->product || pl->types[other] != pl->product ||
            !is_product(pl, data) || !is_done_with(pl, other, add, data))
            continue;
        pl->rungs[data].onto = pl->rungs[add].onto = other;
        return;
    }
}

/* Rungs of own kernels. */
static void climb_own(struct cuda_plan *pl)
{
    for (int i = pl->first_op; i < pl->end_op; i++)
        climb_dual(pl, i);
    for (int i = pl->first_op; i < pl->end_op; i++)
        if (op_at(pl, i)->kind == OP_MAXPOOL)
            climb_pool(pl, i);
    for (int i = pl->first_op; i < pl->end_op && pl->o.training; i++) {
        if (op_at(pl, i)->kind != OP_BN_BWD)
            continue;
        climb_twins(pl, i);
        climb_mask(pl, i);
    }
    for (int i = pl->first_op; i < pl->end_op; i++)
        if (op_at(pl, i)->kind == OP_AVGPOOL)
            climb_mean(pl, i);
    for (int i = pl->p->nfwd; i < pl->end_op && pl->nhwc && pl->type != DT_F32; i++)
        if (op_at(pl, i)->kind == OP_BN_BWD)
            climb_onto(pl, sum_into(pl, i));
}

int ladder_climb(struct cuda_plan *pl, struct err *e)
{
    pl->rungs = malloc(((size_t)pl->p->nops + 1) * sizeof *pl->rungs);
    if (!pl->rungs)
        return err_set(e, -ENOMEM, "no memory for a plan of %d operations", pl->p->nops);
    for (int i = 0; i < pl->p->nops; i++)
        pl->rungs[i] = (struct rung){
            .stats = -1, .prologue = -1, .drelu = -1, .dual = -1, .twin = -1, .pool = -1, .mean = -1, .onto = -1};
    if (pl->o.keep_all || !pl->cuda->options.fused_patterns)
        return 0;
    if (pl->type == DT_F16 && pl->nhwc && pl->o.training) {
        for (int i = pl->ops.first; i < pl->ops.end && i < pl->p->nfwd; i++)
            if (op_at(pl, i)->kind == OP_CONV)
                climb_statistics(pl, i);
        for (int i = pl->ops.first; i < pl->ops.end && i < pl->p->nfwd; i++)
            if (op_at(pl, i)->kind == OP_CONV)
                climb_prologue(pl, i);
    }
    climb_own(pl);
    return 0;
}
