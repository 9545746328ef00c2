/* What own kernels do to the channels of positions: norms, chains of elementwise operations, scales, sequences. */
#include <stdio.h>
#include <string.h>

#include "worker/device/cuda/plan.h"
#include "worker/device/drop.h"
#include "worker/device/half.h"

_Static_assert((int)K_LINKS_MAX >= (int)FUSE_CHAIN_MAX, "a chain of ops is one of links");

/* Tensor t as values of this type: where it is, or a copy. -1: NO_BUFFER. */
int emit_as_type(struct cuda_plan *pl, int i, int t, enum dtype type, struct err *e)
{
    if (t < 0)
        return NO_BUFFER;
    const int value = cuda_plan_value(pl, t, e);
    TRY(value);
    if (pl->types[t] == type)
        return value;
    const size_t n = cuda_plan_elements(pl, t);
    const int copy = cuda_plan_buffer(pl, n * dtype_size(type), false, e);
    TRY(copy);
    TRY(emit_convert(pl, i, "cast", (struct k_convert){.n = n, .from = pl->types[t], .to = type}, value, copy, e));
    return copy;
}

/* --- norms */

static struct k_row_norm norm_of(const struct cuda_plan *pl, const struct op *op, int t)
{
    const struct view4 v = cuda_plan_view(pl, t);
    return (struct k_row_norm){.rows = (unsigned)((size_t)v.n * (size_t)v.h * (size_t)v.w),
                               .c = v.c,
                               .type = v.type,
                               .rms = op->rms,
                               .eps = op->eps};
}

int emit_norm(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct step *s;
    int gamma, beta;
    const int x = emit_as_type(pl, i, op->in[0], pl->types[op->out], e);
    TRY(x);
    TRY(emit_read(pl, i, op->param[0], &gamma, e));
    TRY(emit_read(pl, i, op->param[1], &beta, e));
    TRY(emit_kernel(pl, KERNEL_ROW_NORM, op->rms ? "rms norm" : "norm", i, &s, e));
    struct k_row_norm *a = &s->args.as_KERNEL_ROW_NORM;
    *a = norm_of(pl, op, op->out);
    TRY(emit_use_read(pl, op->param[0], gamma, &a->gamma, e));
    TRY(emit_use_read(pl, op->param[1], beta, &a->beta, e));
    TRY(cuda_plan_use(pl, x, 0, &a->x, e));
    return emit_use(pl, op->out, &a->y, e);
}

/* The gradient of an op's parameter `which`, in its buffer: the last step writes it. */
static int use_gradient(struct cuda_plan *pl, int i, int which, const void *pointer_to_pointer, struct err *e)
{
    const int param = pl->p->ops[i].param[which];
    if (param < 0)
        return 0;
    const int b = cuda_plan_weight_gradient(pl, i, param, DT_F32, e);
    TRY(b);
    return cuda_plan_use(pl, b, 0, pointer_to_pointer, e);
}

int emit_norm_bwd(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const enum dtype type = pl->types[op->out >= 0 ? op->out : op->in[1]];
    const int x = emit_as_type(pl, i, op->in[0], type, e), dy = emit_as_type(pl, i, op->in[1], type, e);
    struct step *s;
    int gamma;
    TRY(x);
    TRY(dy);
    TRY(emit_read(pl, i, op->param[0], &gamma, e));
    TRY(emit_kernel(pl, KERNEL_ROW_NORM_BWD, op_name(op->kind), i, &s, e));
    struct k_row_norm *a = &s->args.as_KERNEL_ROW_NORM_BWD;
    *a = norm_of(pl, op, op->in[1]);
    a->type = type;
    cuda_plan_need_sums(pl, kernel_norm_partial(a), kernel_norm_counters(a));
    TRY(emit_use_read(pl, op->param[0], gamma, &a->gamma, e));
    TRY(cuda_plan_use(pl, x, 0, &a->x, e));
    TRY(cuda_plan_use(pl, dy, 0, &a->dy, e));
    TRY(use_gradient(pl, i, 0, &a->dgamma, e));
    TRY(use_gradient(pl, i, 1, &a->dbeta, e));
    TRY(emit_use(pl, op->out, &a->y, e));
    return cuda_plan_gradients_ready(pl, i, e);
}

/* --- chains */

static enum k_link_kind link_kind(enum op_kind k)
{
    switch (k) {
    case OP_MUL:
        return LINK_MUL;
    case OP_RELU:
        return LINK_RELU;
    case OP_RELU_BWD:
        return LINK_RELU_BWD;
    case OP_ACT:
        return LINK_ACT;
    case OP_ACT_BWD:
        return LINK_ACT_BWD;
    case OP_SCALE:
        return LINK_SCALE;
    case OP_DROP:
    case OP_DROP_BWD:
        return LINK_DROP;
    default:
        return LINK_ADD;
    }
}

