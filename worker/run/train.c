/* The life of a run:
 *   - open everything, take up the newest checkpoint if asked, cut the logs back to it
 *   - step after step; at the end of an epoch a log row and an evaluation
 *   - checkpoints by steps, by time, at the end of an epoch, and when ranks agreed to stop
 *   - the last evaluation's accuracy is the last line of rank 0
 * On a device that goes on by itself results come one step late: `at` is where results are. Steps are done from one
 * place to the next (next_place()): the end of an epoch or of the run, a comparison of replicas, a checkpoint. There
 * the state is of `at`.
 * What goes wrong:
 *   - a peer dies: a collective fails; wait for the launcher's verdict, else end with the error. Where crun holds this
 *     process (hold.h) it lets go of the round, and with the next one goes on from the state that it has, or from that
 *     of the rank which is furthest (settle.h)
 *   - a checkpoint cannot be written: training goes on, the last one must succeed
 *   - replicas differ, or a loss is not believed (guard.h): all go back to the step that was compared last. A rank that
 *     the replay accuses ends, where crun will put another process in its place */
#include "worker/run/train.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/include/crun.h"
#include "common/job/env_contract.h"
#include "common/job/exitcode.h"
#include "worker/ckpt/ckpt.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/data/loader/loader.h"
#include "worker/data/sets/dataset.h"
#include "worker/model/model.h"
#include "worker/optim/schedule.h"
#include "worker/parallel/ddp.h"
#include "worker/planner/here.h"
#include "worker/run/drill.h"
#include "worker/run/eval.h"
#include "worker/run/guard.h"
#include "worker/run/journal.h"
#include "worker/run/links.h"
#include "worker/run/mem_report.h"
#include "worker/run/rate.h"
#include "worker/run/saver.h"
#include "worker/run/settle.h"
#include "worker/run/spare.h"
#include "worker/run/step.h"
#include "worker/run/trace.h"
#include "worker/session/hold.h"
#include "worker/session/outlive.h"
#include "worker/session/session.h"
#include "worker/session/session_build.h"
#include "worker/session/stop.h"
#include "worker/snapshot/output_folder.h"
#include "worker/snapshot/pretrained.h"
#include "worker/state/replicas.h"

#define VERDICT_MS 5000  /* longer than any launcher needs to notice a death */
#define ROUND_LOOK_S 0.2 /* a rank that is held looks so often whether its last save is on the disk */

struct run {
    const struct train_config *cfg;
    const struct env_contract *env; /* of this round */
    const char *command_line;
    struct session s;
    struct journal journal;
    struct trace trace;
    int64_t steps;   /* of this process, begun */
    int64_t stop_at; /* ranks agreed to stop: at the latest after so many updates; 0: no */
    struct position at;
    bool has_state; /* what is in memory is of `at` */
    struct step_result last_step;
    struct schedule schedule;
    struct step step;
    struct eval_result last; /* count 0: nothing evaluated yet */
    bool save_asked;         /* the last step's sums say that some rank wants to save */
    double epoch_bad;        /* samples of this epoch that could not be decoded, since it began or was resumed */
    int64_t started_ns;
    struct saver saver;
    struct guard guard;
    struct drill drill;
    struct links links;
    bool all_wait; /* for the network, in the last step */
};

/* Steps of the whole run, counted in batches of today's size: where the run stands, and what --max-steps leaves. */
static int64_t total_steps(const struct train_config *cfg, int64_t steps_per_epoch, const struct position *at)
{
    int64_t total = cfg->num_epochs * steps_per_epoch, here = at->epoch * steps_per_epoch + at->step;
    if (cfg->max_steps && here + cfg->max_steps - at->updates < total)
        total = here + cfg->max_steps - at->updates;
    return total > 1 ? total : 1;
}

/* Of the step to do, or (ahead = -1) of the last one done. */
static double rate(const struct run *r, int ahead)
{
    int64_t step = r->at.epoch * r->s.steps_per_epoch + r->at.step + ahead;
    return schedule_lr(&r->schedule, step > 0 ? step : 0);
}

/* No step may follow, whatever is left of the epoch (a resumed run may have been given fewer epochs or steps). */
static bool limit_at(const struct run *r, const struct position *at)
{
    return at->epoch >= r->cfg->num_epochs || (r->cfg->max_steps && at->updates >= r->cfg->max_steps);
}

static bool limit_reached(const struct run *r)
{
    return limit_at(r, &r->at);
}

static bool over_at(const struct run *r, const struct position *at)
{
    return at->step >= r->s.steps_per_epoch || limit_at(r, at);
}

static bool epoch_over(const struct run *r)
{
    return over_at(r, &r->at);
}

