/* Tries an engine in such a way that one that kills the process is known the next time. */
#include "worker/device/cuda/engines/trial.h"

#include <errno.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/device/cuda/graph.h"
#include "worker/device/cuda/plan.h"

enum { REPEATS = 5, MORE_RUNS = 4 /* that must give the same bits */ };

int trial_open(struct trial *t, struct cuda_plan *pl, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    *t = (struct trial){.pl = pl, .prover = {.pl = pl}, .began_ns = clock_ns()};
    TRY(g->ops->event_open(g, true, &t->from, e));
    return g->ops->event_open(g, true, &t->to, e);
}

void trial_close(struct trial *t)
{
    struct gpu *g = t->pl->cuda->gpu;
    if (t->from)
        g->ops->event_close(g, t->from);
    if (t->to)
        g->ops->event_close(g, t->to);
    prove_finish(&t->prover);
    cuda_give(t->pl->cuda, t->workspace, t->workspace_bytes);
}

int trial_workspace(struct trial *t, struct cudnn_plan *const *all, int n, struct err *e)
{
    size_t most = 0;
    for (int i = 0; i < n; i++)
        most = cudnn_plan_workspace(all[i]) > most ? cudnn_plan_workspace(all[i]) : most;
    if (most <= t->workspace_bytes)
        return 0;
    cuda_give(t->pl->cuda, t->workspace, t->workspace_bytes);
    t->workspace_bytes = 0;
    t->workspace = NULL;
    TRY(cuda_take(t->pl->cuda, most, &t->workspace, e));
    t->workspace_bytes = most;
    return 0;
}

static int enqueue(struct trial *t, const struct gpu_dnn *d, struct err *e)
{
    struct gpu *g = t->pl->cuda->gpu;
    if (!cudnn_pattern_product(d->pattern))
        return g->ops->dnn(g, t->pl->cuda->compute, d, t->workspace, e);
    const struct gpu_gemm m = graph_gemm(d);
    return g->ops->gemm(g, t->pl->cuda->compute, &m, t->workspace, t->workspace_bytes, e);
}

static int run_once(struct trial *t, const struct gpu_dnn *d, struct err *e)
{
    struct gpu *g = t->pl->cuda->gpu;
    TRY(enqueue(t, d, e));
    return g->ops->stream_sync(g, t->pl->cuda->compute, e);
}

/* Its kernels are loaded by now, and what it reads is no longer 0, on which kernels run faster. */
static int time_engine(struct trial *t, const struct gpu_dnn *d, double *ret_us, struct err *e)
{
    struct gpu *g = t->pl->cuda->gpu;
    struct gpu_stream *s = t->pl->cuda->compute;
    float ms;
    TRY(g->ops->event_record(g, t->from, s, e));
    for (int i = 0; i < REPEATS; i++)
        TRY(enqueue(t, d, e));
    TRY(g->ops->event_record(g, t->to, s, e));
    TRY(g->ops->event_sync(g, t->to, e));
    TRY(g->ops->event_ms(g, t->from, t->to, &ms, e));
    *ret_us = 1000.0 * (double)ms / REPEATS;
    return 0;
}

/* Sums whose order is left to chance mostly differ by the second run, in graphs of few blocks perhaps later. Nothing of
 * a run before is left where it writes. */
static int run_again(struct trial *t, const struct gpu_dnn *d, struct err *e)
{
    struct gpu *g = t->pl->cuda->gpu;
    const size_t bytes = cudnn_plan_workspace(d->plan);
    TRY(prove_remember(&t->prover, d, e));
    for (int i = 0; i < MORE_RUNS; i++) {
        TRY(prove_poison(&t->prover, d, e));
        if (bytes > 0)
            TRY(g->ops->fill(g, t->pl->cuda->compute, t->workspace, 0xff, bytes, e));
        TRY(run_once(t, d, e));
        const int rc = prove_same(&t->prover, d, e);
        t->restless = rc == ERR_MISMATCH;
        TRY(rc);
    }
    return 0;
}

/* ret_us: NULL, or its time; 0 where there is none left for that. */
static int prove_and_time(struct trial *t, const struct gpu_dnn *d, double *ret_us, struct err *e)
{
    const char *engine = cudnn_plan_name(d->plan);
    char graph[128];
    double ratio = 0, us = 0;
    cudnn_describe(d->pattern, &d->shape, graph, sizeof graph);
    log_debug("cudnn", "try %s %s ws=%zu", graph, engine, cudnn_plan_workspace(d->plan));
    TRY(prove_poison(&t->prover, d, e));
    TRY(run_once(t, d, e));
    TRY(prove_result(&t->prover, d, &ratio, e));
    if (cudnn_deterministic(t->pl->cuda->dnn) || d->pattern == DNN_SDPA_BWD)
        TRY(run_again(t, d, e));
    if (ret_us && tune_may_time(t->pl->cuda, t->began_ns))
        TRY(time_engine(t, d, &us, e));
    if (ret_us)
        *ret_us = us;
    log_debug("cudnn", "ran %s %s %.1f us, off by %.2f of what is allowed", graph, engine, us, ratio);
    return 0;
}

/* Finalised, but it does not do on this card: another one may. Not so where the card itself is lost, which then fails
 * in everything. */
static bool card_still_works(const struct trial *t, int rc)
{
    struct gpu *g = t->pl->cuda->gpu;
    return rc == -ENOTSUP || rc == -ENOMEM || rc == ERR_MISMATCH ||
           (rc == -EIO && g->ops->stream_sync(g, t->pl->cuda->compute, NULL) == 0);
}

int trial_engine(struct trial *t, const struct gpu_dnn *d, double *ret_us, bool *ret_lost, struct err *why)
{
    struct cudnn *dnn = t->pl->cuda->dnn;
    if (!(t->pl->cuda->options.stopping && t->pl->cuda->options.stopping()))
        cudnn_trial_begin(dnn, d->plan); /* who stops may be killed: that is no fault of the engine */
    t->restless = false;
    const int rc = prove_and_time(t, d, ret_us, why);
    t->engines++;
    *ret_lost = rc < 0 && !card_still_works(t, rc);
    if (rc < 0 && rc != -ENOMEM) {
        t->barred++;
        if (t->restless) /* right, and no matter elsewhere */
            log_info("cudnn", "%s is barred for --deterministic: %s", cudnn_plan_name(d->plan), why->text);
        else if (rc == ERR_MISMATCH)
            log_warn("cudnn", "%s is wrong and never taken again: %s", cudnn_plan_name(d->plan), why->text);
        cudnn_bar_engine(dnn, d->plan, why->text, true);
    }
    cudnn_trial_end(dnn);
    return rc;
}
