/* Models of tokens: embeddings, rotary positions, losses, and the head with its own. The head has logits of some rows
 * at a time (a row is a position of a sample), in one buffer:
 *
 *   logits = x . w^T -> each row's loss; gradients in the place of the logits -> dx = dlogits . w, dw += dlogits^T . x
 *
 * Rows of logits lie a padded stride apart; products and kernels end at the vocabulary. Where a group has parts of the
 * vocabulary, what a row's loss needs of all its logits is combined over it while they are there. */
#include <errno.h>
#include <stdlib.h>

#include "worker/device/cuda/plan.h"
#include "worker/device/half.h"
#include "worker/program/split.h"

enum {
    HEAD_STRIDE = 64,
    BLOCK_ROWS = 128
};                                     /* multiples: of a row's elements; of rows at once, so that all is aligned */
#define HEAD_BYTES ((size_t)512 << 20) /* of logits at once: 2,000 rows and more of 50,257 */

static unsigned rows_of(const struct cuda_plan *pl, int t)
{
    const struct view4 v = cuda_plan_view(pl, t);
    return (unsigned)((size_t)v.n * (size_t)v.h * (size_t)v.w);
}

int emit_tokens(struct cuda_plan *pl, int i, struct err *e)
{
    const int out = pl->p->ops[i].out;
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_TOKENS, "tokens", i, &s, e));
    s->args.as_KERNEL_TOKENS =
        (struct k_tokens){.n = rows_of(pl, out), .in = (const int32_t *)(const void *)pl->images};
    return emit_use(pl, out, &s->args.as_KERNEL_TOKENS.out, e);
}

int emit_embed(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct step *s;
    int table;
    TRY(emit_read(pl, i, op->param[0], &table, e));
    TRY(emit_kernel(pl, KERNEL_EMBED, "embed", i, &s, e));
    struct k_embed *a = &s->args.as_KERNEL_EMBED;
    *a = (struct k_embed){.rows = rows_of(pl, op->out),
                          .c = pl->p->tensors[op->out].c,
                          .first = op->first,
                          .v = (int)pl->p->params[op->param[0]].shape[0],
                          .type = pl->types[op->out]};
    TRY(emit_use_read(pl, op->param[0], table, &a->table, e));
    TRY(emit_use(pl, op->in[0], &a->tokens, e));
    return emit_use(pl, op->out, &a->out, e);
}

/* To the arena: most of a table has no gradient. */
int emit_embed_bwd(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct param *q = &pl->p->params[op->param[0]];
    struct step *s;
    if (!op->adds) {
        TRY(cuda_plan_step(pl, STEP_FILL, "clear a table's gradient", i, &s, e));
        s->at = pl->reduce + q->offset;
        s->n = q->count * sizeof(float);
    }
    TRY(emit_kernel(pl, KERNEL_EMBED_BWD, op_name(op->kind), i, &s, e));
    struct k_embed_bwd *a = &s->args.as_KERNEL_EMBED_BWD;
    *a = (struct k_embed_bwd){.rows = rows_of(pl, op->in[1]),
                              .c = pl->p->tensors[op->in[1]].c,
                              .first = op->first,
                              .v = (int)q->shape[0],
                              .type = pl->types[op->in[1]],
                              .out = pl->reduce + q->offset};
    TRY(emit_use(pl, op->in[0], &a->tokens, e));
    TRY(emit_use(pl, op->in[1], &a->dy, e));
    return cuda_plan_gradients_ready(pl, i, e);
}

/* --- rotary positions */

static size_t table_elements(const struct cuda_plan *pl, const struct op *op)
{
    const struct tensor *y = &pl->p->tensors[op->out];
    return (size_t)y->h * (size_t)y->w * (size_t)(y->c / (op->heads + 2 * op->kv_heads));
}

