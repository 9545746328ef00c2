/* Answers where a run is: its rate, ends of epochs, whether it is over. */
#include "worker/train/run.h"

#include <string.h>

#include "common/base/clock.h"
#include "worker/config/config.h"
#include "worker/data/loader/loader.h"
#include "worker/data/sets/dataset.h"
#include "worker/session/outlive.h"
#include "worker/session/stop.h"

double run_rate(const struct run *r, int ahead)
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

bool run_over_at(const struct run *r, const struct position *at)
{
    return at->step >= r->s.steps_per_epoch || limit_at(r, at);
}

bool run_epoch_over(const struct run *r)
{
    return run_over_at(r, &r->at);
}

bool run_stands_still(const struct run *r)
{
    return r->cfg->early_stop > 0 && r->at.stale >= r->cfg->early_stop;
}

bool run_training_over(const struct run *r)
{
    return limit_reached(r) || (run_epoch_over(r) && run_stands_still(r)) ||
           (run_epoch_over(r) && r->at.epoch + 1 >= r->cfg->num_epochs);
}

bool run_wants_stop(const struct run *r)
{
    double elapsed = (double)(clock_ns() - r->started_ns) / 1e9;
    return stop_wanted() || (r->cfg->max_time > 0 && elapsed >= r->cfg->max_time);
}

bool run_stops_now(const struct run *r)
{
    return r->stop_at && (r->at.updates >= r->stop_at || run_epoch_over(r));
}

bool run_tells_parts(const struct run *r)
{
    return r->s.layout.stages == 1 && r->s.layout.tensor == 1 && !r->s.device->ops->async;
}

bool run_outlives_rounds(const struct run *r)
{
    const char *why;
    return outlive_can(&r->s, &why);
}

bool run_loses_model(const struct run *r)
{
    return !r->cfg->checkpoint_dir && !r->cfg->evaluate && strcmp(r->s.train_set->ops->name, "null") != 0;
}

struct settled run_standing(const struct run *r)
{
    return (struct settled){
        .at = r->at, .scale = r->s.state.loss_scale, .epoch_bad = r->epoch_bad, .last = r->last_step};
}

void run_follow_position(struct run *r)
{
    r->step.moments_from = r->at.moments_from;
    r->step.updates = r->at.updates - r->s.state.loss_scale.skipped - r->at.moments_from;
    r->step.ahead.guarded = false;
}

int run_seek(struct run *r, struct err *e)
{
    const bool over = run_epoch_over(r);
    return r->s.train_loader
               ? loader_seek(r->s.train_loader, r->at.epoch + over, over ? 0 : r->at.step, r->cfg->num_epochs, e)
               : 0;
}
