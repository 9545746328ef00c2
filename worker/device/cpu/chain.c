/* Ops that work element by element, one after another in one pass over memory (fuse.h), planned and run. */
#include <stdio.h>
#include <string.h>

#include "worker/device/cpu/plan.h"

/* An op of a chain with what it reads besides the value that comes from the one before. */
struct piece {
    const struct op *op;
    int with, buffer; /* tensor and its buffer; -1, NO_BUFFER: none */
    int rows;         /* buffer of the numbers of a group's samples (SAMPLE_*); NO_BUFFER: none */
};

struct chain {
    struct piece piece[CHAIN_MAX];
    int n, x, y; /* tensors: what the first works on, and what the last makes or -1 */
    bool wants_positions;
    char label[96];
};

/* The op of a backward op, too: what it does to a gradient. */
static enum link_kind link_kind(enum op_kind k)
{
    switch (k) {
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
    case OP_SCALE_BWD:
        return LINK_SCALE_BWD;
    case OP_MUL:
        return LINK_MUL;
    case OP_DROP:
    case OP_DROP_BWD:
        return LINK_DROP;
    default:
        return LINK_ADD;
    }
}

static void put_together(const struct cpu_plan *pl, int last, struct chain *c)
{
    const struct op *from = NULL;
    *c = (struct chain){.y = pl->p->ops[last].out};
    for (int i = pl->fused[last].chain >= 0 ? pl->fused[last].chain : last; i >= 0; i = pl->fused[i].next) {
        const struct op *op = &pl->p->ops[i];
        const int value = fuse_value(pl->p, op, from), other = op->in[0] == value ? op->in[1] : op->in[0];
        const size_t at = strlen(c->label);
        if (!from)
            c->x = value;
        c->piece[c->n++] = (struct piece){op, link_kind(op->kind) == LINK_DROP ? -1 : other, NO_BUFFER, NO_BUFFER};
        c->wants_positions |= op_is(op->kind, OP_OF_POSITIONS);
        snprintf(c->label + at, sizeof c->label - at, "%s%s", from ? "+" : "", op_name(op->kind));
        from = op;
    }
}

/* Operands in one layout, and the result. */
static int settle(struct cpu_plan *pl, int i, struct chain *c, struct layout *ret, int *ret_x, struct err *e)
{
    const int block = c->wants_positions ? pl->p->tensors[c->x].c : cpu_plan_block_for(pl, c->x, c->piece[0].with);
    *ret = cpu_plan_layout(pl, c->x, block);
    TRY(*ret_x = cpu_plan_settle(pl, i, c->x, block, e));
    for (int k = 0; k < c->n; k++) {
        struct piece *p = &c->piece[k];
        p->buffer = cpu_plan_settle(pl, i, p->with, block, e);
        if (p->buffer < NO_BUFFER)
            return p->buffer;
        TRY(cpu_plan_same_stores(pl, i, c->x, p->with, e));
        if (link_kind(p->op->kind) == LINK_DROP)
            p->rows = cpu_plan_settle(pl, i, p->op->in[1], LAYOUT_PLAIN, e);
        if (p->rows < NO_BUFFER)
            return p->rows;
    }
    TRY(c->y >= 0 ? cpu_plan_value(pl, c->y, block, e) : 0);
    return cpu_plan_same_stores(pl, i, c->x, c->y, e);
}

/* rows: of NUMBERS of a group. */
static int add_draw(struct cpu_plan *pl, struct link *k, const struct piece *p, struct err *e)
{
    const struct op *op = p->op;
    const size_t n = (size_t)pl->o.batch * (size_t)pl->p->tensors[op->in[0]].ranks;
    void *factor = NULL, *sample = NULL;
    if (op->samples)
        TRY(cpu_plan_block(pl, n * sizeof(float), &factor, e));
    if (p->rows != NO_BUFFER)
        TRY(cpu_plan_block(pl, n * sizeof(uint32_t), &sample, e));
    k->factor = factor;
    k->sample = sample;
    k->samples = n;
    k->first = (size_t)op->first;
    k->whole = (size_t)op->whole;
    k->bound = drop_bound(op->rate);
    k->kept = (float)(1 / (1 - (double)op->rate));
    k->layer = op->layer;
    return cpu_plan_reach(pl, p->rows, &k->rows, e);
}

