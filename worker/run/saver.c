/* A save that becomes due while the one before is still being written:
 *   - by steps or time: the state is saved as soon as the writer is free, the newest then: no step waits for a disk;
 *   - at the end of an epoch, of the best so far, or the last: waits, so that these are of exactly that step;
 *   - the last, where the disk is full: once more without the oldest that is not the best.
 * Where ranks keep parts a save takes all ranks (session.saves_together), each of which has a writer. Those that write
 * files tell the others with a step's sums that they will want to save after it; before they copy, all agree: one may
 * find that it cannot. */
#include "worker/run/saver.h"

#include <errno.h>
#include <math.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/include/crun.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/run/eval.h"
#include "worker/run/journal.h"
#include "worker/run/trace.h"
#include "worker/session/session.h"

#define LEAVE_MS 2000 /* after a failure: for a write that is nearly done */

int saver_open(struct saver *v, struct session *s, struct journal *j, const struct trace *t, const struct position *at,
               struct err *e)
{
    const struct train_config *cfg = s->cfg;
    const bool together = s->saves_together && cfg->checkpoint_dir && !cfg->evaluate;
    const struct snapshot_writer_options o = {.dir = cfg->checkpoint_dir,
                                              .name = cfg->checkpoint_name,
                                              .keep = (int)cfg->checkpoint_keep,
                                              .sync = cfg->checkpoint_sync,
                                              .writes = s->writes,
                                              .comm = together ? s->comm : NULL,
                                              .timeout_ms = (int64_t)(cfg->comm_timeout * 1000)};
    *v = (struct saver){.s = s,
                        .journal = j,
                        .trace = t,
                        .together = together,
                        .saved_ns = clock_ns(),
                        .saved_updates = -1,
                        .on_disk = {at->best_updates, at->best_top1}};
    v->asks = together || (cfg->check_replicas > 0 && !s->device->ops->async);
    return s->writes || together ? snapshot_writer_open(&v->writer, &s->state, &s->identity, &o, e) : 0;
}

/* The others wait for this rank in a collective at most that long. */
static int64_t patience_ms(const struct saver *v)
{
    return (int64_t)(v->s->cfg->comm_timeout * 1000 / 2);
}

void saver_close(struct saver *v, bool failed)
{
    if (!v->writer)
        return;
    snapshot_writer_close(v->writer, failed ? LEAVE_MS : patience_ms(v));
    v->writer = NULL;
}

bool saver_is_idle(const struct saver *v)
{
    return !v->writer || !snapshot_writer_busy(v->writer);
}

/* What became of the last save goes into the journal. < 0: it failed, and was that of step *ret. */
static int take_result(struct saver *v, int64_t *ret, struct err *e)
{
    struct snapshot_saved saved;
    int rc = snapshot_writer_result(v->writer, &saved, e);
    *ret = rc < 0 ? saved.step : -1;
    if (rc < 0 && v->saved_updates == saved.step)
        v->saved_updates = -1;
    if (rc != 0 && !v->s->cfg->checkpoint_sync)
        trace_writer_span(v->trace, saved.step, saved.began_ns, saved.began_ns + (int64_t)(saved.write_ms * 1e6));
    if (rc == 1)
        journal_checkpoint(v->journal, &saved);
    return rc < 0 ? rc : 0;
}

/* step: whose save failed; `now` is done. */
static void tell_failure(struct saver *v, int64_t step, int64_t now, const struct err *e)
{
    progress_end_line(&v->journal->progress);
    log_error("train", "%s%s", e->text,
              !v->last      ? "; training goes on"
              : step == now ? "; no step follows: it is tried once more, and must succeed"
                            : "");
}

/* updates: of one that was not saved. */
static void forget_best(const struct saver *v, int64_t updates, struct position *at)
{
    if (at->best_updates != updates)
        return;
    at->best_updates = v->on_disk.updates;
    at->best_top1 = v->on_disk.top1;
}

