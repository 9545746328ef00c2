/* Everything that own kernels do: input, batch normalisation with what rides along, pooling, sums, the loss. */
#include <errno.h>

#include "worker/device/cuda/plan.h"

static int kernel_step(struct cuda_plan *pl, enum kernel k, const char *label, int op, struct step **ret, struct err *e)
{
    TRY(cuda_plan_step(pl, STEP_KERNEL, label, op, ret, e));
    (*ret)->kernel = k;
    return 0;
}

/* The last step reads or writes tensor t (-1: none) through this pointer. */
static int use(struct cuda_plan *pl, int t, const void *pointer_to_pointer, struct err *e)
{
    if (t < 0)
        return 0;
    const int b = cuda_plan_value(pl, t, e);
    TRY(b);
    return cuda_plan_use(pl, b, 0, pointer_to_pointer, e);
}

static int emit_input(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct step *s;
    TRY(kernel_step(pl, KERNEL_INPUT, "input", i, &s, e));
    struct k_input *a = &s->args.as_KERNEL_INPUT;
    *a = (struct k_input){.y = cuda_plan_view(pl, op->out), .channels = pl->p->channels, .images = pl->images};
    for (int c = 0; c < 4; c++) {
        a->mean[c] = pl->p->mean[c];
        a->std[c] = pl->p->std[c];
    }
    return use(pl, op->out, &a->out, e);
}

static void need_partial(struct cuda_plan *pl, const struct view4 *v)
{
    const size_t n = kernel_partial(v);
    pl->partial_doubles = n > pl->partial_doubles ? n : pl->partial_doubles;
}

static float *arena(float *at, const struct cuda_plan *pl, int param)
{
    return at ? at + pl->p->params[param].offset : NULL;
}

/* This rank's sums of a BN's input, by a pass of their own or from the convolution that made it. */
static int emit_bn_sums(struct cuda_plan *pl, int bn, struct err *e)
{
    const struct op *op = &pl->p->ops[bn];
    struct bn_state *b = &pl->bns[bn];
    struct step *s;
    if (pl->rungs[bn].stats >= 0) {
        TRY(kernel_step(pl, KERNEL_BN_GATHER, "bn statistics of conv", bn, &s, e));
        struct k_bn_gather *g = &s->args.as_KERNEL_BN_GATHER;
        *g = (struct k_bn_gather){.v = cuda_plan_view(pl, op->in[0]),
                                  .first = b->first,
                                  .second = b->second,
                                  .weights = pl->sample_weights,
                                  .sums = b->sums};
        return use(pl, op->in[0], &g->x, e);
    }
    TRY(kernel_step(pl, KERNEL_BN_STATS, "bn statistics", bn, &s, e));
    struct k_bn_stats *j = &s->args.as_KERNEL_BN_STATS;
    *j = (struct k_bn_stats){.v = cuda_plan_view(pl, op->in[0]), .weights = pl->sample_weights, .sums = b->sums};
    need_partial(pl, &j->v);
    return use(pl, op->in[0], &j->x, e);
}

static int emit_bn_statistics(struct cuda_plan *pl, int bn, struct err *e)
{
    const struct op *op = &pl->p->ops[bn];
    struct bn_state *b = &pl->bns[bn];
    struct step *sum, *finalise;
    TRY(emit_bn_sums(pl, bn, e));
    TRY(cuda_plan_step(pl, STEP_ALL_SUM, "sum over ranks", bn, &sum, e));
    sum->n = 2 * (size_t)b->c + 1;
    sum->at = b->sums;
    TRY(kernel_step(pl, KERNEL_BN_FINALISE, "bn finalise", bn, &finalise, e));
    struct k_bn_finalise *f = &finalise->args.as_KERNEL_BN_FINALISE;
    float *tail = pl->reduce ? pl->reduce + pl->p->n_train : NULL;
    *f = (struct k_bn_finalise){.c = b->c,
                                .gamma = arena(pl->params, pl, op->param[0]),
                                .beta = arena(pl->params, pl, op->param[1]),
                                .half_scale = b->half_scale,
                                .half_shift = b->half_shift,
                                .stat_mean = arena(tail, pl, op->param[2]),
                                .stat_var = arena(tail, pl, op->param[3]),
                                .weights = pl->sample_weights,
                                .n = pl->o.batch,
                                .eps = op->eps};
    f->sums = b->sums;
    f->mean = b->mean;
    f->invstd = b->invstd;
    f->scale = b->scale;
    f->shift = b->shift;
    return 0;
}