static bool training_over(const struct run *r)
{
    return limit_reached(r) || (epoch_over(r) && r->at.epoch + 1 >= r->cfg->num_epochs);
}

static bool want_stop(const struct run *r)
{
    double elapsed = (double)(clock_ns() - r->started_ns) / 1e9;
    return stop_wanted() || (r->cfg->max_time > 0 && elapsed >= r->cfg->max_time);
}

/* Ranks that do the whole of a step each, and know what it was made of. In a pipeline, or a tensor group, they also
 * wait for others in the middle of their work; a device that goes on by itself tells nobody when it does what. */
static bool tells_parts(const struct run *r)
{
    return r->s.layout.stages == 1 && r->s.layout.tensor == 1 && !r->s.device->ops->async;
}

static void tell_parts(struct run *r, const struct step_result *res)
{
    crun_spent(CRUN_PART_DATA, (double)res->wait_ns / 1e9);
    crun_spent(CRUN_PART_FORWARD, (double)res->forward_ns / 1e9);
    crun_spent(CRUN_PART_BACKWARD, (double)res->backward_ns / 1e9);
    crun_spent(CRUN_PART_WAIT, (double)res->others_ns / 1e9);
    crun_spent(CRUN_PART_UPDATE, (double)res->update_ns / 1e9);
    r->step.waits = links_wait(&r->links, res->others_ns, res->total_ns);
    r->all_wait = res->waited >= r->s.comm->world;
}

/* For status pages, of the step that is about to be told as finished. */
static void tell_figures(struct run *r, const struct step_result *res, double comm_wait)
{
    const int64_t here = r->at.epoch * r->s.steps_per_epoch + r->at.step;
    crun_figure(CRUN_FIGURE_TOTAL_STEPS, (double)(r->at.updates + r->s.total_steps - here));
    if (tells_parts(r))
        tell_parts(r, res);
    else
        crun_figure(CRUN_FIGURE_WAIT_S, comm_wait * (double)res->total_ns / 1e9);
    if (res->count <= 0 || res->total_ns <= 0)
        return;
    crun_figure(CRUN_FIGURE_IMAGES_PER_S, res->count * 1e9 / (double)res->total_ns);
    crun_figure(CRUN_FIGURE_LOSS, res->loss / res->count);
    crun_figure(CRUN_FIGURE_ACCURACY, res->top1 / res->count);
}

/* Everything that is kept about a step. comm_wait: the share of it that was spent waiting for collectives. */
static void account(struct run *r, const struct step_result *res, double comm_wait)
{
    r->last_step = *res;
    settled_advance(&r->at, res);
    if (res->skipped)
        journal_say(&r->journal, "step %lld: gradients overflowed and nothing was changed; the loss scale is now %g",
                    (long long)r->at.updates, r->s.state.loss_scale.scale);
    r->epoch_bad += res->bad;
    tell_figures(r, res, comm_wait);
    crun_progress((uint64_t)r->at.updates);
    crun_phase(CRUN_PHASE_STEP);
    journal_step(&r->journal, &r->s, &r->at, res, res->lr, comm_wait);
    r->save_asked = res->save > 0;
    if (res->count > 0 && !res->skipped)
        guard_loss(&r->guard, r->at.updates, res->loss / res->count);
    if (res->stop > 0 && r->stop_at == 0)
        r->stop_at = r->at.updates + train_lag(&r->step);
}

/* Where the next step leads. */
static struct position next_position(const struct run *r)
{
    struct position next = r->at;
    next.updates++;
    next.step++;
    return next;
}

static struct step_wishes wishes(struct run *r)
{
    const struct position next = next_position(r);
    return (struct step_wishes){.stop = want_stop(r), .save = saver_wants(&r->saver, &next, over_at(r, &next))};
}

static int one_step(struct run *r, struct err *e)
{
    struct step_result res;
    struct ddp_stats before, after;
    ddp_stats(r->s.ddp, &before);
    trace_step(&r->trace, ++r->steps);
    TRY(drill_at(&r->drill, &r->s.state, r->s.rank, r->at.updates + r->step.ahead.outstanding + 1, false, e));
    int64_t start = clock_ns(), sent = r->cfg->mem_report ? mem_report_sent(&r->s) : 0;
    TRY(train_step(&r->step, rate(r, r->step.ahead.outstanding), wishes(r), &res, e));
    if (r->cfg->mem_report)
        r->s.mem.sent = sent < 0 ? -1 : mem_report_sent(&r->s) - sent;
    trace_span(&r->trace, "step", "step", start);
    ddp_stats(r->s.ddp, &after);
    if (res.done)
        account(r, &res, (double)(after.exposed_ns - before.exposed_ns) / (double)res.total_ns);
    if (!r->cfg->mem_report || r->steps > 1)
        return 0;
    memory_mark(&r->s, MEM_STEP);
    return mem_report_tell(&r->s, &r->journal, "after the first step", r->at.updates, e);
}

