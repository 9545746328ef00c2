/* A round of a run:
 *   - open everything, take up the newest checkpoint if asked, cut the logs back to it
 *   - step after step; at the end of an epoch a log row and an evaluation
 *   - checkpoints by steps, by time, at the end of an epoch, and when ranks agreed to stop
 *   - the last evaluation's accuracy is the last line of rank 0
 * A checkpoint that cannot be written: training goes on, the last one must succeed. */
#include "worker/train/run.h"

#include <math.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/include/crun.h"
#include "common/job/exitcode.h"
#include "worker/ckpt/ckpt.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/run/bad_samples.h"
#include "worker/run/mem_report.h"
#include "worker/train/spare.h"

static int keep_where_due(struct run *r, struct err *e)
{
    const struct settled now = run_standing(r);
    return keep_due(&r->keep, &r->at) && guard_allows(&r->guard, &r->at) ? keep_step(&r->keep, r->s.comm, &now, e) : 0;
}

static int loop(struct run *r, bool *ret_stop, struct err *e)
{
    int went;
    TRY(run_seek(r, e));
    for (;;) {
        if (run_epoch_over(r)) {
            TRY(epoch_end(r, ret_stop, e));
            if (*ret_stop || run_training_over(r))
                return 0;
            epoch_next(&r->at);
            if (r->guard.verify)
                verify_moved(r->guard.verify, &r->at);
        }
        went = replay_next_place(r, e);
        if (went == 0 && r->step.tells_waits && r->all_wait && (r->at.updates + 1) % LINKS_EVERY == 0)
            TRY(links_try(r->s.comm, e));
        went = went == 0 ? replay_where_due(r, e) : went;
        TRY(went);
        if (went || (r->guard.verify && verify_until(r->guard.verify) >= 0))
            continue;
        TRY(keep_where_due(r, e));
        int64_t start = clock_ns();
        r->saver.last = run_training_over(r) || run_stops_now(r);
        const bool may_save = guard_allows(&r->guard, &r->at) && !(run_epoch_over(r) && epoch_counted_nothing(r));
        if (may_save && saver_step(&r->saver, &r->at, run_epoch_over(r), r->save_asked))
            trace_long_span(&r->trace, "checkpoint", "checkpoint", start);
        if (run_stops_now(r) && !run_training_over(r)) {
            *ret_stop = true;
            return 0;
        }
    }
}

/* What there is in the end, and where. */
static void report_saved(struct run *r)
{
    const char *dir = r->cfg->checkpoint_dir;
    char text[48] = "";
    int64_t best;
    if (run_loses_model(r))
        journal_say(&r->journal, "the model was not saved: that takes --checkpoint-dir DIR");
    if (!dir || r->cfg->evaluate)
        return;
    if (r->journal.active && ckpt_best(dir, &best, NULL) == 0 && best >= 0)
        snprintf(text, sizeof text, "; the best is step-%08lld", (long long)best);
    journal_say(&r->journal, "saved: %s/step-%08lld%s", dir, (long long)r->at.updates, text);
}

static int finish_run(struct run *r, bool stopped, int *ret_exit, struct err *e)
{
    progress_end_line(&r->journal.progress);
    crun_phase(CRUN_PHASE_CLOSING);
    TRY(saver_finish(&r->saver, &r->at, run_epoch_over(r), e));
    if (r->epoch_bad > 0)
        TRY(bad_samples_share(epoch_bad_samples(r), r->s.train_loader, r->s.train_set, r->s.comm, e));
    trace_flush(&r->trace);
    TRY(r->s.comm->ops->barrier(r->s.comm, COMM_CONTROL, e)); /* nobody ends before the checkpoint is complete */
    *ret_exit = stopped ? EXIT_REQUEUE : EXIT_OK;
    TRY(spare_release(&r->s, *ret_exit, e));
    if (r->cfg->mem_report && r->steps > 1)
        TRY(mem_report_tell(&r->s, &r->journal, "at the end", r->at.updates, e));
    if (!r->cfg->evaluate)
        journal_end(&r->journal, &r->s, &r->at);
    report_saved(r);
    if (stopped)
        journal_say(&r->journal, "stopped at step %lld%s", (long long)r->at.updates,
                    r->cfg->checkpoint_dir ? "; --resume auto goes on from here" : "");
    else
        journal_complete(&r->journal);
    if (!stopped && r->s.leads && r->last.count > 0 && r->cfg->length)
        printf(" * loss %.6f perplexity %.4f\n", r->last.loss / r->last.count, exp(r->last.loss / r->last.count));
    else if (!stopped && r->s.leads && r->last.count > 0)
        printf(" * Acc@1 %.3f Acc@5 %.3f\n", 100 * r->last.top1 / r->last.count, 100 * r->last.top5 / r->last.count);
    fflush(stdout);
    return 0;
}

/* --evaluate */
static int only_evaluate(struct run *r, bool *ret_stop, struct err *e)
{
    TRY(epoch_evaluate(r, &r->last, e));
    TRY(epoch_check_test_loss(r, &r->last, true, e));
    *ret_stop = r->last.stopped;
    if (!*ret_stop)
        journal_say(&r->journal, "Test: loss %.4f Acc@1 %.3f Acc@5 %.3f (%lld %s)", r->last.loss / r->last.count,
                    100 * r->last.top1 / r->last.count, 100 * r->last.top5 / r->last.count, (long long)r->last.count,
                    r->cfg->length ? "tokens" : "images");
    return 0;
}

int run_round(struct run *r, const struct env_contract *env, const char *command_line, int *ret_exit, struct err *e)
{
    bool stopped = false;
    TRY(session_open_round(&r->s, env, r->has_state, e));
    TRY(begin_run(r, env, command_line, e));
    TRY((r->cfg->evaluate ? only_evaluate : loop)(r, &stopped, e));
    return finish_run(r, stopped, ret_exit, e);
}
