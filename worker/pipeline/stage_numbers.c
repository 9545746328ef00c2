/* What a stage takes: memory, parameters that are gathered, messages. Of one that only forecasts, too. */
#include <string.h>

#include "worker/parallel/residency.h"
#include "worker/pipeline/stage_impl.h"
#include "worker/program/program.h"

static void add_plan(const struct plan *pl, struct plan_memory *to)
{
    struct plan_memory m = {0};
    if (pl->ops->plan_memory)
        pl->ops->plan_memory(pl, &m);
    to->activations += m.activations;
    to->weights += m.weights;
    to->workspace += m.workspace;
}

void stage_memory(const struct stage *g, struct plan_memory *ret)
{
    *ret = (struct plan_memory){0};
    for (int k = 0; k < g->o.order.chunks; k++) {
        add_plan(g->chunks[k].plan, ret);
        for (int w = 0; w < WAYS; w++)
            ret->activations += g->chunks[k].in[w].bytes * (size_t)g->chunks[k].in[w].n;
    }
    for (int w = 0; w < WAYS; w++)
        ret->activations += AHEAD * g->out_most[w];
}

size_t stage_gathered(const struct stage *g)
{
    size_t most = 0;
    for (int k = 0; k < g->o.order.chunks; k++)
        for (int w = 0; w < WAYS; w++) {
            const struct residency *r = g->chunks[k].needs[w];
            most = r && residency_peak(r) > most ? residency_peak(r) : most;
        }
    return most;
}

const struct residency *stage_needs(const struct stage *g, int chunk, bool backward)
{
    return g->chunks[chunk].needs[backward ? BACKWARD : FORWARD];
}

size_t stage_message(const struct stage *g, int chunk, bool backward)
{
    return g->chunks[chunk].out_bytes[backward ? BACKWARD : FORWARD];
}

static void each_gather(const struct residency *r, void (*gather)(void *ctx, int piece), void *ctx)
{
    int n = 0;
    const int *pieces = r ? residency_gathers(r, &n) : NULL;
    for (int i = 0; i < n; i++)
        gather(ctx, pieces[i]);
}

void stage_each_gather(const struct stage *g, void (*gather)(void *ctx, int piece), void *ctx)
{
    const struct pipeline *p = &g->o.order;
    int holds[PROGRAM_CHUNKS_MAX];
    memset(holds, -1, sizeof holds);
    for (int i = 0; i < pipeline_actions(p); i++) {
        const struct pipeline_action a = pipeline_action(p, g->o.index, i);
        const struct chunk *c = &g->chunks[a.chunk];
        if (!a.backward || (g->o.recompute && holds[a.chunk] != a.micro_batch && goes_back(g, a.chunk)))
            each_gather(c->needs[FORWARD], gather, ctx);
        if (a.backward)
            each_gather(c->needs[BACKWARD], gather, ctx);
        holds[a.chunk] = a.micro_batch;
    }
}

struct stage_traffic stage_traffic(const struct stage *g)
{
    const struct pipeline *p = &g->o.order;
    struct stage_traffic t = {0};
    for (int i = 0; i < pipeline_actions(p); i++) {
        const struct pipeline_action a = pipeline_action(p, g->o.index, i);
        t.messages += a.to >= 0;
        t.bytes += a.to >= 0 ? (int64_t)g->chunks[a.chunk].out_bytes[way_of(&a)] : 0;
    }
    if (g->o.index < p->stages - 1) { /* labels, weights and numbers of samples */
        t.messages++;
        t.bytes +=
            (int64_t)p->micro_batches * g->o.plan.batch * (int64_t)(sizeof(int32_t) + sizeof(float) + sizeof(uint32_t));
    }
    return t;
}
