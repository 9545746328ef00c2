/* Everything that own kernels do: input, batch normalisation with what rides along, pooling, sums, the loss, and ops
 * over a group of ranks. Copies of tensors into other layouts are steps of their own, so every operand is settled
 * before the step itself is begun. */
#include <errno.h>

#include "worker/device/cpu/plan.h"
#include "worker/device/host_common.h"

int cpu_plan_block_for(struct cpu_plan *pl, int t, int like)
{
    if (pl->values[t].buffer != NO_BUFFER)
        return pl->values[t].layout.b;
    if (like >= 0 && pl->values[like].buffer != NO_BUFFER)
        return pl->values[like].layout.b;
    return cpu_plan_format(pl, t) ? cpu_plan_format(pl, t) : pl->cpu->lanes;
}

int cpu_plan_settle(struct cpu_plan *pl, int i, int t, int block, struct err *e)
{
    if (t < 0)
        return NO_BUFFER;
    TRY(cpu_plan_value(pl, t, block, e));
    return cpu_plan_in_block(pl, i, t, block, e);
}

int cpu_plan_reach(struct cpu_plan *pl, int buffer, const void *p, struct err *e)
{
    return buffer == NO_BUFFER ? 0 : cpu_plan_use(pl, buffer, p, e);
}

int cpu_plan_read_op(struct cpu_plan *pl, int i, struct err *e)
{
    struct plan_range r[PROGRAM_READS_MOST];
    const int n = program_reads(pl->p, &pl->p->ops[i], r);
    for (int k = 0; k < n; k++)
        TRY(cpu_plan_read(pl, r[k].first, r[k].end, e));
    return 0;
}

#define OPERAND(name, i, t, block)                                                                                     \
    int name = cpu_plan_settle(pl, i, t, block, e);                                                                    \
    if (name < NO_BUFFER)                                                                                              \
        return name;

#define RESULT(name, t, block)                                                                                         \
    int name = result(pl, t, block, e);                                                                                \
    if (name < NO_BUFFER)                                                                                              \
        return name;

/* The input takes the layout that the first convolution asks for. */
static int emit_input(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct step *s;
    int block = LAYOUT_PLAIN;
    for (int k = pl->ops.end - 1; k > i; k--)
        if (pl->p->ops[k].kind == OP_CONV && pl->p->ops[k].in[0] == op->out)
            block = cpu_plan_conv_source_block(pl, k, e);
    TRY(block);
    TRY(cpu_plan_value(pl, op->out, block, e));
    TRY(cpu_plan_step(pl, cpu_step_input, "input", i, &s, e));
    s->store = pl->values[op->out].store;
    s->input = (struct input_job){.l = pl->values[op->out].layout, .mean = pl->p->input.mean, .std = pl->p->input.std};
    return cpu_plan_reach(pl, pl->values[op->out].buffer, &s->input.y, e);
}

static int make_bn_state(struct cpu_plan *pl, int bn, const struct view *v, struct err *e)
{
    struct bn_state *b = &pl->bns[bn];
    size_t n = (size_t)view_channels(v);
    void *floats, *doubles;
    TRY(cpu_plan_block(pl, 6 * n * sizeof(float), &floats, e));
    TRY(cpu_plan_block(pl, (4 * n + 1) * sizeof(double), &doubles, e));
    b->channels = (int)n;
    b->mean = floats;
    b->invstd = b->mean + n;
    b->scale = b->mean + 2 * n;
    b->beta = b->mean + 3 * n;
    b->k1 = b->mean + 4 * n;
    b->k2 = b->mean + 5 * n;
    b->sums = doubles;
    b->wire = b->sums + 2 * n;
    size_t partial = kern_partial(v, pl->cpu->threads);
    if (partial > pl->partial_doubles)
        pl->partial_doubles = partial;
    return 0;
}