bool emit_is_chained(const struct cuda_plan *pl, enum op_kind k)
{
    return pl->chains && (k == OP_RELU || k == OP_RELU_BWD || k == OP_ADD || k == OP_MUL || k == OP_ACT ||
                          k == OP_ACT_BWD || k == OP_SCALE || k == OP_DROP || k == OP_DROP_BWD);
}

/* The ops of a chain, with the buffers of what they read besides the value that comes from the one before; rows: of the
 * numbers of a group's samples. */
struct chain {
    int op[FUSE_CHAIN_MAX], with[FUSE_CHAIN_MAX], by[FUSE_CHAIN_MAX], rows[FUSE_CHAIN_MAX];
    int n, x;
};

/* Evaluation drops nothing. */
static bool does_nothing(const struct cuda_plan *pl, const struct op *op)
{
    return link_kind(op->kind) == LINK_DROP && !pl->o.training;
}

static int put_together(struct cuda_plan *pl, int last, struct chain *c, struct err *e)
{
    const enum dtype type = pl->types[pl->p->ops[last].out];
    const struct op *from = NULL;
    *c = (struct chain){0};
    for (int i = pl->fused[last].chain >= 0 ? pl->fused[last].chain : last; i >= 0; i = pl->fused[i].next) {
        const struct op *op = &pl->p->ops[i];
        const int value = fuse_value(pl->p, op, from), other = op->in[0] == value ? op->in[1] : op->in[0], k = c->n;
        if (!from)
            TRY(c->x = emit_as_type(pl, last, value, type, e));
        from = op;
        if (does_nothing(pl, op))
            continue;
        const bool draws = link_kind(op->kind) == LINK_DROP;
        c->op[c->n++] = i;
        c->with[k] = emit_as_type(pl, last, draws ? -1 : other, type, e);
        TRY(c->with[k] < NO_BUFFER ? c->with[k] : 0);
        c->rows[k] = emit_as_type(pl, last, draws ? op->in[1] : -1, DT_F32, e);
        TRY(c->rows[k] < NO_BUFFER ? c->rows[k] : 0);
        TRY(emit_read(pl, i, op->param[0], &c->by[k], e));
    }
    return 0;
}

static void name_chain(const struct cuda_plan *pl, const struct chain *c, struct step *s)
{
    s->label = s->text;
    for (int k = 0; k < c->n; k++) {
        const size_t at = strlen(s->text);
        snprintf(s->text + at, sizeof s->text - at, "%s%s", k ? "+" : "", op_name(pl->p->ops[c->op[k]].kind));
    }
    if (c->n == 0)
        s->label = "copy";
}

static int add_link(struct cuda_plan *pl, struct k_chain *a, const struct chain *c, int k, struct err *e)
{
    const struct op *op = &pl->p->ops[c->op[k]];
    struct k_link *l = &a->links[k];
    *l = (struct k_link){.kind = link_kind(op->kind),
                         .act = op->act,
                         .layer = op->layer,
                         .bound = drop_bound(op->rate),
                         .kept = (float)(1 / (1 - (double)op->rate)),
                         .samples = op->samples,
                         .first = op->first,
                         .whole = op->whole};
    TRY(cuda_plan_use(pl, c->with[k], 0, &l->with, e));
    TRY(cuda_plan_use(pl, c->rows[k], 0, &l->rows, e));
    return emit_use_read(pl, op->param[0], c->by[k], &l->by, e);
}

int emit_chain(struct cuda_plan *pl, int i, struct err *e)
{
    const int y = pl->p->ops[i].out;
    const struct view4 v = cuda_plan_view(pl, y);
    struct chain c;
    struct step *s;
    TRY(put_together(pl, i, &c, e));
    TRY(emit_kernel(pl, KERNEL_CHAIN, "", i, &s, e));
    name_chain(pl, &c, s);
    struct k_chain *a = &s->args.as_KERNEL_CHAIN;
    *a = (struct k_chain){.n = cuda_plan_elements(pl, y),
                          .sample = (size_t)v.c * (size_t)v.h * (size_t)v.w,
                          .c = v.c,
                          .type = v.type,
                          .rounded = v.type == DT_F32 && half_tensor(pl->p, &pl->o, y) ? pl->product : DT_F32,
                          .draw = pl->draw,
                          .samples = pl->numbers,
                          .nlinks = c.n};
    TRY(cuda_plan_use(pl, c.x, 0, &a->x, e));
    for (int k = 0; k < c.n; k++)
        TRY(add_link(pl, a, &c, k, e));
    return emit_use(pl, y, &a->y, e);
}