static int emit_bn_fixed(struct cuda_plan *pl, int bn, struct err *e)
{
    const struct op *op = &pl->p->ops[bn];
    struct bn_state *b = &pl->bns[bn];
    struct step *s;
    TRY(kernel_step(pl, KERNEL_BN_FIXED, "bn of running statistics", bn, &s, e));
    struct k_bn_fixed *f = &s->args.as_KERNEL_BN_FIXED;
    *f = (struct k_bn_fixed){.c = b->c,
                             .gamma = arena(pl->params, pl, op->param[0]),
                             .beta = arena(pl->params, pl, op->param[1]),
                             .mean = arena(pl->stats, pl, op->param[2]),
                             .var = arena(pl->stats, pl, op->param[3]),
                             .eps = op->eps};
    f->scale = b->scale;
    f->shift = b->shift;
    return 0;
}

/* BN, and the sum with `other` and the ReLU where fuse.h found them; i is the last of these ops. */
static int emit_bn(struct cuda_plan *pl, int i, int bn, int other, bool relu, struct err *e)
{
    const struct op *op = &pl->p->ops[bn];
    struct bn_state *b = &pl->bns[bn];
    struct step *s;
    TRY(pl->o.training ? emit_bn_statistics(pl, bn, e) : emit_bn_fixed(pl, bn, e));
    if (pl->rungs[i].unwritten)
        return 0;
    TRY(kernel_step(pl, KERNEL_BN_APPLY, other >= 0 ? "bn+add+relu" : relu ? "bn+relu" : "bn", bn, &s, e));
    struct k_bn_apply *a = &s->args.as_KERNEL_BN_APPLY;
    *a = (struct k_bn_apply){.v = cuda_plan_view(pl, op->in[0]), .relu = relu};
    a->scale = b->scale;
    a->shift = b->shift;
    TRY(use(pl, op->in[0], &a->x, e));
    const int dual = pl->rungs[i].dual;
    if (dual >= 0) {
        a->add_scale = pl->bns[dual].scale;
        a->add_shift = pl->bns[dual].shift;
        other = pl->p->ops[dual].in[0];
    }
    TRY(use(pl, other, &a->add, e));
    return use(pl, pl->p->ops[i].out, &a->y, e);
}

/* What forms dz: dy [+ dy2], where y > 0. */
struct incoming {
    int dy, dy2, y, dz;
};

static struct incoming incoming_of(const struct cuda_plan *pl, int i)
{
    const struct op *op = &pl->p->ops[i];
    const struct fused *f = &pl->fused[i];
    struct incoming in = {.dy = op->in[1], .dy2 = -1, .y = -1, .dz = -1};
    if (pl->rungs[i].drelu >= 0) { /* the convolution made dz */
        in.dz = pl->p->ops[pl->rungs[i].drelu].out;
        return in;
    }
    if (f->relu_bwd >= 0) {
        in.y = pl->p->ops[f->relu_bwd].in[0];
        in.dy = pl->p->ops[f->relu_bwd].in[1];
        in.dz = f->store_dz ? pl->p->ops[f->relu_bwd].out : -1;
    }
    if (f->add_bwd >= 0) {
        in.dy = pl->p->ops[f->add_bwd].in[0];
        in.dy2 = pl->p->ops[f->add_bwd].in[1];
    }
    return in;
}

static int emit_bn_bwd_gather(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct bn_state *b = &pl->bns[op->fwd];
    struct step *s;
    TRY(kernel_step(pl, KERNEL_BN_GATHER, "bn_bwd sums of dgrad", i, &s, e));
    struct k_bn_gather *g = &s->args.as_KERNEL_BN_GATHER;
    *g = (struct k_bn_gather){.v = cuda_plan_view(pl, op->in[0]),
                              .first = b->first,
                              .second = b->second,
                              .invstd = b->invstd,
                              .weights = pl->sample_weights,
                              .sums = b->sums};
    return use(pl, op->in[0], &g->x, e);
}

static int emit_bn_bwd_pass(struct cuda_plan *pl, int i, const struct incoming *in, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct bn_state *b = &pl->bns[op->fwd];
    struct step *s;
    TRY(kernel_step(pl, KERNEL_BN_BWD_SUMS,
                    in->dy2 >= 0 ? "add+relu+bn_bwd sums"
                    : in->y >= 0 ? "relu+bn_bwd sums"
                                 : "bn_bwd sums",
                    i, &s, e));
    struct k_bn_bwd_sums *a = &s->args.as_KERNEL_BN_BWD_SUMS;
    *a = (struct k_bn_bwd_sums){
        .v = cuda_plan_view(pl, op->in[0]), .mean = b->mean, .weights = pl->sample_weights, .sums = b->sums};
    need_partial(pl, &a->v);
    TRY(use(pl, op->in[0], &a->x, e));
    TRY(use(pl, in->dy, &a->dy, e));
    TRY(use(pl, in->dy2, &a->dy2, e));
    TRY(use(pl, in->y, &a->y, e));
    return use(pl, in->dz, &a->dz, e);
}

