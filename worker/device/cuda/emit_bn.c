/* Batch normalisation, forward and backward, with what rides along (fuse.h, ladder.h): sums by a pass of their own or
 * from the convolution that made them, then one pass over the activation, which makes its coefficients itself. */
#include <errno.h>

#include "worker/device/cuda/plan.h"

static float *arena(float *at, const struct cuda_plan *pl, int param)
{
    return at ? at + pl->p->params[param].offset : NULL;
}

/* The step settles at each run where these sums come from; local: BN_PARTS where all ranks' are wanted. */
static int source(struct cuda_plan *pl, int bn, struct step *s, struct k_bn_from *from, enum bn_part sums,
                  enum bn_part local, struct err *e)
{
    struct bn_source *b = &s->source[s->nsources++];
    b->from = from;
    TRY(cuda_plan_use_bn(pl, bn, sums, &b->sums, e));
    return local == BN_PARTS ? 0 : cuda_plan_use_bn(pl, bn, local, &b->local, e);
}

/* A step gets the scale and shift of batch norm `bn` from here. */
static int use_factors(struct cuda_plan *pl, int bn, const float *const *scale, const float *const *shift,
                       struct err *e)
{
    TRY(cuda_plan_use_bn(pl, bn, BN_SCALE, scale, e));
    return cuda_plan_use_bn(pl, bn, BN_SHIFT, shift, e);
}

/* --- forward */

/* This rank's sums of a BN's input; gathered in a kernel of its own only where they must be. */
static int emit_sums(struct cuda_plan *pl, int bn, struct err *e)
{
    const struct op *op = &pl->p->ops[bn];
    struct step *s;
    if (pl->rungs[bn].stats >= 0) {
        TRY(emit_kernel(pl, KERNEL_BN_GATHER, "bn statistics of conv", bn, &s, e));
        struct k_bn_gather *g = &s->args.as_KERNEL_BN_GATHER;
        *g = (struct k_bn_gather){.v = cuda_plan_view(pl, op->in[0]), .weights = pl->sample_weights};
        s->gathers = true;
        TRY(cuda_plan_use_bn(pl, bn, BN_SUM, &g->first, e));
        TRY(cuda_plan_use_bn(pl, bn, BN_SQUARES, &g->second, e));
        TRY(cuda_plan_use_bn(pl, bn, BN_SUMS, &g->sums, e));
        return emit_use(pl, op->in[0], &g->x, e);
    }
    TRY(emit_kernel(pl, KERNEL_BN_STATS, "bn statistics", bn, &s, e));
    struct k_bn_stats *j = &s->args.as_KERNEL_BN_STATS;
    *j = (struct k_bn_stats){.v = cuda_plan_view(pl, op->in[0]), .weights = pl->sample_weights};
    cuda_plan_need_partial(pl, &j->v);
    TRY(cuda_plan_use_bn(pl, bn, BN_SUMS, &j->sums, e));
    return emit_use(pl, op->in[0], &j->x, e);
}

/* keep: where this rank's go first, or BN_PARTS. */
static int emit_all_sum(struct cuda_plan *pl, int op, int bn, enum bn_part sums, enum bn_part keep, struct err *e)
{
    struct step *s;
    TRY(cuda_plan_step(pl, STEP_ALL_SUM, "sum over ranks", op, &s, e));
    s->n = 2 * (size_t)pl->bns[bn].c + 1;
    TRY(cuda_plan_use_bn(pl, bn, sums, &s->at, e));
    return keep == BN_PARTS ? 0 : cuda_plan_use_bn(pl, bn, keep, &s->keep, e);
}

static double elements_a_channel(const struct cuda_plan *pl, int tensor)
{
    const struct view4 v = cuda_plan_view(pl, tensor);
    return (double)v.n * v.h * v.w;
}

