/* The life of a run: rounds of one process, mostly one.
 *
 * A peer dies: a collective fails; wait for the launcher's verdict, else end with the error. Where crun holds this
 * process (hold.h) it lets go of the round, and with the next one goes on from the state that it has, or from that of
 * the rank which is furthest (settle.h). A process that gets a place which what it has made is not of begins anew. */
#include "worker/train/train.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/include/crun.h"
#include "common/job/env_contract.h"
#include "common/job/exitcode.h"
#include "worker/config/config.h"
#include "worker/device/module/module.h"
#include "worker/manifest/run_model.h"
#include "worker/planner/here.h"
#include "worker/session/hold.h"
#include "worker/session/outlive.h"
#include "worker/session/session_build.h"
#include "worker/session/stop.h"
#include "worker/train/run.h"
#include "worker/train/spare.h"

#define VERDICT_MS 5000  /* longer than any launcher needs to notice a death */
#define ROUND_LOOK_S 0.2 /* a rank that is held looks so often whether its last save is on the disk */

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
    cuda_module_follow_log();
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
    session_abort_round(&r->s);
    steps_drain(r);
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
    TRY(run_outlives_rounds(r) && !hold_is_on() ? hold_begin(outlive_can_grow(&r->s), e) : 0);
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
    if (is_others(rc) && crun_stop_reason() == CRUN_STOP_NONE && !hold_is_on()) /* the cause is not known yet */
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
    keep_close(&r.keep);
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
    struct train_config whole = *cfg, chosen;
    struct run_model model;
    struct meet meet = {0};
    if (!session_goes_on(env)) /* a world may have become smaller since */
        TRY(drill_check(&cfg->drill, (int)env->world_size, e));
    TRY(run_model_choose(&model, &whole, e));
    if (env->rank == 0 && !cfg->evaluate)
        run_model_tell(&model);
    int rc = cfg->auto_parallel ? here_choose(&whole, env, &chosen, &meet, e) : 0;
    if (rc == 0)
        rc = run_planned(cfg->auto_parallel ? &chosen : &whole, env, &meet, command_line, ret_exit, e);
    meet_close(&meet, 0); /* where the run did not take it over */
    run_model_free(&model);
    return rc;
}