/* Only what is on the disk is there to be beaten. */
static void hear_of_best(struct saver *v, struct position *at)
{
    struct snapshot_best best; /* of which the result is: v->told may be a newer one */
    const int told = snapshot_writer_best_result(v->writer, &best);
    if (told > 0)
        v->on_disk = best;
    else if (told < 0)
        forget_best(v, best.updates, at);
}

static void hear_of_result(struct saver *v, struct position *at)
{
    int64_t step;
    struct err e;
    if (take_result(v, &step, &e) < 0)
        tell_failure(v, step, at->updates, &e);
    hear_of_best(v, at);
}

/* Waits for the one before. */
static int await_writer(struct saver *v, struct position *at, struct err *e)
{
    TRY(snapshot_writer_wait(v->writer, patience_ms(v), e));
    hear_of_result(v, at);
    return 0;
}

static int copy(struct saver *v, const struct position *at, bool over, struct err *e)
{
    TRY(snapshot_writer_save(v->writer, at, over && at->step >= v->s->steps_per_epoch ? at->epoch + 1 : -1, e));
    v->saved_updates = at->updates;
    return 0;
}

/* All ranks. */
static int save_together(struct saver *v, struct position *at, bool over, struct err *e)
{
    struct err late;
    int rc = await_writer(v, at, &late);
    const bool mine = v->s->writes && v->saved_updates != at->updates;
    bool any;
    TRY(snapshot_writer_agree(v->writer, mine, rc == 0, &any, e));
    if (any) {
        const int64_t before = v->saved_updates;
        TRY(copy(v, at, over, e));
        v->saved_updates = mine ? v->saved_updates : before;
    }
    return rc < 0 ? err_set(e, rc, "%s", late.text) : 0;
}

static int save(struct saver *v, struct position *at, bool over, struct err *e)
{
    if (v->together)
        return save_together(v, at, over, e);
    if (v->saved_updates == at->updates)
        return 0;
    TRY(await_writer(v, at, e));
    return copy(v, at, over, e);
}

static bool due(const struct saver *v, const struct position *at, bool over)
{
    const struct train_config *cfg = v->s->cfg;
    if (cfg->checkpoint_seconds > 0 && (double)(clock_ns() - v->saved_ns) / 1e9 >= cfg->checkpoint_seconds)
        return true;
    if (cfg->checkpoint_every == 0 || cfg->checkpoint_name) /* its link leads to the end of an epoch */
        return over || (cfg->checkpoint_every && at->updates % cfg->checkpoint_every == 0);
    return at->updates % cfg->checkpoint_every == 0;
}

bool saver_due(const struct saver *v, const struct position *at, bool over)
{
    return v->s->writes && v->writer && ((v->pending && !snapshot_writer_busy(v->writer)) || due(v, at, over));
}

bool saver_wants(struct saver *v, const struct position *at, bool over)
{
    if (!v->asks || !v->s->writes)
        return false;
    v->pending = v->pending || due(v, at, over);
    return v->pending && (over || !snapshot_writer_busy(v->writer));
}

/* Is it time? What is due and has to wait stays pending. */
static bool is_time(struct saver *v, struct position *at, bool over, bool asked)
{
    if (v->writer) {
        hear_of_result(v, at);
        v->pending = v->s->writes && (v->pending || due(v, at, over));
    }
    return v->together ? asked : v->pending && (over || !snapshot_writer_busy(v->writer));
}

bool saver_step(struct saver *v, struct position *at, bool over, bool asked)
{
    struct err e;
    if (!is_time(v, at, over, asked))
        return false;
    crun_phase(CRUN_PHASE_CHECKPOINT);
    v->pending = false;
    v->saved_ns = clock_ns();
    if (save(v, at, over, &e) < 0)
        tell_failure(v, at->updates, at->updates, &e);
    if (v->writer && v->s->cfg->checkpoint_sync)
        hear_of_result(v, at);
    crun_phase(CRUN_PHASE_STEP);
    return true;
}

