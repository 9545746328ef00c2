/* Enumerates the ways to spread a run over its ranks. */
#include "worker/planner/plans.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "worker/pipeline/pipeline.h"

struct list {
    struct parallel_plan *all;
    int n;
    size_t cap;
    const struct plan_limits *l;
};

static int add(struct list *s, const struct parallel_plan *p, struct err *e)
{
    TRY(ARRAY_GROW(s->all, s->cap, (size_t)s->n + 1, "plans", e));
    s->all[s->n++] = *p;
    return 0;
}

/* With each way of all-reducing that makes a difference: where whole gradients go over several nodes. */
static int add_ways(struct list *s, struct parallel_plan p, struct err *e)
{
    TRY(add(s, &p, e));
    const int ranks = p.data * p.tensor;
    if (!s->l->nodes || p.zero > 0 || ranks <= s->l->local_world || s->l->local_world == 1)
        return 0;
    p.hierarchical = true;
    return add(s, &p, e);
}

static int add_zeros(struct list *s, struct parallel_plan p, struct err *e)
{
    const int most = p.data * p.tensor == 1 ? 0 : s->l->zero3 ? 3 : 2;
    for (p.zero = 0; p.zero <= most; p.zero++)
        TRY(add_ways(s, p, e));
    return 0;
}

static int add_schedules(struct list *s, struct parallel_plan p, struct err *e)
{
    p.chunks = 1;
    if (p.stages == 1) {
        p.schedule = PIPELINE_1F1B; /* what the option says where it means nothing */
        return add_zeros(s, p, e);
    }
    for (int k = PIPELINE_GPIPE; k <= PIPELINE_INTERLEAVED; k++) {
        p.schedule = k;
        p.chunks = k == PIPELINE_INTERLEAVED ? s->l->chunks : 1;
        const struct pipeline line = {(enum pipeline_kind)k, p.stages, p.parts, p.chunks};
        if (p.stages * p.chunks > s->l->cuts || pipeline_check(&line, NULL) < 0)
            continue;
        for (int again = 0; again < 2; again++) {
            p.recompute = again;
            TRY(add_zeros(s, p, e));
        }
    }
    return 0;
}

static int add_parts(struct list *s, struct parallel_plan p, struct err *e)
{
    const struct plan_limits *l = s->l;
    for (p.parts = l->parts ? l->parts : 1; p.parts * p.data * p.tensor <= l->batch; p.parts *= 2) {
        TRY(add_schedules(s, p, e));
        if (l->parts)
            break;
    }
    return 0;
}

int plans_list(struct parallel_plan **ret, int *n, const struct plan_limits *l, struct err *e)
{
    struct list s = {.l = l};
    int rc = 0;
    for (int stages = 1; stages <= l->world && rc == 0; stages++) {
        if (l->world % stages || (stages > 1 && (!l->zero3 || stages > l->cuts || stages > 64)))
            continue;
        for (int tensor = 1; tensor <= l->world / stages && tensor <= l->classes && rc == 0; tensor++) {
            const struct parallel_plan p = {.data = l->world / stages / tensor, .tensor = tensor, .stages = stages};
            if (l->world / stages % tensor == 0)
                rc = add_parts(&s, p, e);
        }
    }
    if (rc < 0) {
        free(s.all);
        return rc;
    }
    *ret = s.all;
    *n = s.n;
    return 0;
}

static int mechanisms(const struct parallel_plan *p)
{
    return (p->stages > 1) + (p->tensor > 1) + (p->parts > 1) + (p->zero > 0) + p->recompute + (p->chunks > 1) +
           p->hierarchical;
}

static int order_of(int schedule)
{
    return schedule == PIPELINE_1F1B ? 0 : schedule == PIPELINE_GPIPE ? 1 : 2;
}

bool plans_simpler(const struct parallel_plan *a, const struct parallel_plan *b)
{
    const int pairs[][2] = {
        {mechanisms(a), mechanisms(b)},
        {a->stages, b->stages},
        {a->tensor, b->tensor},
        {a->parts, b->parts},
        {a->zero, b->zero},
        {a->recompute, b->recompute},
        {order_of(a->schedule), order_of(b->schedule)},
        {a->hierarchical, b->hierarchical},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i][0] != pairs[i][1])
            return pairs[i][0] < pairs[i][1];
    return false;
}

static int dim_of(const struct train_config *cfg)
{
    return cfg->model_parallel_dim == MODEL_PARALLEL_NONE ? MODEL_PARALLEL_CLASSES : cfg->model_parallel_dim;
}

void plans_apply(const struct parallel_plan *p, const struct train_config *cfg, struct train_config *ret)
{
    *ret = *cfg;
    ret->model_parallel = false;
    ret->model_parallel_size = p->tensor > 1 ? p->tensor : 0;
    ret->model_parallel_dim = p->tensor > 1 ? dim_of(cfg) : MODEL_PARALLEL_NONE;
    ret->stages = p->stages;
    ret->schedule = p->schedule;
    ret->stage_chunks = p->schedule == PIPELINE_INTERLEAVED ? p->chunks : 0;
    ret->recompute = p->recompute;
    ret->accumulate = p->parts;
    ret->zero = p->zero;
    ret->fsdp = false;
    ret->by_node = p->hierarchical ? REDUCE_HIERARCHICAL : REDUCE_FLAT;
}

static const char *const schedules[] = {PIPELINE_KINDS(CHOICE_NAME)};

char *plans_text(const struct parallel_plan *p, char *out, size_t cap)
{
    char shape[48], schedule[32] = "-";
    snprintf(shape, sizeof shape, "%d x %d x %d", p->data, p->tensor, p->stages);
    if (p->stages > 1)
        snprintf(schedule, sizeof schedule, "%s%s", schedules[p->schedule], p->recompute ? ", again" : "");
    snprintf(out, cap, "%-14s %-18s %5d %5d %s", shape, schedule, p->parts, p->zero, p->hierarchical ? "by node" : "");
    return out;
}

char *plans_options(const struct parallel_plan *p, const struct train_config *cfg, char *out, size_t cap)
{
    static const char *const dims[] = {MODEL_PARALLEL_DIMS(CHOICE_NAME)};
    size_t at = 0;
    out[0] = '\0';
#define SAY(...) at += at < cap ? (size_t)snprintf(out + at, cap - at, __VA_ARGS__) : 0
    if (p->tensor > 1)
        SAY(" --model-parallel-size %d --model-parallel-dim %s", p->tensor, dims[dim_of(cfg)]);
    if (p->stages > 1)
        SAY(" --stages %d --schedule %s", p->stages, schedules[p->schedule]);
    if (p->schedule == PIPELINE_INTERLEAVED && p->chunks != 2)
        SAY(" --stage-chunks %d", p->chunks);
    if (p->parts > 1)
        SAY(" --microbatches %d", p->parts);
    if (p->recompute)
        SAY(" --recompute");
    if (p->zero)
        SAY(" --zero %d", p->zero);
    if (p->hierarchical)
        SAY(" --allreduce hierarchical");
#undef SAY
    return out[0] == ' ' ? out + 1 : out;
}
