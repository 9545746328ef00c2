/* Gives a rank its state: from other ranks, from memory, from a checkpoint, or anew. */
#include "worker/train/run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/env_contract.h"
#include "worker/config/config.h"
#include "worker/session/outlive.h"
#include "worker/session/session_build.h"
#include "worker/state/holdings.h"

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

static struct snapshot_source own_checkpoints(const struct run *r)
{
    const char *job = train_config_resume(r->cfg) == RESUME_AUTO ? NULL : r->s.identity.run_id;
    return (struct snapshot_source){.path = r->cfg->checkpoint_dir, .run_id = job};
}

/* This job's own checkpoints take precedence over the one that --resume names. */
static int resume(struct run *r, struct err *e)
{
    const struct snapshot_source own = own_checkpoints(r), named = {.path = r->cfg->resume, .exact = true};
    int resumed = r->s.resume ? snapshot_resume(&r->s.state, r->s.comm, &own, &r->s.identity, &r->at, e) : 0;
    if (resumed != 0 || train_config_resume(r->cfg) != RESUME_PATH)
        return resumed;
    resumed = snapshot_resume(&r->s.state, r->s.comm, &named, &r->s.identity, &r->at, e);
    if (resumed == 1)
        compare_name(r, r->cfg->resume);
    return resumed;
}

/* What this rank has is of no use: as a process that begins. */
static int forget(struct run *r, struct err *e)
{
    r->at = (struct position){0};
    r->last_step = (struct step_result){0};
    r->step.rest.reached = STEP_REACHED_NOTHING;
    r->epoch_bad = 0;
    r->has_state = false;
    former_drop_all(&r->s);
    return r->s.state.version > 1 ? session_reset_state(&r->s, e) : 0;
}

/* > 0: the state is that of ranks that have it. */
static int take_from_ranks(struct run *r, int64_t round, struct settled *mine, struct err *e)
{
    struct holdings h;
    former_list(&r->s, r->has_state, &h);
    const int rc = settle(&r->step, r->s.comm, r->s.leads, &r->has_state, mine, &h, e);
    return former_settle(&r->s, &h, round, rc, e);
}

/* > 0: the state is that of copies in memory. */
static int take_copies(struct run *r, struct settled *mine, struct err *e)
{
    const struct snapshot_source own = own_checkpoints(r);
    int64_t newest = -1;
    if (r->keep.share == 0)
        return 0;
    TRY(r->s.resume ? snapshot_newest(r->s.comm, &own, &newest, e) : 0);
    return keep_take_up(&r->keep, &r->step, r->s.comm, newest, &r->has_state, mine, e);
}

int take_up(struct run *r, const struct env_contract *env, enum taken *ret, struct err *e)
{
    struct settled mine = run_standing(r);
    const double seconds = r->at.seconds;
    const bool is_first = env->round <= 0 || !session_goes_on(env); /* without crun ranks may count differently */
    int rc = 0;
    *ret = TAKEN_RANKS;
    if (!is_first && outlive_settles(&r->s))
        rc = take_from_ranks(r, env->round, &mine, e);
    TRY(rc == 0 ? forget(r, e) : 0);
    if (rc == 0 && !is_first) {
        *ret = TAKEN_MEMORY;
        rc = take_copies(r, &mine, e);
    }
    if (rc == 0) {
        rc = resume(r, e);
        *ret = rc > 0 ? TAKEN_FILES : TAKEN_NOTHING;
        return rc < 0 ? rc : 0;
    }
    if (r->has_state) { /* also after a failure: some of the rest of a step may have been done */
        r->at = mine.at;
        r->at.seconds = fmax(seconds, r->at.seconds); /* each rank has a clock of its own, and none goes back */
        r->epoch_bad = mine.epoch_bad;
        r->last_step = mine.last;
    }
    return rc < 0 ? rc : 0;
}
