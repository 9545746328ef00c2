/* Which of cuDNN's engines is fastest for a graph on this card: the heuristics' candidates are timed on the plan's own
 * buffers, once a shape. The cache on disk and a checkpoint keep what was chosen, so that the next run, and a resumed
 * one, need not ask again.
 *
 * That a plan can be made does not mean that it runs. Each graph is run once before it is relied on, also where nothing
 * is timed: an engine that fails is passed over, and a fused graph none of whose engines runs is left out of the ladder
 * (cudnn_bar()). */
#include <errno.h>

#include "common/base/log.h"
#include "worker/device/cuda/plan.h"

enum { CANDIDATES = 8, REPEATS = 5 };

struct tuner {
    struct cuda_plan *pl;
    struct gpu_event *from, *to;
    void *workspace;
    size_t workspace_bytes;
};

static int run_once(struct tuner *t, const struct gpu_dnn *d, struct err *e)
{
    struct gpu *g = t->pl->cuda->gpu;
    TRY(g->ops->dnn(g, t->pl->cuda->compute, d, t->workspace, e));
    return g->ops->stream_sync(g, t->pl->cuda->compute, e);
}

static int time_candidate(struct tuner *t, const struct gpu_dnn *d, double *ret_us, struct err *e)
{
    struct gpu *g = t->pl->cuda->gpu;
    struct gpu_stream *s = t->pl->cuda->compute;
    float ms;
    TRY(run_once(t, d, e)); /* the first call loads its kernels */
    if (!t->pl->cuda->options.tune) {
        *ret_us = 0;
        return 0;
    }
    TRY(g->ops->event_record(g, t->from, s, e));
    for (int i = 0; i < REPEATS; i++)
        TRY(g->ops->dnn(g, s, d, t->workspace, e));
    TRY(g->ops->event_record(g, t->to, s, e));
    TRY(g->ops->event_sync(g, t->to, e));
    TRY(g->ops->event_ms(g, t->from, t->to, &ms, e));
    *ret_us = 1000.0 * (double)ms / REPEATS;
    return 0;
}

/* Finalised, but it does not run on this card: another one may. Not so where the card itself is lost, which then fails
 * in everything. */
static bool card_still_works(const struct tuner *t, int rc)
{
    struct gpu *g = t->pl->cuda->gpu;
    return rc == -ENOTSUP || rc == -ENOMEM || (rc == -EIO && g->ops->stream_sync(g, t->pl->cuda->compute, NULL) == 0);
}

static int need_workspace(struct tuner *t, struct cudnn_plan *const *all, int n, struct err *e)
{
    size_t most = 0;
    for (int i = 0; i < n; i++)
        most = cudnn_plan_workspace(all[i]) > most ? cudnn_plan_workspace(all[i]) : most;
    if (most <= t->workspace_bytes)
        return 0;
    cuda_give(t->pl->cuda, t->workspace, t->workspace_bytes);
    t->workspace_bytes = 0;
    TRY(cuda_take(t->pl->cuda, most, &t->workspace, e));
    t->workspace_bytes = most;
    return 0;
}

/* Candidates that do not fit into what memory is left are passed over, largest workspace first. */
static int fit_workspace(struct tuner *t, struct cudnn_plan **all, int *n, struct err *e)
{
    int rc;
    while ((rc = need_workspace(t, all, *n, e)) == -ENOMEM && *n > 1) {
        int largest = 0;
        for (int i = 1; i < *n; i++)
            largest = cudnn_plan_workspace(all[i]) > cudnn_plan_workspace(all[largest]) ? i : largest;
        all[largest] = all[--*n];
    }
    return rc;
}

/* None of n engines runs: one rung down from a fused graph, and no further from a plain one. Memory may suffice the
 * next time. */
static int go_one_rung_down(struct tuner *t, const struct gpu_dnn *d, int n, int rc, const char *why, struct err *e)
{
    char graph[128];
    cudnn_describe(d->pattern, &d->shape, graph, sizeof graph);
    err_set(e, rc, "none of %d engines for %s runs on this GPU: %s", n, graph, why);
    if (!cudnn_pattern_fused(d->pattern))
        return rc;
    log_warn("cudnn", "none of %d engines for %s runs on this GPU (%s); these layers go one rung down, with less fused",
             n, graph, why);
    TRY(cudnn_bar(t->pl->cuda->dnn, d->pattern, &d->shape, why, rc != -ENOMEM, e));
    t->pl->fell = true;
    return rc;
}

