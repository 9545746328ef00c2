#include "worker/step.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/err.h"
#include "worker/data/loader.h"
#include "worker/device/device.h"
#include "worker/parallel/ddp.h"
#include "worker/program/program.h"
#include "worker/state.h"

int step_slices(const struct program *p, double weight_decay, struct decay_slice **ret, int *ret_n, struct err *e)
{
    struct decay_slice *v = calloc((size_t)p->nparams + 1, sizeof *v);
    if (!v)
        return err_errno(e, ENOMEM, "parameter slices");
    int n = 0;
    for (size_t at = 0; at < p->n_train;) { /* parameters lie in the arena in no particular order of the list */
        const struct param *next = NULL;
        for (int i = 0; i < p->nparams; i++) {
            const struct param *q = &p->params[i];
            if (q->role == PARAM_TRAIN && q->offset >= at && (!next || q->offset < next->offset))
                next = q;
        }
        if (!next)
            break;
        double wd = next->decay ? weight_decay : 0;
        if (n == 0 || v[n - 1].weight_decay != wd)
            v[n++] = (struct decay_slice){.first = next->offset, .weight_decay = wd};
        at = next->offset + next->count;
        v[n - 1].n = at - v[n - 1].first;
    }
    *ret = v;
    *ret_n = n;
    return 0;
}

static int update_all(struct step *t, double lr, struct err *e)
{
    struct state *s = t->state;
    const struct program *p = s->program;
    const struct device_ops *ops = s->device->ops;
    const char *tail = (const char *)s->reduce + state_bytes(s, p->n_train);
    const void *count = tail + state_bytes(s, p->n_stats + METRIC_COUNT);
    for (int i = 0; i < t->nslices; i++) {
        struct update u = {.rule = UPDATE_SGD_TORCH,
                           .first = t->slices[i].first,
                           .n = t->slices[i].n,
                           .lr = lr,
                           .momentum = t->momentum,
                           .weight_decay = t->slices[i].weight_decay,
                           .grad_mul = 1};
        TRY(ops->update(s->device, &u, s->params, s->reduce, s->momentum, count, e));
    }
    TRY(ops->update_stats(s->device, s->stats, tail, p->n_stats, t->bn_momentum, count, e));
    s->version++;
    return 0;
}

int train_step(struct step *t, double lr, int stop, struct step_result *ret, struct err *e)
{
    struct state *s = t->state;
    struct loader_batch batch;
    double m[METRIC_N];
    int64_t start = clock_ns();

    TRY(loader_next(t->loader, &batch, e)); /* images (n, H, W, C) u8, labels (n), weights (n) */
    int64_t loaded = clock_ns();
    ddp_begin(t->ddp, true);
    struct run_args run = {.batch = batch.b, .grad_scale = 1, .params_version = s->version, .hooks = ddp_hooks(t->ddp)};
    int rc = s->device->ops->run(t->plan, &run, e); /* forward and backward; buckets leave as they fill */
    loader_done(t->loader, &batch);
    TRY(rc);
    TRY(state_set_metric(s, METRIC_STOP, stop, e));
    TRY(state_set_metric(s, METRIC_BAD, (double)batch.bad, e));
    TRY(ddp_wait(t->ddp, e)); /* gradients, statistics and metrics are sums over all ranks */
    TRY(state_get_metrics(s, m, e));
    if (!isfinite(m[METRIC_LOSS]))
        return err_set(e, ERR_DIVERGED, "training diverged: the loss is %f; lower --base-learning-rate",
                       m[METRIC_LOSS]);
    TRY(update_all(t, lr, e));

    *ret = (struct step_result){.loss = m[METRIC_LOSS],
                                .top1 = m[METRIC_TOP1],
                                .top5 = m[METRIC_TOP5],
                                .count = m[METRIC_COUNT],
                                .stop = m[METRIC_STOP],
                                .bad = m[METRIC_BAD],
                                .wait_ns = loaded - start,
                                .total_ns = clock_ns() - start};
    return 0;
}