/* Is that more than the caches hold, so that keeping what is written would only drive out what is read? */
static bool past_caches(const struct layout *l, enum store s, int operands)
{
    enum { CACHES = 32 << 20 }; /* what some cores of a server share; what systems say of it is not to be relied on */
    bool whole = l->b % 8 == 0 && (l->b <= LANES_MAX || l->b % LANES_MAX == 0); /* vectors are aligned */
    return whole && (size_t)operands * layout_count(l) * store_size(s) > CACHES;
}

/* BN, and the sum with `other` and the ReLU where fuse.c found them; i is the last of these ops. */
static int emit_bn(struct cpu_plan *pl, int i, int bn, int other, bool relu, struct err *e)
{
    int x = pl->p->ops[bn].in[0], y = pl->p->ops[i].out, block = cpu_plan_block_for(pl, x, other);
    struct step *s;
    OPERAND(from, i, x, block);
    OPERAND(add, i, other, block);
    TRY(cpu_plan_value(pl, y, block, e));
    TRY(cpu_plan_step(pl, pl->o.training && !pl->p->ops[bn].fixed ? cpu_step_bn_train : cpu_step_bn_eval,
                      add != NO_BUFFER ? "bn+add+relu"
                      : relu           ? "bn+relu"
                                       : "bn",
                      bn, &s, e));
    TRY(cpu_plan_read_op(pl, bn, e));
    s->store = pl->values[y].store;
    struct layout l = cpu_plan_layout(pl, x, block);
    struct view v = layout_view(&l);
    TRY(make_bn_state(pl, bn, &v, e));
    const struct bn_state *b = s->bn = &pl->bns[bn];
    s->bn_fwd.stats = (struct bn_stats_job){.v = v, .sum = b->sums, .squares = b->sums + view_channels(&v)};
    s->bn_fwd.apply = (struct bn_apply_job){.v = v,
                                            .mean = b->mean,
                                            .scale = b->scale,
                                            .beta = b->beta,
                                            .relu = relu,
                                            .past = past_caches(&l, s->store, add != NO_BUFFER ? 3 : 2)};
    TRY(cpu_plan_reach(pl, from, &s->bn_fwd.stats.x, e));
    TRY(cpu_plan_reach(pl, from, &s->bn_fwd.apply.x, e));
    TRY(cpu_plan_reach(pl, add, &s->bn_fwd.apply.add, e));
    return cpu_plan_reach(pl, pl->values[y].buffer, &s->bn_fwd.apply.y, e);
}

/* Does this ReLU's backward belong to this BN alone, so that its sign follows from the BN's input? */
static bool relu_of_bn(const struct cpu_plan *pl, int relu_bwd, int bn, enum store s)
{
    const struct op *ops = pl->p->ops;
    int y = ops[relu_bwd].in[0], relu = ops[relu_bwd].fwd;
    return relu >= 0 && ops[relu].in[0] == ops[bn].out && pl->values[y].store == s;
}

/* What BN_BWD works on: buffers, NO_BUFFER where there is none. */
struct bn_bwd {
    const char *label;
    struct layout layout;
    enum store store;
    bool sign_of_x; /* where the ReLU passed follows from x, not from y */
    int x, dy, dy2, y;
    int dz, dx; /* results: behind the ReLU, if others read it, too; behind the BN */
};

static int result(struct cpu_plan *pl, int t, int block, struct err *e)
{
    if (t < 0)
        return NO_BUFFER;
    TRY(cpu_plan_value(pl, t, block, e));
    return pl->values[t].buffer;
}