/* The op before i that has the same table; i: none. */
static int first_of_table(const struct cuda_plan *pl, int i)
{
    const struct op *op = &pl->p->ops[i];
    for (int k = pl->first_op; k < i; k++) {
        const struct op *o = &pl->p->ops[k];
        if ((o->kind == OP_ROPE || o->kind == OP_ROPE_BWD) && pl->index_buffer[k] != NO_BUFFER && o->base == op->base &&
            o->heads == op->heads && o->kv_heads == op->kv_heads &&
            pl->p->tensors[o->out].c == pl->p->tensors[op->out].c)
            return k;
    }
    return i;
}

int emit_rope(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct view4 v = cuda_plan_view(pl, op->out);
    const int x = emit_as_type(pl, i, op->in[0], v.type, e), first = first_of_table(pl, i),
              heads = op->heads + 2 * op->kv_heads;
    struct step *s;
    TRY(x);
    if (first == i)
        TRY(pl->index_buffer[i] = cuda_plan_buffer(pl, table_elements(pl, op) * sizeof(float), true, e));
    TRY(emit_kernel(pl, KERNEL_ROPE, op_name(op->kind), i, &s, e));
    struct k_rope *a = &s->args.as_KERNEL_ROPE;
    *a = (struct k_rope){.rows = rows_of(pl, op->out),
                         .t = v.h * v.w,
                         .heads = heads,
                         .turned = op->heads + op->kv_heads,
                         .d = v.c / heads,
                         .back = op->kind == OP_ROPE_BWD,
                         .type = v.type};
    TRY(cuda_plan_use(pl, pl->index_buffer[first], 0, &a->table, e));
    TRY(cuda_plan_use(pl, x, 0, &a->in, e));
    return emit_use(pl, op->out, &a->out, e);
}

static int fill_table(struct cuda_plan *pl, int i, struct err *e)
{
    const size_t n = table_elements(pl, &pl->p->ops[i]);
    struct device *d = &pl->cuda->base;
    float *table = malloc(n * sizeof *table);
    if (!table)
        return err_set(e, -ENOMEM, "no memory for a table of %zu angles", n);
    host_turns(pl->p, &pl->p->ops[i], table);
    const int rc = d->ops->upload(d, cuda_plan_at(pl, pl->index_buffer[i]), table, n * sizeof *table, e);
    free(table);
    return rc;
}

/* Weights of classes, which a loss reads. */
static int fill_weights(struct cuda_plan *pl, int i, struct err *e)
{
    struct device *d = &pl->cuda->base;
    return d->ops->upload(d, cuda_plan_at(pl, pl->index_buffer[i]), pl->o.loss.weights,
                          (size_t)pl->p->classes * sizeof(float), e);
}

int cuda_plan_fill_tables(struct cuda_plan *pl, struct err *e)
{
    for (int i = pl->first_op; i < pl->end_op; i++) {
        const enum op_kind k = pl->p->ops[i].kind;
        if (pl->index_buffer[i] == NO_BUFFER)
            continue;
        if (k == OP_ROPE || k == OP_ROPE_BWD)
            TRY(fill_table(pl, i, e));
        if (emit_is_loss(k))
            TRY(fill_weights(pl, i, e));
    }
    return 0;
}

/* --- losses */

int emit_metrics(struct cuda_plan *pl, int i, int rows, struct err *e)
{
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_METRICS, "metrics", i, &s, e));
    s->args.as_KERNEL_METRICS =
        (struct k_metrics){.n = rows, .samples = pl->samples, .metrics = pl->reduce + pl->p->n_train + pl->p->n_stats};
    return 0;
}

bool emit_is_loss(enum op_kind k)
{
    return k == OP_XENT || k == OP_XENT_BWD || k == OP_XENT_SUMS || k == OP_XENT_PARTS || k == OP_XENT_PARTS_BWD;
}

int emit_class_weights(struct cuda_plan *pl, int i, const float **pointer, struct err *e)
{
    if (!pl->o.loss.weights)
        return 0;
    TRY(pl->index_buffer[i] = cuda_plan_buffer(pl, (size_t)pl->p->classes * sizeof(float), true, e));
    return cuda_plan_use(pl, pl->index_buffer[i], 0, pointer, e);
}