/* The fastest that runs, or the first where nothing is to be timed. */
static int tune_graph(struct tuner *t, struct gpu_dnn *d, struct err *e)
{
    struct cudnn_plan *all[CANDIDATES];
    struct cudnn *dnn = t->pl->cuda->dnn;
    struct err why = {0};
    int n, best = -1, failed = 0;
    double best_us = 0, us;
    TRY(cudnn_candidates(dnn, d->pattern, &d->shape, all, CANDIDATES, &n, e));
    const int fits = fit_workspace(t, all, &n, &why);
    if (fits == -ENOMEM && cudnn_pattern_fused(d->pattern))
        return go_one_rung_down(t, d, n, fits, why.text, e);
    if (fits == -ENOMEM) {
        d->plan = all[0]; /* the least of them: take_workspace() says what the whole plan needs */
        return 0;
    }
    if (fits < 0)
        return err_set(e, fits, "%s", why.text);
    for (int i = 0; i < n && (best < 0 || t->pl->cuda->options.tune); i++) {
        d->plan = all[i];
        const int rc = time_candidate(t, d, &us, &why);
        if (rc < 0) {
            if (!card_still_works(t, rc))
                return err_set(e, rc, "%s", why.text);
            failed = rc;
        } else if (best < 0 || us < best_us) {
            best = i;
            best_us = us;
        }
    }
    if (best < 0)
        return go_one_rung_down(t, d, n, failed, why.text, e);
    d->plan = all[best];
    cudnn_choose(dnn, d->plan, best_us);
    cudnn_plan_set_ran(d->plan);
    return 0;
}

/* What a cache or a checkpoint kept, or what is not to be timed, must run nevertheless. */
static int try_graph(struct tuner *t, struct gpu_dnn *d, struct err *e)
{
    struct err why = {0};
    int rc = need_workspace(t, &d->plan, 1, e);
    if (rc == -ENOMEM)
        return 0; /* the plan's own workspace will not fit either, and says more */
    TRY(rc);
    rc = run_once(t, d, &why);
    if (rc == 0) {
        cudnn_plan_set_ran(d->plan);
        return 0;
    }
    if (!card_still_works(t, rc))
        return err_set(e, rc, "%s", why.text);
    if (cudnn_plan_measured(d->plan))
        log_warn(
            "cudnn",
            "%s does not run on this GPU any more (%s); another plan is chosen, results may differ in the last bits",
            cudnn_plan_name(d->plan), why.text);
    return tune_graph(t, d, e);
}

static int tune_all(struct tuner *t, struct err *e)
{
    struct cuda_plan *pl = t->pl;
    for (int i = 0; i < pl->nsteps; i++) {
        struct gpu_dnn *d = &pl->steps[i]->dnn;
        if (pl->steps[i]->kind != STEP_DNN)
            continue;
        TRY(cudnn_find(pl->cuda->dnn, d->pattern, &d->shape, &d->plan, e));
        if (pl->cuda->options.tune && !cudnn_plan_measured(d->plan))
            TRY(tune_graph(t, d, e));
        else if (!cudnn_plan_ran(d->plan))
            TRY(try_graph(t, d, e));
    }
    return 0;
}

int tune_plan(struct cuda_plan *pl, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    struct tuner t = {.pl = pl};
    if (!pl->cuda->dnn)
        return 0;
    int rc = g->ops->event_open(g, true, &t.from, e);
    if (rc == 0)
        rc = g->ops->event_open(g, true, &t.to, e);
    if (rc == 0)
        rc = tune_all(&t, e);
    if (t.from)
        g->ops->event_close(g, t.from);
    if (t.to)
        g->ops->event_close(g, t.to);
    cuda_give(pl->cuda, t.workspace, t.workspace_bytes);
    return rc;
}
