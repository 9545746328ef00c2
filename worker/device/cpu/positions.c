/* What makes sequences of positions, planned and run: a position more, a table of positions, one position alone.
 * Channels of a position lie side by side, so they are copied whole. */
#include <string.h>

#include "worker/device/cpu/plan.h"

static int channels(const struct cpu_plan *pl, int t)
{
    return pl->p->tensors[t].c;
}

/* Of tensor t: bytes of one position, and positions of a sample, samples. */
struct sequence {
    size_t bytes, t, n;
};

static struct sequence sequence_of(const struct cpu_plan *pl, int t)
{
    const struct layout l = cpu_plan_layout(pl, t, channels(pl, t));
    return (struct sequence){(size_t)l.c * store_size(pl->values[t].store), (size_t)(l.h * l.w), (size_t)l.n};
}

/* A step that makes op's result, if somebody wants it, of its input. */
static int emit_move(struct cpu_plan *pl, int i, step_fn *run, struct step **ret, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const int x = cpu_plan_settle(pl, i, op->in[0], channels(pl, op->in[0]), e);
    TRY(x);
    if (op->out >= 0)
        TRY(cpu_plan_value(pl, op->out, channels(pl, op->out), e));
    TRY(cpu_plan_same_stores(pl, i, op->in[0], op->out, e));
    TRY(cpu_plan_step(pl, run, op_name(op->kind), i, ret, e));
    TRY(cpu_plan_read_op(pl, i, e));
    (*ret)->store = pl->values[op->out >= 0 ? op->out : op->in[0]].store;
    TRY(cpu_plan_reach(pl, x, &(*ret)->add.a, e));
    return op->out < 0 ? 0 : cpu_plan_reach(pl, pl->values[op->out].buffer, &(*ret)->add.y, e);
}

static float value(const void *p, size_t i, enum store s)
{
    return s == STORE_BF16 ? f32_from_bf16(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static int step_prepend(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const struct sequence x = sequence_of(pl, op->in[0]);
    const float *token = pl->params + pl->p->params[op->param[0]].offset;
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (size_t n = 0; n < x.n; n++) {
        char *y = (char *)s->add.y + n * (x.t + 1) * x.bytes;
        pl->cpu->kern->give_rows(token, y, 1, channels(pl, op->out), 0, s->store);
        memcpy(y + x.bytes, (const char *)s->add.a + n * x.t * x.bytes, x.t * x.bytes);
    }
    return 0;
}

/* The gradient of a parameter that every sample of op's input begins with: sums over them. What lies behind it in the
 * arena is used by none: its gradient is 0. */
static void give_sums_over_samples(struct cpu_plan *pl, const struct op *op, const void *dy, size_t used)
{
    const struct sequence of = sequence_of(pl, op->in[0]);
    const struct param *q = &pl->p->params[op->param[0]];
    const enum store store = pl->values[op->in[0]].store;
    const size_t each = of.t * (size_t)channels(pl, op->in[0]);
    float *to = pl->reduce + q->offset;
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (size_t i = 0; i < q->count; i++) {
        double sum = 0;
        for (size_t n = 0; i < used && n < of.n; n++)
            sum += (double)value(dy, n * each + i, store);
        to[i] = (float)sum + (pl->args->accumulate ? to[i] : 0);
    }
}

static int step_prepend_bwd(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct sequence dy = sequence_of(pl, op->in[0]);
    if (op->param[0] >= 0)
        give_sums_over_samples(pl, op, s->add.a, (size_t)channels(pl, op->in[0]));
    for (size_t n = 0; s->add.y && n < dy.n; n++)
        memcpy((char *)s->add.y + n * (dy.t - 1) * dy.bytes, (const char *)s->add.a + (n * dy.t + 1) * dy.bytes,
               (dy.t - 1) * dy.bytes);
    return cpu_plan_ready(pl, s->op, e);
}

static int step_position(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const struct param *table = &pl->p->params[op->param[0]];
    const struct sequence x = sequence_of(pl, op->in[0]);
    const size_t used = x.t * (size_t)channels(pl, op->in[0]);
    const struct chain_job j = {.count = x.n * used,
                                .c = used,
                                .positions = 1,
                                .x = s->add.a,
                                .y = s->add.y,
                                .n = 1,
                                .links = {{.kind = LINK_SHIFT, .by = pl->params + table->offset}}};
    pl->cpu->kern->chain(&j, s->store, pl->cpu->threads);
    return 0;
}

static int step_position_bwd(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    give_sums_over_samples(pl, op, s->add.a, sequence_of(pl, op->in[0]).t * (size_t)channels(pl, op->in[0]));
    return cpu_plan_ready(pl, s->op, e);
}

static int step_pick(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const struct sequence x = sequence_of(pl, op->in[0]);
    for (size_t n = 0; n < x.n; n++)
        memcpy((char *)s->add.y + n * x.bytes, (const char *)s->add.a + (n * x.t + (size_t)op->first) * x.bytes,
               x.bytes);
    return 0;
}

static int step_pick_bwd(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const struct sequence dx = sequence_of(pl, op->out);
    memset(s->add.y, 0, dx.n * dx.t * dx.bytes);
    for (size_t n = 0; n < dx.n; n++)
        memcpy((char *)s->add.y + (n * dx.t + (size_t)op->first) * dx.bytes, (const char *)s->add.a + n * dx.bytes,
               dx.bytes);
    return 0;
}

int cpu_plan_emit_positions(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct step *s;
    switch (op->kind) {
    case OP_PREPEND:
        return emit_move(pl, i, step_prepend, &s, e);
    case OP_PREPEND_BWD:
        return emit_move(pl, i, step_prepend_bwd, &s, e);
    case OP_POSITION:
        return emit_move(pl, i, step_position, &s, e);
    case OP_POSITION_BWD:
        return emit_move(pl, i, step_position_bwd, &s, e);
    case OP_PICK:
        return emit_move(pl, i, step_pick, &s, e);
    default:
        return emit_move(pl, i, step_pick_bwd, &s, e);
    }
}