static int emit_bn_bwd_sums(struct cuda_plan *pl, int i, const struct incoming *in, struct err *e)
{
    struct bn_state *b = &pl->bns[pl->p->ops[i].fwd];
    struct step *sum;
    TRY(pl->rungs[i].drelu >= 0 ? emit_bn_bwd_gather(pl, i, e) : emit_bn_bwd_pass(pl, i, in, e));
    TRY(cuda_plan_step(pl, STEP_ALL_SUM, "sum over ranks", i, &sum, e));
    sum->n = 2 * (size_t)b->c + 1;
    sum->at = b->sums;
    sum->keep = b->local;
    return 0;
}

static int emit_bn_bwd_finalise(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct bn_state *b = &pl->bns[op->fwd];
    struct step *s;
    TRY(kernel_step(pl, KERNEL_BN_BWD_FINALISE, "bn_bwd finalise", i, &s, e));
    struct k_bn_bwd_finalise *f = &s->args.as_KERNEL_BN_BWD_FINALISE;
    *f = (struct k_bn_bwd_finalise){.c = b->c, .gamma = arena(pl->params, pl, op->param[0])};
    f->local = b->local;
    f->sums = b->sums;
    f->mean = b->mean;
    f->invstd = b->invstd;
    f->a = b->a;
    f->b = b->b;
    f->k = b->k;
    const int dgamma = cuda_plan_weight_gradient(pl, i, op->param[0], DT_F32, e),
              dbeta = cuda_plan_weight_gradient(pl, i, op->param[1], DT_F32, e);
    TRY(dgamma);
    TRY(dbeta);
    TRY(cuda_plan_use(pl, dgamma, 0, &f->dgamma, e));
    return cuda_plan_use(pl, dbeta, 0, &f->dbeta, e);
}

static int emit_bn_bwd(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct incoming in = incoming_of(pl, i);
    struct bn_state *b = &pl->bns[op->fwd];
    struct step *s;
    if (!b->c)
        return err_set(e, -ENOTSUP, "the slice holds the backward of a bn, but not its forward operation");
    TRY(emit_bn_bwd_sums(pl, i, &in, e));
    TRY(emit_bn_bwd_finalise(pl, i, e));
    if (op->out >= 0) {
        const bool stored = in.dz >= 0; /* formed once, in the pass over the sums */
        TRY(kernel_step(pl, KERNEL_BN_BWD_APPLY, "bn_bwd", i, &s, e));
        struct k_bn_bwd_apply *a = &s->args.as_KERNEL_BN_BWD_APPLY;
        *a = (struct k_bn_bwd_apply){.v = cuda_plan_view(pl, op->in[0]), .weights = pl->sample_weights};
        a->a = b->a;
        a->b = b->b;
        a->k = b->k;
        TRY(use(pl, op->in[0], &a->x, e));
        TRY(use(pl, stored ? in.dz : in.dy, &a->dy, e));
        TRY(use(pl, stored ? -1 : in.dy2, &a->dy2, e));
        TRY(use(pl, stored ? -1 : in.y, &a->y, e));
        TRY(use(pl, op->out, &a->dx, e));
    }
    return cuda_plan_gradients_ready(pl, i, e);
}

/* y = a [+ b] [then ReLU]; RELU_BWD: y where a > 0, of b */
static int emit_eltwise(struct cuda_plan *pl, int i, enum kernel k, int a, int b, bool relu, struct err *e)
{
    const int y = pl->p->ops[i].out;
    const struct view4 v = cuda_plan_view(pl, y);
    struct step *s;
    TRY(kernel_step(pl, k, op_name(pl->p->ops[i].kind), i, &s, e));
    struct k_eltwise *j = k == KERNEL_ADD ? &s->args.as_KERNEL_ADD : &s->args.as_KERNEL_RELU_BWD;
    *j = (struct k_eltwise){.n = (size_t)v.n * (size_t)v.c * (size_t)v.h * (size_t)v.w, .type = v.type, .relu = relu};
    TRY(use(pl, a, &j->a, e));
    TRY(use(pl, b, &j->b, e));
    return use(pl, y, &j->y, e);
}