/* What step s does on the way. */
static int finalise(struct cuda_plan *pl, int bn, struct step *s, struct k_bn_finalise *f, struct err *e)
{
    const struct op *op = &pl->p->ops[bn];
    float *tail = pl->reduce ? pl->reduce + pl->p->n_train : NULL;
    *f = (struct k_bn_finalise){.c = pl->bns[bn].c,
                                .stat_mean = arena(tail, pl, op->param[2]),
                                .stat_var = arena(tail, pl, op->param[3]),
                                .weights = pl->sample_weights,
                                .n = pl->o.batch,
                                .eps = op->eps};
    TRY(cuda_plan_use_factor(pl, bn, 0, &f->gamma, e));
    TRY(cuda_plan_use_factor(pl, bn, 1, &f->beta, e));
    TRY(cuda_plan_use_bn(pl, bn, BN_MEAN, &f->mean, e));
    TRY(cuda_plan_use_bn(pl, bn, BN_INVSTD, &f->invstd, e));
    TRY(cuda_plan_use_bn(pl, bn, BN_HALF_SCALE, &f->half_scale, e));
    TRY(cuda_plan_use_bn(pl, bn, BN_HALF_SHIFT, &f->half_shift, e));
    TRY(cuda_plan_use_bn(pl, bn, BN_SCALE, &f->scale, e));
    TRY(cuda_plan_use_bn(pl, bn, BN_SHIFT, &f->shift, e));
    if (pl->rungs[bn].stats >= 0) {
        f->from.count = elements_a_channel(pl, op->in[0]);
        TRY(cuda_plan_use_bn(pl, bn, BN_SUM, &f->from.first, e));
        TRY(cuda_plan_use_bn(pl, bn, BN_SQUARES, &f->from.second, e));
    }
    return source(pl, bn, s, &f->from, BN_SUMS, BN_PARTS, e);
}

static int emit_fixed(struct cuda_plan *pl, int bn, struct err *e)
{
    const struct op *op = &pl->p->ops[bn];
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_BN_FIXED, "bn of running statistics", bn, &s, e));
    struct k_bn_fixed *f = &s->args.as_KERNEL_BN_FIXED;
    *f = (struct k_bn_fixed){.c = pl->bns[bn].c,
                             .mean = arena(pl->stats, pl, op->param[2]),
                             .var = arena(pl->stats, pl, op->param[3]),
                             .eps = op->eps};
    TRY(cuda_plan_use_factor(pl, bn, 0, &f->gamma, e));
    TRY(cuda_plan_use_factor(pl, bn, 1, &f->beta, e));
    TRY(cuda_plan_use_bn(pl, bn, BN_SCALE, &f->scale, e));
    return cuda_plan_use_bn(pl, bn, BN_SHIFT, &f->shift, e);
}

/* Statistics; and coefficients, where a convolution reads them: other steps make their own. */
static int emit_statistics(struct cuda_plan *pl, int last, int bn, struct err *e)
{
    struct step *s;
    if (!pl->o.training)
        return emit_fixed(pl, bn, e);
    TRY(emit_sums(pl, bn, e));
    TRY(emit_all_sum(pl, bn, bn, BN_SUMS, BN_PARTS, e));
    if (!pl->rungs[last].unwritten || last == bn) /* a BN alone that is not written is part of a sum */
        return 0;
    TRY(emit_kernel(pl, KERNEL_BN_FINALISE, "bn finalise", bn, &s, e));
    return finalise(pl, bn, s, &s->args.as_KERNEL_BN_FINALISE, e);
}

static int mask_of(struct cuda_plan *pl, int last, const struct view4 *v, struct err *e)
{
    return pl->index_buffer[last] = cuda_plan_buffer(pl, kernel_mask(v), false, e);
}

/* All but where the result goes. */
static int fill_apply(struct cuda_plan *pl, int last, int bn, struct step *s, struct k_bn_apply *a, struct err *e)
{
    const struct op *op = &pl->p->ops[bn];
    const int dual = pl->rungs[last].dual;
    const bool relu = pl->fused[last].relu >= 0;
    int other = pl->fused[last].other;
    *a = (struct k_bn_apply){.v = cuda_plan_view(pl, op->in[0]), .relu = relu};
    TRY(use_factors(pl, bn, &a->scale, &a->shift, e));
    if (pl->o.training)
        TRY(finalise(pl, bn, s, &a->own, e));
    TRY(emit_use(pl, op->in[0], &a->x, e));
    if (dual >= 0) {
        TRY(use_factors(pl, dual, &a->add_scale, &a->add_shift, e));
        if (pl->o.training)
            TRY(finalise(pl, dual, s, &a->other, e));
        other = pl->p->ops[dual].in[0];
    }
    TRY(emit_use(pl, other, &a->add, e));
    if (pl->rungs[last].mask) {
        const int mask = mask_of(pl, last, &a->v, e);
        TRY(mask);
        TRY(cuda_plan_use(pl, mask, 0, &a->mask, e));
    }
    return 0;
}