int emit_xent(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const size_t classes = (size_t)pl->p->tensors[op->in[0]].c;
    const bool backward = op->kind == OP_XENT_BWD;
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_XENT, op_name(op->kind), i, &s, e));
    struct k_xent *a = &s->args.as_KERNEL_XENT;
    *a = (struct k_xent){.n = (int)rows_of(pl, op->in[0]),
                         .classes = (int)classes,
                         .stride = classes,
                         .grad_stride = classes,
                         .grad_type = backward ? pl->types[op->out] : DT_F32,
                         .labels = pl->labels,
                         .mix = pl->mix,
                         .binary = pl->o.loss.binary,
                         .total = (float)pl->o.loss.total,
                         .scale = pl->grad_scale,
                         .samples = pl->samples};
    TRY(emit_class_weights(pl, i, &a->weights, e));
    TRY(emit_use(pl, op->in[0], &a->logits, e));
    return backward ? emit_use(pl, op->out, &a->dlogits, e) : emit_metrics(pl, i, a->n, e);
}

/* --- the head */

struct head {
    int64_t rows, c, v, at_once, stride; /* in all; channels; of the vocabulary, what is here; rows of logits, and their
                                          * elements apart */
    enum dtype dx_type;
    int x, w, z, dx; /* buffers; dx NO_BUFFER: nobody wants it */
    struct gpu_gemm m;
    bool of_group;              /* with these buffers, of all rows' labels, and of what is known of a block's rows */
    int labels, top, sums, lse; /* LABEL_*, TOP_*, SUMS_*, LSE_* */
};

static int64_t stride_of(int64_t v)
{
    return (v + HEAD_STRIDE - 1) / HEAD_STRIDE * HEAD_STRIDE;
}

/* The same on all ranks of a group, of which some may have a token more than others. */
static int64_t rows_at_once(const struct cuda_plan *pl, const struct head *h)
{
    const size_t limit = pl->cuda->options.workspace_limit ? pl->cuda->options.workspace_limit : HEAD_BYTES;
    const int64_t v = h->of_group ? (int64_t)split_part((size_t)pl->p->classes, pl->p->group, 0).n : h->v;
    const int64_t most = (int64_t)(limit / ((size_t)stride_of(v) * sizeof(float))) + 1,
                  parts = (h->rows + most - 1) / most,
                  each = ((h->rows + parts - 1) / parts + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
    return each < h->rows ? each : h->rows;
}

/* What is known of rows of a block, so many numbers each. */
static int take_rows(struct cuda_plan *pl, const struct head *h, int numbers, struct err *e)
{
    return cuda_plan_buffer(pl, (size_t)(h->at_once * numbers) * sizeof(float), false, e);
}

static int make_parts(struct cuda_plan *pl, const struct op *op, struct head *h, struct err *e)
{
    if (!h->of_group)
        return 0;
    TRY(h->labels = cuda_plan_value(pl, op->in[1], e));
    TRY(h->top = take_rows(pl, h, TOP_N, e));
    TRY(h->sums = take_rows(pl, h, SUMS_N, e));
    TRY(h->lse = take_rows(pl, h, LSE_N, e));
    return 0;
}

/* In single precision the table is read where it lies; halves take one copy of it. */
static int make_head(struct cuda_plan *pl, int i, struct head *h, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const bool repeats = pl->cuda->dnn && cudnn_deterministic(pl->cuda->dnn);
    *h = (struct head){.rows = rows_of(pl, op->in[0]),
                       .c = pl->p->tensors[op->in[0]].c,
                       .v = pl->p->params[op->param[0]].shape[0],
                       .of_group = op->in[1] >= 0,
                       .w = NO_BUFFER,
                       .dx = NO_BUFFER,
                       .m = {.in = pl->product, .tf32 = pl->cuda->options.tf32, .alpha = 1, .repeats = repeats}};
    h->stride = stride_of(h->v);
    h->at_once = rows_at_once(pl, h);
    TRY(make_parts(pl, op, h, e));
    TRY(h->x = emit_operand(pl, i, op->in[0], e));
    TRY(h->z = cuda_plan_buffer(pl, (size_t)(h->at_once * h->stride) * sizeof(float), false, e));
    if (pl->product == DT_F32 && !pl->o.needs)
        h->m.b = pl->params + pl->p->params[op->param[0]].offset;
    else
        TRY(h->w = cuda_plan_weight_copy(pl, i, op->param[0], e));
    if (op->out < 0)
        return 0;
    const bool wide = !half_tensor(pl->p, &pl->o, op->out);
    h->dx_type = wide ? DT_F32 : pl->product;
    TRY(h->dx = wide ? cuda_plan_value(pl, op->out, e) : emit_result(pl, op->out, e));
    return 0;
}

/* Of n rows from the first on: each one's loss; in the backward pass its gradients. */
static int emit_rows_loss(struct cuda_plan *pl, int i, const struct head *h, int64_t first, int64_t n, struct err *e)
{
    const bool back = pl->p->ops[i].kind == OP_HEAD_BWD;
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_XENT, "head's loss", i, &s, e));
    struct k_xent *a = &s->args.as_KERNEL_XENT;
    *a = (struct k_xent){.n = (int)n,
                         .classes = (int)h->v,
                         .stride = (size_t)h->stride,
                         .grad_stride = (size_t)h->stride * sizeof(float) / dtype_size(pl->product),
                         .in_floats = true,
                         .grad_type = pl->product,
                         .labels = pl->labels + first,
                         .scale = pl->grad_scale,
                         .samples = pl->samples + first * 4};
    TRY(cuda_plan_use(pl, h->z, 0, &a->logits, e));
    return back ? cuda_plan_use(pl, h->z, 0, &a->dlogits, e) : 0;
}