static int bn_bwd_operands(struct cpu_plan *pl, int i, struct bn_bwd *ret, struct err *e)
{
    const struct op *ops = pl->p->ops, *op = &ops[i];
    const struct fused *f = &pl->fused[i];
    int dy = op->in[1], dy2 = -1, y = -1, block = cpu_plan_block_for(pl, op->in[0], -1);
    if (f->relu_bwd >= 0) {
        y = ops[f->relu_bwd].in[0];
        dy = ops[f->relu_bwd].in[1];
    }
    if (f->add_bwd >= 0) {
        dy = ops[f->add_bwd].in[0];
        dy2 = ops[f->add_bwd].in[1];
    }
    const enum store store = pl->o.half == HALF_OPERANDS ? STORE_F32 : pl->store;
    const bool sign_of_x = f->relu_bwd >= 0 && relu_of_bn(pl, f->relu_bwd, op->fwd, store);
    OPERAND(bx, i, op->in[0], block);
    OPERAND(bdy, i, dy, block);
    OPERAND(bdy2, i, dy2, block);
    OPERAND(by, i, sign_of_x ? -1 : y, block);
    RESULT(bdz, f->store_dz ? ops[f->relu_bwd].out : -1, block);
    RESULT(bdx, op->out, block);
    *ret = (struct bn_bwd){.label = "bn_bwd",
                           .layout = cpu_plan_layout(pl, op->in[0], block),
                           .store = store,
                           .sign_of_x = sign_of_x,
                           .x = bx,
                           .dy = bdy,
                           .dy2 = bdy2,
                           .y = by,
                           .dz = bdz,
                           .dx = bdx};
    if (f->relu_bwd >= 0)
        ret->label = f->add_bwd >= 0 ? "add+relu+bn_bwd" : "relu+bn_bwd";
    return 0;
}

static int bn_bwd_sums(struct cpu_plan *pl, const struct bn_bwd *o, struct bn_bwd_sums_job *j, const struct bn_state *b,
                       struct err *e)
{
    const struct view v = layout_view(&o->layout);
    *j = (struct bn_bwd_sums_job){.v = v,
                                  .mean = b->mean,
                                  .scale = o->sign_of_x ? b->scale : NULL,
                                  .beta = o->sign_of_x ? b->beta : NULL,
                                  .sum = b->sums,
                                  .sum_x = b->sums + view_channels(&v),
                                  .past = past_caches(&o->layout, o->store, 3)};
    TRY(cpu_plan_reach(pl, o->x, &j->x, e));
    TRY(cpu_plan_reach(pl, o->dy, &j->dy, e));
    TRY(cpu_plan_reach(pl, o->dy2, &j->dy2, e));
    TRY(cpu_plan_reach(pl, o->y, &j->y, e));
    return cpu_plan_reach(pl, o->dz, &j->dz, e);
}

static int bn_bwd_apply(struct cpu_plan *pl, const struct bn_bwd *o, struct bn_bwd_apply_job *j,
                        const struct bn_state *b, struct err *e)
{
    *j = (struct bn_bwd_apply_job){.v = layout_view(&o->layout),
                                   .mean = b->mean,
                                   .scale = b->scale,
                                   .beta = o->sign_of_x ? b->beta : NULL,
                                   .k1 = b->k1,
                                   .k2 = b->k2,
                                   .past = past_caches(&o->layout, o->store, 3)};
    TRY(cpu_plan_reach(pl, o->x, &j->x, e));
    TRY(cpu_plan_reach(pl, o->dx, &j->dx, e));
    if (o->dz != NO_BUFFER) /* formed once, in the pass over the sums */
        return cpu_plan_reach(pl, o->dz, &j->dy, e);
    TRY(cpu_plan_reach(pl, o->dy, &j->dy, e));
    TRY(cpu_plan_reach(pl, o->dy2, &j->dy2, e));
    return cpu_plan_reach(pl, o->y, &j->y, e);
}

static int emit_bn_bwd(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct bn_state *b = &pl->bns[op->fwd];
    struct bn_bwd o;
    struct step *s;
    if (!b->sums)
        return err_set(e, -ENOTSUP, "the slice holds the backward of a bn, but not its forward operation");
    TRY(bn_bwd_operands(pl, i, &o, e));
    TRY(cpu_plan_step(pl, cpu_step_bn_bwd, o.label, i, &s, e));
    TRY(cpu_plan_read_op(pl, i, e));
    s->store = o.store;
    s->bn = &pl->bns[op->fwd];
    if (o.dx != NO_BUFFER && pl->values[op->out].store != o.store) { /* wide sums, but dx is a half */
        s->count = layout_count(&pl->values[op->out].layout);
        TRY(cpu_plan_reach(pl, o.dx, &s->out, e));
    }
    TRY(bn_bwd_sums(pl, &o, &s->bn_bwd.sums, b, e));
    return bn_bwd_apply(pl, &o, &s->bn_bwd.apply, b, e);
}