/* Those that write know what could not be written. A rank cannot tell from its own options whether one writes. */
static int agree_on_best(const struct saver *v, struct position *at, struct err *e)
{
    struct comm *c = v->s->comm;
    double best[2] = {-1, -1}; /* a later one is a better one: the greatest of each are of one */
    if (v->s->writes && at->best_updates > 0)
        best[0] = at->best_top1, best[1] = (double)at->best_updates;
    TRY(c->ops->all_reduce(c, COMM_CONTROL, best, 2, DT_F64, COMM_MAX, NULL, e));
    at->best_updates = best[1] > 0 ? (int64_t)best[1] : 0;
    at->best_top1 = best[1] > 0 ? best[0] : 0;
    return 0;
}

static void mark_best(struct saver *v, struct position *at)
{
    at->best_updates = v->told.updates;
    at->best_top1 = v->told.top1;
    if (!v->s->writes)
        return;
    snapshot_writer_best(v->writer, &v->told);
    if (v->s->cfg->checkpoint_sync)
        hear_of_result(v, at);
}

static void save_best(struct saver *v, struct position *at, bool over)
{
    struct err e;
    v->told = (struct snapshot_best){at->best_updates, at->best_top1};
    if (save(v, at, over, &e) < 0) {
        tell_failure(v, at->updates, at->updates, &e);
        forget_best(v, at->updates, at);
    } else {
        mark_best(v, at);
    }
}

int saver_evaluated(struct saver *v, struct position *at, const struct eval_result *r, bool over, struct err *e)
{
    const double score = eval_score(v->s->cfg, r);
    if (v->writer)
        hear_of_result(v, at);
    TRY(agree_on_best(v, at, e));
    if (at->best_updates > 0 && score <= at->best_top1 + 1e-12) /* a manifest's numbers may be an ulp off */
        return 0;
    at->best_top1 = score;
    at->best_updates = at->updates;
    if (!v->writer)
        return 0;
    crun_phase(CRUN_PHASE_CHECKPOINT);
    save_best(v, at, over);
    crun_phase(CRUN_PHASE_STEP);
    return 0;
}

static int save_last(struct saver *v, struct position *at, bool over, struct err *e)
{
    int64_t step;
    int rc = v->together ? 0 : await_writer(v, at, e); /* it may have been this step's: then once more */
    rc = rc == 0 ? save(v, at, over, e) : rc;
    rc = rc == 0 ? snapshot_writer_wait(v->writer, patience_ms(v), e) : rc;
    rc = rc == 0 ? take_result(v, &step, e) : rc;
    if (rc == 0 && v->told.updates == at->updates && at->best_updates != at->updates) { /* lost at the first try */
        mark_best(v, at);
        rc = snapshot_writer_wait(v->writer, patience_ms(v), e);
    }
    return rc;
}

/* rc: how the last save went here. *ret: is it worth another try, for some rank has removed an older one? All ranks
 * that save together. */
static int make_room(const struct saver *v, int rc, bool *ret, struct err *e)
{
    struct comm *c = v->s->comm;
    int64_t made = 0;
    if ((rc == -ENOSPC || rc == -EDQUOT) && v->s->writes && !snapshot_writer_busy(v->writer))
        made = snapshot_writer_make_room(v->writer);
    if (v->together)
        TRY(c->ops->all_reduce(c, COMM_CONTROL, &made, 1, DT_I64, COMM_MAX, NULL, e));
    *ret = made;
    return 0;
}

int saver_finish(struct saver *v, struct position *at, bool over, struct err *e)
{
    struct err why;
    bool again = false;
    if (!v->writer)
        return 0;
    v->last = true;
    int rc = save_last(v, at, over, &why);
    const int rc2 = make_room(v, rc, &again, e);
    if (again)
        rc = save_last(v, at, over, &why);
    if (rc == 0 && rc2 < 0)
        return rc2;
    return rc < 0 ? err_set(e, rc, "the end of the run is not saved: %s", why.text) : 0;
}