/* A kernel of the loss over parts; in: what it reads besides logits. */
static int emit_part_of_rows(struct cuda_plan *pl, int i, const struct head *h, enum kernel k, int64_t first, int64_t n,
                             struct operand in, int out, struct err *e)
{
    const int per = (int)(h->rows / pl->p->group);
    struct step *s;
    TRY(emit_kernel(pl, k, "head's loss", i, &s, e));
    struct k_xent_part *a = &s->args.as_KERNEL_XENT_TOP; /* a union: all four are alike */
    *a = (struct k_xent_part){.n = (int)n,
                              .k = (int)h->v,
                              .first = pl->p->ops[i].first,
                              .classes = pl->p->classes,
                              .stride = (size_t)h->stride,
                              .grad_stride = (size_t)h->stride * sizeof(float) / dtype_size(pl->product),
                              .in_floats = true,
                              .grad_type = pl->product,
                              .scale = pl->grad_scale,
                              .mine = (pl->o.group ? pl->o.group->index * per : 0) - (int)first,
                              .batch = per,
                              .samples = pl->samples};
    TRY(cuda_plan_use(pl, h->z, 0, &a->logits, e));
    TRY(cuda_plan_use(pl, h->top, 0, &a->tops, e));
    TRY(cuda_plan_use(pl, in.buffer, in.at, &a->in, e));
    return cuda_plan_use(pl, out, 0, &a->out, e);
}

