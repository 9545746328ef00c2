/* The end of an epoch: evaluation, its report, and what it decides. */
#include "worker/train/run.h"

#include <math.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/include/crun.h"
#include "worker/config/config.h"
#include "worker/evaluation/eval_report.h"
#include "worker/parallel/layout.h"
#include "worker/program/program.h"
#include "worker/run/bad_samples.h"
#include "worker/session/hold.h"
#include "worker/session/session_build.h"
#include "worker/session/stop.h"

const char *epoch_bad_samples(const struct run *r)
{
    return r->journal.bad_samples[0] ? r->journal.bad_samples : NULL;
}

/* The names that this rank has go into the file, where it writes one. */
static int refuse(struct run *r, bool training, double n, struct err *e)
{
    struct loader *l = training ? r->s.train_loader : r->s.test_loader;
    struct dataset *d = training ? r->s.train_set : r->s.test_set;
    progress_end_line(&r->journal.progress);
    const int rc =
        bad_samples_refuse(l, d, training ? r->cfg->train_data : train_config_held_out(r->cfg), (int64_t)n, e);
    bad_samples_write(epoch_bad_samples(r), l, d);
    return rc;
}

/* Images of a class that does not count weigh nothing, too: with --ignore-index whole batches must be unsound. */
int epoch_check_sound(struct run *r, const struct step_result *res, struct err *e)
{
    const bool only_bad = r->cfg->ignore_index < 0 || res->bad >= (double)r->cfg->batch_size;
    r->sound = r->sound || res->count > 0;
    if (r->sound || res->skipped || res->bad <= 0 || !only_bad)
        return 0;
    r->unsound_steps++;
    r->unsound += res->bad;
    if (r->unsound_steps < BAD_SAMPLES_BATCHES || r->unsound < BAD_SAMPLES_FEW)
        return 0;
    return refuse(r, true, r->unsound, e);
}

static bool leave_evaluation(void)
{
    return stop_wanted() || hold_wanted();
}

static int tell_report(struct run *r, struct eval_report *report, struct err *e)
{
    char text[1024];
    TRY(eval_report_write(report, r->s.comm, r->s.test_set, text, sizeof text, e));
    journal_say(&r->journal, "%s", text);
    return 0;
}

int epoch_evaluate(struct run *r, struct eval_result *v, struct err *e)
{
    struct eval_report *report = NULL;
    progress_end_line(&r->journal.progress);
    crun_phase(CRUN_PHASE_EVALUATION);
    int64_t start = clock_ns();
    if (r->cfg->report && (r->cfg->length || r->s.test_stage || r->s.program->group > 1))
        return err_set(e, ERR_USAGE,
                       "--report is for models of pictures, whole on each rank: without --stages and "
                       "--data-parallel");
    if (r->cfg->report)
        TRY(eval_report_open(&report, r->s.leads ? r->cfg->report : NULL, r->s.program, session_part(&r->s, false), e));
    const struct eval_watch watch = journal_watch(&r->journal, &r->s);
    const struct eval_options how = {.state = &r->s.state,
                                     .plan = r->s.test_plan,
                                     .stage = r->s.test_stage,
                                     .loader = r->s.test_loader,
                                     .rows = session_part(&r->s, false),
                                     .steps = r->s.test_steps,
                                     .comm = r->s.comm,
                                     .stages = r->s.test_stage ? r->s.groups[LAYOUT_STAGES] : NULL,
                                     .stop = leave_evaluation,
                                     .watch = &watch,
                                     .report = report};
    int rc = evaluate(&how, v, e);
    if (rc == 0 && report && !v->stopped && v->count > 0)
        rc = tell_report(r, report, e);
    eval_report_close(report);
    TRY(rc);
    trace_long_span(&r->trace, "evaluation", "evaluation", start);
    if (!v->stopped && v->count == 0)
        return refuse(r, false, v->bad, e);
    if (v->bad > 0)
        TRY(bad_samples_share(epoch_bad_samples(r), r->s.test_loader, r->s.test_set, r->s.comm, e));
    if (!v->stopped)
        crun_figure(CRUN_FIGURE_EVAL_ACCURACY, v->top1 / v->count);
    crun_phase(CRUN_PHASE_STEP);
    return 0;
}

