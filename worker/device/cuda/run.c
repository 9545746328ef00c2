/* Running a plan: stage the batch, refresh the weights' copies, then walk the steps or launch their graph.
 *
 *   copy stream      batch k+1: host -> stage ------------------------.
 *   compute stream   batch k: steps .......... | stage -> inputs, steps of k+1
 *
 * The host returns as soon as everything is enqueued. A variant (with or without accumulation, hooks, ...) is walked
 * the first time, captured the second time, launched from then on; see ddp.h for how buckets of a captured walk are
 * known to be reduced. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/device/cuda/check.h"
#include "worker/device/cuda/plan.h"
#include "worker/device/cuda/tell/watch.h"
#include "worker/device/cuda/traffic.h"
#include "worker/device/host_common.h"

static int all_sum(struct cuda_plan *pl, const struct step *s, const struct run_hooks *h, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    if (!h || !h->all_sum)
        return 0;
    if (s->keep)
        TRY(g->ops->copy(g, pl->cuda->compute, s->keep, s->at, s->n * sizeof(double), e));
    if (h->all_sum(h->ctx, s->at, s->n, DT_F64, g->ops->stream_native(pl->cuda->compute), e) < 0)
        return err_wrap(e, "sum batch statistics of %zu values over all ranks", s->n);
    return 0;
}

/* On the compute stream, as everything between which it stands. */
static int over_group(struct cuda_plan *pl, const struct step *s, struct err *e)
{
    struct gpu *gpu = pl->cuda->gpu;
    const struct plan_group *g = pl->o.group;
    const bool alone = !g || pl->p->group == 1;
    void *stream = gpu->ops->stream_native(pl->cuda->compute);
    const size_t n = s->group.n, bytes = n * dtype_size(s->group.type);
    if (!alone && s->group.call == CALL_GATHER)
        return g->gather(g->ctx, s->group.in, s->group.out, n, s->group.type, stream, e);
    if (!alone && s->group.call == CALL_SCATTER)
        return g->scatter(g->ctx, s->group.in, s->group.out, n, s->group.type, stream, e);
    if (s->group.out != s->group.in)
        TRY(gpu->ops->copy(gpu, pl->cuda->compute, s->group.out, s->group.in, bytes, e));
    if (alone)
        return 0;
    return (s->group.call == CALL_MAX ? g->max : g->sum)(g->ctx, s->group.out, n, s->group.type, stream, e);
}

static void settle_finalise(const struct cuda_plan *pl, struct k_bn_finalise *f, const struct variant_key *v)
{
    f->accumulate = v->accumulate;
    f->again = v->again;
    f->weights = v->gather ? pl->sample_weights : NULL;
}

/* A group for who waits for its bucket; else everything with the last. */
static void settle_unpack(const struct cuda_plan *pl, struct step *s, const struct variant_key *v)
{
    const int first = v->hooks ? s->table_at : 0;
    struct k_pack *a = &s->args.as_KERNEL_UNPACK;
    *a = (struct k_pack){.table = pl->table + first, .accumulate = v->accumulate};
    a->n = s->table_at + s->entries - first;
    for (int i = first; i < first + a->n; i++)
        a->elements += cuda_plan_form_elements(&pl->host_table[i]);
}

/* Of this set. */
static void settle_copies(const struct cuda_plan *pl, struct step *s)
{
    struct k_pack *a = &s->args.as_KERNEL_PACK;
    const int first = pl->copies_at + pl->set * pl->ncopies + s->table_at;
    *a = (struct k_pack){.table = pl->table + first, .n = s->entries};
    for (int i = first; i < first + a->n; i++)
        a->elements += cuda_plan_form_elements(&pl->host_table[i]);
}

/* What depends on the run and not on the plan alone. */
static void settle(const struct cuda_plan *pl, struct step *s, const struct variant_key *v)
{
    for (int i = 0; i < s->nsources; i++) {
        const struct bn_source *b = &s->source[i];
        b->from->sums = b->from->first && !v->gather ? NULL : b->local && v->sums ? b->local : b->sums;
    }
    switch (s->kernel) {
    case KERNEL_BN_FINALISE:
        settle_finalise(pl, &s->args.as_KERNEL_BN_FINALISE, v);
        break;
    case KERNEL_BN_APPLY:
        settle_finalise(pl, &s->args.as_KERNEL_BN_APPLY.own, v);
        settle_finalise(pl, &s->args.as_KERNEL_BN_APPLY.other, v);
        break;
    case KERNEL_BN_MEAN:
        settle_finalise(pl, &s->args.as_KERNEL_BN_MEAN.a.own, v);
        settle_finalise(pl, &s->args.as_KERNEL_BN_MEAN.a.other, v);
        break;
    case KERNEL_BN_POOL:
        settle_finalise(pl, &s->args.as_KERNEL_BN_POOL.own, v);
        break;
    case KERNEL_PACK:
        settle_copies(pl, s);
        break;
    case KERNEL_UNPACK:
        settle_unpack(pl, s, v);
        break;
    case KERNEL_XENT:
        s->args.as_KERNEL_XENT.smoothing = (float)v->smoothing;
        break;
    case KERNEL_XENT_SUMS:
    case KERNEL_XENT_PARTS:
    case KERNEL_XENT_PARTS_BWD: /* a union: the members are the same */
        s->args.as_KERNEL_XENT_PARTS.smoothing = (float)v->smoothing;
        break;
    case KERNEL_METRICS:
        s->args.as_KERNEL_METRICS.accumulate = v->accumulate || v->add_metrics;
        break;
    default:
        break;
    }
}