/* A scale's gradient is summed of what is stored: what comes before it ends a chain of its own. */
void emit_part_chains(struct cuda_plan *pl)
{
    for (int last = pl->first_op; last < pl->end_op; last++) {
        struct fused *f = pl->fused;
        if (f[last].chain < 0 || pl->p->ops[last].kind != OP_SCALE_BWD)
            continue;
        int before = f[last].chain;
        while (f[before].next != last)
            before = f[before].next;
        f[before].skip = false;
        f[before].next = -1;
        f[before].chain = before == f[last].chain ? -1 : f[last].chain;
        f[last].chain = -1;
    }
}

int emit_scale_bwd(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const enum dtype type = pl->types[op->out >= 0 ? op->out : op->in[1]];
    const int x = emit_as_type(pl, i, op->in[0], type, e), dy = emit_as_type(pl, i, op->in[1], type, e);
    struct step *s;
    int by;
    TRY(x);
    TRY(dy);
    TRY(emit_read(pl, i, op->param[0], &by, e));
    TRY(emit_kernel(pl, KERNEL_SCALE_BWD, op_name(op->kind), i, &s, e));
    struct k_scale_bwd *a = &s->args.as_KERNEL_SCALE_BWD;
    *a = (struct k_scale_bwd){.v = cuda_plan_view(pl, op->in[1])};
    a->v.type = type;
    cuda_plan_need_partial(pl, &a->v);
    const int sums = cuda_plan_buffer(pl, (2 * (size_t)a->v.c + 1) * sizeof(double), false, e);
    TRY(sums);
    TRY(cuda_plan_use(pl, x, 0, &a->x, e));
    TRY(cuda_plan_use(pl, dy, 0, &a->dy, e));
    TRY(emit_use_read(pl, op->param[0], by, &a->by, e));
    TRY(cuda_plan_use(pl, sums, 0, &a->sums, e));
    TRY(emit_use(pl, op->out, &a->dx, e));
    const int out = cuda_plan_weight_gradient(pl, i, op->param[0], DT_F32, e);
    TRY(out);
    const struct k_convert narrow = {.n = (size_t)a->v.c, .from = DT_F64, .to = DT_F32};
    TRY(emit_convert(pl, i, "scale gradient", narrow, sums, out, e));
    return cuda_plan_gradients_ready(pl, i, e);
}

/* --- sequences */

/* shift: by how many positions what is read lies further on in the result. */
static int emit_moved(struct cuda_plan *pl, int i, int shift, int outside, int table, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct view4 y = cuda_plan_view(pl, op->out), x = cuda_plan_view(pl, op->in[0]);
    const int from = emit_as_type(pl, i, op->in[0], y.type, e);
    struct step *s;
    int token, rows;
    TRY(from);
    TRY(emit_read(pl, i, outside, &token, e));
    TRY(emit_read(pl, i, table, &rows, e));
    TRY(emit_kernel(pl, KERNEL_SEQUENCE, op_name(op->kind), i, &s, e));
    struct k_sequence *a = &s->args.as_KERNEL_SEQUENCE;
    *a = (struct k_sequence){.n = y.n, .from = x.h * x.w, .to = y.h * y.w, .shift = shift, .c = y.c, .type = y.type};
    TRY(emit_use_read(pl, outside, token, &a->outside, e));
    TRY(emit_use_read(pl, table, rows, &a->table, e));
    TRY(cuda_plan_use(pl, from, 0, &a->in, e));
    return emit_use(pl, op->out, &a->out, e);
}

static int emit_table_gradient(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct view4 dy = cuda_plan_view(pl, op->in[0]);
    struct step *s;
    TRY(emit_kernel(pl, KERNEL_TABLE_GRADIENT, "table gradient", i, &s, e));
    struct k_table_gradient *a = &s->args.as_KERNEL_TABLE_GRADIENT;
    *a = (struct k_table_gradient){.n = dy.n, .t = dy.h * dy.w, .c = dy.c, .type = dy.type};
    a->rows = (int)(pl->p->params[op->param[0]].count / (size_t)dy.c); /* perhaps more than positions */
    TRY(emit_use(pl, op->in[0], &a->dy, e));
    TRY(use_gradient(pl, i, 0, &a->out, e));
    return cuda_plan_gradients_ready(pl, i, e);
}

int emit_sequence(struct cuda_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    switch (op->kind) {
    case OP_PREPEND:
        return emit_moved(pl, i, 1, op->param[0], -1, e);
    case OP_PREPEND_BWD:
        TRY(op->out < 0 ? 0 : emit_moved(pl, i, -1, -1, -1, e));
        return emit_table_gradient(pl, i, e);
    case OP_POSITION:
        return emit_moved(pl, i, 0, -1, op->param[0], e);
    case OP_POSITION_BWD:
        return emit_table_gradient(pl, i, e);
    case OP_PICK:
        return emit_moved(pl, i, -op->first, -1, -1, e);
    default: /* PICK_BWD */
        return emit_moved(pl, i, op->first, -1, -1, e);
    }
}