static int emit_apply(struct cuda_plan *pl, int last, int bn, struct err *e)
{
    const struct fused *f = &pl->fused[last];
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_BN_APPLY, f->other >= 0 ? "bn+add+relu" : f->relu >= 0 ? "bn+relu" : "bn", bn, &s, e));
    TRY(fill_apply(pl, last, bn, s, &s->args.as_KERNEL_BN_APPLY, e));
    return emit_use(pl, pl->p->ops[last].out, &s->args.as_KERNEL_BN_APPLY.y, e);
}

int emit_bn_mean(struct cuda_plan *pl, int pool, struct err *e)
{
    const int last = pl->rungs[pool].mean, bn = pl->fused[last].bn;
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_BN_MEAN, pl->fused[last].other >= 0 ? "bn+add+relu+avgpool" : "bn+relu+avgpool", bn, &s,
                    e));
    TRY(fill_apply(pl, last, bn, s, &s->args.as_KERNEL_BN_MEAN.a, e));
    return emit_use(pl, pl->p->ops[pool].out, &s->args.as_KERNEL_BN_MEAN.out, e);
}

int emit_bn(struct cuda_plan *pl, int last, struct err *e)
{
    const struct fused *f = &pl->fused[last];
    const int bn = f->bn >= 0 ? f->bn : last;
    TRY(reads_copy_bn(pl, bn, e));
    TRY(emit_statistics(pl, last, bn, e));
    if (pl->rungs[last].unwritten || pl->rungs[last].pool >= 0 || pl->rungs[last].mean >= 0)
        return 0;
    return emit_apply(pl, last, bn, e);
}

int emit_bn_pool(struct cuda_plan *pl, int pool, struct err *e)
{
    const int bn = pl->fused[pl->rungs[pool].pool].bn, x = pl->p->ops[bn].in[0];
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_BN_POOL, "bn+relu+maxpool", bn, &s, e));
    struct k_bn_pool *a = &s->args.as_KERNEL_BN_POOL;
    *a = (struct k_bn_pool){.x = cuda_plan_view(pl, x), .y = cuda_plan_view(pl, pl->p->ops[pool].out)};
    TRY(use_factors(pl, bn, &a->scale, &a->shift, e));
    if (pl->o.training) {
        TRY(finalise(pl, bn, s, &a->own, e));
        const struct view4 *y = &a->y;
        const int index = cuda_plan_buffer(pl, (size_t)y->n * (size_t)y->c * (size_t)y->h * (size_t)y->w, false, e);
        TRY(index);
        pl->index_buffer[pool] = index;
        TRY(cuda_plan_use(pl, index, 0, &a->index, e));
    }
    TRY(emit_use(pl, x, &a->in, e));
    return emit_use(pl, pl->p->ops[pool].out, &a->out, e);
}

/* --- backward */

/* What forms dz: tensors, and buffers that say where a ReLU or a pooling let it through. */
struct incoming {
    int dy, dy2, y, dz;
    int mask, index;
    struct view4 pooled;
    bool mean; /* dy is that of the planes' means */
};

static int producer(const struct cuda_plan *pl, int tensor)
{
    for (int i = pl->first_op; i < pl->end_op; i++)
        if (pl->p->ops[i].out == tensor)
            return i;
    return -1;
}

/* The summands of a sum of gradients, or what holds the sum. */
static void incoming_sum(const struct cuda_plan *pl, int add, struct incoming *in)
{
    const int sum = pl->rungs[add].onto;
    in->dy = sum >= 0 ? sum : pl->p->ops[add].in[0];
    in->dy2 = sum >= 0 ? -1 : pl->p->ops[add].in[1];
}

static void incoming_pool(const struct cuda_plan *pl, int pool_bwd, struct incoming *in)
{
    const struct op *op = &pl->p->ops[pool_bwd];
    const int add = producer(pl, op->in[1]);
    in->dy = op->in[1];
    in->index = pl->index_buffer[op->fwd];
    in->pooled = cuda_plan_view(pl, pl->p->ops[op->fwd].out);
    if (add >= 0 && pl->fused[add].skip)
        incoming_sum(pl, add, in);
}

