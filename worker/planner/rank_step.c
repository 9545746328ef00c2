/* Lists what a rank does in a step, for the simulation. */
#include "worker/planner/rank_step.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/config/config.h"
#include "worker/device/half.h"
#include "worker/device/host_common.h"
#include "worker/parallel/ownership.h"
#include "worker/parallel/residency.h"
#include "worker/pipeline/stage.h"
#include "worker/program/program.h"
#include "worker/session/session.h"
#include "worker/session/session_build.h"

struct op_load rank_step_load(const struct session *s, struct plan_options *plan)
{
    *plan = session_plan(s, true);
    plan->fresh_weights |= ownership_gathers(&s->own);
    return (struct op_load){s->program, plan};
}

struct walk {
    struct actor *to;
    const struct session *s;
    const struct op_times *times;
    const struct network *net;
    struct plan_options plan;
    struct op_load load;
    double copy, page; /* seconds a byte */
    double real, wire; /* bytes of a gradient, here and on its way */
    int parts;
    bool sheds;      /* gradients of others go as soon as they are sums: parts are reduced one by one */
    bool reduces;    /* in the passes that are walked */
    bool tail_stays; /* statistics and metrics go with a later part */
    int asked;       /* jobs of the communication thread so far */
    int complete;    /* buckets that have been asked for */
    int *jobs;       /* (npieces + 1): of bucket k; of piece k while it is gathered, 0: it is not here */
    int *gathers;    /* (npieces) */
    struct err *e;
};

static int add(struct walk *w, struct action x)
{
    return actor_add(w->to, x, w->e);
}

static int run(struct walk *w, double seconds)
{
    return add(w, (struct action){.act = ACT_RUN, .seconds = seconds, .cores = w->s->threads});
}

static struct network_cost cost_of(const struct walk *w, enum layout_group g, enum network_call c, double bytes)
{
    const struct layout_ranks r = layout_group(&w->s->layout, g, w->s->rank);
    return network_cost(w->net, c, network_span(w->net, &r), bytes);
}

/* A call of the training thread. */
static int call(struct walk *w, enum layout_group g, enum network_call c, double bytes)
{
    const struct network_cost k = cost_of(w, g, c, bytes);
    return add(w, (struct action){.act = ACT_RUN, .seconds = k.seconds, .cores = k.cores});
}

static int ask(struct walk *w, struct network_cost k, double more)
{
    w->asked++;
    return add(w, (struct action){.act = ACT_ASK, .seconds = k.seconds + more, .cores = k.cores});
}

static int await(struct walk *w, int job)
{
    return job > 0 ? add(w, (struct action){.act = ACT_AWAIT, .number = job}) : 0;
}

/* --- gradients */

static int buckets_of(const struct walk *w)
{
    const struct ownership *own = &w->s->own;
    const bool rides = own->nbuckets > 0 && own->pieces[own->nbuckets - 1].group == LAYOUT_BATCH &&
                       own->pieces[own->nbuckets - 1].part == 0;
    return own->nbuckets + !rides;
}

static double tail_of(const struct walk *w)
{
    const struct program *p = w->s->program;
    return w->tail_stays ? 0 : (double)(p->n_reduce - p->n_train) * w->real;
}

static int ask_bucket(struct walk *w, int k)
{
    const struct ownership *own = &w->s->own;
    const bool is_last = k == buckets_of(w) - 1;
    struct network_cost c = {0};
    double more = 0;
    if (k < own->nbuckets) {
        const struct ownership_piece *p = &own->pieces[k];
        const double n = (double)(p->end - p->first), tail = is_last && !p->part ? tail_of(w) : 0;
        c = cost_of(w, p->group, p->part ? NETWORK_SCATTER : NETWORK_ALL_REDUCE, n * w->wire + tail);
        more = (w->wire < w->real ? 2 * n * w->real * w->copy : 0) +
               (w->sheds ? (double)ownership_foreign(p) * w->real * w->page : 0);
    } else if (tail_of(w) > 0) {
        c = cost_of(w, LAYOUT_BATCH, NETWORK_ALL_REDUCE, tail_of(w));
    }
    TRY(ask(w, c, more));
    w->jobs[k] = w->asked;
    w->complete = k + 1;
    return 0;
}

/* Elements below `end` are final: what is complete goes, and backward waits where it is too far ahead. */
static int ready(struct walk *w, size_t end)
{
    const struct ownership *own = &w->s->own;
    const size_t window = ownership_window(own);
    while (w->complete < buckets_of(w) - 1 && own->pieces[w->complete].end <= end)
        TRY(ask_bucket(w, w->complete));
    int d = 0;
    while (w->sheds && d < w->complete && d < own->nbuckets && end > own->pieces[d].first + window)
        d++;
    return d > 0 ? await(w, w->jobs[d - 1]) : 0;
}

