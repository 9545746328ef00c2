/* The linear layer that a group shares, and a bias that comes after its sum: products of plain fp32 matrices
 * (halves are fp32 that were rounded), weights (k, c) where they lie in the arena. */
#include <string.h>

#include "worker/device/cpu/plan.h"
#include "worker/device/half.h"

struct shape {
    size_t n, c, k; /* x (n,c), y (n,k) */
};

static struct shape shape_of(const struct cpu_plan *pl, const struct op *op)
{
    const struct op *fwd = op->fwd >= 0 ? &pl->p->ops[op->fwd] : op;
    const struct layout x = cpu_plan_layout(pl, fwd->in[0], LAYOUT_PLAIN);
    return (struct shape){(size_t)x.n, (size_t)x.c * (size_t)x.h * (size_t)x.w, (size_t)pl->p->tensors[fwd->out].c};
}

static float *param(const struct cpu_plan *pl, int i)
{
    return pl->params + pl->p->params[i].offset;
}

static void round_weight(const struct cpu_plan *pl, int i, float *to)
{
    const enum store s = pl->store == STORE_BF16 ? STORE_ROUNDED : pl->store;
    memcpy(to, param(pl, i), pl->p->params[i].count * sizeof(float));
    pl->cpu->kern->round(to, pl->p->params[i].count, s, pl->cpu->threads);
}

static const float *weights(const struct cpu_plan *pl, const struct step *s)
{
    const int i = pl->p->ops[s->op].param[0];
    if (s->group.rounded)
        round_weight(pl, i, s->group.rounded);
    return s->group.rounded ? s->group.rounded : pl->rounded[i] ? pl->rounded[i] : param(pl, i);
}

void cpu_plan_round_weights(struct cpu_plan *pl)
{
    for (int i = 0; i < pl->p->nparams; i++)
        if (pl->rounded[i])
            round_weight(pl, i, pl->rounded[i]);
}

/* An operand as fp32. wide: NULL: it is. */
static const float *floats(const struct cpu_plan *pl, const void *x, float *wide, size_t n)
{
    if (!wide)
        return x;
#pragma omp parallel for simd schedule(static) num_threads(pl->cpu->threads)
    for (size_t i = 0; i < n; i++)
        wide[i] = f32_from_bf16(((const uint16_t *)x)[i]);
    return wide;
}

int cpu_step_linear(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct shape h = shape_of(pl, op);
    const float *x = floats(pl, s->group.a, s->group.wide_a, h.n * h.c);
    float *y = s->group.y;
    for (size_t i = 0; i < h.n && op->param[1] >= 0; i++)
        memcpy(y + i * h.k, param(pl, op->param[1]), h.k * sizeof *y);
    return dnn_multiply(h.n, h.k, h.c, x, false, weights(pl, s), true, op->param[1] >= 0 ? 1.0f : 0.0f, y, e);
}

int cpu_step_linear_bwd_data(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct shape h = shape_of(pl, op);
    const float *dy = floats(pl, s->group.a, s->group.wide_a, h.n * h.k);
    return dnn_multiply(h.n, h.c, h.k, dy, false, weights(pl, s), false, 0, s->group.y, e);
}

/* Sums over rows of dy, (n,k); at: row 0 of those. */
static void add_bias_gradient(float *to, const float *dy, size_t n, size_t k, bool add, enum store rounds, int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads)
    for (size_t j = 0; j < k; j++) {
        float sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += dy[i * k + j];
        to[j] = store_value(rounds, sum) + (add ? to[j] : 0);
    }
}

/* Rounded for each rank's rows by themselves, as if each rank had summed its own. */
static int add_rounded(struct cpu_plan *pl, struct step *s, const struct shape *h, const float *x, const float *dy,
                       float *arena, struct err *e)
{
    const size_t each = (size_t)pl->o.batch, count = h->k * h->c;
    float *part = s->out;
    for (size_t first = 0; first < h->n; first += each) {
        TRY(dnn_multiply(h->k, h->c, each, dy + first * h->k, true, x + first * h->c, false, 0, part, e));
        pl->cpu->kern->round(part, count, pl->store, pl->cpu->threads);
        if (first == 0 && !pl->args->accumulate)
            memcpy(arena, part, count * sizeof *arena);
        else
            pl->cpu->kern->accumulate(arena, part, count, pl->cpu->threads);
    }
    return 0;
}

static void bias_gradient(struct cpu_plan *pl, const struct op *op, int bias, const float *dy, size_t n, size_t k)
{
    const bool rounds = half_gradients(&pl->o, op);
    const size_t each = rounds ? (size_t)pl->o.batch : n;
    float *to = pl->reduce + pl->p->params[bias].offset;
    for (size_t first = 0; first < n; first += each)
        add_bias_gradient(to, dy + first * k, each, k, first > 0 || pl->args->accumulate,
                          rounds ? pl->store : STORE_F32, pl->cpu->threads);
}

int cpu_step_linear_bwd_param(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct shape h = shape_of(pl, op);
    const float *x = floats(pl, s->group.a, s->group.wide_a, h.n * h.c),
                *dy = floats(pl, s->group.b, s->group.wide_b, h.n * h.k);
    float *arena = pl->reduce + pl->p->params[op->param[0]].offset;
    TRY(s->out ? add_rounded(pl, s, &h, x, dy, arena, e)
               : dnn_multiply(h.k, h.c, h.n, dy, true, x, false, pl->args->accumulate ? 1.0f : 0.0f, arena, e));
    if (op->param[1] >= 0)
        bias_gradient(pl, op, op->param[1], dy, h.n, h.k);
    return cpu_plan_ready(pl, s->op, e);
}

int cpu_step_bias(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const size_t k = (size_t)pl->p->tensors[op->out].c, n = (size_t)pl->o.batch;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++)
            ((float *)s->group.y)[i * k + j] = ((const float *)s->group.a)[i * k + j] + param(pl, op->param[0])[j];
    return 0;
}

int cpu_step_bias_bwd(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const size_t k = (size_t)pl->p->tensors[op->in[0]].c, n = (size_t)pl->o.batch;
    bias_gradient(pl, op, op->param[0], floats(pl, s->group.a, s->group.wide_a, n * k), n, k);
    return cpu_plan_ready(pl, s->op, e);
}
