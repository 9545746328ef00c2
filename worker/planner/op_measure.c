/* Running programs to see what their operations take. Arenas are small random numbers: what kernels do does not depend
 * on values. A group of ranks is stood in for: what it would send is the network's matter (network.h). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/array.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/numbers.h"
#include "worker/device/device.h"
#include "worker/planner/op_times_impl.h"
#include "worker/program/program.h"

/* --- memory */

enum { PARAMS, STATS, REDUCE, IN, OUT, D_IN, D_OUT, MEMORY_N };

struct bench {
    struct op_times *times;
    struct device *d;
    struct op_load load;
    struct plan_options plan;
    struct plan_group group;
    void *memory[MEMORY_N];
    uint8_t *rows;
    int32_t *labels;
    float *weights;
    uint32_t *samples;
    uint64_t version;
    int rounds;
    const struct op_pause *pause;
};

static void fill(void *to, size_t n, enum dtype t, double least, double most)
{
    uint32_t x = 12345;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        const double v = least + (most - least) * (double)(x >> 8) / (1 << 24);
        if (t == DT_F64)
            ((double *)to)[i] = v;
        else
            ((float *)to)[i] = (float)v;
    }
}

static size_t rows_of(const struct bench *b, int tensor)
{
    const struct tensor *t = &b->load.program->tensors[tensor];
    return (size_t)b->plan.batch * (size_t)t->c * (size_t)t->h * (size_t)t->w;
}

static int take(struct bench *b, int which, size_t n, double least, double most, struct err *e)
{
    const enum dtype real = b->d->ops->real;
    if (b->memory[which])
        b->d->ops->release(b->d, b->memory[which]);
    b->memory[which] = NULL;
    TRY(b->d->ops->alloc(b->d, (n + 1) * dtype_size(real), &b->memory[which], e));
    fill(b->memory[which], n, real, least, most);
    return 0;
}

static int take_boundary(struct bench *b, int which, int tensor, struct err *e)
{
    return tensor >= 0 ? take(b, which, rows_of(b, tensor), -0.01, 0.01, e) : 0;
}

static int open_bench(struct bench *b, struct err *e)
{
    const struct program *p = b->load.program;
    const size_t n = (size_t)b->plan.batch, bytes = n * input_row_bytes(&p->input),
                 labels = n * input_row_labels(&p->input);
    TRY(take(b, PARAMS, program_params(p), -0.05, 0.05, e));
    TRY(take(b, STATS, program_statistics(p), 0.5, 1, e));
    TRY(take(b, REDUCE, p->n_reduce, 0, 0, e));
    b->rows = malloc(bytes);
    b->labels = malloc(labels * sizeof *b->labels);
    b->weights = malloc(n * sizeof *b->weights);
    b->samples = calloc(n, sizeof *b->samples);
    if (!b->rows || !b->labels || !b->weights || !b->samples)
        return err_errno(e, ENOMEM, "a batch of %zu samples", n);
    for (size_t i = 0; i < bytes; i++)
        b->rows[i] = (uint8_t)(i * 2654435761u >> 24);
    for (size_t i = 0; i < labels; i++)
        b->labels[i] = (int32_t)(i % (size_t)p->classes);
    if (p->input.rows == INPUT_TOKENS) /* one for each of them */
        memcpy(b->rows, b->labels, bytes);
    for (size_t i = 0; i < n; i++)
        b->weights[i] = 1;
    return 0;
}

static void close_bench(struct bench *b)
{
    for (int i = 0; i < MEMORY_N; i++)
        if (b->memory[i])
            b->d->ops->release(b->d, b->memory[i]);
    free(b->rows);
    free(b->labels);
    free(b->weights);
    free(b->samples);
}

/* --- a group of ranks that all hold the same */

static int gather(void *ctx, const void *in, void *out, size_t n, enum dtype t, void *stream, struct err *e)
{
    const struct plan_group *g = ctx;
    (void)stream, (void)e;
    for (int r = 0; r < g->ranks; r++)
        memcpy((char *)out + (size_t)r * n * dtype_size(t), in, n * dtype_size(t));
    return 0;
}

static int scatter(void *ctx, const void *in, void *out, size_t n, enum dtype t, void *stream, struct err *e)
{
    (void)ctx, (void)stream, (void)e;
    memcpy(out, in, n * dtype_size(t));
    return 0;
}

static int nothing(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    (void)ctx, (void)buf, (void)n, (void)t, (void)stream, (void)e;
    return 0;
}

/* --- runs */

/* What a run's trace says. Times are processor time of this thread, which takes part in everything: a busy machine does
 * not blur it. */
struct noted {
    struct note {
        int op;
        char kind; /* 'i': comes in, 'o': goes out, else 'x' */
        double seconds;
    } * all;
    size_t n, cap;
    double used;   /* processor time up to the last note */
    int64_t at_ns; /* and the clock there */
    double before; /* of this run, before its first step began; < 0: that has not ended yet */
    bool failed;
};

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void note(void *ctx, const struct run_span *s)
{
    struct noted *n = ctx;
    struct err e;
    if (ARRAY_GROW(n->all, n->cap, n->n + 1, "steps", &e) < 0) {
        n->failed = true;
        return;
    }
    const double now = processor_seconds(), used = now - n->used, passed = (double)(s->end_ns - n->at_ns) * 1e-9,
                 step = (double)(s->end_ns - s->start_ns) * 1e-9, seconds = passed > 0 ? used * step / passed : 0;
    if (n->before < 0)
        n->before = used - seconds;
    n->used = now;
    n->at_ns = clock_ns();
    n->all[n->n++] = (struct note){s->op,
                                   s->label[0] == 'c' && strcmp(s->label, "come in") == 0  ? 'i'
                                   : s->label[0] == 'g' && strcmp(s->label, "go out") == 0 ? 'o'
                                                                                           : 'x',
                                   seconds};
}