/* y = a [+ b] [then ReLU] */
static int emit_add(struct cpu_plan *pl, int i, int a, int b, bool relu, struct err *e)
{
    int y = pl->p->ops[i].out, block = cpu_plan_block_for(pl, a, b);
    struct step *s;
    OPERAND(ba, i, a, block);
    OPERAND(bb, i, b, block);
    TRY(cpu_plan_value(pl, y, block, e));
    TRY(cpu_plan_step(pl, cpu_step_add, b < 0 ? "relu" : relu ? "add+relu" : "add", i, &s, e));
    s->store = pl->values[y].store;
    s->add.relu = relu;
    s->count = layout_count(&pl->values[y].layout);
    TRY(cpu_plan_reach(pl, ba, &s->add.a, e));
    TRY(cpu_plan_reach(pl, bb, &s->add.b, e));
    return cpu_plan_reach(pl, pl->values[y].buffer, &s->add.y, e);
}

static int emit_relu_bwd(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    int block = cpu_plan_block_for(pl, op->in[0], op->in[1]);
    struct step *s;
    OPERAND(y, i, op->in[0], block);
    OPERAND(dy, i, op->in[1], block);
    TRY(cpu_plan_value(pl, op->out, block, e));
    TRY(cpu_plan_step(pl, cpu_step_relu_bwd, "relu_bwd", i, &s, e));
    s->store = pl->values[op->out].store;
    s->count = layout_count(&pl->values[op->out].layout);
    TRY(cpu_plan_reach(pl, y, &s->add.a, e));
    TRY(cpu_plan_reach(pl, dy, &s->add.b, e));
    return cpu_plan_reach(pl, pl->values[op->out].buffer, &s->add.y, e);
}

/* All four pooling ops: big is the tensor on the input side, small that on the output side; average pooling writes
 * plain rows. */
static int emit_pool(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    bool max = op->kind == OP_MAXPOOL || op->kind == OP_MAXPOOL_BWD;
    bool forward = op->kind == OP_MAXPOOL || op->kind == OP_AVGPOOL;
    int f = forward ? i : op->fwd, big = pl->p->ops[f].in[0];
    int dy = max ? op->in[1] : op->in[0];
    int block = cpu_plan_block_for(pl, big, -1), small_block = max ? block : LAYOUT_PLAIN;
    struct step *s;
    static step_fn *const run[2][2] = {{cpu_step_avgpool_bwd, cpu_step_avgpool},
                                       {cpu_step_maxpool_bwd, cpu_step_maxpool}};

    if (max && op->kh * op->kw > 256)
        return err_set(e, -ENOTSUP, "max pooling over %d elements (expected at most 256)", op->kh * op->kw);
    if (max && !forward && pl->index_buffer[f] == NO_BUFFER)
        return err_set(e, -ENOTSUP, "the slice holds the backward of a maxpool, but not its forward operation");
    OPERAND(in, i, forward ? big : dy, forward ? block : small_block);
    TRY(cpu_plan_value(pl, op->out, forward ? small_block : block, e));
    TRY(cpu_plan_step(pl, run[max][forward], op_name(op->kind), i, &s, e));
    s->store = pl->values[op->out].store;
    struct layout lx = cpu_plan_layout(pl, big, block), ly = cpu_plan_layout(pl, pl->p->ops[f].out, small_block);
    s->pool = (struct pool_job){.vx = layout_view(&lx),
                                .vy = layout_view(&ly),
                                .kh = op->kh,
                                .kw = op->kw,
                                .sh = op->sh,
                                .sw = op->sw,
                                .ph = op->ph,
                                .pw = op->pw};
    if (max && forward && pl->o.training) {
        const struct view *v = &s->pool.vy;
        int index = cpu_plan_buffer(pl, (size_t)v->n * v->groups * v->hw * v->lanes, e);
        TRY(index);
        pl->index_buffer[i] = index;
    }
    if (max && pl->index_buffer[f] != NO_BUFFER)
        TRY(cpu_plan_reach(pl, pl->index_buffer[f], &s->pool.index, e));
    size_t plane = (size_t)pl->cpu->threads * s->pool.vx.hw * LANES_MAX;
    if (max && !forward && plane > pl->plane_floats)
        pl->plane_floats = plane;
    TRY(cpu_plan_reach(pl, in, forward ? &s->pool.x : &s->pool.dy, e));
    return cpu_plan_reach(pl, pl->values[op->out].buffer, forward ? &s->pool.y : &s->pool.dx, e);
}