int cuda_plan_run_step(struct cuda_plan *pl, struct step *s, const struct variant_key *v, const struct run_hooks *h,
                       struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    struct gpu_stream *stream = pl->cuda->compute;
    switch (s->kind) {
    case STEP_KERNEL:
        if ((s->gathers && !v->gather) || (s->kernel == KERNEL_UNPACK && !v->hooks && s != pl->steps[pl->unpacks]))
            return 0;
        if (s->kernel == KERNEL_METRICS && v->again) /* they have been counted */
            return 0;
        settle(pl, s, v);
        if (s->kernel == KERNEL_UNPACK && s->args.as_KERNEL_UNPACK.n == 0) /* they are in the arena */
            return 0;
        return g->ops->kernel(g, stream, s->kernel, &s->args, e);
    case STEP_DNN:
        return g->ops->dnn(g, stream, &s->dnn, pl->workspace, e);
    case STEP_GEMM:
        s->gemm.add = s->adds || (s->in_arena && v->accumulate);
        /* cuBLASLt's choice for a shape serves every plan: it may count on what each of them has, and no more */
        return g->ops->gemm(g, stream, &s->gemm, pl->workspace, PLAN_GEMM_WORKSPACE, e);
    case STEP_FILL:
        return !s->always && (v->accumulate || v->again) ? 0 : g->ops->fill(g, stream, s->at, 0, s->n, e);
    case STEP_ALL_SUM:
        return all_sum(pl, s, h, e);
    case STEP_GROUP:
        return over_group(pl, s, e);
    case STEP_READY:
        return h && h->ready ? h->ready(h->ctx, s->first, s->end, g->ops->stream_native(stream), e) : 0;
    }
    return 0;
}

static int walk(struct cuda_plan *pl, const struct variant_key *v, const struct run_hooks *h, struct err *e)
{
    const struct span *span = &pl->spans[v->pass];
    for (int i = span->first; i < span->end; i++) {
        pl->walked = i;
        int rc = reads_run_step(pl, pl->steps[i], v, h, e);
        if (rc < 0)
            return err_wrap(e, "%s of op %d", pl->steps[i]->label, pl->steps[i]->op);
        watch_note(pl->cuda->watch, pl->steps[i]->label, pl->steps[i]->op, pl->cuda->runs);
    }
    return 0;
}

/* One mark before the first step and one after each; made when somebody first wants to know. */
static int make_marks(struct cuda_plan *pl, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    if (!pl->marks)
        pl->marks = calloc((size_t)pl->nsteps + 1, sizeof(struct gpu_event *));
    if (!pl->marks)
        return err_set(e, -ENOMEM, "no memory for %d events", pl->nsteps + 1);
    for (int i = 0; i <= pl->nsteps; i++)
        if (!pl->marks[i])
            TRY(g->ops->event_open(g, true, &pl->marks[i], e));
    return 0;
}

/* Times of the GPU, set to begin when the host saw it idle. */
static int tell_times(struct cuda_plan *pl, const struct span *span, const struct run_trace *t, int64_t start_ns,
                      struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    float from = 0, to;
    TRY(g->ops->event_sync(g, pl->marks[span->end], e));
    for (int i = span->first; i < span->end; i++, from = to) {
        TRY(g->ops->event_ms(g, pl->marks[span->first], pl->marks[i + 1], &to, e));
        const struct step *s = pl->steps[i];
        struct step_traffic moved;
        cuda_step_traffic(pl, s, &moved);
        t->op(t->ctx, &(struct run_span){.label = s->label,
                                         .kernel = cuda_step_plan(s) ? cudnn_plan_name(cuda_step_plan(s)) : NULL,
                                         .op = s->op,
                                         .start_ns = start_ns + (int64_t)((double)from * 1e6),
                                         .end_ns = start_ns + (int64_t)((double)to * 1e6),
                                         .bytes = moved.read + moved.written,
                                         .flop = moved.flop});
    }
    return 0;
}

