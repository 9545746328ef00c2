/* Replicas are compared where that is due, and losses doubted. Where they differ all go back to the step that was
 * compared last, and do the same steps again (run/verify.h); a rank that the replay accuses ends, where crun will put
 * another process in its place. */
#include "worker/train/run.h"

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/env_contract.h"
#include "worker/comm/comm.h"
#include "worker/session/hold.h"
#include "worker/state/replicas.h"

int replay_before_update(void *arg, struct err *e)
{
    struct run *r = arg;
    TRY(drill_at(&r->drill, &r->s.state, r->s.rank, r->at.updates + 1, true, e));
    return r->guard.verify ? verify_step(r->guard.verify, e) : 0;
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
    run_follow_position(r);
    TRY(run_seek(r, e));
    journal_close(&r->journal);
    TRY(journal_open(&r->journal, &r->s, &r->at, epoch_evaluates(r), true, (int)r->env->restart_count, r->command_line,
                     e));
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

/* The rank that the finding names ends, once all ranks have the finding. */
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
        struct settled at = run_standing(r);
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

int replay_where_due(struct run *r, struct err *e)
{
    if (!guard_due(&r->guard, &r->at, r->save_asked, run_epoch_over(r) || run_stops_now(r)))
        return 0;
    if (r->guard.verify)
        return look(r, r->guard.spiked ? VERIFY_SPIKE : VERIFY_DUE, e);
    r->guard.compared = r->at.updates;
    return replicas_check(&r->s.state, r->s.comm, true, e);
}

int replay_next_place(struct run *r, struct err *e)
{
    const int rc = steps_to_next_place(r, e);
    if (rc != ERR_DIVERGED || !guard_doubts(&r->guard, &r->at))
        return rc;
    if (r->s.leads)
        log_warn("replicas", "step %lld: %s; believed only if a replay comes to the same", (long long)r->at.updates + 1,
                 e->text);
    return look(r, VERIFY_DIVERGED, e);
}