static int begin_reducing(struct walk *w, bool reduces)
{
    w->reduces = reduces && w->s->batch.count > 1;
    w->complete = 0;
    return 0;
}

static int end_reducing(struct walk *w)
{
    if (!w->reduces)
        return 0;
    while (w->complete < buckets_of(w))
        TRY(ask_bucket(w, w->complete));
    w->reduces = false;
    return await(w, w->asked);
}

static int keep_part(struct walk *w)
{
    return run(w, 2 * (double)ownership_elements(&w->s->own, OWNERSHIP_GRADIENTS) * w->real * w->copy);
}

/* --- parameters that come and go */

static int need(struct walk *w, const struct residency *r, int k)
{
    const struct residency_read v = residency_read(r, k);
    int n, last = 0;
    const int *gathers = residency_gathers(r, &n);
    for (int i = v.asks; i < v.asks_end; i++) {
        const struct ownership_piece *p = &w->s->own.pieces[gathers[i]];
        const double bytes = (double)(p->end - p->first) * w->real;
        TRY(ask(w, cost_of(w, p->group, NETWORK_GATHER, bytes), (double)ownership_foreign(p) * w->real * w->page));
        w->gathers[gathers[i]] = w->asked;
    }
    for (int i = v.first; i < v.end; i++)
        last = w->gathers[i] > last ? w->gathers[i] : last;
    return await(w, last);
}

/* The reads of a pass, from *k on, that operation `op` makes: those in pieces that its parameters are in. */
static int need_for(struct walk *w, const struct residency *r, int op, int *k)
{
    const struct ownership *own = &w->s->own;
    struct plan_range ranges[PROGRAM_READS_MOST];
    const int n = r ? program_reads(w->s->program, &w->s->program->ops[op], ranges) : 0;
    for (int i = 0; i < n; i++)
        for (; *k < residency_reads(r); (*k)++) {
            const struct residency_read v = residency_read(r, *k);
            if (v.end > v.first &&
                (own->pieces[v.first].end <= ranges[i].first || own->pieces[v.first].first >= ranges[i].end))
                break;
            TRY(need(w, r, *k));
        }
    return 0;
}

/* --- operations */

static int call_of_group(struct walk *w, const struct op *op)
{
    struct half_call calls[HALF_CALLS_MOST];
    const int n = half_calls(w->s->program, &w->plan, op, w->real, calls);
    for (int k = 0; k < n; k++) {
        const enum network_call over = calls[k].call == CALL_GATHER    ? NETWORK_GATHER
                                       : calls[k].call == CALL_SCATTER ? NETWORK_SCATTER
                                                                       : NETWORK_ALL_REDUCE;
        for (int i = 0; i < calls[k].times; i++)
            TRY(call(w, LAYOUT_TENSOR, over, calls[k].bytes / calls[k].times));
    }
    return 0;
}

static int call_of_bn(struct walk *w, const struct op *op)
{
    if (!w->s->cfg->sync_bn || op->fixed || (op->kind != OP_BN && op->kind != OP_BN_BWD))
        return 0;
    return call(w, LAYOUT_BATCH, NETWORK_ALL_REDUCE, (2.0 * w->s->program->tensors[op->in[0]].c + 1) * sizeof(double));
}

/* reads: of the pass; *k: so far. */
static int walk_ops(struct walk *w, int first, int end, const struct residency *reads, int *k)
{
    const struct program *p = w->s->program;
    struct plan_range made;
    for (int i = first; i < end; i++) {
        const struct op *op = &p->ops[i];
        TRY(need_for(w, reads, i, k));
        TRY(run(w, op_times_of(w->times, &w->load, i)));
        TRY(call_of_group(w, op));
        TRY(call_of_bn(w, op));
        if (w->reduces && program_gradients(p, op, &made))
            TRY(ready(w, made.end));
    }
    return 0;
}

static int all_parts(struct walk *w)
{
    const struct residency *r = w->s->train_needs;
    if (w->parts > 1 && !w->plan.fresh_weights)
        TRY(run(w, op_times_refresh(w->times, &w->load, NULL)));
    for (int i = 0; i < w->parts; i++) {
        const bool last = i == w->parts - 1;
        int k = 0;
        TRY(begin_reducing(w, last || w->sheds));
        TRY(walk_ops(w, 0, w->s->program->nops, r, &k));
        if (!last) {
            TRY(end_reducing(w));
            TRY(w->sheds ? keep_part(w) : 0);
        }
    }
    return 0;
}