/* Does the outstanding step lead to a place where something has to happen before the next one? Ranks may differ in what
 * they save, so nothing that all of them do together may hang on that: a rank that saves would meet the others in their
 * next step. */
static bool place_ahead(const struct run *r)
{
    const struct position next = next_position(r);
    const bool over = over_at(r, &next);
    return over || guard_due(&r->guard, &next, false, over) || (r->stop_at && next.updates >= r->stop_at) ||
           saver_due(&r->saver, &next, over);
}

/* Steps up to the next place where something has to happen: on a device that goes on by itself as many as lie between,
 * each enqueued before the last one's result is there; else one. Then none is outstanding, and the state is of
 * r->at. */
static int next_place(struct run *r, struct err *e)
{
    struct step_result res;
    do {
        TRY(one_step(r, e));
    } while (r->step.ahead.outstanding && !place_ahead(r));
    TRY(train_catch_up(&r->step, &res, e));
    if (res.done)
        account(r, &res, 0);
    return 0;
}

/* All ranks find the same: they have begun the same steps, or come to the same end of an epoch, whoever caught up in
 * between to save. */
static bool stop_now(const struct run *r)
{
    return r->stop_at && (r->at.updates >= r->stop_at || epoch_over(r));
}

static bool leave_evaluation(void)
{
    return stop_wanted() || hold_wanted();
}

static int evaluate_test_set(struct run *r, struct eval_result *v, struct err *e)
{
    progress_end_line(&r->journal.progress);
    crun_phase(CRUN_PHASE_EVALUATION);
    int64_t start = clock_ns();
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
                                     .watch = &watch};
    TRY(evaluate(&how, v, e));
    trace_long_span(&r->trace, "evaluation", "evaluation", start);
    if (!v->stopped && v->count == 0)
        return err_set(e, ERR_DATA, "not one image of %s could be decoded", r->cfg->test_data);
    if (!v->stopped)
        crun_figure(CRUN_FIGURE_EVAL_ACCURACY, v->top1 / v->count);
    crun_phase(CRUN_PHASE_STEP);
    return 0;
}

/* No weight need be at fault: activations of huge weights overflow. With loss scaling a run may yet find back. */
static int check_test_loss(const struct run *r, const struct eval_result *v, bool last, struct err *e)
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

static int nothing_counted(const struct run *r, struct err *e)
{
    const struct train_config *cfg = r->cfg;
    const long long epoch = (long long)r->at.epoch + 1, ignored = (long long)cfg->ignore_index;
    if (ignored >= 0 && ignored < r->s.program->classes)
        return err_set(
            e, ERR_DATA,
            "not one image of %s counted in epoch %lld: each is of class %lld (--ignore-index %lld), or could "
            "not be decoded",
            cfg->train_data, epoch, ignored, ignored);
    return err_set(e, ERR_DATA, "not one image of %s could be decoded in epoch %lld", cfg->train_data, epoch);
}

/* *ret_stop: some rank wants to stop; the epoch's end is then still to be handled. */
static int end_epoch(struct run *r, bool *ret_stop, struct err *e)
{
    const struct train_config *cfg = r->cfg;
    struct eval_result v = {0};
    bool last = training_over(r), due = last || (cfg->eval_every && (r->at.epoch + 1) % cfg->eval_every == 0);
    bool evaluated = due && r->s.test_set;
    if (r->at.step > 0 && r->at.epoch_count == 0 && !r->s.state.loss_scale.skipped)
        return nothing_counted(r, e);
    TRY(check_loss(r, e));
    if (evaluated) {
        TRY(evaluate_test_set(r, &v, e));
        if (v.stopped) { /* sums of a part: a later run evaluates again */
            *ret_stop = true;
            return 0;
        }
        TRY(check_test_loss(r, &v, last, e));
        r->last = v;
        saver_evaluated(&r->saver, &r->at, &v, epoch_over(r));
    }
    if (r->epoch_bad > 0)
        journal_say(&r->journal, "%lld training images could not be read or decoded and weighed nothing",
                    (long long)r->epoch_bad);
    r->epoch_bad = 0;
    journal_epoch(&r->journal, &r->s, &r->at, evaluated ? &v : NULL, r->at.lr >= 0 ? r->at.lr : rate(r, -1));
    return 0;
}

static void next_epoch(struct position *at)
{
    at->epoch++;
    at->step = 0;
    at->epoch_loss = at->epoch_top1 = at->epoch_count = at->epoch_seconds = 0;
}