static struct incoming incoming_of(const struct cuda_plan *pl, int i)
{
    const struct op *op = &pl->p->ops[i];
    const struct fused *f = &pl->fused[i];
    struct incoming in = {.dy = op->in[1], .dy2 = -1, .y = -1, .dz = -1, .mask = NO_BUFFER, .index = NO_BUFFER};
    if (pl->rungs[i].drelu >= 0) { /* the convolution made dz */
        in.dz = pl->p->ops[pl->rungs[i].drelu].out;
        return in;
    }
    if (pl->rungs[i].pool >= 0) {
        incoming_pool(pl, pl->rungs[i].pool, &in);
        return in;
    }
    if (f->relu_bwd >= 0) {
        in.y = pl->p->ops[f->relu_bwd].in[0];
        in.dy = pl->p->ops[f->relu_bwd].in[1];
        in.dz = f->store_dz ? pl->p->ops[f->relu_bwd].out : -1;
        const int relu = producer(pl, in.y);
        if (relu >= 0 && pl->rungs[relu].mask) {
            in.mask = pl->index_buffer[relu];
            in.y = -1;
        }
    }
    if (pl->rungs[i].mean >= 0) {
        in.dy = pl->p->ops[pl->rungs[i].mean].in[0];
        in.mean = true;
    }
    if (f->add_bwd >= 0)
        incoming_sum(pl, f->add_bwd, &in);
    return in;
}

static int use_incoming(struct cuda_plan *pl, const struct incoming *in, struct k_bn_gradient *g, struct err *e)
{
    g->pooled = in->pooled;
    g->mean = in->mean;
    TRY(emit_use(pl, in->dy, &g->dy, e));
    TRY(emit_use(pl, in->dy2, &g->dy2, e));
    TRY(emit_use(pl, in->y, &g->y, e));
    TRY(cuda_plan_use(pl, in->mask, 0, &g->mask, e));
    return cuda_plan_use(pl, in->index, 0, &g->index, e);
}

static int emit_bwd_gather(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_BN_GATHER, "bn_bwd sums of dgrad", i, &s, e));
    struct k_bn_gather *g = &s->args.as_KERNEL_BN_GATHER;
    *g = (struct k_bn_gather){.v = cuda_plan_view(pl, op->in[0]), .weights = pl->sample_weights};
    s->gathers = true;
    TRY(cuda_plan_use_bn(pl, op->fwd, BN_DBIAS, &g->first, e));
    TRY(cuda_plan_use_bn(pl, op->fwd, BN_DSCALE, &g->second, e));
    TRY(cuda_plan_use_bn(pl, op->fwd, BN_INVSTD, &g->invstd, e));
    TRY(cuda_plan_use_bn(pl, op->fwd, BN_BWD_SUMS, &g->sums, e));
    return emit_use(pl, op->in[0], &g->x, e);
}

static const char *sums_label(const struct incoming *in)
{
    const bool relu = in->y >= 0 || in->mask != NO_BUFFER;
    return in->mean                 ? "avgpool+relu+bn_bwd sums"
           : in->index != NO_BUFFER ? "maxpool+relu+bn_bwd sums"
           : in->dy2 >= 0           ? "add+relu+bn_bwd sums"
           : relu                   ? "relu+bn_bwd sums"
                                    : "bn_bwd sums";
}

static int emit_bwd_sums(struct cuda_plan *pl, int i, const struct incoming *in, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const int twin = pl->rungs[i].twin;
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_BN_BWD_SUMS, sums_label(in), i, &s, e));
    struct k_bn_bwd_sums *a = &s->args.as_KERNEL_BN_BWD_SUMS;
    *a = (struct k_bn_bwd_sums){.v = cuda_plan_view(pl, op->in[0]), .weights = pl->sample_weights};
    cuda_plan_need_partial(pl, &a->v);
    TRY(cuda_plan_use_bn(pl, op->fwd, BN_MEAN, &a->mean, e));
    TRY(cuda_plan_use_bn(pl, op->fwd, BN_BWD_SUMS, &a->sums, e));
    TRY(emit_use(pl, op->in[0], &a->x, e));
    TRY(use_incoming(pl, in, &a->g, e));
    if (twin >= 0) {
        const struct op *other = &pl->p->ops[twin];
        TRY(cuda_plan_use_bn(pl, other->fwd, BN_MEAN, &a->mean2, e));
        TRY(cuda_plan_use_bn(pl, other->fwd, BN_BWD_SUMS, &a->sums2, e));
        TRY(emit_use(pl, other->in[0], &a->x2, e));
    }
    return emit_use(pl, in->dz, &a->dz, e);
}