/* --- stages */

struct neighbour {
    int actor, way;
    double bytes;
};

static struct network_span span_to(const struct walk *w, int actor)
{
    const struct layout_ranks g = layout_group(&w->s->layout, LAYOUT_STAGES, w->s->rank);
    const int here = w->s->rank / w->net->local, there = layout_group_rank(&g, actor) / w->net->local;
    const int beside = w->s->batch.count < w->net->local ? w->s->batch.count : w->net->local;
    return (struct network_span){2, here == there ? 1 : 2, here == there ? 1 : beside};
}

/* On the training thread. */
static int spend(struct walk *w, struct network_cost c)
{
    return add(w, (struct action){.act = ACT_RUN, .seconds = c.seconds, .cores = 1});
}

static int send(struct walk *w, struct neighbour to)
{
    const struct network_span span = span_to(w, to.actor);
    const struct network_cost c = network_cost(w->net, NETWORK_MESSAGE, span, to.bytes);
    TRY(add(w, (struct action){.act = ACT_SEND,
                               .seconds = c.seconds,
                               .cores = 2 * c.cores, /* one to send, one to receive */
                               .peer = to.actor,
                               .way = to.way}));
    return spend(w, network_cost(w->net, NETWORK_HAND_OVER, span, to.bytes));
}

static int receive(struct walk *w, int actor, int way)
{
    TRY(spend(w, network_cost(w->net, NETWORK_ASK, span_to(w, actor), 0)));
    return add(w, (struct action){.act = ACT_RECEIVE, .peer = actor, .way = way});
}

/* Labels and weights. */
static int share_batch(struct walk *w)
{
    const int self = layout_place(&w->s->layout, w->s->rank).stage, last = w->s->layout.stages - 1;
    const double bytes = (double)w->parts * w->plan.batch * (sizeof(int32_t) + sizeof(float) + sizeof(uint32_t));
    TRY(self > 0 ? receive(w, self - 1, 0) : 0);
    return self < last ? send(w, (struct neighbour){self + 1, 0, bytes}) : 0;
}

static int pass(struct walk *w, const struct program_chunk *c, int chunk, bool backward)
{
    const struct residency *r = stage_needs(w->s->train_stage, chunk, backward);
    double edge = op_times_boundary(w->times, &w->load, c, backward);
    int k = 0;
    if (edge == 0)
        edge = 2 * w->copy * (double)stage_message(w->s->train_stage, chunk, backward);
    TRY(run(w, edge));
    return walk_ops(w, backward ? c->first_back : c->first, backward ? c->end_back : c->end, r, &k);
}

static int back(struct walk *w, const struct pipeline_action *a, const struct pipeline *p)
{
    const struct program_chunk *c = &w->s->program->chunks[a->chunk];
    const bool last = a->micro_batch == p->micro_batches - 1;
    w->tail_stays = !last;
    if (w->sheds || (last && a->chunk == p->chunks - 1))
        TRY(begin_reducing(w, true));
    TRY(pass(w, c, a->chunk, true));
    if (!w->sheds || last)
        return 0;
    TRY(end_reducing(w));
    return keep_part(w);
}

static int act(struct walk *w, const struct pipeline_action *a, const struct pipeline *p, int *holds)
{
    const struct program_chunk *c = &w->s->program->chunks[a->chunk];
    if (a->micro_batch == 0 && !a->backward && !w->plan.fresh_weights)
        TRY(run(w, op_times_refresh(w->times, &w->load, c)));
    TRY(a->from >= 0 ? receive(w, a->from, a->backward) : 0);
    if (a->to >= 0)
        TRY(add(w, (struct action){.act = ACT_SENT, .way = a->backward, .number = STAGE_MESSAGES_OUT - 1}));
    if (a->backward && w->s->cfg->recompute && holds[a->chunk] != a->micro_batch && c->end_back > c->first_back)
        TRY(pass(w, c, a->chunk, false));
    TRY(a->backward ? back(w, a, p) : pass(w, c, a->chunk, false));
    holds[a->chunk] = a->micro_batch;
    if (a->to < 0)
        return 0;
    return send(
        w, (struct neighbour){a->to, a->backward, (double)stage_message(w->s->train_stage, a->chunk, a->backward)});
}

