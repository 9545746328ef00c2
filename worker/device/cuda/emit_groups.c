/* Convolutions in groups that are own kernels': depthwise ones, and those of groups for which cuDNN has no engine. */
#include "worker/device/cuda/plan.h"

/* Where nobody can be asked: its engines want groups of so many channels. */
enum { CHANNELS_OF_GROUP = 8 };

static enum cudnn_pattern pattern_of(enum op_kind k)
{
    return k == OP_CONV ? DNN_CONV : k == OP_CONV_BWD_DATA ? DNN_DGRAD : DNN_WGRAD;
}

/* All three passes of a convolution go one way. */
static bool has_engines(const struct cuda_plan *pl, int i)
{
    static const enum op_kind passes[] = {OP_CONV, OP_CONV_BWD_DATA, OP_CONV_BWD_PARAM};
    const struct cudnn_shape s = cuda_plan_shape(pl, i);
    struct cudnn_plan *p;
    if (!pl->cuda->dnn)
        return s.c / s.groups % CHANNELS_OF_GROUP == 0 && s.k / s.groups % CHANNELS_OF_GROUP == 0;
    for (int k = 0; k < (pl->o.training ? 3 : 1); k++)
        if (cudnn_find(pl->cuda->dnn, pattern_of(passes[k]), &s, &p, NULL) < 0)
            return false;
    return true;
}

bool emit_is_own_group(const struct cuda_plan *pl, int i)
{
    const struct op *op = &pl->p->ops[i], *f = op->fwd >= 0 ? &pl->p->ops[op->fwd] : op;
    const struct view4 x = cuda_plan_view(pl, f->in[0]), y = cuda_plan_view(pl, f->out);
    if (f->groups < 2)
        return false;
    return (f->groups == x.c && x.c == y.c) || !has_engines(pl, i);
}

static struct k_group_conv group_conv(const struct cuda_plan *pl, int i)
{
    const struct op *op = &pl->p->ops[i], *f = op->fwd >= 0 ? &pl->p->ops[op->fwd] : op;
    const struct view4 x = cuda_plan_view(pl, f->in[0]), y = cuda_plan_view(pl, f->out);
    return (struct k_group_conv){.n = x.n,
                                 .c = x.c,
                                 .h = x.h,
                                 .w = x.w,
                                 .k = y.c,
                                 .r = f->kh,
                                 .s = f->kw,
                                 .oh = y.h,
                                 .ow = y.w,
                                 .groups = f->groups,
                                 .stride = {f->sh, f->sw},
                                 .pad = {f->ph, f->pw},
                                 .type = pl->product};
}

static int emit_forward(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const int x = emit_operand(pl, i, op->in[0], e), w = cuda_plan_weight_copy(pl, i, op->param[0], e),
              y = emit_result(pl, op->out, e);
    struct step *s;
    int bias;
    TRY(x);
    TRY(w);
    TRY(y);
    TRY(emit_read(pl, i, op->param[1], &bias, e));
    TRY(emit_kernel(pl, KERNEL_GROUP_CONV, "conv of groups", i, &s, e));
    struct k_group_conv *a = &s->args.as_KERNEL_GROUP_CONV;
    *a = group_conv(pl, i);
    TRY(cuda_plan_use(pl, x, 0, &a->x, e));
    TRY(cuda_plan_use(pl, w, 0, &a->filter, e));
    TRY(emit_use_read(pl, op->param[1], bias, &a->bias, e));
    TRY(cuda_plan_use(pl, y, 0, &a->out, e));
    return emit_written(pl, i, op->out, y, e);
}

static int emit_data(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const int dy = emit_operand(pl, i, op->in[0], e), w = cuda_plan_weight_copy(pl, i, op->param[0], e),
              dx = emit_result(pl, op->out, e);
    struct step *s;
    TRY(dy);
    TRY(w);
    TRY(dx);
    TRY(emit_kernel(pl, KERNEL_GROUP_CONV_DATA, "dgrad of groups", i, &s, e));
    struct k_group_conv *a = &s->args.as_KERNEL_GROUP_CONV_DATA;
    *a = group_conv(pl, i);
    TRY(cuda_plan_use(pl, dy, 0, &a->y, e));
    TRY(cuda_plan_use(pl, w, 0, &a->filter, e));
    TRY(cuda_plan_use(pl, dx, 0, &a->out, e));
    return emit_written(pl, i, op->out, dx, e);
}

static int emit_param(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const int x = emit_operand(pl, i, op->in[0], e), dy = emit_operand(pl, i, op->in[1], e),
              dw = cuda_plan_weight_gradient(pl, i, op->param[0], pl->product, e);
    struct step *s;
    TRY(x);
    TRY(dy);
    TRY(dw);
    TRY(emit_kernel(pl, KERNEL_GROUP_CONV_WEIGHT, "wgrad of groups", i, &s, e));
    struct k_group_conv *a = &s->args.as_KERNEL_GROUP_CONV_WEIGHT;
    *a = group_conv(pl, i);
    cuda_plan_need_sums(pl, kernel_group_partial(a), kernel_group_counters(a));
    TRY(cuda_plan_use(pl, x, 0, &a->x, e));
    TRY(cuda_plan_use(pl, dy, 0, &a->y, e));
    TRY(cuda_plan_use(pl, dw, 0, &a->out, e));
    if (op->param[1] >= 0) {
        const int db = cuda_plan_weight_gradient(pl, i, op->param[1], DT_F32, e);
        TRY(db);
        TRY(cuda_plan_use(pl, db, 0, &a->dbias, e));
    }
    return cuda_plan_gradients_ready(pl, i, e);
}

int emit_group_conv(struct cuda_plan *pl, int i, struct err *e)
{
    const enum op_kind k = pl->p->ops[i].kind;
    return k == OP_CONV ? emit_forward(pl, i, e) : k == OP_CONV_BWD_DATA ? emit_data(pl, i, e) : emit_param(pl, i, e);
}