/* --- replicas are compared, and what comes of it */

static struct settled standing(const struct run *r)
{
    return (struct settled){
        .at = r->at, .scale = r->s.state.loss_scale, .epoch_bad = r->epoch_bad, .last = r->last_step};
}

/* Between the sums of a step and its update. */
static int before_update(void *arg, struct err *e)
{
    struct run *r = arg;
    TRY(drill_at(&r->drill, &r->s.state, r->s.rank, r->at.updates + 1, true, e));
    return r->guard.verify ? verify_step(r->guard.verify, e) : 0;
}

/* The optimizer's count and the device's loss scale follow from where the run stands. */
static void follow_position(struct run *r)
{
    r->step.updates = r->at.updates - r->s.state.loss_scale.skipped - r->at.moments_from;
    r->step.ahead.guarded = false;
}

static int seek(struct run *r, struct err *e)
{
    const bool over = epoch_over(r);
    return r->s.train_loader
               ? loader_seek(r->s.train_loader, r->at.epoch + over, over ? 0 : r->at.step, r->cfg->num_epochs, e)
               : 0;
}

static int go_back(struct run *r, const struct settled *to, const char *why, struct err *e)
{
    const double seconds = r->at.seconds;
    const long long from = (long long)r->at.updates;
    r->at = to->at;
    r->at.seconds = seconds;
    r->epoch_bad = to->epoch_bad;
    r->last_step = to->last;
    r->save_asked = r->guard.spiked = false;
    r->guard.compared = r->at.updates;
    follow_position(r);
    TRY(seek(r, e));
    journal_close(&r->journal);
    TRY(journal_open(&r->journal, &r->s, &r->at, true, (int)r->env->restart_count, r->command_line, e));
    if (r->s.leads)
        log_warn("replicas", "step %lld: %s; back to step %lld, and on from there", from, why,
                 (long long)r->at.updates);
    return 0;
}

/* crun will start another process in this one's place, and the others stay. */
static bool can_be_replaced(const struct run *r)
{
    return hold_is_on() && r->env->restart_count < r->env->max_restarts;
}

/* Whoever was told of in the finding ends, once all ranks have it. */
static int tell_finding(struct run *r, const struct verify_finding *f, int64_t from, struct err *e)
{
    char text[400];
    guard_text(f, from, r->at.updates, text, sizeof text);
    if (r->s.leads)
        log_warn("replicas", "%s%s", text,
                 f->culprits == 0     ? ""
                 : can_be_replaced(r) ? "; another process takes its place"
                                      : "; it stays, as nobody would take its place");
    TRY(r->s.comm->ops->barrier(r->s.comm, COMM_CONTROL, e));
    return f->is_mine && can_be_replaced(r) ? err_set(e, ERR_FAULTY, "%s", text) : 0;
}

static const char *reason(enum verify_why why, const struct verify_finding *f)
{
    return why == VERIFY_DIVERGED                  ? "the next loss is no number"
           : why == VERIFY_SPIKE && !f->differs[0] ? "the loss is far above those before it"
                                                   : f->differs;
}

/* All ranks. 1: they went back; 0: all is well. */
static int look(struct run *r, enum verify_why why, struct err *e)
{
    struct verify_finding f;
    enum verify_outcome what;
    for (int went = 0;; went = 1, why = VERIFY_DUE) {
        struct settled at = standing(r);
        const int64_t from = r->guard.compared;
        TRY(verify_check(r->guard.verify, r->s.comm, &at, why, &what, &f, e));
        if (what == VERIFY_BACK) {
            TRY(go_back(r, &at, reason(why, &f), e));
            if (r->at.updates < verify_until(r->guard.verify))
                return 1;
            continue;
        }
        r->guard.compared = r->at.updates;
        r->guard.spiked = false;
        TRY(what == VERIFY_MENDED ? tell_finding(r, &f, from, e) : 0);
        return went;
    }
}

/* All ranks, at a place. > 0: they went back. */
static int look_where_due(struct run *r, struct err *e)
{
    if (!guard_due(&r->guard, &r->at, r->save_asked, epoch_over(r) || stop_now(r)))
        return 0;
    if (r->guard.verify)
        return look(r, r->guard.spiked ? VERIFY_SPIKE : VERIFY_DUE, e);
    r->guard.compared = r->at.updates;
    return replicas_check(&r->s.state, r->s.comm, true, e);
}

/* next_place(). 1: it came to no number, and all ranks went back. */
static int next_place_or_back(struct run *r, struct err *e)
{
    const int rc = next_place(r, e);
    if (rc != ERR_DIVERGED || !guard_doubts(&r->guard, &r->at))
        return rc;
    if (r->s.leads)
        log_warn("replicas", "step %lld: %s; believed only if a replay comes to the same", (long long)r->at.updates + 1,
                 e->text);
    return look(r, VERIFY_DIVERGED, e);
}