static int all_actions(struct walk *w)
{
    struct pipeline p = w->s->pipeline;
    const int self = layout_place(&w->s->layout, w->s->rank).stage;
    int holds[PROGRAM_CHUNKS_MAX];
    p.micro_batches = w->parts;
    for (int i = 0; i < PROGRAM_CHUNKS_MAX; i++)
        holds[i] = -1;
    TRY(share_batch(w));
    for (int i = 0; i < pipeline_actions(&p); i++) {
        const struct pipeline_action a = pipeline_action(&p, self, i);
        TRY(act(w, &a, &p, holds));
    }
    w->tail_stays = false;
    return 0;
}

/* --- the end of a step */

/* What two stages are tied by is summed over both. */
static int tie(struct walk *w)
{
    const struct ownership *own = &w->s->own;
    for (int k = 0; k < own->nbuckets; k++)
        if (own->pieces[k].tied)
            TRY(call(w, LAYOUT_ENDS, NETWORK_ALL_REDUCE, (double)ownership_updated(&own->pieces[k]) * w->real));
    return 0;
}

static int update(struct walk *w)
{
    const struct ownership *own = &w->s->own;
    double each = 0;
    (void)op_times_get(w->times, RANK_STEP_UPDATE, &each);
    TRY(run(w, (double)ownership_elements(own, OWNERSHIP_MOMENTS) * each));
    if (w->s->optimizer.clip_norm > 0 || w->wire < w->real)
        TRY(run(w, (double)ownership_elements(own, OWNERSHIP_GRADIENTS) * w->real * w->copy));
    if (w->s->cfg->ema > 0)
        TRY(run(w, (double)ownership_elements(own, OWNERSHIP_AVERAGES) * w->real * 2 * w->copy));
    if (!ownership_is_cut(own, OWNERSHIP_MOMENTS) || ownership_is_cut(own, OWNERSHIP_PARAMS))
        return 0;
    for (int k = 0; k < own->npieces; k++)
        if (own->pieces[k].part)
            TRY(call(w, own->pieces[k].group, NETWORK_GATHER,
                     (double)(own->pieces[k].end - own->pieces[k].first) * w->real));
    return 0;
}

static int load_images(struct walk *w)
{
    const int threads = w->s->loader_threads > 0 ? w->s->loader_threads : 1;
    double each = 0;
    if (!session_loads(w->s) || !op_times_get(w->times, RANK_STEP_LOAD, &each))
        return 0;
    return add(
        w, (struct action){.act = ACT_ALONG, .seconds = each * w->parts * w->plan.batch / threads, .cores = threads});
}

static int whole_step(struct walk *w)
{
    TRY(load_images(w));
    TRY(w->s->layout.stages > 1 ? all_actions(w) : all_parts(w));
    TRY(end_reducing(w));
    if (w->parts > 1 && w->sheds)
        TRY(keep_part(w));
    TRY(tie(w));
    if (w->s->layout.stages > 1)
        TRY(call(w, LAYOUT_STAGES, NETWORK_ALL_REDUCE, METRIC_N * sizeof(double)));
    return update(w);
}

/* Its ranks on the node of the first one. */
static void place(struct actor *a, const struct session *s, const struct network *n)
{
    const int ranks = s->batch.count, node = s->rank / n->local, here = (node + 1) * n->local - s->rank;
    a->ranks = ranks < here ? ranks : here;
    a->node = node;
}

int rank_step(struct actor *ret, const struct session *s, const struct op_times *t, const struct network *n,
              struct err *e)
{
    const struct sampler order = session_order(s, true);
    const size_t pieces = (size_t)s->own.npieces + 1;
    struct walk w = {.to = ret,
                     .s = s,
                     .times = t,
                     .net = n,
                     .parts = sampler_parts(&order),
                     .real = (double)dtype_size(s->device->ops->real),
                     .sheds = ownership_is_cut(&s->own, OWNERSHIP_GRADIENTS),
                     .jobs = calloc(pieces, sizeof(int)),
                     .gathers = calloc(pieces, sizeof(int)),
                     .e = e};
    *ret = (struct actor){0};
    place(ret, s, n);
    w.load = rank_step_load(s, &w.plan);
    w.load.plan = &w.plan;
    w.wire = train_config_allreduce(s->cfg) == ALLREDUCE_FP32 ? w.real : 2;
    (void)op_times_get(t, RANK_STEP_COPY, &w.copy);
    (void)op_times_get(t, RANK_STEP_PAGE, &w.page);
    int rc = w.jobs && w.gathers ? whole_step(&w) : err_errno(e, ENOMEM, "a step of %zu pieces", pieces);
    free(w.jobs);
    free(w.gathers);
    if (rc < 0)
        actor_finish(ret);
    return rc;
}
