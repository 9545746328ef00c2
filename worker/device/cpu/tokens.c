/* Tokens as whole floats, the rows of a table that they stand for, and rotary positions, planned and run. Channels of a
 * position lie side by side. */
#include <string.h>

#include "worker/device/cpu/plan.h"

static int channels(const struct cpu_plan *pl, int t)
{
    return pl->p->tensors[t].c;
}

/* Positions of all samples of tensor t. */
static size_t rows_of(const struct cpu_plan *pl, int t)
{
    const struct layout l = cpu_plan_layout(pl, t, LAYOUT_PLAIN);
    return (size_t)l.n * (size_t)(l.h * l.w);
}

static float value(const void *p, size_t i, enum store s)
{
    return s == STORE_BF16 ? f32_from_bf16(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

/* --- tokens and their rows */

static int step_tokens(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const int32_t *tokens = pl->args->batch.rows;
    const size_t n = rows_of(pl, pl->p->ops[s->op].out);
    for (size_t i = 0; i < n; i++)
        ((float *)s->add.y)[i] = (float)tokens[i];
    return 0;
}

/* Is a token's row in the part of the table that is here, and which one is it? */
static bool is_here(const struct op *op, const struct param *q, float token)
{
    return token >= (float)op->first && (int64_t)token - op->first < q->shape[0];
}

static size_t row_of(const struct op *op, float token)
{
    return (size_t)token - (size_t)op->first;
}

static int step_embed(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const size_t n = rows_of(pl, op->in[0]), c = (size_t)channels(pl, op->out), bytes = c * store_size(s->store);
    const struct param *q = &pl->p->params[op->param[0]];
    const float *table = pl->params + q->offset, *tokens = s->add.a;
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (size_t i = 0; i < n; i++) {
        char *to = (char *)s->add.y + i * bytes;
        if (is_here(op, q, tokens[i]))
            pl->cpu->kern->give_rows(table + row_of(op, tokens[i]) * c, to, 1, (int)c, 0, s->store);
        else
            memset(to, 0, bytes);
    }
    return 0;
}

/* Each thread has some channels of all rows, so each sum is made in the order of positions. */
static int step_embed_bwd(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct param *q = &pl->p->params[op->param[0]];
    const size_t n = rows_of(pl, op->in[0]), c = (size_t)channels(pl, op->in[1]), parts = (size_t)pl->cpu->threads;
    const enum store store = pl->values[op->in[1]].store;
    const float *tokens = s->add.a;
    float *to = pl->reduce + q->offset;
    const bool zero = !pl->args->accumulate && !op->adds;
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (size_t part = 0; part < parts; part++) {
        const size_t first = c * part / parts, end = c * (part + 1) / parts;
        for (size_t v = 0; v < q->count / c && zero; v++)
            memset(to + v * c + first, 0, (end - first) * sizeof *to);
        for (size_t i = 0; i < n; i++)
            for (size_t j = first; j < end && is_here(op, q, tokens[i]); j++)
                to[row_of(op, tokens[i]) * c + j] += value(s->add.b, i * c + j, store);
    }
    return cpu_plan_ready(pl, s->op, e);
}

static int emit_tokens(struct cpu_plan *pl, int i, struct step **ret, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const bool back = op->kind == OP_EMBED_BWD;
    const int tokens = cpu_plan_settle(pl, i, op->in[0], LAYOUT_PLAIN, e),
              dy = !back || tokens < NO_BUFFER ? tokens : cpu_plan_settle(pl, i, op->in[1], channels(pl, op->in[1]), e);
    if (dy < NO_BUFFER)
        return dy;
    if (op->out >= 0)
        TRY(cpu_plan_value(pl, op->out, op->kind == OP_TOKENS ? LAYOUT_PLAIN : channels(pl, op->out), e));
    TRY(cpu_plan_step(pl,
                      back                    ? step_embed_bwd
                      : op->kind == OP_TOKENS ? step_tokens
                                              : step_embed,
                      op_name(op->kind), i, ret, e));
    TRY(cpu_plan_read_op(pl, i, e));
    TRY(cpu_plan_reach(pl, tokens, &(*ret)->add.a, e));
    if (back)
        return cpu_plan_reach(pl, dy, &(*ret)->add.b, e);
    (*ret)->store = pl->values[op->out].store;
    return cpu_plan_reach(pl, pl->values[op->out].buffer, &(*ret)->add.y, e);
}

/* --- rotary positions */

/* Channels j and j + half of a head, turned: low cos - high sin, high cos + low sin. */
static void turn_floats(const float *x, float *y, size_t half, const float *cosines, const float *sines, float sign)
{
#pragma omp simd
    for (size_t j = 0; j < half; j++) {
        const float low = x[j], high = x[j + half], sine = sign * sines[j];
        y[j] = low * cosines[j] - high * sine;
        y[j + half] = high * cosines[j] + low * sine;
    }
}

static void turn_halves(const uint16_t *x, uint16_t *y, size_t half, const float *cosines, const float *sines,
                        float sign)
{
#pragma omp simd
    for (size_t j = 0; j < half; j++) {
        const float low = f32_from_bf16(x[j]), high = f32_from_bf16(x[j + half]), sine = sign * sines[j];
        y[j] = bf16_from_f32(low * cosines[j] - high * sine);
        y[j + half] = bf16_from_f32(high * cosines[j] + low * sine);
    }
}

static int step_rope(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const size_t n = rows_of(pl, op->out), c = (size_t)channels(pl, op->out),
                 d = c / (size_t)(op->heads + 2 * op->kv_heads), turned = (size_t)(op->heads + op->kv_heads),
                 t = n / (size_t)(pl->o.batch * pl->p->tensors[op->out].ranks), size = store_size(s->store);
    const float sign = op->kind == OP_ROPE_BWD ? -1 : 1;
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (size_t i = 0; i < n; i++) {
        const float *cosines = s->rope.table + i % t * d, *sines = cosines + d / 2;
        const char *x = (const char *)s->rope.x + i * c * size;
        char *y = (char *)s->rope.y + i * c * size;
        for (size_t h = 0; h < turned; h++)
            if (s->store == STORE_BF16)
                turn_halves((const uint16_t *)(const void *)x + h * d, (uint16_t *)(void *)y + h * d, d / 2, cosines,
                            sines, sign);
            else
                turn_floats((const float *)(const void *)x + h * d, (float *)(void *)y + h * d, d / 2, cosines, sines,
                            sign);
        memcpy(y + turned * d * size, x + turned * d * size, (c - turned * d) * size);
    }
    if (store_rounds(s->store))
        pl->cpu->kern->round(s->rope.y, n * c, s->store, pl->cpu->threads);
    return 0;
}

/* (t, d): cosines of a position's angles, and then sines. */
static int make_table(struct cpu_plan *pl, const struct op *op, const float **ret, struct err *e)
{
    const struct tensor *x = &pl->p->tensors[op->out];
    const size_t t = (size_t)(x->h * x->w), d = (size_t)(x->c / (op->heads + 2 * op->kv_heads));
    void *table;
    TRY(cpu_plan_block(pl, t * d * sizeof(float), &table, e));
    host_turns(pl->p, op, table);
    *ret = table;
    return 0;
}

/* The table of an op before this one, if it is the same. */
static const float *known_table(const struct cpu_plan *pl, const struct op *op)
{
    for (int i = 0; i < pl->nsteps; i++) {
        const struct op *o = &pl->p->ops[pl->steps[i]->op];
        if (pl->steps[i]->run == step_rope && o->base == op->base && o->heads == op->heads &&
            o->kv_heads == op->kv_heads && channels(pl, o->out) == channels(pl, op->out))
            return pl->steps[i]->rope.table;
    }
    return NULL;
}

static int emit_rope(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const int c = channels(pl, op->out), x = cpu_plan_settle(pl, i, op->in[0], c, e);
    const float *table = known_table(pl, op);
    struct step *s;
    TRY(x);
    TRY(cpu_plan_value(pl, op->out, c, e));
    TRY(cpu_plan_same_stores(pl, i, op->in[0], op->out, e));
    TRY(table ? 0 : make_table(pl, op, &table, e));
    TRY(cpu_plan_step(pl, step_rope, op_name(op->kind), i, &s, e));
    s->store = pl->values[op->out].store;
    s->rope.table = table;
    TRY(cpu_plan_reach(pl, x, &s->rope.x, e));
    return cpu_plan_reach(pl, pl->values[op->out].buffer, &s->rope.y, e);
}

int cpu_plan_emit_tokens(struct cpu_plan *pl, int i, struct err *e)
{
    const enum op_kind k = pl->p->ops[i].kind;
    struct step *s;
    return k == OP_ROPE || k == OP_ROPE_BWD ? emit_rope(pl, i, e) : emit_tokens(pl, i, &s, e);
}