static int emit_xent(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct tensor *t = &pl->p->tensors[op->in[0]];
    const int block = t->h * t->w > 1 ? t->c : LAYOUT_PLAIN; /* the logits of a row side by side */
    struct step *s;
    OPERAND(logits, i, op->in[0], block);
    if (op->kind == OP_XENT_BWD)
        TRY(cpu_plan_value(pl, op->out, block, e));
    TRY(cpu_plan_step(pl, op->kind == OP_XENT ? cpu_step_xent : cpu_step_xent_bwd, op_name(op->kind), i, &s, e));
    if (op->kind == OP_XENT_BWD)
        s->store = pl->values[op->out].store;
    TRY(cpu_plan_reach(pl, logits, &s->xent.logits, e));
    return op->kind == OP_XENT ? 0 : cpu_plan_reach(pl, pl->values[op->out].buffer, &s->xent.dlogits, e);
}

/* The last step sums in fp32, beside a result t that is stored as bf16. */
static int widen(struct cpu_plan *pl, struct step *s, int t, struct err *e)
{
    if (pl->values[t].store != STORE_BF16)
        return 0;
    const struct layout l = cpu_plan_layout(pl, t, LAYOUT_PLAIN);
    int b = cpu_plan_buffer(pl, layout_count(&l) * sizeof(float), e);
    TRY(b);
    return cpu_plan_use(pl, b, &s->group.wide, e);
}

/* A step on rows, (n, c), or (n, positions, c), of an op over a group of ranks: a rank's rows travel as they lie. */
static int emit_group(struct cpu_plan *pl, int i, step_fn *run, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const int y = op->out;
    const struct tensor *t = &pl->p->tensors[y >= 0 ? y : op->in[0]];
    const int block = t->h * t->w > 1 ? t->c : LAYOUT_PLAIN;
    struct step *s;
    OPERAND(a, i, op->in[0], block);
    OPERAND(b, i, op->in[1], block);
    if (y >= 0)
        TRY(cpu_plan_value(pl, y, block, e));
    TRY(cpu_plan_step(pl, run, op_name(op->kind), i, &s, e));
    s->store = y >= 0 ? pl->values[y].store : STORE_F32;
    TRY(cpu_plan_reach(pl, a, &s->group.a, e));
    TRY(cpu_plan_reach(pl, b, &s->group.b, e));
    TRY(cpu_plan_reach(pl, y >= 0 ? pl->values[y].buffer : NO_BUFFER, &s->group.y, e));
    if (op->kind == OP_SCATTER)
        TRY(widen(pl, s, y, e));
    return cpu_plan_read_op(pl, i, e);
}