/* Sums that a convolution made on its way back. */
static int use_made(struct cuda_plan *pl, int bn, struct k_bn_from *from, double count, struct err *e)
{
    from->count = count;
    TRY(cuda_plan_use_bn(pl, bn, BN_DBIAS, &from->first, e));
    TRY(cuda_plan_use_bn(pl, bn, BN_DSCALE, &from->second, e));
    return cuda_plan_use_bn(pl, bn, BN_INVSTD, &from->invstd, e);
}

/* One batch norm's part of the backward pass. */
static int use_bwd(struct cuda_plan *pl, int i, struct step *s, struct k_bn_bwd *w, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    *w = (struct k_bn_bwd){0};
    TRY(cuda_plan_use_factor(pl, op->fwd, 0, &w->gamma, e));
    TRY(cuda_plan_use_bn(pl, op->fwd, BN_MEAN, &w->mean, e));
    TRY(cuda_plan_use_bn(pl, op->fwd, BN_INVSTD, &w->invstd, e));
    if (pl->rungs[i].drelu >= 0) {
        TRY(use_made(pl, op->fwd, &w->from, elements_a_channel(pl, op->in[0]), e));
        TRY(use_made(pl, op->fwd, &w->local, elements_a_channel(pl, op->in[0]), e));
    }
    TRY(source(pl, op->fwd, s, &w->from, BN_BWD_SUMS, BN_PARTS, e));
    TRY(source(pl, op->fwd, s, &w->local, BN_BWD_SUMS, BN_LOCAL, e));
    const int dgamma = cuda_plan_weight_gradient(pl, i, op->param[0], DT_F32, e),
              dbeta = cuda_plan_weight_gradient(pl, i, op->param[1], DT_F32, e);
    TRY(dgamma);
    TRY(dbeta);
    TRY(cuda_plan_use(pl, dgamma, 0, &w->dgamma, e));
    TRY(cuda_plan_use(pl, dbeta, 0, &w->dbeta, e));
    TRY(emit_use(pl, op->in[0], &w->x, e));
    return emit_use(pl, op->out, &w->dx, e);
}

static int emit_bwd_apply(struct cuda_plan *pl, int i, const struct incoming *in, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const int twin = pl->rungs[i].twin;
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_BN_BWD_APPLY, twin >= 0 ? "bn_bwd of two" : "bn_bwd", i, &s, e));
    struct k_bn_bwd_apply *a = &s->args.as_KERNEL_BN_BWD_APPLY;
    *a = (struct k_bn_bwd_apply){.v = cuda_plan_view(pl, op->in[0]), .weights = pl->sample_weights};
    if (in->dz >= 0) /* formed once, in the pass over the sums or by the convolution */
        TRY(emit_use(pl, in->dz, &a->g.dy, e));
    else
        TRY(use_incoming(pl, in, &a->g, e));
    TRY(use_bwd(pl, i, s, &a->own, e));
    return twin >= 0 ? use_bwd(pl, twin, s, &a->twin, e) : 0;
}

int emit_bn_bwd(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct incoming in = incoming_of(pl, i);
    const int twin = pl->rungs[i].twin;
    if (!pl->bns[op->fwd].c || (pl->rungs[i].pool >= 0 && in.index == NO_BUFFER))
        return err_set(e, -ENOTSUP, "the slice holds the backward of a bn, but not its forward operation");
    if (pl->rungs[i].twinned)
        return cuda_plan_gradients_ready(pl, i, e); /* its twin did it all */
    TRY(pl->rungs[i].drelu >= 0 ? emit_bwd_gather(pl, i, e) : emit_bwd_sums(pl, i, &in, e));
    TRY(emit_all_sum(pl, i, op->fwd, BN_BWD_SUMS, BN_LOCAL, e));
    if (twin >= 0)
        TRY(emit_all_sum(pl, twin, pl->p->ops[twin].fwd, BN_BWD_SUMS, BN_LOCAL, e));
    TRY(emit_bwd_apply(pl, i, &in, e));
    return cuda_plan_gradients_ready(pl, i, e);
}
