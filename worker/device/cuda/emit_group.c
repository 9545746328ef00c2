/* Ops of models that a tensor group shares (program/split.h). Rows of a rank lie side by side, so what is gathered or
 * scattered travels as it lies. */
#include "worker/device/cuda/plan.h"

int emit_call(struct cuda_plan *pl, int i, enum op_call call, size_t n, enum dtype type, int a, int b, struct err *e)
{
    static const char *const labels[] = {
        [CALL_GATHER] = "gather", [CALL_SCATTER] = "scatter", [CALL_SUM] = "sum", [CALL_MAX] = "max"};
    struct step *s;
    TRY(a);
    TRY(b);
    TRY(cuda_plan_step(pl, STEP_GROUP, labels[call], i, &s, e));
    s->group.call = call;
    s->group.n = n;
    s->group.type = type;
    pl->calls = true;
    TRY(cuda_plan_use(pl, a, 0, &s->group.in, e));
    return cuda_plan_use(pl, b, 0, &s->group.out, e);
}

/* GATHER, SUM, MAX: what comes out is of the type of what goes in. */
int emit_combined(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    return emit_call(pl, i, op_facts(op->kind)->call, cuda_plan_elements(pl, op->in[0]), pl->types[op->in[0]],
                     cuda_plan_value(pl, op->in[0], e), cuda_plan_value(pl, op->out, e), e);
}

/* The sum is rounded once, when it is whole. */
int emit_scatter(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const size_t n = cuda_plan_elements(pl, op->out);
    const enum dtype type = pl->types[op->out];
    const int y = cuda_plan_value(pl, op->out, e),
              sum = type == DT_F32 ? y : cuda_plan_buffer(pl, n * sizeof(float), false, e);
    TRY(y);
    TRY(emit_call(pl, i, CALL_SCATTER, n, DT_F32, cuda_plan_value(pl, op->in[0], e), sum, e));
    return sum == y ? 0
                    : emit_convert(pl, i, "round", (struct k_convert){.n = n, .from = DT_F32, .to = type}, sum, y, e);
}

/* Channels of rows: channels last, a row is a pixel; planes: all of a sample. */
int emit_columns(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const bool pad = op->kind == OP_PAD;
    const struct view4 whole = cuda_plan_view(pl, pad ? op->out : op->in[0]),
                       part = cuda_plan_view(pl, pad ? op->in[0] : op->out);
    const size_t plane = (size_t)whole.h * (size_t)whole.w, unit = whole.nhwc ? 1 : plane;
    struct step *s;
    TRY(emit_kernel(pl, pad ? KERNEL_PAD : KERNEL_SLICE, op_name(op->kind), i, &s, e));
    struct k_columns *a = &s->args.as_KERNEL_SLICE; /* a union: PAD's is the same */
    *a = (struct k_columns){.rows = (size_t)whole.n * (whole.nhwc ? plane : 1),
                            .whole = (size_t)whole.c * unit,
                            .part = (size_t)part.c * unit,
                            .first = (size_t)op->first * unit,
                            .from = pl->types[op->in[0]],
                            .to = pl->types[op->out]};
    TRY(emit_use(pl, op->in[0], &a->in, e));
    return emit_use(pl, op->out, &a->out, e);
}

int emit_labels(struct cuda_plan *pl, int i, struct err *e)
{
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_LABELS, "labels", i, &s, e));
    struct k_labels *a = &s->args.as_KERNEL_LABELS;
    *a = (struct k_labels){
        .n = pl->o.batch * (int)input_row_labels(&pl->p->input), .labels = pl->labels, .mix = pl->mix};
    return emit_use(pl, pl->p->ops[i].out, &a->out, e);
}

int emit_numbers(struct cuda_plan *pl, int i, struct err *e)
{
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_NUMBERS, "numbers", i, &s, e));
    struct k_numbers *a = &s->args.as_KERNEL_NUMBERS;
    *a = (struct k_numbers){.n = pl->o.batch, .numbers = pl->numbers};
    return emit_use(pl, pl->p->ops[i].out, &a->out, e);
}

/* TOP, SUMS and BWD read logits and what is known of their rows; PARTS reads sums and tops. */
int emit_part(struct cuda_plan *pl, int i, enum kernel k, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const bool parts = k == KERNEL_XENT_PARTS;
    struct step *s;
    TRY(emit_kernel(pl, k, op_name(op->kind), i, &s, e));
    struct k_xent_part *a = &s->args.as_KERNEL_XENT_TOP; /* a union: all four are alike */
    const int logits = parts ? 0 : pl->p->tensors[op->in[0]].c;
    *a = (struct k_xent_part){.n = cuda_plan_view(pl, op->out).n,
                              .k = logits,
                              .stride = (size_t)logits,
                              .grad_stride = (size_t)logits,
                              .first = op->first,
                              .classes = pl->p->classes,
                              .grad_type = pl->types[op->out],
                              .binary = pl->o.loss.binary,
                              .total = (float)pl->o.loss.total,
                              .scale = pl->grad_scale,
                              .mine = pl->o.group ? pl->o.group->index * pl->o.batch : 0,
                              .batch = pl->o.batch,
                              .samples = pl->samples};
    TRY(emit_is_loss(op->kind) ? emit_class_weights(pl, i, &a->weights, e) : 0);
    TRY(emit_use(pl, op->in[0], parts ? &a->in : &a->logits, e));
    TRY(emit_use(pl, op->in[1], parts ? &a->tops : &a->in, e));
    TRY(emit_use(pl, op->out, &a->out, e));
    return parts ? emit_metrics(pl, i, pl->o.batch, e) : 0;
}

/* The sum over a group stays wide until its bias is added, and is then rounded. */
int emit_bias_op(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const enum dtype from = pl->types[op->in[0]], to = pl->types[op->out];
    const size_t n = cuda_plan_elements(pl, op->out);
    const int x = cuda_plan_value(pl, op->in[0], e), y = cuda_plan_value(pl, op->out, e),
              wide = from == to ? y : cuda_plan_buffer(pl, n * dtype_size(from), false, e);
    TRY(x);
    TRY(y);
    TRY(wide);
    TRY(emit_vector(pl, i, op->param[0], x, wide, from, e));
    return wide == y ? 0 : emit_convert(pl, i, "round", (struct k_convert){.n = n, .from = from, .to = to}, wide, y, e);
}

int emit_bias_bwd(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    TRY(emit_vector_gradient(pl, i, op->param[0], op->in[0], e));
    return cuda_plan_gradients_ready(pl, i, e);
}
