#include "worker/eval.h"

#include "common/err.h"
#include "worker/comm/comm.h"
#include "worker/data/loader.h"
#include "worker/device/device.h"
#include "worker/program/program.h"
#include "worker/state.h"

enum { LOSS, TOP1, TOP5, COUNT, BAD, STOP, SUMS };

static int one_batch(struct state *s, struct plan *plan, struct loader *l, double *sums, struct err *e)
{
    struct loader_batch batch;
    double m[METRIC_N];
    TRY(loader_next(l, &batch, e));
    struct run_args run = {.batch = batch.b, .grad_scale = 1, .params_version = s->version};
    int rc = s->device->ops->run(plan, &run, e);
    loader_done(l, &batch);
    TRY(rc);
    TRY(state_get_metrics(s, m, e));
    sums[LOSS] += m[METRIC_LOSS];
    sums[TOP1] += m[METRIC_TOP1];
    sums[TOP5] += m[METRIC_TOP5];
    sums[COUNT] += m[METRIC_COUNT];
    sums[BAD] += (double)batch.bad;
    return 0;
}

int evaluate(struct state *s, struct plan *plan, struct loader *l, int64_t steps, struct comm *c, bool (*stop)(void),
             struct eval_result *ret, struct err *e)
{
    double sums[SUMS] = {0};
    TRY(loader_seek(l, 0, 0, 1, e));
    for (int64_t i = 0; i < steps && !stop(); i++)
        TRY(one_batch(s, plan, l, sums, e));
    sums[STOP] = stop();
    TRY(c->ops->all_reduce(c, COMM_CONTROL, sums, SUMS, DT_F64, COMM_SUM, NULL, e));
    *ret = (struct eval_result){.loss = sums[LOSS],
                                .top1 = sums[TOP1],
                                .top5 = sums[TOP5],
                                .count = sums[COUNT],
                                .bad = sums[BAD],
                                .stopped = sums[STOP] > 0};
    return 0;
}