static int loop(struct run *r, bool *ret_stop, struct err *e)
{
    int went;
    TRY(seek(r, e));
    for (;;) {
        if (epoch_over(r)) {
            TRY(end_epoch(r, ret_stop, e));
            if (*ret_stop || training_over(r))
                return 0;
            next_epoch(&r->at);
            if (r->guard.verify)
                verify_moved(r->guard.verify, &r->at);
        }
        went = next_place_or_back(r, e);
        if (went == 0 && r->step.tells_waits && r->all_wait && (r->at.updates + 1) % LINKS_EVERY == 0)
            TRY(links_try(r->s.comm, e));
        went = went == 0 ? look_where_due(r, e) : went;
        TRY(went);
        if (went || (r->guard.verify && verify_until(r->guard.verify) >= 0))
            continue;
        int64_t start = clock_ns();
        if (guard_allows(&r->guard, &r->at) && saver_step(&r->saver, &r->at, epoch_over(r), r->save_asked))
            trace_long_span(&r->trace, "checkpoint", "checkpoint", start);
        if (stop_now(r) && !training_over(r)) {
            *ret_stop = true;
            return 0;
        }
    }
}

/* Files of Caffe2's name, <name>_<epochs>.mdl: the checkpoint itself knows better how many epochs it is of. */
static void compare_name(const struct run *r, const char *path)
{
    const char *number = strrchr(path, '_');
    char suffix[8] = "";
    long long named, inside = (long long)r->at.epoch + (r->at.step >= r->s.steps_per_epoch);
    if (r->s.leads && number && sscanf(number, "_%lld%7s", &named, suffix) == 2 && strcmp(suffix, ".mdl") == 0 &&
        named != inside)
        log_warn("resume", "%s says %lld epochs in its name and %lld inside: the latter counts", path, named, inside);
}

/* What this job has saved goes before what it was told to begin with. */
static int resume(struct run *r, struct err *e)
{
    const char *job = train_config_resume(r->cfg) == RESUME_AUTO ? NULL : r->s.identity.run_id;
    const struct snapshot_source own = {.path = r->cfg->checkpoint_dir, .run_id = job},
                                 named = {.path = r->cfg->resume, .exact = true};
    int resumed = r->s.resume ? snapshot_resume(&r->s.state, r->s.comm, &own, &r->s.identity, &r->at, e) : 0;
    if (resumed != 0 || train_config_resume(r->cfg) != RESUME_PATH)
        return resumed;
    resumed = snapshot_resume(&r->s.state, r->s.comm, &named, &r->s.identity, &r->at, e);
    if (resumed == 1)
        compare_name(r, r->cfg->resume);
    return resumed;
}

static bool outlives_rounds(const struct run *r)
{
    const char *why;
    return outlive_can(&r->s, &why);
}

/* What this rank has is of no use: as a process that begins. */
static int forget(struct run *r, struct err *e)
{
    r->at = (struct position){0};
    r->last_step = (struct step_result){0};
    r->step.rest.reached = STEP_REACHED_NOTHING;
    r->epoch_bad = 0;
    r->has_state = false;
    return r->s.state.version > 1 ? session_reset_state(&r->s, e) : 0;
}

static int resume_anew(struct run *r, struct err *e)
{
    TRY(forget(r, e));
    return resume(r, e);
}

/* Of ranks that have it, where this is a round after another one; else from a checkpoint. > 0: it was taken up. */
static int take_up(struct run *r, const struct env_contract *env, bool *ret_settled, struct err *e)
{
    struct settled mine = standing(r);
    const double seconds = r->at.seconds;
    const bool is_first = env->round <= 0 || !session_goes_on(env); /* without crun ranks may count differently */
    *ret_settled = false;
    if (is_first || !outlives_rounds(r))
        return resume_anew(r, e);
    const int rc = settle(&r->step, r->s.comm, r->s.leads, &r->has_state, &mine, e);
    if (rc == 0)
        return resume_anew(r, e);
    if (r->has_state) { /* also after a failure: some of the rest of a step may have been done */
        r->at = mine.at;
        r->at.seconds = fmax(seconds, r->at.seconds); /* each rank has a clock of its own, and none goes back */
        r->epoch_bad = mine.epoch_bad;
        r->last_step = mine.last;
    }
    *ret_settled = rc > 0;
    return rc;
}

/* Where ranks do different parts of a step, and outlive rounds: all of them, or none, wait for one another before any
 * of them changes something. */