/* All four pooling ops: x is the tensor on the input side, y that on the output side. */
static int emit_pool(struct cuda_plan *pl, int i, enum kernel k, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const bool max = op->kind == OP_MAXPOOL || op->kind == OP_MAXPOOL_BWD;
    const bool forward = op->kind == OP_MAXPOOL || op->kind == OP_AVGPOOL;
    const int f = forward ? i : op->fwd;
    struct step *s;
    if (max && op->kh * op->kw > 256)
        return err_set(e, -ENOTSUP, "max pooling over %d elements (expected at most 256)", op->kh * op->kw);
    if (max && !forward && pl->index_buffer[f] == NO_BUFFER)
        return err_set(e, -ENOTSUP, "the slice holds the backward of a maxpool, but not its forward operation");
    TRY(kernel_step(pl, k, op_name(op->kind), i, &s, e));
    struct k_pool *j = &s->args.as_KERNEL_MAXPOOL; /* a union: all four are alike */
    *j = (struct k_pool){.x = cuda_plan_view(pl, pl->p->ops[f].in[0]),
                         .y = cuda_plan_view(pl, pl->p->ops[f].out),
                         .kh = op->kh,
                         .kw = op->kw,
                         .sh = op->sh,
                         .sw = op->sw,
                         .ph = op->ph,
                         .pw = op->pw};
    if (max && forward && pl->o.training) {
        const struct view4 *y = &j->y;
        const int b = cuda_plan_buffer(pl, (size_t)y->n * (size_t)y->c * (size_t)y->h * (size_t)y->w, false, e);
        TRY(b);
        pl->index_buffer[i] = b;
    }
    if (max)
        TRY(cuda_plan_use(pl, pl->index_buffer[f], 0, &j->index, e));
    TRY(use(pl, forward || !max ? op->in[0] : op->in[1], &j->in, e));
    return use(pl, op->out, &j->out, e);
}

static int emit_xent(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct view4 z = cuda_plan_view(pl, op->in[0]);
    const bool backward = op->kind == OP_XENT_BWD;
    struct step *s;
    TRY(kernel_step(pl, KERNEL_XENT, op_name(op->kind), i, &s, e));
    struct k_xent *a = &s->args.as_KERNEL_XENT;
    *a = (struct k_xent){.n = z.n,
                         .classes = z.c,
                         .stride = z.c,
                         .type = z.type,
                         .grad_type = backward ? cuda_plan_view(pl, op->out).type : z.type,
                         .labels = pl->labels,
                         .weights = pl->sample_weights,
                         .scale = pl->grad_scale,
                         .metrics = backward ? NULL : pl->reduce + pl->p->n_train + pl->p->n_stats,
                         .samples = pl->samples};
    TRY(use(pl, op->in[0], &a->logits, e));
    return backward ? use(pl, op->out, &a->dlogits, e) : 0;
}

int emit_own(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct fused *f = &pl->fused[i];
    if (f->bn >= 0)
        return emit_bn(pl, i, f->bn, f->other, f->relu >= 0, e);
    switch (op->kind) {
    case OP_INPUT:
        return emit_input(pl, i, e);
    case OP_BN:
        return emit_bn(pl, i, i, -1, false, e);
    case OP_RELU:
        return emit_eltwise(pl, i, KERNEL_ADD, op->in[0], -1, true, e);
    case OP_ADD:
        return emit_eltwise(pl, i, KERNEL_ADD, op->in[0], op->in[1], false, e);
    case OP_RELU_BWD:
        return emit_eltwise(pl, i, KERNEL_RELU_BWD, op->in[0], op->in[1], false, e);
    case OP_BN_BWD:
        return emit_bn_bwd(pl, i, e);
    case OP_MAXPOOL:
        return emit_pool(pl, i, KERNEL_MAXPOOL, e);
    case OP_MAXPOOL_BWD:
        return emit_pool(pl, i, KERNEL_MAXPOOL_BWD, e);
    case OP_AVGPOOL:
        return emit_pool(pl, i, KERNEL_AVGPOOL, e);
    case OP_AVGPOOL_BWD:
        return emit_pool(pl, i, KERNEL_AVGPOOL_BWD, e);
    case OP_XENT:
    case OP_XENT_BWD:
        return emit_xent(pl, i, e);
    default:
        return err_set(e, -ENOTSUP, "the cuda device has no operation '%s'", op_name(op->kind));
    }
}