int cpu_plan_emit(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct fused *f = &pl->fused[i];
    if (f->chain >= 0)
        return cpu_plan_emit_chain(pl, i, e);
    if (f->bn >= 0)
        return emit_bn(pl, i, f->bn, f->other, f->relu >= 0, e);
    switch (op->kind) {
    case OP_INPUT:
        return emit_input(pl, i, e);
    case OP_BN:
        return emit_bn(pl, i, i, -1, false, e);
    case OP_RELU:
        return emit_add(pl, i, op->in[0], -1, true, e);
    case OP_ADD:
        return emit_add(pl, i, op->in[0], op->in[1], false, e);
    case OP_BN_BWD:
        return emit_bn_bwd(pl, i, e);
    case OP_RELU_BWD:
        return emit_relu_bwd(pl, i, e);
    case OP_MAXPOOL:
    case OP_AVGPOOL:
    case OP_MAXPOOL_BWD:
    case OP_AVGPOOL_BWD:
        return emit_pool(pl, i, e);
    case OP_XENT:
    case OP_XENT_BWD:
        return emit_xent(pl, i, e);
    case OP_CONV:
        return op->groups > 1 ? cpu_plan_emit_groups(pl, i, e) : cpu_plan_emit_conv(pl, i, e);
    case OP_CONV_BWD_DATA:
        return op->groups > 1 ? cpu_plan_emit_groups(pl, i, e) : cpu_plan_emit_conv_bwd_data(pl, i, e);
    case OP_CONV_BWD_PARAM:
        return op->groups > 1 ? cpu_plan_emit_groups_param(pl, i, e) : cpu_plan_emit_conv_bwd_param(pl, i, e);
    case OP_LINEAR:
    case OP_LINEAR_BWD_DATA:
        return cpu_plan_emit_linear(pl, i, e);
    case OP_LINEAR_BWD_PARAM:
        return cpu_plan_emit_linear_bwd_param(pl, i, e);
    case OP_SLICE:
        return emit_group(pl, i, cpu_step_slice, e);
    case OP_PAD:
        return emit_group(pl, i, cpu_step_pad, e);
    case OP_GATHER:
        return emit_group(pl, i, cpu_step_gather, e);
    case OP_SCATTER:
        return emit_group(pl, i, cpu_step_scatter, e);
    case OP_SUM:
        return emit_group(pl, i, cpu_step_sum, e);
    case OP_MAX:
        return emit_group(pl, i, cpu_step_max, e);
    case OP_BIAS:
        return emit_group(pl, i, cpu_step_bias, e);
    case OP_BIAS_BWD:
        return cpu_plan_emit_bias_bwd(pl, i, e);
    case OP_NUMBERS:
        return emit_group(pl, i, cpu_step_numbers, e);
    case OP_LABELS:
        return emit_group(pl, i, cpu_step_labels, e);
    case OP_XENT_TOP:
        return emit_group(pl, i, cpu_step_xent_top, e);
    case OP_XENT_SUMS:
        return emit_group(pl, i, cpu_step_xent_sums, e);
    case OP_XENT_PARTS:
        return emit_group(pl, i, cpu_step_xent_parts, e);
    case OP_XENT_PARTS_BWD:
        return emit_group(pl, i, cpu_step_xent_parts_bwd, e);
    case OP_PREPEND:
    case OP_PREPEND_BWD:
    case OP_POSITION:
    case OP_POSITION_BWD:
    case OP_PICK:
    case OP_PICK_BWD:
        return cpu_plan_emit_positions(pl, i, e);
    case OP_ATTENTION:
    case OP_ATTENTION_BWD:
        return cpu_plan_emit_attention(pl, i, e);
    case OP_NORM:
        return cpu_plan_emit_norm(pl, i, e);
    case OP_NORM_BWD:
        return cpu_plan_emit_norm_bwd(pl, i, e);
    case OP_MUL:
    case OP_ACT:
    case OP_ACT_BWD:
    case OP_SCALE:
    case OP_SCALE_BWD:
    case OP_DROP:
    case OP_DROP_BWD:
        return cpu_plan_emit_chain(pl, i, e);
    case OP_TOKENS:
    case OP_EMBED:
    case OP_EMBED_BWD:
    case OP_ROPE:
    case OP_ROPE_BWD:
        return cpu_plan_emit_tokens(pl, i, e);
    case OP_HEAD:
    case OP_HEAD_BWD:
        return cpu_plan_emit_head(pl, i, e);
    case OP_KINDS:
        break;
    }
    return err_set(e, -EINVAL, "operation %d of kind %d (expected less than %d)", i, (int)op->kind, OP_KINDS);
}
