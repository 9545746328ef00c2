/* Counts the bytes that a rank sends in a step. */
#include "worker/session/traffic.h"

#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/device/half.h"
#include "worker/parallel/ownership.h"
#include "worker/parallel/residency.h"
#include "worker/pipeline/stage.h"
#include "worker/program/program.h"
#include "worker/session/session_build.h"

static void add(struct traffic_part *t, double bytes)
{
    t->calls++;
    t->bytes += (int64_t)(bytes + 0.5);
}

/* Parts of n ranks that travel once: what a reduce-scatter or an all-gather of `bytes` in all sends. */
static double once(int n, double bytes)
{
    return bytes * (n - 1) / n;
}

/* --- gradients */

/* Ranks of a group on this rank's node, and on the node that has fewest; and how many nodes. All nodes of the run are
 * taken to have as many ranks as this one. */
struct nodes {
    int here, least, n, place; /* place: this rank's in its node */
};

static struct nodes nodes_of(const struct session *s, const struct layout_ranks *g)
{
    struct nodes v = {.least = g->count};
    for (int i = 0, size; i < g->count; i += size) { /* ranks of a node lie side by side */
        const int node = layout_group_rank(g, i) / s->local_world;
        for (size = 1; i + size < g->count && layout_group_rank(g, i + size) / s->local_world == node;)
            size++;
        v.n++;
        v.least = size < v.least ? size : v.least;
        if (g->index >= i && g->index < i + size) {
            v.here = size;
            v.place = g->index - i;
        }
    }
    return v;
}

/* An all-reduce of so many elements: straight, or node by node (comm/hierarchy.c). */
static double all_reduce(const struct session *s, enum layout_group g, double elements, double size)
{
    const struct layout_ranks r = layout_group(&s->layout, g, s->rank);
    const struct nodes v = nodes_of(s, &r);
    const double bytes = elements * size;
    if (s->cfg->by_node != REDUCE_HIERARCHICAL || v.n == 1 || v.n == r.count || bytes < COMM_HIERARCHY_BYTES)
        return 2 * once(r.count, bytes);
    const double mine = v.place < v.least ? (double)layout_part((size_t)elements, v.least, v.place).n * size : 0;
    return bytes - mine + 2 * once(v.n, mine) + mine * (v.here - 1);
}

/* Are gradients reduced in every part of a step (ddp_each_part())? */
static bool in_each_part(const struct session *s)
{
    return ownership_is_cut(&s->own, OWNERSHIP_GRADIENTS) && !s->device->ops->async;
}

static void add_gradients(const struct session *s, int parts, struct traffic *ret)
{
    const double real = (double)dtype_size(s->device->ops->real),
                 wire = train_config_allreduce(s->cfg) == ALLREDUCE_FP32 ? real : 2;
    const double tail = (double)(s->program->n_reduce - s->program->n_train) * real;
    const int all = s->batch.count;
    for (int part = in_each_part(s) ? 0 : parts - 1; part < parts && all > 1; part++) {
        for (int k = 0; k < s->own.nbuckets; k++) {
            const struct ownership_piece *p = &s->own.pieces[k];
            const double elements = (double)(p->end - p->first);
            if (p->ranks > 1)
                add(&ret->gradients,
                    p->part ? once(p->ranks, elements * wire) : all_reduce(s, p->group, elements, wire));
            if (p->part && p->distance)
                add(&ret->gradients, (double)p->part * real);
        }
        if (part == parts - 1 || s->layout.stages == 1) /* stages: once a step (ddp_hold_tail()) */
            ret->gradients.bytes += (int64_t)(2 * once(all, tail));
    }
    for (int k = 0; k < s->own.nbuckets; k++)
        if (s->own.pieces[k].tied) /* two ranks: each sends what it has once */
            add(&ret->gradients, (double)ownership_updated(&s->own.pieces[k]) * real);
}

static void add_piece(const struct session *s, const struct ownership_piece *p, struct traffic *ret)
{
    const double real = (double)dtype_size(s->device->ops->real);
    if (p->part && p->ranks > 1)
        add(&ret->parameters, once(p->ranks, (double)(p->end - p->first) * real));
}

struct gathering {
    const struct session *s;
    struct traffic *to;
};

static void add_gather(void *ctx, int piece)
{
    const struct gathering *g = ctx;
    add_piece(g->s, &g->s->own.pieces[piece], g->to);
}

/* Once a step, what was updated; or wherever it is read. */
static void add_parameters(const struct session *s, int parts, struct traffic *ret)
{
    int n = 0;
    const int *gathers = s->train_needs ? residency_gathers(s->train_needs, &n) : NULL;
    for (int k = 0; k < s->own.npieces && !ownership_is_cut(&s->own, OWNERSHIP_PARAMS); k++)
        add_piece(s, &s->own.pieces[k], ret);
    for (int k = 0; k < n * parts; k++)
        add_piece(s, &s->own.pieces[gathers[k % n]], ret);
    if (s->train_stage)
        stage_each_gather(s->train_stage, add_gather, &(struct gathering){s, ret});
}

/* --- operations of the program */

static void add_of_group(const struct session *s, const struct plan_options *o, const struct op *op,
                         struct traffic *ret)
{
    struct half_call calls[HALF_CALLS_MOST];
    const int n = half_calls(s->program, o, op, (double)dtype_size(s->device->ops->real), calls);
    for (int k = 0; k < n; k++) {
        const bool all = calls[k].call == CALL_SUM || calls[k].call == CALL_MAX;
        add(&ret->layer, (all ? 2 : 1) * once(s->program->group, calls[k].bytes));
        ret->layer.calls += calls[k].times - 1;
    }
}

/* Doubles: sums and their count forward, two sums a channel backward. */
static void add_of_bn(const struct session *s, const struct op *op, struct traffic *ret)
{
    const int c = s->program->tensors[op->in[0]].c, n = s->batch.count;
    if (s->cfg->sync_bn && n > 1)
        add(&ret->statistics, 2 * once(n, (2.0 * c + (op->kind == OP_BN ? 1 : 0)) * sizeof(double)));
}

static void add_operations(const struct session *s, struct traffic *ret)
{
    const struct plan_options o = session_plan(s, true);
    for (int i = 0; i < s->program->nops; i++) {
        const struct op *op = &s->program->ops[i];
        add_of_group(s, &o, op, ret);
        if ((op->kind == OP_BN || op->kind == OP_BN_BWD) && !op->fixed)
            add_of_bn(s, op, ret);
    }
}

void traffic_of_step(const struct session *s, struct traffic *ret)
{
    const struct sampler order = session_order(s, true);
    const int parts = sampler_parts(&order);
    *ret = (struct traffic){0};
    add_gradients(s, parts, ret);
    add_parameters(s, parts, ret);
    for (int part = 0; part < parts; part++)
        add_operations(s, ret);
    if (s->train_stage) {
        const struct stage_traffic t = stage_traffic(s->train_stage);
        ret->stages = (struct traffic_part){.calls = t.messages, .bytes = t.bytes};
    }
}

int64_t traffic_bytes(const struct traffic *t)
{
    int64_t sum = 0;
#define X(kind, text) sum += t->kind.bytes;
    TRAFFIC_KINDS(X)
#undef X
    return sum;
}
