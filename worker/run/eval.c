/* Evaluates the held-out set over all ranks. */
#include "worker/run/eval.h"

#include <math.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/data/loader/loader.h"
#include "worker/device/device.h"
#include "worker/evaluation/eval_report.h"
#include "worker/parallel/ownership.h"
#include "worker/pipeline/stage.h"
#include "worker/program/program.h"
#include "worker/run/bad_samples.h"
#include "worker/state/divergence.h"
#include "worker/state/state.h"

double eval_score(const struct train_config *cfg, const struct eval_result *r)
{
    const bool by_loss = cfg->best_by == BEST_BY_LOSS || (cfg->best_by == BEST_BY_AUTO && cfg->length);
    if (by_loss && cfg->length)
        return exp(-r->loss / r->count);
    if (by_loss)
        return 1 / (1 + r->loss / r->count);
    return (cfg->best_by == BEST_BY_TOP5 ? r->top5 : r->top1) / r->count;
}

enum { LOSS, TOP1, TOP5, COUNT, BAD, STOP, SUMS };

/* The next batch goes through the plan, or this stage of it; *ret: what is counted here. */
static int run_batch(const struct eval_options *o, struct loader_batch *batch, struct eval_result *ret, struct err *e)
{
    struct state *s = o->state;
    double m[METRIC_N];
    TRY(o->stage ? stage_share_batch(o->stage, &batch->b, o->rows, e) : 0);
    struct run_args run = {.batch = batch->b, .grad_scale = 1, .params_version = s->version};
    TRY(o->stage ? stage_evaluate(o->stage, &run, e) : s->device->ops->run(o->plan, &run, e));
    TRY(state_get_metrics(s, m, e));
    TRY(o->report ? eval_report_batch(o->report, s->device, o->plan, &batch->b, e) : 0);
    if (o->stage && o->stages->rank < o->stages->world - 1) /* others count */
        m[METRIC_LOSS] = m[METRIC_TOP1] = m[METRIC_TOP5] = m[METRIC_COUNT] = 0;
    *ret = (struct eval_result){.loss = m[METRIC_LOSS],
                                .top1 = m[METRIC_TOP1],
                                .top5 = m[METRIC_TOP5],
                                .count = m[METRIC_COUNT],
                                .bad = (double)batch->bad};
    return 0;
}

static int one_batch(const struct eval_options *o, struct eval_result *ret, struct err *e)
{
    struct loader_batch batch = {0};
    const int64_t start = clock_ns();
    TRY(o->loader ? loader_next(o->loader, &batch, e) : 0); /* rows, labels, weights */
    int rc = run_batch(o, &batch, ret, e);
    if (o->loader)
        loader_done(o->loader, &batch);
    TRY(rc);
    ret->seconds = (double)(clock_ns() - start) / 1e9;
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

enum { MEET_EVERY = 8 }; /* batches: each meeting empties the pipeline */

/* Do ranks that call one another meet before batch i? */
static bool meet_before(const struct eval_options *o, int64_t i)
{
    const struct state *s = o->state;
    return o->stages ? i % MEET_EVERY == 0 : s->program->group > 1 || ownership_is_cut(s->own, OWNERSHIP_PARAMS);
}

/* They run the same batches: where one wants to stop, all do. */
static int agree_to_stop(const struct eval_options *o, bool *stop, struct err *e)
{
    int64_t any = *stop;
    TRY(o->comm->ops->all_reduce(o->comm, COMM_CONTROL, &any, 1, DT_I64, COMM_MAX, NULL, e));
    *stop = any > 0;
    return 0;
}

/* What the stages of this pipeline have counted since they met. */
static int sum_of_stages(const struct eval_options *o, struct eval_result *r, struct err *e)
{
    double v[] = {r->loss, r->top1, r->top5, r->count, r->bad};
    if (!o->stages)
        return 0;
    TRY(o->stages->ops->all_reduce(o->stages, COMM_CONTROL, v, sizeof v / sizeof *v, DT_F64, COMM_SUM, NULL, e));
    *r = (struct eval_result){
        .loss = v[0], .top1 = v[1], .top5 = v[2], .count = v[3], .bad = v[4], .seconds = r->seconds};
    return 0;
}

/* Batches after which the ranks ask one another whether any has seen an image that counts: as many as make
 * BAD_SAMPLES_FEW images, where stages have met. 0: there are no more than that. */
static int64_t first_look(const struct eval_options *o)
{
    const int64_t images = (int64_t)o->rows * o->comm->world;
    int64_t n = (BAD_SAMPLES_FEW + images - 1) / images;
    n = n < BAD_SAMPLES_BATCHES ? BAD_SAMPLES_BATCHES : n;
    n = o->stages ? (n + MEET_EVERY - 1) / MEET_EVERY * MEET_EVERY : n;
    return n < o->steps ? n : 0;
}

static int look(const struct eval_options *o, const struct eval_result *so_far, bool *ret_unsound, struct err *e)
{
    double v[] = {so_far->count, so_far->bad};
    TRY(o->comm->ops->all_reduce(o->comm, COMM_CONTROL, v, 2, DT_F64, COMM_SUM, NULL, e));
    *ret_unsound = v[0] == 0 && v[1] > 0;
    return 0;
}

/* *ret: sums of this rank's share; the same on all stages of a pipeline. */
static int all_batches(const struct eval_options *o, struct eval_result *ret, struct err *e)
{
    struct eval_result some = {0}, now;
    bool unsound = false;
    int64_t look_at = first_look(o);
    for (int64_t i = 0; i < o->steps; i++) {
        TRY(look_at && i == look_at ? look(o, ret, &unsound, e) : 0);
        look_at = i == look_at ? 0 : look_at;
        if (unsound)
            break;
        bool over = meet_before(o, i) || !o->stages ? o->stop() : false;
        TRY(meet_before(o, i) ? agree_to_stop(o, &over, e) : 0);
        if (over)
            break;
        TRY(one_batch(o, &now, e));
        add_sums(&some, &now);
        if (o->stages && i < o->steps - 1 && !meet_before(o, i + 1))
            continue;
        TRY(sum_of_stages(o, &some, e));
        add_sums(ret, &some);
        if (o->watch)
            o->watch->batch(o->watch->ctx, i + 1, o->steps, &some, ret);
        some = (struct eval_result){0};
    }
    return look_at ? look(o, ret, &unsound, e) : 0; /* this rank stops before the others look */
}

int evaluate(const struct eval_options *o, struct eval_result *ret, struct err *e)
{
    struct eval_result all = {0};
    struct comm *c = o->comm;
    TRY(o->loader ? loader_seek(o->loader, 0, 0, 1, e) : 0);
    TRY(all_batches(o, &all, e));
    const bool counts = !o->stages || o->stages->rank == 0; /* all stages of a pipeline have its sums */
    double sums[SUMS] = {[STOP] = o->stop()};
    if (counts) {
        sums[LOSS] = all.loss, sums[TOP1] = all.top1, sums[TOP5] = all.top5;
        sums[COUNT] = all.count, sums[BAD] = all.bad;
    }
    TRY(c->ops->all_reduce(c, COMM_CONTROL, sums, SUMS, DT_F64, COMM_SUM, NULL, e));
    *ret = (struct eval_result){.loss = sums[LOSS],
                                .top1 = sums[TOP1],
                                .top5 = sums[TOP5],
                                .count = sums[COUNT],
                                .bad = sums[BAD],
                                .seconds = all.seconds,
                                .stopped = sums[STOP] > 0};
    return isfinite(ret->loss) ? 0 : divergence_of_weights(o->state, c, ret->loss / ret->count, e);
}