/* A walk with a clock: slower than a graph, and nothing runs beside it. */
static int traced_walk(struct cuda_plan *pl, const struct variant_key *v, const struct run_args *a, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    struct gpu_stream *s = pl->cuda->compute;
    const struct span *span = &pl->spans[v->pass];
    TRY(make_marks(pl, e));
    TRY(g->ops->stream_sync(g, s, e));
    const int64_t start = clock_ns();
    TRY(g->ops->event_record(g, pl->marks[span->first], s, e));
    for (int i = span->first; i < span->end; i++) {
        int rc = reads_run_step(pl, pl->steps[i], v, a->hooks, e);
        if (rc < 0)
            return err_wrap(e, "%s of op %d", pl->steps[i]->label, pl->steps[i]->op);
        TRY(g->ops->event_record(g, pl->marks[i + 1], s, e));
    }
    return tell_times(pl, span, a->trace, start, e);
}

static bool same_variant(const struct variant_key *a, const struct variant_key *b)
{
    return a->accumulate == b->accumulate && a->hooks == b->hooks && a->sums == b->sums && a->gather == b->gather &&
           a->add_metrics == b->add_metrics && a->again == b->again && a->pass == b->pass && a->set == b->set &&
           a->smoothing == b->smoothing;
}

/* The variant's place; the least used one makes room. */
static struct variant *variant_of(struct cuda_plan *pl, const struct variant_key *k)
{
    struct gpu *g = pl->cuda->gpu;
    struct variant *v = NULL;
    for (int i = 0; i < pl->nvariants; i++)
        if (same_variant(&pl->variants[i].key, k))
            return &pl->variants[i];
    if (pl->nvariants < cuda_plan_variants(pl)) {
        v = &pl->variants[pl->nvariants++];
    } else {
        v = &pl->variants[0];
        for (int i = 1; i < pl->nvariants; i++)
            v = pl->variants[i].runs < v->runs ? &pl->variants[i] : v;
        g->ops->graph_close(g, v->graph);
    }
    *v = (struct variant){.key = *k};
    return v;
}

/* Did the walk end in a call of the hooks or the group? Then others have failed, and CUDA has not. */
static bool others_failed(const struct cuda_plan *pl)
{
    const struct step *s = pl->steps[pl->walked];
    return s->kind == STEP_READY || s->kind == STEP_ALL_SUM || s->kind == STEP_GROUP || s->read;
}

/* *ret_others: it failed for what others did. */
static int capture(struct cuda_plan *pl, struct variant *v, const struct run_hooks *h, bool *ret_others, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    struct err second;
    const int64_t began = clock_ns();
    TRY(g->ops->capture_begin(g, pl->cuda->compute, e));
    int rc = walk(pl, &v->key, h, e);
    *ret_others = rc < 0 && others_failed(pl);
    if (rc == 0 && h && h->captured) {
        rc = h->captured(h->ctx, g->ops->stream_native(pl->cuda->compute), e);
        *ret_others = rc < 0;
    }
    int end = g->ops->capture_end(g, pl->cuda->compute, &v->graph, rc < 0 ? &second : e);
    if (rc == 0 && end == 0)
        log_info("cuda", "%d steps captured as a graph in %.1f ms", pl->nsteps, (double)(clock_ns() - began) / 1e6);
    if (rc == 0)
        return end;
    g->ops->graph_close(g, v->graph); /* what had been recorded until then */
    v->graph = NULL;
    return rc;
}

/* v has a graph, or none is made any more: what cannot be captured is walked, from now on; a card that is lost fails
 * that, too. */
static int make_graph(struct cuda_plan *pl, struct variant *v, const struct run_hooks *h, struct err *e)
{
    bool others = false;
    struct err why = {0};
    watch_call(pl->cuda->watch, "a graph to be made");
    const int rc = capture(pl, v, h, &others, &why);
    watch_done(pl->cuda->watch);
    if (rc == 0)
        return 0;
    if (others)
        return err_set(e, rc, "%s", why.text);
    log_warn("cuda", "a step cannot be captured as a graph (%s): from now on it is launched kernel by kernel",
             why.text);
    pl->cuda->options.graphs = false;
    if (h && h->dropped)
        h->dropped(h->ctx);
    return 0;
}

static bool has_graphs(const struct cuda_plan *pl, const struct run_hooks *h)
{
    const bool on_host = (h && h->on_host) || (pl->calls && pl->o.group && pl->o.group->on_host) ||
                         (pl->o.needs && pl->o.needs->on_host);
    return pl->cuda->options.graphs && !pl->cuda->options.check && !on_host;
}

