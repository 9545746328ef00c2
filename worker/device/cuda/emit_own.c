/* What own kernels do beside batch normalisation (emit_bn.c): input, pooling, sums. */
#include <errno.h>

#include "worker/device/cuda/plan.h"

int emit_kernel(struct cuda_plan *pl, enum kernel k, const char *label, int op, struct step **ret, struct err *e)
{
    TRY(cuda_plan_step(pl, STEP_KERNEL, label, op, ret, e));
    (*ret)->kernel = k;
    return 0;
}

int emit_use(struct cuda_plan *pl, int t, const void *pointer_to_pointer, struct err *e)
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
    TRY(emit_kernel(pl, KERNEL_INPUT, "input", i, &s, e));
    struct k_input *a = &s->args.as_KERNEL_INPUT;
    *a = (struct k_input){
        .y = cuda_plan_view(pl, op->out), .channels = pl->p->input.channels, .images = pl->images, .mix = pl->mix};
    for (int c = 0; c < 4; c++) {
        a->mean[c] = pl->p->input.mean[c];
        a->std[c] = pl->p->input.std[c];
    }
    if (pl->fold.conv >= 0)
        a->fold = (struct k_input_fold){
            .h = pl->p->input.height, .w = pl->p->input.width, .top = pl->fold.before[0], .left = pl->fold.before[1]};
    return emit_use(pl, op->out, &a->out, e);
}

/* y = a [+ b] [then ReLU]; RELU_BWD: y where a > 0, of b */
static int emit_eltwise(struct cuda_plan *pl, int i, enum kernel k, int a, int b, bool relu, struct err *e)
{
    const int y = pl->p->ops[i].out;
    const struct view4 v = cuda_plan_view(pl, y);
    struct step *s;
    TRY(emit_kernel(pl, k, op_name(pl->p->ops[i].kind), i, &s, e));
    struct k_eltwise *j = k == KERNEL_ADD ? &s->args.as_KERNEL_ADD : &s->args.as_KERNEL_RELU_BWD;
    *j = (struct k_eltwise){.n = (size_t)v.n * (size_t)v.c * (size_t)v.h * (size_t)v.w, .type = v.type, .relu = relu};
    TRY(emit_use(pl, a, &j->a, e));
    TRY(emit_use(pl, b, &j->b, e));
    return emit_use(pl, y, &j->y, e);
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
    TRY(emit_kernel(pl, k, op_name(op->kind), i, &s, e));
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
    TRY(emit_use(pl, forward || !max ? op->in[0] : op->in[1], &j->in, e));
    return emit_use(pl, op->out, &j->out, e);
}

int emit_op(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    if (pl->fused[i].bn >= 0 || op->kind == OP_BN)
        return emit_bn(pl, i, e);
    if (op->kind == OP_MAXPOOL && pl->rungs[i].pool >= 0)
        return emit_bn_pool(pl, i, e);
    if (op->kind == OP_AVGPOOL && pl->rungs[i].mean >= 0)
        return emit_bn_mean(pl, i, e);
    if (emit_is_chained(pl, op->kind))
        return emit_chain(pl, i, e);
    switch (op->kind) {
    case OP_INPUT:
        return emit_input(pl, i, e);
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
    case OP_CONV:
        return emit_conv(pl, i, e);
    case OP_CONV_BWD_DATA:
        return emit_conv_bwd_data(pl, i, e);
    case OP_CONV_BWD_PARAM:
        return emit_conv_bwd_param(pl, i, e);
    case OP_LINEAR:
        return emit_linear(pl, i, e);
    case OP_LINEAR_BWD_DATA:
        return emit_linear_bwd_data(pl, i, e);
    case OP_LINEAR_BWD_PARAM:
        return emit_linear_bwd_param(pl, i, e);
    case OP_SLICE:
    case OP_PAD:
        return emit_columns(pl, i, e);
    case OP_GATHER:
    case OP_SUM:
    case OP_MAX:
        return emit_combined(pl, i, e);
    case OP_SCATTER:
        return emit_scatter(pl, i, e);
    case OP_BIAS:
        return emit_bias_op(pl, i, e);
    case OP_BIAS_BWD:
        return emit_bias_bwd(pl, i, e);
    case OP_LABELS:
        return emit_labels(pl, i, e);
    case OP_NUMBERS:
        return emit_numbers(pl, i, e);
    case OP_XENT_TOP:
        return emit_part(pl, i, KERNEL_XENT_TOP, e);
    case OP_XENT_SUMS:
        return emit_part(pl, i, KERNEL_XENT_SUMS, e);
    case OP_XENT_PARTS:
        return emit_part(pl, i, KERNEL_XENT_PARTS, e);
    case OP_XENT_PARTS_BWD:
        return emit_part(pl, i, KERNEL_XENT_PARTS_BWD, e);
    case OP_NORM:
        return emit_norm(pl, i, e);
    case OP_NORM_BWD:
        return emit_norm_bwd(pl, i, e);
    case OP_SCALE_BWD:
        return emit_scale_bwd(pl, i, e);
    case OP_PREPEND:
    case OP_PREPEND_BWD:
    case OP_POSITION:
    case OP_POSITION_BWD:
    case OP_PICK:
    case OP_PICK_BWD:
        return emit_sequence(pl, i, e);
    case OP_TOKENS:
        return emit_tokens(pl, i, e);
    case OP_EMBED:
        return emit_embed(pl, i, e);
    case OP_EMBED_BWD:
        return emit_embed_bwd(pl, i, e);
    case OP_ROPE:
    case OP_ROPE_BWD:
        return emit_rope(pl, i, e);
    case OP_HEAD:
    case OP_HEAD_BWD:
        return emit_head(pl, i, e);
    case OP_ATTENTION:
        return emit_attention(pl, i, e);
    case OP_ATTENTION_BWD:
        return emit_attention_bwd(pl, i, e);
    case OP_ACT: /* links of chains, above */
    case OP_ACT_BWD:
    case OP_SCALE:
    case OP_DROP:
    case OP_DROP_BWD:
    case OP_MUL:
    case OP_BN: /* above, too */
    case OP_KINDS:
        break;
    }
    return err_set(e, -EINVAL, "operation %d of kind %d (expected less than %d)", i, (int)op->kind, OP_KINDS);
}
