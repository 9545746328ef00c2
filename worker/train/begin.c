/* Before the first step of a round: the state, what is checked of it, where it stands, folders and logs. */
#include "worker/train/run.h"

#include <math.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/env_contract.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/run/rate.h"
#include "worker/session/hints.h"
#include "worker/session/hold.h"
#include "worker/session/outlive.h"
#include "worker/session/session_build.h"
#include "worker/snapshot/output_folder.h"
#include "worker/snapshot/pretrained.h"
#include "worker/state/replicas.h"

/* Steps of the whole run, counted in batches of today's size: where the run stands, and what --max-steps leaves. */
static int64_t total_steps(const struct train_config *cfg, int64_t steps_per_epoch, const struct position *at)
{
    int64_t total = cfg->num_epochs * steps_per_epoch, here = at->epoch * steps_per_epoch + at->step;
    if (cfg->max_steps && here + cfg->max_steps - at->updates < total)
        total = here + cfg->max_steps - at->updates;
    return total > 1 ? total : 1;
}

/* Where ranks do different parts of a step, and outlive rounds: all of them, or none, wait for one another before any
 * of them changes something. */
static int agree_to_confirm(struct run *r, struct err *e)
{
    int64_t holds = hold_is_on();
    if (outlive_is_whole(&r->s.layout) || !outlive_settles(&r->s))
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

/* t->rest stays: what is left of a step of the round before. */
static struct step step_of(struct run *r)
{
    return (struct step){.state = &r->s.state,
                         .loader = r->s.train_loader,
                         .plan = r->s.train_plan,
                         .stage = r->s.train_stage,
                         .ddp = r->s.ddp,
                         .optimizer = &r->s.optimizer,
                         .trace = &r->trace,
                         .seed = (uint64_t)r->cfg->seed,
                         .smoothing = r->cfg->label_smoothing,
                         .class_weights = r->s.class_weights,
                         .ignored = r->cfg->ignore_index,
                         .weights = r->s.weights,
                         .parts = r->s.parts,
                         .part = r->s.part,
                         .stride = r->s.stride,
                         .precision = r->s.precision,
                         .grad_batch = (double)r->cfg->batch_size * (double)input_row_labels(&r->s.whole->input),
                         .saves_together = r->s.saves_together || r->guard.asks,
                         .tells_waits = run_tells_parts(r) && r->s.comm->world > 2,
                         .lockstep = outlive_waits(&r->s),
                         .before_update = r->s.device->ops->async ? NULL : replay_before_update,
                         .arg = r,
                         .rest = r->step.rest,
                         .check = r->s.precision.half == DT_F16 || r->s.state.loss_scale.dynamic ||
                                  train_config_allreduce(r->cfg) != ALLREDUCE_FP32};
}

/* Nothing was taken up. */
static int begin_at_first(struct run *r, struct err *e)
{
    if (r->cfg->pretrained)
        TRY(pretrained_load(&r->s.state, r->s.comm, r->cfg->pretrained, r->cfg->pretrained_part, !r->cfg->evaluate, e));
    r->at.lr = -1;
    r->at.epoch = r->cfg->start_epoch;
    r->at.updates = r->at.moments_from = r->at.epoch * r->s.steps_per_epoch;
    if (r->cfg->start_epoch && r->cfg->max_steps && r->at.updates >= r->cfg->max_steps && !r->cfg->evaluate)
        return err_set(e, ERR_USAGE,
                       "--start-epoch %d: the run has --max-steps %lld, and that epoch begins after step %lld",
                       (int)r->cfg->start_epoch, (long long)r->cfg->max_steps, (long long)r->at.updates);
    r->at.rate_workers = r->s.batch.count;
    r->at.rate_batch = r->cfg->batch_size;
    return 0;
}

/* Ranks that settled have one rank's bytes; what they began with was compared when they began. A survivor's may be
 * spoilt since they were compared last: then all begin again from a checkpoint. */
static int check_state(struct run *r, bool settled, struct err *e)
{
    if (settled && !r->guard.every)
        return 0;
    if (replicas_check(&r->s.state, r->s.comm, false, e) >= 0)
        return 0;
    return settled ? err_wrap(e, "after a rank was lost")
                   : err_wrap(e, "before the first step (has every rank the same options, --seed above all?)");
}

/* A small batch is cut into fewer than --accumulate says. */
static int parts_at_first(const struct run *r)
{
    struct sampler order = session_order(&r->s, true);
    order.batch = (size_t)r->at.rate_batch;
    order.world = (int)r->at.rate_workers;
    order.shards = order.shards < order.world ? order.shards : order.world;
    sampler_clip(&order);
    const int parts = sampler_parts(&order);
    return parts > 0 ? parts : 1; /* not one position for each of today's shards */
}

/* What follows from r->at and the state. */
static int follow_state(struct run *r, struct err *e)
{
    r->stop_at = 0;
    run_follow_position(r);
    r->guard.compared = r->at.updates;
    const struct settled now = run_standing(r);
    TRY(r->guard.verify ? verify_keep(r->guard.verify, &now, e) : 0);
    r->s.total_steps = total_steps(r->cfg, r->s.steps_per_epoch, &r->at);
    const double workers = rate_workers(r->cfg, r->at.rate_workers, r->at.rate_batch);
    r->schedule = rate_schedule(r->cfg, workers, parts_at_first(r), r->s.steps_per_epoch, r->s.total_steps);
    r->s.optimizer.epoch = r->s.steps_per_epoch;
    r->s.optimizer.ema_copied = rate_copied(&r->schedule, r->s.steps_per_epoch);
    if (schedule_check(&r->schedule, e) < 0) /* options alone cannot know how long the run is */
        return err_wrap(e, "--warmup-epochs %g", r->cfg->warmup_epochs);
    return 0;
}

/* again: rounds went before this one. */
/* If the last step had another rate than today's options mean for it: a longer run is higher up its curve. */
static void tell_other_rate(struct run *r)
{
    const double was = r->at.lr, is = run_rate(r, -1), next = run_rate(r, 0);
    if (r->at.updates > 0 && was >= 0 && fabs(is - was) > 0.01 * fmax(is, was))
        journal_say(&r->journal,
                    "the rate goes from %.4g to %.4g: with today's options the last step's would have been %.4g", was,
                    next, is);
}

static void tell_beginning(struct run *r, enum taken taken, bool again)
{
    static const char *const from[] = {[TAKEN_FILES] = "resumed from step",
                                       [TAKEN_MEMORY] = "resumed from memory, step",
                                       [TAKEN_RANKS] = "goes on from step"};
    if (r->journal.active && !taken)
        session_banner(&r->s);
    if (r->journal.active && !again)
        hints_tell(&r->s, r->schedule.base_lr);
    if (r->journal.active && r->cfg->evaluate && !taken && !r->cfg->pretrained)
        log_warn("train", "random weights are evaluated: no checkpoint was taken up (--resume), and no --pretrained is "
                          "given");
    tell_what_is_lost(r);
    if (taken && r->cfg->evaluate)
        journal_say(&r->journal, "evaluates the model of step %lld", (long long)r->at.updates);
    else if (taken)
        journal_say(&r->journal, "%s %lld (epoch %lld, step %lld of %lld)", from[taken], (long long)r->at.updates,
                    (long long)r->at.epoch + 1, (long long)r->at.step, (long long)r->s.steps_per_epoch);
    if (taken == TAKEN_FILES && !r->cfg->evaluate) {
        if (run_training_over(r))
            journal_say(&r->journal,
                        "nothing is left to do: the run ends at --num-epochs %lld%s; more epochs would go on",
                        (long long)r->cfg->num_epochs, r->cfg->max_steps ? " or --max-steps" : "");
        else
            tell_other_rate(r);
    }
    if (!taken && again && r->journal.active && !r->cfg->evaluate)
        log_warn("train", "there is no checkpoint to go on from: begins again at step %lld", (long long)r->at.updates);
    /* rank 0 was behind, or died before it logged the step */
    if (taken == TAKEN_RANKS && journal_lacks(&r->journal, r->at.updates))
        journal_step(&r->journal, &r->s, &r->at, &r->last_step, r->last_step.lr, 0);
    if (r->journal.active && run_loses_model(r))
        log_warn("train", "the model will not be saved: that takes --checkpoint-dir DIR");
}

int begin_run(struct run *r, const struct env_contract *env, const char *command_line, struct err *e)
{
    const bool late = trace_in_checkpoints(r->cfg);
    enum taken taken;
    TRY(guard_open(&r->guard, r->cfg, &r->s.state, r->s.comm->world, r->s.leads, e));
    r->step = step_of(r);
    r->env = env;
    r->command_line = command_line;
    TRY(late ? 0 : trace_open(&r->trace, &r->s, env, true, e));
    TRY(keep_open(&r->keep, &r->s, env_contract_place(env), env->round, e));
    TRY(take_up(r, env, &taken, e));
    TRY(taken ? 0 : begin_at_first(r, e));
    r->has_state = true;
    if (taken != TAKEN_RANKS)
        former_begin(&r->s, env->round);
    TRY(agree_to_confirm(r, e));
    TRY(check_state(r, taken == TAKEN_RANKS, e));
    TRY(follow_state(r, e));
    if (!r->saver.writer)
        TRY(saver_open(&r->saver, &r->s, &r->journal, &r->trace, &r->at, e));
    TRY(take_folders(r, env, late, e));
    TRY(journal_open(&r->journal, &r->s, &r->at, epoch_evaluates(r), taken != TAKEN_NOTHING, (int)env->restart_count,
                     command_line, e));
    tell_beginning(r, taken, session_goes_on(env));
    keep_begin(&r->keep, &r->at);
    if (!r->started_ns)
        r->started_ns = clock_ns();
    return 0;
}
