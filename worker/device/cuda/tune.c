/* Which of cuDNN's engines is fastest for a graph on this card: the heuristics' candidates are timed on the plan's own buffers, once a shape. The cache on disk and
 * a checkpoint keep what was chosen, so that the next run, and a resumed one, need not ask again. */
#include <errno.h>

#include "worker/device/cuda/plan.h"

enum { CANDIDATES = 8, REPEATS = 5 };

struct tuner {
    struct cuda_plan *pl;
    struct gpu_event *from, *to;
    void *workspace;
    size_t workspace_bytes;
};

static int time_candidate(struct tuner *t, const struct gpu_dnn *d, double *ret_us, struct err *e)
{
    struct gpu *g = t->pl->cuda->gpu;
    struct gpu_stream *s = t->pl->cuda->compute;
    float ms;
    TRY(g->ops->dnn(g, s, d, t->workspace, e)); /* the first call loads its kernels */
    TRY(g->ops->event_record(g, t->from, s, e));
    for (int i = 0; i < REPEATS; i++)
        TRY(g->ops->dnn(g, s, d, t->workspace, e));
    TRY(g->ops->event_record(g, t->to, s, e));
    TRY(g->ops->event_sync(g, t->to, e));
    TRY(g->ops->event_ms(g, t->from, t->to, &ms, e));
    *ret_us = 1000.0 * (double)ms / REPEATS;
    return 0;
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

static int tune_graph(struct tuner *t, struct gpu_dnn *d, struct err *e)
{
    struct cudnn_plan *all[CANDIDATES];
    struct cudnn *dnn = t->pl->cuda->dnn;
    int n, best = -1;
    double best_us = 0, us;
    TRY(cudnn_candidates(dnn, d->pattern, &d->shape, all, CANDIDATES, &n, e));
    TRY(fit_workspace(t, all, &n, e));
    for (int i = 0; i < n; i++) {
        d->plan = all[i];
        int rc = time_candidate(t, d, &us, e);
        if (rc == -ENOTSUP || rc == -ENOMEM)
            continue; /* finalised, but does not run on this card */
        TRY(rc);
        if (best < 0 || us < best_us) {
            best = i;
            best_us = us;
        }
    }
    if (best < 0)
        return err_set(e, -ENOTSUP, "none of %d engines for %s runs on this GPU", n, cudnn_pattern_name(d->pattern));
    d->plan = all[best];
    return cudnn_choose(dnn, d->plan, best_us, e);
}

static int tune_all(struct tuner *t, struct err *e)
{
    struct cuda_plan *pl = t->pl;
    for (int i = 0; i < pl->nsteps; i++) {
        struct gpu_dnn *d = &pl->steps[i]->dnn;
        if (pl->steps[i]->kind != STEP_DNN)
            continue;
        TRY(cudnn_find(pl->cuda->dnn, d->pattern, &d->shape, &d->plan, e));
        if (!cudnn_plan_measured(d->plan))
            TRY(tune_graph(t, d, e));
    }
    return 0;
}

int tune_plan(struct cuda_plan *pl, struct err *e)
{
    struct gpu *g = pl->cuda->gpu;
    struct tuner t = {.pl = pl};
    if (!pl->cuda->dnn || !pl->cuda->options.tune)
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