static int run_variant(struct cuda_plan *pl, const struct run_hooks *h, const struct variant_key *k, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    struct variant *v = variant_of(pl, k);
    if (pl->cuda->options.check)
        return check_walk(pl, k, h, e);
    const bool first = v->runs++ == 0, fresh = !v->graph;
    if (!has_graphs(pl, h) || first)
        return walk(pl, k, h, e);
    if (fresh)
        TRY(make_graph(pl, v, h, e));
    if (!v->graph)
        return walk(pl, k, h, e);
    watch_call(pl->cuda->watch, "a graph to be launched");
    const int rc = g->ops->graph_launch(g, v->graph, pl->cuda->compute, e);
    watch_done(pl->cuda->watch);
    TRY(rc);
    return !fresh && h && h->replayed ? h->replayed(h->ctx, g->ops->stream_native(pl->cuda->compute), e) : 0;
}

static int refresh(struct cuda_plan *pl, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    const struct k_pack pack = {.table = pl->table + pl->pack_at, .n = pl->npack, .elements = pl->pack_elements};
    return pl->npack == 0 ? 0 : g->ops->kernel(g, pl->cuda->compute, KERNEL_PACK, &pack, e);
}

/* Under a guard only the device knows it. */
static int set_scale(struct cuda_plan *pl, double scale, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    const struct k_scaler_state *guard = cuda_guard(pl->cuda);
    const struct k_store k = {.to = pl->grad_scale, .value = (float)scale, .times = guard ? &guard->scale : NULL};
    if (!guard && pl->scale_now == scale)
        return 0;
    pl->scale_now = guard ? 0 : scale;
    return g->ops->kernel(g, pl->cuda->compute, KERNEL_STORE, &k, e);
}

/* All of a run; the batch may still be on its way. */
static int enqueue(struct cuda_plan *pl, const struct run_args *a, struct err *e)
{
    const struct watched watched = cuda_watched(pl->cuda);
    pl->cuda->runs++;
    TRY(first_runs_begin(&pl->first, &watched, pl->o.training, e));
    TRY(stage_send(pl, a, e));
    chunk_use_set(pl, a->set);
    if (!pl->fresh || pl->version != a->params_version) {
        TRY(refresh(pl, e));
        pl->version = a->params_version;
        pl->fresh = true;
    }
    TRY(set_scale(pl, a->grad_scale, e));
    const bool hooks = a->hooks && a->hooks->ready, sums = a->hooks && a->hooks->all_sum;
    const struct variant_key k = {.accumulate = a->accumulate,
                                  .hooks = hooks,
                                  .sums = sums,
                                  .gather = hooks || sums || !stage_whole(pl, &a->batch),
                                  .add_metrics = a->add_metrics,
                                  .again = a->again,
                                  .pass = a->pass,
                                  .set = a->set,
                                  .smoothing = a->smoothing};
    TRY(first_runs_mark(&pl->first, &watched, FIRST_BEGIN, e));
    TRY(chunk_cross(pl, pl->spans[a->pass].in, a->boundary.in, e));
    watch_call(pl->cuda->watch, "a run to be enqueued");
    const int rc = a->trace ? traced_walk(pl, &k, a, e) : run_variant(pl, a->hooks, &k, e);
    watch_done(pl->cuda->watch);
    TRY(rc);
    TRY(a->again ? 0 : chunk_cross(pl, pl->spans[a->pass].out, a->boundary.out, e));
    TRY(first_runs_mark(&pl->first, &watched, FIRST_END, e));
    first_runs_end(&pl->first);
    watch_note(pl->cuda->watch, pl->steps[pl->walked]->label, pl->steps[pl->walked]->op, pl->cuda->runs);
    return 0;
}

int cuda_plan_run(struct plan *plan, const struct run_args *a, struct err *e)
{
    struct cuda_plan *pl = (struct cuda_plan *)plan;
    const struct watched watched = cuda_watched(pl->cuda);
    struct gpu *g = pl->cuda->gpu;
    int first, end;
    TRY(host_run_ops(&pl->ops, &pl->o, a, &first, &end, e));
    TRY(host_check_batch(pl->p, first, end, &pl->o, &a->batch, e));
    if (!pl->cuda->watch)
        TRY(watch_open(&pl->cuda->watch, &watched, pl->cuda->watch_ms ? pl->cuda->watch_ms : WATCH_PERIOD_MS, e));
    const int rc = enqueue(pl, a, e);
    if (rc == 0)
        return stage_let_go(pl, &a->batch, a->pass, e);
    if (a->batch.locked) /* nobody reads it when this returns */
        (void)g->ops->stream_sync(g, pl->cuda->copy, NULL);
    return rc;
}
