/* Runs steps until the next place where something else is due. */
#include "worker/train/run.h"

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/include/crun.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/parallel/ddp.h"
#include "worker/run/mem_report.h"

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

/* For status pages, of the step that is about to be reported as finished. */
static void tell_figures(struct run *r, const struct step_result *res, double comm_wait)
{
    const int64_t here = r->at.epoch * r->s.steps_per_epoch + r->at.step;
    crun_figure(CRUN_FIGURE_TOTAL_STEPS, (double)(r->at.updates + r->s.total_steps - here));
    if (run_tells_parts(r))
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
    return (struct step_wishes){.stop = run_wants_stop(r),
                                .save = saver_wants(&r->saver, &next, run_over_at(r, &next))};
}

/* A hold ends the wait of a rank in a collective, and the failed collective leads to the next round. A rank that is
 * alone waits in none, so it asks whether its communicator was aborted. */
static int let_go_alone(const struct run *r, struct err *e)
{
    struct comm *c = r->s.comm;
    return c->world > 1 ? 0 : c->ops->barrier(c, COMM_CONTROL, e);
}

static int one_step(struct run *r, struct err *e)
{
    struct step_result res;
    struct ddp_stats before, after;
    TRY(let_go_alone(r, e));
    ddp_stats(r->s.ddp, &before);
    trace_step(&r->trace, ++r->steps);
    TRY(drill_at(&r->drill, &r->s.state, r->s.rank, r->at.updates + r->step.ahead.outstanding + 1, false, e));
    int64_t start = clock_ns(), sent = r->cfg->mem_report ? mem_report_sent(&r->s) : 0;
    TRY(train_step(&r->step, run_rate(r, r->step.ahead.outstanding), wishes(r), &res, e));
    if (r->cfg->mem_report)
        r->s.mem.sent = sent < 0 ? -1 : mem_report_sent(&r->s) - sent;
    trace_span(&r->trace, "step", "step", start);
    ddp_stats(r->s.ddp, &after);
    if (res.done)
        account(r, &res, (double)(after.exposed_ns - before.exposed_ns) / (double)res.total_ns);
    TRY(res.done ? epoch_check_sound(r, &res, e) : 0);
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
    const bool over = run_over_at(r, &next);
    return over || keep_due(&r->keep, &next) || guard_due(&r->guard, &next, false, over) ||
           (r->stop_at && next.updates >= r->stop_at) || saver_due(&r->saver, &next, over);
}

void steps_drain(struct run *r)
{
    struct step_result res[STEP_SENT_MOST];
    struct err why;
    int n;
    const int rc = train_drain(&r->step, res, &n, &why);
    for (int i = 0; i < n; i++)
        account(r, &res[i], 0);
    if (rc == 0)
        return;
    log_warn("recovery", "%s: this rank has no state any more", why.text);
    r->has_state = false;
}

int steps_to_next_place(struct run *r, struct err *e)
{
    struct step_result res;
    do {
        TRY(one_step(r, e));
    } while (r->step.ahead.outstanding && !place_ahead(r));
    TRY(train_catch_up(&r->step, &res, e));
    if (!res.done)
        return 0;
    account(r, &res, 0);
    return epoch_check_sound(r, &res, e);
}