static int add_link(struct cpu_plan *pl, struct step *s, const struct piece *p, struct err *e)
{
    struct chain_job *j = &s->chain;
    const struct op *op = p->op;
    struct link *k = &j->links[j->n];
    if (link_kind(op->kind) == LINK_DROP && !pl->o.training)
        return 0;
    j->n++;
    *k = (struct link){.kind = link_kind(op->kind), .act = op->act};
    if (op->param[0] >= 0)
        k->by = pl->params + pl->p->params[op->param[0]].offset;
    if (k->kind == LINK_DROP)
        TRY(add_draw(pl, k, p, e));
    return cpu_plan_reach(pl, p->buffer, &k->with, e);
}

int cpu_plan_emit_chain(struct cpu_plan *pl, int i, struct err *e)
{
    enum { FLAT = 4096 }; /* values of a piece of a tensor in another layout */
    struct chain c;
    struct layout l;
    struct step *s;
    int x;
    void *label;
    put_together(pl, i, &c);
    TRY(settle(pl, i, &c, &l, &x, e));
    TRY(cpu_plan_block(pl, sizeof c.label, &label, e));
    memcpy(label, c.label, sizeof c.label);
    TRY(cpu_plan_step(pl, cpu_step_chain, label, i, &s, e));
    s->store = pl->values[c.y >= 0 ? c.y : c.x].store;
    s->chain = (struct chain_job){
        .count = layout_count(&l), .c = c.wants_positions ? (size_t)l.c : FLAT, .positions = (size_t)(l.h * l.w)};
    TRY(cpu_plan_reach(pl, x, &s->chain.x, e));
    TRY(cpu_plan_reach(pl, c.y < 0 ? NO_BUFFER : pl->values[c.y].buffer, &s->chain.y, e));
    for (int k = 0; k < c.n; k++) {
        TRY(add_link(pl, s, &c.piece[k], e));
        TRY(c.piece[k].op->param[0] >= 0 ? cpu_plan_read_op(pl, (int)(c.piece[k].op - pl->p->ops), e) : 0);
    }
    if (op_writes_gradients(pl->p->ops[i].kind))
        cpu_plan_need_sums(pl, l.c);
    return 0;
}

/* What is drawn for this batch. */
static void draw(const struct cpu_plan *pl, struct link *k)
{
    const struct run_args *a = pl->args;
    k->key = drop_key(a->seed, a->step, k->layer);
    float *factor = (float *)(uintptr_t)k->factor;
    uint32_t *sample = (uint32_t *)(uintptr_t)k->sample;
    if (!k->rows)
        k->sample = a->batch.samples;
    for (size_t i = 0; k->rows && i < k->samples; i++)
        sample[i] = (uint32_t)k->rows[i * SAMPLE_N + SAMPLE_HIGH] << 16 | (uint32_t)k->rows[i * SAMPLE_N + SAMPLE_LOW];
    for (size_t i = 0; factor && i < k->samples; i++)
        factor[i] = drop_word(k->key, k->sample[i], 0) >= k->bound ? k->kept : 0;
}

int cpu_step_chain(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    struct chain_job *j = &s->chain;
    for (int k = 0; k < j->n; k++)
        if (j->links[k].kind == LINK_DROP)
            draw(pl, &j->links[k]);
    if (!op_writes_gradients(op->kind)) {
        pl->cpu->kern->chain(j, s->store, pl->cpu->threads);
        return 0;
    }
    j->partial = pl->partial;
    j->sums = pl->partial + kern_sums((int)j->c, pl->cpu->threads);
    j->runs = pl->plane;
    pl->cpu->kern->chain(j, s->store, pl->cpu->threads);
    cpu_plan_give_sums(pl, op->param[0], j->sums);
    return cpu_plan_ready(pl, s->op, e);
}
