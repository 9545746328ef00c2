/* Walks a plan with a wait after each step, and looks at what the step wrote. */
#include "worker/device/cuda/check.h"

#include <stdio.h>

#include "common/base/log.h"
#include "worker/device/cuda/graph.h"
#include "worker/device/cuda/plan.h"

static int place_of(const struct cuda_plan *pl, const struct step *s)
{
    for (int i = 0; i < pl->nsteps; i++)
        if (pl->steps[i] == s)
            return i;
    return -1;
}

const char *check_name(const struct cuda_plan *pl, const struct step *s, char *out, size_t cap)
{
    char graph[128] = "", engine[192] = "";
    const struct cudnn_plan *plan = cuda_step_plan(s);
    const int t = s->op >= 0 ? pl->p->ops[s->op].out : -1;
    if (s->kind == STEP_DNN)
        cudnn_describe(s->dnn.pattern, &s->dnn.shape, graph, sizeof graph);
    if (plan)
        snprintf(engine, sizeof engine, " by %s", cudnn_plan_name(plan));
    snprintf(out, cap, "step %d of %d, %s of op %d%s%s%s%s%s", place_of(pl, s), pl->nsteps, s->label, s->op,
             t >= 0 ? " " : "", t >= 0 ? pl->p->tensors[t].name : "", graph[0] ? ", " : "", graph, engine);
    return out;
}

/* --- what a step wrote */

struct written {
    const void *at;
    size_t n;
    enum dtype type;
};

static struct written of_view(const struct view4 *v, const void *at)
{
    return (struct written){at, (size_t)v->n * (size_t)v->c * (size_t)v->h * (size_t)v->w, v->type};
}

static struct written of_tensor(const struct cuda_plan *pl, int t)
{
    if (t < 0 || pl->value[t] == NO_BUFFER)
        return (struct written){0};
    const struct view4 v = cuda_plan_view(pl, t);
    return of_view(&v, cuda_plan_at(pl, pl->value[t]));
}

static struct written of_kernel(const struct cuda_plan *pl, const struct step *s)
{
    switch (s->kernel) {
    case KERNEL_BN_APPLY:
        return of_view(&s->args.as_KERNEL_BN_APPLY.v, s->args.as_KERNEL_BN_APPLY.y);
    case KERNEL_BN_MEAN: {
        const struct view4 *v = &s->args.as_KERNEL_BN_MEAN.a.v;
        return (struct written){s->args.as_KERNEL_BN_MEAN.out, (size_t)v->n * (size_t)v->c, v->type};
    }
    case KERNEL_BN_POOL:
        return of_view(&s->args.as_KERNEL_BN_POOL.y, s->args.as_KERNEL_BN_POOL.out);
    case KERNEL_BN_BWD_APPLY:
        return of_view(&s->args.as_KERNEL_BN_BWD_APPLY.v, s->args.as_KERNEL_BN_BWD_APPLY.own.dx);
    case KERNEL_ROWS:
        return s->args.as_KERNEL_ROWS.back ? (struct written){0}
                                           : of_view(&s->args.as_KERNEL_ROWS.v, s->args.as_KERNEL_ROWS.out);
    case KERNEL_INPUT:
    case KERNEL_EMBED:
    case KERNEL_ROPE:
    case KERNEL_ROW_NORM:
    case KERNEL_ROW_NORM_BWD:
    case KERNEL_CHAIN:
    case KERNEL_SCALE_BWD:
    case KERNEL_SEQUENCE:
    case KERNEL_GROUP_CONV:
    case KERNEL_GROUP_CONV_DATA:
    case KERNEL_ATTENTION:
    case KERNEL_ATTENTION_BWD_KEYS:
    case KERNEL_ADD:
    case KERNEL_RELU_BWD:
    case KERNEL_MAXPOOL:
    case KERNEL_MAXPOOL_BWD:
    case KERNEL_AVGPOOL:
    case KERNEL_AVGPOOL_BWD:
        return of_tensor(pl, pl->p->ops[s->op].out);
    default: /* sums and vectors: what follows from them shows it */
        return (struct written){0};
    }
}

static struct written result_of(const struct cuda_plan *pl, const struct step *s)
{
    struct written w = {0};
    if (s->kind == STEP_DNN)
        w.at = graph_main_result(&s->dnn, &w.n, &w.type);
    else if (s->kind == STEP_GEMM && !s->gemm.c_row) /* padding may hold anything */
        w = (struct written){s->gemm.c, (size_t)(s->gemm.m * s->gemm.n), s->gemm.out};
    else if (s->kind == STEP_KERNEL)
        w = of_kernel(pl, s);
    return w;
}

/* --- the walk */

static int count_bad(struct cuda_plan *pl, const struct written *w, double bad[2], struct err *e)
{
    struct cuda *c = pl->cuda;
    double pairs[2 * KERNEL_BAD_BLOCKS] = {0};
    void *p = c->bad;
    if (!p)
        TRY(cuda_take(c, sizeof pairs, &p, e));
    c->bad = p;
    const struct k_count k = {.n = w->n, .type = w->type, .x = w->at, .out = c->bad};
    TRY(c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_COUNT_BAD, &k, e));
    const int blocks = kernel_bad_blocks(w->n);
    TRY(c->base.ops->download(&c->base, pairs, c->bad, 2 * (size_t)blocks * sizeof *pairs, e));
    for (int i = 0; i < 2 * blocks; i++)
        bad[i % 2] += pairs[i];
    return 0;
}

static int check_step(struct cuda_plan *pl, struct step *s, const struct variant_key *v, const struct run_hooks *h,
                      bool *ret_bad, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    double bad[2] = {0};
    TRY(reads_run_step(pl, s, v, h, e));
    TRY(g->ops->stream_sync(g, pl->cuda->compute, e));
    const struct written w = result_of(pl, s);
    if (!w.at || *ret_bad)
        return 0;
    TRY(count_bad(pl, &w, bad, e));
    *ret_bad = bad[0] + bad[1] > 0;
    if (*ret_bad) {
        char name[512];
        log_warn("cuda", "%s: %.0f NaN and %.0f infinite of %zu values, the first of this step that are no numbers",
                 check_name(pl, s, name, sizeof name), bad[0], bad[1], w.n);
    }
    return 0;
}

int check_walk(struct cuda_plan *pl, const struct variant_key *v, const struct run_hooks *h, struct err *e)
{
    const struct span *span = &pl->spans[v->pass];
    bool bad = false;
    for (int i = span->first; i < span->end; i++) {
        char name[512];
        const int rc = check_step(pl, pl->steps[i], v, h, &bad, e);
        if (rc < 0)
            return err_wrap(e, "%s", check_name(pl, pl->steps[i], name, sizeof name));
    }
    return 0;
}