/* No weight need be at fault: activations of huge weights overflow. With loss scaling a run may yet find back. */
int epoch_check_test_loss(const struct run *r, const struct eval_result *v, bool last, struct err *e)
{
    if (v->stopped || isfinite(v->loss))
        return 0;
    const char *loss = isnan(v->loss) ? "nan" : "inf";
    if (last || !r->step.check)
        return err_set(e, ERR_DIVERGED,
                       "diverged: the test loss is %s, as activations overflow though every weight is finite; lower "
                       "--base-learning-rate",
                       loss);
    if (r->s.leads)
        log_warn("train", "the test loss of epoch %lld is %s", (long long)r->at.epoch + 1, loss);
    return 0;
}

/* Caffe2's guard against explosions. */
static int check_loss(const struct run *r, struct err *e)
{
    const double most = r->cfg->max_loss, loss = r->at.epoch_count > 0 ? r->at.epoch_loss / r->at.epoch_count : 0;
    if (most == 0 || loss < most)
        return 0;
    return err_set(e, ERR_DIVERGED, "training diverged: the mean loss of epoch %lld is %g, --max-loss is %g",
                   (long long)r->at.epoch + 1, loss, most);
}

bool epoch_counted_nothing(const struct run *r)
{
    return r->at.step > 0 && r->at.epoch_count == 0 && !r->s.state.loss_scale.skipped;
}

static int refuse_epoch(struct run *r, struct err *e)
{
    const struct train_config *cfg = r->cfg;
    const long long epoch = (long long)r->at.epoch + 1, ignored = (long long)cfg->ignore_index;
    if (ignored >= 0 && ignored < r->s.program->classes)
        return err_set(
            e, ERR_DATA,
            "not one image of %s counted in epoch %lld: each is of class %lld (--ignore-index %lld), or could "
            "not be decoded",
            cfg->train_data, epoch, ignored, ignored);
    return refuse(r, true, r->epoch_bad, e);
}

bool epoch_evaluates(const struct run *r)
{
    const int64_t every = r->cfg->eval_every;
    return r->s.test_set && run_epoch_over(r) && (run_training_over(r) || (every && (r->at.epoch + 1) % every == 0));
}

/* Is it better than all before? Once for each evaluation: a resumed run may begin with one that was counted. */
static void judge_progress(struct run *r, const struct eval_result *v)
{
    const double score = eval_score(r->cfg, v);
    if (r->at.judged == r->at.updates)
        return;
    const bool better = r->at.judged == 0 || score > r->at.peak + 1e-12; /* a manifest's numbers may be an ulp off */
    r->at.stale = better ? 0 : r->at.stale + 1;
    r->at.peak = better ? score : r->at.peak;
    r->at.judged = r->at.updates;
    if (run_stands_still(r) && r->at.epoch + 1 < r->cfg->num_epochs)
        journal_say(&r->journal,
                    "ends early: the last %lld evaluations were no better than the one before (--early-stop %lld)",
                    (long long)r->at.stale, (long long)r->cfg->early_stop);
}

int epoch_end(struct run *r, bool *ret_stop, struct err *e)
{
    const bool evaluates = epoch_evaluates(r);
    struct eval_result v = {0};
    if (epoch_counted_nothing(r))
        return refuse_epoch(r, e);
    TRY(check_loss(r, e));
    if (evaluates) {
        TRY(epoch_evaluate(r, &v, e));
        if (v.stopped) { /* sums of a part: a later run evaluates again */
            *ret_stop = true;
            return 0;
        }
        TRY(epoch_check_test_loss(r, &v, run_training_over(r), e));
        r->last = v;
        judge_progress(r, &v);
        r->saver.last = run_training_over(r);
        TRY(saver_evaluated(&r->saver, &r->at, &v, run_epoch_over(r), e));
    }
    if (r->epoch_bad > 0) {
        TRY(bad_samples_share(epoch_bad_samples(r), r->s.train_loader, r->s.train_set, r->s.comm, e));
        journal_say(&r->journal,
                    "%lld training images could not be read or decoded, or are of no class, and weighed nothing",
                    (long long)r->epoch_bad);
    }
    r->epoch_bad = 0;
    journal_epoch(&r->journal, &r->s, &r->at, evaluates ? &v : NULL, r->at.lr >= 0 ? r->at.lr : run_rate(r, -1));
    return 0;
}

void epoch_next(struct position *at)
{
    at->epoch++;
    at->step = 0;
    at->epoch_loss = at->epoch_top1 = at->epoch_count = at->epoch_seconds = 0;
}