static int agree_to_confirm(struct run *r, struct err *e)
{
    int64_t holds = hold_is_on();
    if (outlive_is_whole(&r->s.layout) || !outlives_rounds(r))
        return 0;
    TRY(r->s.comm->ops->all_reduce(r->s.comm, COMM_CONTROL, &holds, 1, DT_I64, COMM_MIN, NULL, e));
    r->step.confirms = holds > 0;
    return 0;
}

/* Under crun, of a layout that a dead rank takes a part of the state away from. */
static void tell_what_is_lost(struct run *r)
{
    const char *why;
    outlive_can(&r->s, &why);
    if (why && r->env->max_restarts > 0)
        journal_say(&r->journal, "recovery: when a rank dies all start again from the newest checkpoint: %s", why);
}

/* Nothing is left that may be refused. late: the timeline lies where an older run's checkpoints may have been. */
static int take_folders(struct run *r, const struct env_contract *env, bool late, struct err *e)
{
    struct comm *c = r->s.comm;
    TRY(journal_check(&r->s, e));
    if (r->s.aside)
        TRY(output_folder_set_aside(r->cfg, &r->s.lock_fd, e));
    if (late) {
        TRY(c->ops->barrier(c, COMM_CONTROL, e));
        TRY(trace_open(&r->trace, &r->s, env, true, e));
        TRY(c->ops->barrier(c, COMM_CONTROL, e));
    }
    return trace_open(&r->trace, &r->s, env, false, e); /* ranks met: the file is there */
}

/* A run on made-up images has none worth a word. */
static bool loses_model(const struct run *r)
{
    return !r->cfg->checkpoint_dir && !r->cfg->evaluate && strcmp(r->s.train_set->ops->name, "null") != 0;
}

static int begin_run(struct run *r, const struct env_contract *env, const char *command_line, struct err *e)
{
    TRY(guard_open(&r->guard, r->cfg, &r->s.state, r->s.comm->world, r->s.leads, e));
    r->step = (struct step){.state = &r->s.state,
                            .loader = r->s.train_loader,
                            .plan = r->s.train_plan,
                            .stage = r->s.train_stage,
                            .ddp = r->s.ddp,
                            .optimizer = &r->s.optimizer,
                            .trace = &r->trace,
                            .smoothing = r->cfg->label_smoothing,
                            .ignored = r->cfg->ignore_index,
                            .weights = r->s.weights,
                            .parts = r->s.parts,
                            .part = r->s.part,
                            .precision = r->s.precision,
                            .grad_batch = (double)r->cfg->batch_size,
                            .saves_together = r->s.saves_together || r->guard.asks,
                            .tells_waits = tells_parts(r) && r->s.comm->world > 2,
                            .before_update = before_update,
                            .arg = r,
                            .rest = r->step.rest,
                            .check = r->s.precision.half == DT_F16 || r->s.state.loss_scale.dynamic ||
                                     train_config_allreduce(r->cfg) != ALLREDUCE_FP32};
    const bool late = trace_in_checkpoints(r->cfg);
    r->env = env;
    r->command_line = command_line;
    TRY(late ? 0 : trace_open(&r->trace, &r->s, env, true, e));
    bool settled;
    int resumed = take_up(r, env, &settled, e);
    TRY(resumed);
    if (!resumed && r->cfg->pretrained)
        TRY(pretrained_load(&r->s.state, r->s.comm, r->cfg->pretrained, e));
    if (!resumed) {
        r->at.lr = -1;
        r->at.epoch = r->cfg->start_epoch;
        r->at.updates = r->at.moments_from = r->at.epoch * r->s.steps_per_epoch;
        r->at.rate_workers = r->s.batch.count;
        r->at.rate_batch = r->cfg->batch_size;
    }
    r->has_state = true;
    TRY(agree_to_confirm(r, e));
    /* Ranks that settled have one rank's bytes; what they began with was compared when they began. A survivor's may be
     * spoilt since they were compared last: then all begin again from a checkpoint. */
    if ((!settled || r->guard.every) && replicas_check(&r->s.state, r->s.comm, false, e) < 0)
        return settled ? err_wrap(e, "after a rank was lost")
                       : err_wrap(e, "before the first step (has every rank the same options, --seed above all?)");
    r->stop_at = 0;
    follow_position(r);
    r->guard.compared = r->at.updates;
    const struct settled now = standing(r);
    TRY(r->guard.verify ? verify_keep(r->guard.verify, &now, e) : 0);
    r->s.total_steps = total_steps(r->cfg, r->s.steps_per_epoch, &r->at);
    const double workers = rate_workers(r->cfg, r->at.rate_workers, r->at.rate_batch);
    r->schedule = rate_schedule(r->cfg, workers, r->s.steps_per_epoch, r->s.total_steps);
    TRY(schedule_check(&r->schedule, e));
    if (!r->saver.writer)
        TRY(saver_open(&r->saver, &r->s, &r->journal, &r->trace, e));
    TRY(take_folders(r, env, late, e));
    TRY(journal_open(&r->journal, &r->s, &r->at, resumed, (int)env->restart_count, command_line, e));
    if (r->journal.active && !resumed)
        session_banner(&r->s);
    if (!settled)
        tell_what_is_lost(r);
    if (resumed)
        journal_say(&r->journal, "%s step %lld (epoch %lld, step %lld of %lld)",
                    settled ? "goes on from" : "resumed from", (long long)r->at.updates, (long long)r->at.epoch + 1,
                    (long long)r->at.step, (long long)r->s.steps_per_epoch);
    if (settled && journal_lacks(&r->journal, r->at.updates)) /* rank 0 was behind, or died before it told */
        journal_step(&r->journal, &r->s, &r->at, &r->last_step, r->last_step.lr, 0);
    if (r->journal.active && loses_model(r))
        log_warn("train", "the model will not be saved: that takes --checkpoint-dir DIR");
    if (!r->started_ns)
        r->started_ns = clock_ns();
    return 0;
}