static int run(struct bench *b, struct plan *pl, enum run_pass pass, struct noted *n, struct err *e)
{
    const struct run_trace trace = {.ctx = n, .op = note};
    const bool back = pass == RUN_BACKWARD;
    if (n) {
        n->used = processor_seconds();
        n->at_ns = clock_ns();
    }
    const struct run_args a = {
        .batch = {.rows = b->rows, .labels = b->labels, .weights = b->weights, .samples = b->samples},
        .grad_scale = 1,
        .pass = pass,
        .boundary = {b->memory[back ? D_OUT : IN], b->memory[back ? D_IN : OUT]},
        .params_version = b->version,
        .trace = n ? &trace : NULL};
    return pl->ops->run(pl, &a, e);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Every run has the same steps: step i of run r is note r * steps + i. */
static int keep(struct bench *b, const struct program_chunk *c, bool back, const struct noted *n, struct err *e)
{
    const struct program *p = b->load.program;
    const size_t steps = n->n / (size_t)b->rounds;
    double *of = calloc((size_t)p->nops, sizeof *of), v[OP_ROUNDS_MAX];
    if (!of || n->failed || n->n % (size_t)b->rounds) {
        free(of);
        return err_errno(e, ENOMEM, "times of %d operations", p->nops);
    }
    for (size_t i = 0; i < steps; i++) {
        const struct note *x = &n->all[i];
        for (int r = 0; r < b->rounds; r++)
            v[r] = n->all[(size_t)r * steps + i].seconds;
        const double seconds = median(v, b->rounds);
        if (x->kind == 'x')
            of[x->op] += seconds;
        else if (c)
            op_times_put_boundary(b->times, &b->load,
                                  x->kind == 'i' ? (back ? c->d_out : c->in) : (back ? c->d_in : c->out),
                                  x->kind == 'i', seconds);
    }
    const int first = !c ? 0 : back ? c->first_back : c->first, end = !c ? p->nops : back ? c->end_back : c->end;
    for (int i = first; i < end; i++)
        op_times_put_op(b->times, &b->load, i, of[i]);
    free(of);
    return 0;
}

static int time_passes(struct bench *b, struct plan *pl, const struct program_chunk *c, struct err *e)
{
    struct noted forward = {0}, backward = {0};
    double refresh[OP_ROUNDS_MAX];
    int rc = b->pause ? b->pause->pause(b->pause->ctx, e) : 0;
    if (rc == 0)
        rc = run(b, pl, c ? RUN_FORWARD : RUN_BOTH, NULL, e);
    if (rc == 0 && c)
        rc = run(b, pl, RUN_BACKWARD, NULL, e);
    for (int r = 0; r < b->rounds && rc == 0; r++) {
        b->version++;
        forward.before = -1;
        rc = run(b, pl, c ? RUN_FORWARD : RUN_BOTH, &forward, e);
        refresh[r] = forward.before > 0 ? forward.before : 0;
        rc = rc == 0 && c ? run(b, pl, RUN_BACKWARD, &backward, e) : rc;
    }
    rc = rc == 0 ? keep(b, c, false, &forward, e) : rc;
    rc = rc == 0 && c ? keep(b, c, true, &backward, e) : rc;
    if (rc == 0 && !b->plan.fresh_weights)
        op_times_put_refresh(b->times, &b->load, c, median(refresh, b->rounds));
    free(forward.all);
    free(backward.all);
    return rc;
}

static int time_plan(struct bench *b, const struct program_chunk *c, struct err *e)
{
    struct plan *pl = NULL;
    b->plan.chunk = c;
    if (c) {
        TRY(take_boundary(b, IN, c->in, e));
        TRY(take_boundary(b, OUT, c->out, e));
        TRY(take_boundary(b, D_IN, c->d_in, e));
        TRY(take_boundary(b, D_OUT, c->d_out, e));
    }
    TRY(b->d->ops->plan(b->d, b->load.program, &b->plan, &pl, e));
    int rc = time_passes(b, pl, c, e);
    pl->ops->plan_close(pl);
    return rc;
}

int op_times_measure(struct op_times *t, struct device *d, const struct op_load *l, int rounds,
                     const struct op_pause *p, struct err *e)
{
    struct bench b = {
        .times = t, .d = d, .load = *l, .plan = *l->plan, .rounds = min_int(rounds, OP_ROUNDS_MAX), .pause = p};
    if (d->ops->async)
        return err_set(e, -ENOTSUP, "operations of the %s device are not timed: expected cpu or ref", d->ops->name);
    b.plan.fresh_weights = l->plan->fresh_weights || l->plan->needs;
    b.plan.needs = b.plan.needs_back = NULL;
    b.plan.forecast = false;
    b.plan.sets = 1;
    if (l->plan->group) {
        b.group = (struct plan_group){.ctx = &b.group,
                                      .on_host = true,
                                      .ranks = l->plan->group->ranks,
                                      .index = l->plan->group->index,
                                      .gather = gather,
                                      .scatter = scatter,
                                      .sum = nothing,
                                      .max = nothing};
        b.plan.group = &b.group;
    }
    int rc = open_bench(&b, e);
    b.plan.params = b.memory[PARAMS];
    b.plan.stats = b.memory[STATS];
    b.plan.reduce = b.memory[REDUCE];
    if (rc == 0 && l->program->nchunks == 0)
        rc = time_plan(&b, NULL, e);
    for (int k = 0; k < l->program->nchunks && rc == 0; k++)
        rc = time_plan(&b, &l->program->chunks[k], e);
    close_bench(&b);
    return rc;
}
