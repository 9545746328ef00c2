#include "worker/run/eval.h"

#include <math.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/data/loader/loader.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/divergence.h"
#include "worker/state/state.h"

enum { LOSS, TOP1, TOP5, COUNT, BAD, STOP, SUMS };

static int one_batch(struct state *s, struct plan *plan, struct loader *l, struct eval_result *ret, struct err *e)
{
    struct loader_batch batch;
    double m[METRIC_N];
    int64_t start = clock_ns();
    TRY(loader_next(l, &batch, e)); /* images (n, H, W, C) u8, labels (n), weights (n) */
    struct run_args run = {.batch = batch.b, .grad_scale = 1, .params_version = s->version};
    int rc = s->device->ops->run(plan, &run, e);
    loader_done(l, &batch);
    TRY(rc);
    TRY(state_get_metrics(s, m, e));
    *ret = (struct eval_result){.loss = m[METRIC_LOSS],
                                .top1 = m[METRIC_TOP1],
                                .top5 = m[METRIC_TOP5],
                                .count = m[METRIC_COUNT],
                                .bad = (double)batch.bad,
                                .seconds = (double)(clock_ns() - start) / 1e9};
    return 0;
}

static void add_sums(struct eval_result *to, const struct eval_result *r)
{
    to->loss += r->loss;
    to->top1 += r->top1;
    to->top5 += r->top5;
    to->count += r->count;
    to->bad += r->bad;
    to->seconds += r->seconds;
}

/* Ranks whose plans call one another run the same batches: where one wants to stop, all do. */
static int agree_to_stop(const struct state *s, struct comm *c, bool *stop, struct err *e)
{
    int64_t any = *stop;
    if (s->program->group == 1 && !ownership_is_cut(s->own, OWNERSHIP_PARAMS))
        return 0;
    TRY(c->ops->all_reduce(c, COMM_CONTROL, &any, 1, DT_I64, COMM_MAX, NULL, e));
    *stop = any > 0;
    return 0;
}

int evaluate(struct state *s, struct plan *plan, struct loader *l, int64_t steps, struct comm *c, bool (*stop)(void),
             const struct eval_watch *watch, struct eval_result *ret, struct err *e)
{
    struct eval_result all = {0}, now;
    TRY(loader_seek(l, 0, 0, 1, e));
    for (int64_t i = 0; i < steps; i++) {
        bool over = stop();
        TRY(agree_to_stop(s, c, &over, e));
        if (over)
            break;
        TRY(one_batch(s, plan, l, &now, e));
        add_sums(&all, &now);
        if (watch)
            watch->batch(watch->ctx, i + 1, steps, &now, &all);
    }
    double sums[SUMS] = {
        [LOSS] = all.loss, [TOP1] = all.top1, [TOP5] = all.top5, [COUNT] = all.count, [BAD] = all.bad, [STOP] = stop()};
    TRY(c->ops->all_reduce(c, COMM_CONTROL, sums, SUMS, DT_F64, COMM_SUM, NULL, e));
    *ret = (struct eval_result){.loss = sums[LOSS],
                                .top1 = sums[TOP1],
                                .top5 = sums[TOP5],
                                .count = sums[COUNT],
                                .bad = sums[BAD],
                                .seconds = all.seconds,
                                .stopped = sums[STOP] > 0};
    return isfinite(ret->loss) ? 0 : divergence_of_weights(s, c, ret->loss / ret->count, e);
}