/* What there is in the end, and where. */
static void report_saved(struct run *r)
{
    const char *dir = r->cfg->checkpoint_dir;
    char text[48] = "";
    int64_t best;
    if (loses_model(r))
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
    TRY(saver_finish(&r->saver, &r->at, epoch_over(r), e));
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
    if (!stopped && r->s.leads && r->last.count > 0)
        printf(" * Acc@1 %.3f Acc@5 %.3f\n", 100 * r->last.top1 / r->last.count, 100 * r->last.top5 / r->last.count);
    fflush(stdout);
    return 0;
}

/* --evaluate */
static int only_evaluate(struct run *r, bool *ret_stop, struct err *e)
{
    TRY(evaluate_test_set(r, &r->last, e));
    TRY(check_test_loss(r, &r->last, true, e));
    *ret_stop = r->last.stopped;
    if (!*ret_stop)
        journal_say(&r->journal, "Test: loss %.4f Acc@1 %.3f Acc@5 %.3f (%lld images)", r->last.loss / r->last.count,
                    100 * r->last.top1 / r->last.count, 100 * r->last.top5 / r->last.count, (long long)r->last.count);
    return 0;
}

static int run_round(struct run *r, const struct env_contract *env, const char *command_line, int *ret_exit,
                     struct err *e)
{
    bool stopped = false;
    TRY(session_open_round(&r->s, env, e));
    TRY(begin_run(r, env, command_line, e));
    TRY((r->cfg->evaluate ? only_evaluate : loop)(r, &stopped, e));
    return finish_run(r, stopped, ret_exit, e);
}

/* --- from round to round */

/* Somebody else's fault, as far as this rank can see. */
static bool is_others(int rc)
{
    return rc == -ECONNRESET || rc == -ETIMEDOUT || rc == -EPIPE || rc == -ECANCELED || rc == -EIO ||
           rc == -ECONNREFUSED;
}

/* The folder of checkpoints, for whoever writes in the next round. */
static void release_folder(struct run *r, bool failed)
{
    saver_close(&r->saver, failed);
    if (r->s.lock_fd >= 0)
        close(r->s.lock_fd);
    r->s.lock_fd = -1;
}

/* A save that is being written is not given up: while the folder is locked nobody else writes there. */
static int await_round(struct run *r, struct crun_info *ret, struct err *e)
{
    int rc;
    while ((rc = hold_next_round(ret, ROUND_LOOK_S)) == -ETIMEDOUT)
        if (saver_is_idle(&r->saver))
            release_folder(r, false);
    if (rc == -ECANCELED)
        return err_set(e, rc, "stopped (%s) while no round was there", crun_stop_reason_name(crun_stop_reason()));
    if (rc < 0)
        return err_errno(e, -rc, "wait for the next round");
    if (ret->rank != r->s.rank)
        release_folder(r, false);
    return 0;
}

static void enter_round(const struct run *r, struct env_contract *env, const struct crun_info *i)
{
    char prefix[32];
    env->rank = i->rank;
    env->world_size = i->world_size;
    env->local_rank = i->local_rank;
    env->local_world_size = i->local_world_size;
    env->group_rank = i->group_rank;
    env->group_world_size = i->group_world_size;
    env->round = i->round;
    env->restart_count = i->restart_count;
    env->store_url = i->store;
    env->restart_reason = "failure";
    snprintf(prefix, sizeof prefix, "rank=%d", i->rank);
    log_init((enum log_level)r->cfg->log_level, prefix);
}