/* Of n rows of the group's from the first on, as emit_rows_loss(). */
static int emit_parts_loss(struct cuda_plan *pl, int i, const struct head *h, int64_t first, int64_t n, struct err *e)
{
    const struct operand labels = {h->labels, (size_t)(first * LABEL_N) * sizeof(float)}, top = {h->top, 0},
                         sums = {h->sums, 0}, lse = {h->lse, 0};
    const size_t rows = (size_t)n;
    TRY(emit_part_of_rows(pl, i, h, KERNEL_XENT_TOP, first, n, labels, h->top, e));
    TRY(emit_call(pl, i, CALL_MAX, rows * TOP_N, DT_F32, h->top, h->top, e));
    TRY(emit_part_of_rows(pl, i, h, KERNEL_XENT_SUMS, first, n, top, h->sums, e));
    TRY(emit_call(pl, i, CALL_SUM, rows * SUMS_N, DT_F32, h->sums, h->sums, e));
    TRY(emit_part_of_rows(pl, i, h, KERNEL_XENT_PARTS, first, n, sums, h->lse, e));
    return pl->p->ops[i].kind == OP_HEAD ? 0
                                         : emit_part_of_rows(pl, i, h, KERNEL_XENT_PARTS_BWD, first, n, lse, h->z, e);
}

static int emit_rows_of_head(struct cuda_plan *pl, int i, const struct head *h, int64_t first, int64_t n, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const size_t x = (size_t)(first * h->c) * dtype_size(pl->product),
                 dx = (size_t)(first * h->c) * dtype_size(h->dx_type);
    const int64_t grad_stride = h->stride * (int64_t)(sizeof(float) / dtype_size(pl->product));
    struct gpu_gemm logits = h->m, data = h->m, weight = h->m;
    logits.trans_b = true; /* logits (n, V) = x (n, C) . w^T (C, V) */
    logits.out = DT_F32;
    logits.m = n;
    logits.n = h->v;
    logits.k = h->c;
    logits.c_row = h->stride;
    TRY(emit_gemm(pl, i, &logits, (struct operand){h->x, x}, (struct operand){h->w, 0}, (struct operand){h->z, 0}, e));
    pl->steps[pl->nsteps - 1]->label = "head's logits";
    TRY((h->of_group ? emit_parts_loss : emit_rows_loss)(pl, i, h, first, n, e));
    if (h->dx != NO_BUFFER) { /* dx (n, C) = dlogits (n, V) . w (V, C) */
        data.out = h->dx_type;
        data.m = n;
        data.n = h->c;
        data.k = h->v;
        data.a_row = grad_stride;
        TRY(emit_gemm(pl, i, &data, (struct operand){h->z, 0}, (struct operand){h->w, 0}, (struct operand){h->dx, dx},
                      e));
        pl->steps[pl->nsteps - 1]->label = "head's data";
    }
    if (op->kind == OP_HEAD || !program_gives(pl->p, op, 0))
        return 0;
    weight.trans_a = true; /* dw (V, C) += dlogits^T (V, n) . x (n, C) */
    weight.out = DT_F32;
    weight.m = h->v;
    weight.n = h->c;
    weight.k = n;
    weight.a_row = grad_stride;
    weight.add = first > 0 || op->adds;
    weight.b = NULL;
    weight.c = pl->reduce + pl->p->params[op->param[0]].offset;
    TRY(emit_gemm(pl, i, &weight, (struct operand){h->z, 0}, (struct operand){h->x, x}, (struct operand){NO_BUFFER, 0},
                  e));
    pl->steps[pl->nsteps - 1]->label = "head's gradient";
    return 0;
}

int emit_head(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct head h;
    if (op->kind == OP_HEAD && host_left_to_backward(pl->p, &pl->ops, op))
        return 0;
    TRY(make_head(pl, i, &h, e));
    for (int64_t first = 0; first < h.rows; first += h.at_once)
        TRY(emit_rows_of_head(pl, i, &h, first, h.rows - first < h.at_once ? h.rows - first : h.at_once, e));
    TRY(emit_metrics(pl, i, (int)(h.of_group ? h.rows / pl->p->group : h.rows), e));
    if (op->kind == OP_HEAD)
        return 0;
    TRY(h.dx == NO_BUFFER || h.dx_type == DT_F32 ? 0 : emit_written(pl, i, op->out, h.dx, e));
    return cuda_plan_gradients_ready(pl, i, e);
}