/* A spare: all is made that needs no rank. Then it is as one that has let go of a round. */
static int warm_up(struct run *r, struct env_contract *env, struct err *e)
{
    struct crun_info info;
    TRY(session_warm_up(&r->s, e));
    TRY(await_round(r, &info, e));
    enter_round(r, env, &info);
    return 0;
}

/* Let go of the broken round. What is open of it is closed; the state stays. */
static int next_round(struct run *r, struct env_contract *env, struct err *e)
{
    struct crun_info info;
    r->s.failed = true;
    journal_close(&r->journal);
    session_close_round(&r->s);
    TRY(await_round(r, &info, e));
    enter_round(r, env, &info);
    if (r->saver.together) /* its writer is one of the round's ranks */
        saver_close(&r->saver, false);
    return 0;
}

/* What run_rounds() returns where this process has a place in the round that what it has made is not of. */
enum { BEGIN_ANEW = 1 };

static int run_if_it_fits(struct run *r, const struct env_contract *now, const char *command_line, int *ret_exit,
                          struct err *e)
{
    return outlive_fits(&r->s, now, r->has_state) ? run_round(r, now, command_line, ret_exit, e) : BEGIN_ANEW;
}

/* All rounds of this process; *now: of the last one. */
static int run_rounds(struct run *r, struct env_contract *now, const char *command_line, int *ret_exit, struct err *e)
{
    const bool is_spare = now->rank < 0;
    TRY(outlives_rounds(r) && !hold_is_on() ? hold_begin(outlive_can_grow(&r->s), e) : 0);
    if (is_spare && !hold_is_on())
        return err_set(e, ERR_USAGE, "--warm-spares: ranks of this run do not take one another's places");
    int rc = is_spare ? warm_up(r, now, e) : 0;
    if (rc == -ECANCELED) { /* nobody needed it */
        *ret_exit = EXIT_REQUEUE;
        return 0;
    }
    if (rc == 0)
        rc = run_if_it_fits(r, now, command_line, ret_exit, e);
    while (is_others(rc) && hold_await(VERDICT_MS)) {
        rc = next_round(r, now, e);
        if (rc == -ECANCELED) { /* it is to end, and nobody is there to agree with: what was saved last counts */
            *ret_exit = EXIT_REQUEUE;
            return 0;
        }
        if (rc == 0)
            rc = run_if_it_fits(r, now, command_line, ret_exit, e);
    }
    if (is_others(rc) && crun_stop_reason() == CRUN_STOP_NONE && !hold_is_on()) /* nobody has said whose fault it is */
        stop_await_verdict(VERDICT_MS);
    return rc;
}

/* *now: who this process is; afterwards: in its last round. */
static int run_once(const struct train_config *cfg, struct env_contract *now, struct meet *meet,
                    const char *command_line, int *ret_exit, struct err *e)
{
    struct run r = {.cfg = cfg, .drill = cfg->drill};
    bool spare;
    struct env_contract host = *now;
    if (now->restart_count > 0)
        r.drill.what = DRILL_NONE;
    if (now->rank < 0) /* a warm spare, made like the last rank */
        host.rank = now->world_size - 1, host.local_rank = now->local_world_size - 1;
    TRY(spare_is(cfg, &host, &spare, e));
    if (spare)
        return spare_wait(cfg, now, ret_exit, e);
    TRY(session_open_host(&r.s, cfg, &host, e));
    r.s.meet = *meet;
    *meet = (struct meet){0};
    const int rc = run_rounds(&r, now, command_line, ret_exit, e);
    r.s.failed = rc < 0;
    saver_close(&r.saver, rc < 0);
    journal_close(&r.journal);
    guard_close(&r.guard);
    session_close(&r.s); /* its communication thread tells the trace of itself */
    trace_close(&r.trace, rc == 0);
    return rc;
}

static int run_planned(const struct train_config *cfg, const struct env_contract *env, struct meet *meet,
                       const char *command_line, int *ret_exit, struct err *e)
{
    struct env_contract now = *env;
    int rc;
    while ((rc = run_once(cfg, &now, meet, command_line, ret_exit, e)) == BEGIN_ANEW)
        ;
    return rc;
}

int train_run(const struct train_config *cfg, const struct env_contract *env, const char *command_line, int *ret_exit,
              struct err *e)
{
    struct train_config chosen;
    struct meet meet = {0};
    if (cfg->auto_parallel)
        TRY(here_choose(cfg, env, &chosen, &meet, e));
    const int rc = run_planned(cfg->auto_parallel ? &chosen : cfg, env, &meet, command_line, ret_exit, e);
    meet_close(&meet, 0); /* where the run did not take it over */
    return rc;
}
