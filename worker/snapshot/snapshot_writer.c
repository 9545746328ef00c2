/* The life of a save: the training thread fills the copy (IDLE -> FULL) and goes on; the writer's thread checks and
 * writes it, or sends it (FULL -> IDLE), and leaves a result. The copy belongs to the writer's thread exactly while the
 * state is FULL.
 *
 * What goes wrong:
 *   - writing fails: it is the save's result, what was there before stays (ckpt_save); what others send is taken and
 *     dropped;
 *   - another rank fails, or is silent for too long: the save fails on all, and the next one opens a new group;
 *   - the disk hangs: the caller's waits have deadlines, and the process may end without the thread. */
#include "worker/snapshot/snapshot_writer.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/ckpt/ckpt.h"
#include "worker/comm/comm.h"
#include "worker/snapshot/deal.h"
#include "worker/snapshot/slices.h"
#include "worker/snapshot/snapshot.h"
#include "worker/snapshot/snapshot_meta.h"
#include "worker/state/choices.h"
#include "worker/state/state.h"

struct snapshot_writer {
    struct state *state;
    const struct snapshot_identity *id;
    struct snapshot_writer_options o;
    bool threaded;
    pthread_t thread;

    struct slices slices; /* and meta, epochs, saved.{step, copy_ms, bytes}, group, deal: of the thread while full */
    struct comm *group;   /* of o.comm's ranks, for this alone; NULL: none is needed, or it has to be opened */
    struct deal *deal;
    bool *writers; /* [ranks of o.comm]: who writes this time */
    bool given;    /* the last save was another rank's */
    cJSON *meta;
    int64_t epochs;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool full, marking, quit, fresh; /* fresh: a result that nobody has seen */
    bool to_mark;                    /* best, once it is written */
    struct snapshot_best best;       /* the last that was to be */
    int best_told;                   /* snapshot_writer_best_result() */
    struct snapshot_saved saved;
    int rc;
    struct err why;
};

/* Rotation spares what something leads to, so it is due again when that changes. */
static void rotate(const struct snapshot_writer *w)
{
    struct err e;
    if (ckpt_rotate(w->o.dir, w->saved.step, w->o.keep, &e) < 0)
        log_warn("ckpt", "older checkpoints are not removed: %s", e.text);
}

static int world_of(const struct snapshot_writer *w)
{
    return w->o.comm ? w->o.comm->world : 1;
}

static int rank_of(const struct snapshot_writer *w)
{
    return w->o.comm ? w->o.comm->rank : 0;
}

static int write_files(struct snapshot_writer *w, struct err *e)
{
    const struct slices *s = &w->slices;
    TRY(ckpt_save(w->o.dir, w->saved.step, s->tensors, s->n_model, s->tensors + s->n_model, s->n - s->n_model, w->meta,
                  w->o.keep, e));
    if (w->o.name && w->epochs >= 0) {
        TRY(ckpt_link_epoch(w->o.dir, w->o.name, w->epochs, w->saved.step, e));
        rotate(w);
    }
    return 0;
}

/* All ranks of the group. */
static int deal_and_write(struct snapshot_writer *w, struct err *e)
{
    struct err end = {0};
    int rc = deal_save_begin(w->deal, w->writers, e);
    if (rc == ERR_DIVERGED && w->given) /* those that write say so */
        return 0;
    if (rc == 0 && !w->given)
        rc = write_files(w, e);
    const int rc2 = deal_save_end(w->deal, &end);
    if (rc == 0 && rc2 < 0 && w->given)
        return err_set(e, rc2, "send the checkpoint of step %lld: %s", (long long)w->saved.step, end.text);
    return rc;
}

/* With the lock, which is released meanwhile. */
static void write_now(struct snapshot_writer *w)
{
    struct err e = {0};
    int64_t start = clock_ns();
    pthread_mutex_unlock(&w->lock);
    int rc = deal_and_write(w, &e);
    pthread_mutex_lock(&w->lock);
    cJSON_Delete(w->meta);
    w->meta = NULL;
    w->saved.began_ns = start;
    w->saved.write_ms = (double)(clock_ns() - start) / 1e6;
    w->rc = rc;
    w->why = e;
    w->full = false;
    w->fresh = rc < 0 || !w->given;
    if (rc < 0 && w->to_mark && w->best.updates == w->saved.step) {
        w->to_mark = false;
        w->best_told = rc;
    }
    pthread_cond_broadcast(&w->changed);
}

/* It may have been saved before it was evaluated: a run that goes on from it is to know what there is to beat. */
static int tell_best(const struct snapshot_writer *w, const struct snapshot_best *best, struct err *e)
{
    const struct position at = {.best_top1 = best->top1, .best_updates = best->updates};
    cJSON *more = meta_best(&at);
    int rc = ckpt_amend(w->o.dir, best->updates, more, e);
    if (rc == 0)
        rc = ckpt_set_best(w->o.dir, best->updates, e);
    cJSON_Delete(more);
    return rc;
}

static void mark_best(struct snapshot_writer *w)
{
    struct err e;
    const struct snapshot_best best = w->best;
    w->to_mark = false;
    w->marking = true;
    pthread_mutex_unlock(&w->lock);
    const int rc = tell_best(w, &best, &e);
    if (rc < 0)
        log_warn("ckpt", "step %lld is the best so far, but %s does not say so: %s", (long long)best.updates, w->o.dir,
                 e.text);
    rotate(w);
    pthread_mutex_lock(&w->lock);
    w->marking = false;
    w->best_told = rc < 0 ? rc : 1;
    pthread_cond_broadcast(&w->changed);
}

static void *writer_thread(void *arg)
{
    struct snapshot_writer *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        if (w->full)
            write_now(w);
        else if (w->to_mark)
            mark_best(w);
        else if (w->quit)
            break;
        else
            pthread_cond_wait(&w->changed, &w->lock); /* a save, a best, or close */
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static int start_thread(struct snapshot_writer *w, struct err *e)
{
    int rc = pthread_create(&w->thread, NULL, writer_thread, w);
    if (rc != 0)
        return err_errno(e, rc, "start the thread that writes checkpoints");
    w->threaded = true;
    return 0;
}

/* --- the group */

static void close_group(struct snapshot_writer *w)
{
    deal_close(w->deal);
    if (w->group)
        w->group->ops->close(w->group);
    w->deal = NULL;
    w->group = NULL;
}

static int open_group(struct snapshot_writer *w, struct err *e)
{
    const int n = world_of(w);
    if (w->o.comm) {
        const struct comm_options o = {.name = "checkpoints", .timeout_ms = w->o.timeout_ms};
        int *ranks = calloc((size_t)n, sizeof *ranks);
        if (!ranks)
            return err_errno(e, ENOMEM, "writer of checkpoints");
        for (int r = 0; r < n; r++)
            ranks[r] = r;
        int rc = comm_group(&w->group, w->o.comm, &o, ranks, n, e);
        free(ranks);
        TRY(rc);
    }
    TRY(deal_open(&w->deal, w->group, &w->slices, e));
    deal_set_source(w->deal);
    return 0;
}

/* Each rank tells whether it ever writes; memory for what it will have to write or send. */
static int reserve(struct snapshot_writer *w, struct err *e)
{
    const int n = world_of(w);
    bool *wanted = calloc(w->slices.n_held + 1, sizeof *wanted);
    int rc = wanted ? 0 : err_errno(e, ENOMEM, "writer of checkpoints");
    if (rc == 0 && w->o.comm)
        rc = w->o.comm->ops->all_gather(w->o.comm, COMM_CONTROL, &w->o.writes, w->writers, sizeof *w->writers, NULL, e);
    else if (rc == 0)
        w->writers[n - 1] = w->o.writes;
    if (rc == 0)
        deal_wanted(w->deal, w->writers, wanted);
    if (rc == 0 && !w->o.sync)
        rc = slices_reserve(&w->slices, wanted, e);
    free(wanted);
    return rc;
}

static int prepare(struct snapshot_writer *w, struct err *e)
{
    TRY(slices_init(&w->slices, w->state, e));
    w->writers = calloc((size_t)world_of(w), sizeof *w->writers);
    if (!w->writers)
        return err_errno(e, ENOMEM, "writer of checkpoints");
    TRY(open_group(w, e));
    TRY(reserve(w, e));
    return w->o.sync ? 0 : start_thread(w, e);
}

int snapshot_writer_open(struct snapshot_writer **ret, struct state *s, const struct snapshot_identity *id,
                         const struct snapshot_writer_options *o, struct err *e)
{
    struct snapshot_writer *w = calloc(1, sizeof *w);
    if (!w)
        return err_errno(e, ENOMEM, "writer of checkpoints");
    *w = (struct snapshot_writer){.state = s, .id = id, .o = *o};
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    int rc = prepare(w, e);
    if (rc < 0) {
        snapshot_writer_close(w, 0);
        return rc;
    }
    *ret = w;
    return 0;
}

bool snapshot_writer_busy(struct snapshot_writer *w)
{
    pthread_mutex_lock(&w->lock);
    bool busy = w->full || w->marking || w->to_mark;
    pthread_mutex_unlock(&w->lock);
    return busy;
}

int snapshot_writer_wait(struct snapshot_writer *w, int64_t timeout_ms, struct err *e)
{
    const struct timespec deadline = clock_timespec(clock_deadline(timeout_ms));
    int rc = 0;
    pthread_mutex_lock(&w->lock);
    while ((w->full || w->marking || w->to_mark) && rc == 0)
        rc = -pthread_cond_timedwait(&w->changed, &w->lock, &deadline);
    if (rc < 0)
        rc = err_set(e, ERR_OUTPUT, "the checkpoint of step %lld is still being written after %lld s",
                     (long long)w->saved.step, (long long)timeout_ms / 1000);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

struct wish {
    uint8_t write, busy, broken;
};

int snapshot_writer_agree(struct snapshot_writer *w, bool want, bool free_, bool *ret, struct err *e)
{
    struct comm *c = w->o.comm;
    struct wish mine = {.write = want && free_, .busy = !free_, .broken = free_ && (!w->deal || deal_broken(w->deal))},
                *all = calloc((size_t)c->world, sizeof *all);
    int busy = -1, rc = all ? c->ops->all_gather(c, COMM_CONTROL, &mine, all, sizeof mine, NULL, e)
                            : err_errno(e, ENOMEM, "wishes of ranks");
    bool broken = false;
    *ret = false;
    for (int r = 0; rc == 0 && r < c->world; r++) {
        *ret = *ret || all[r].write;
        broken = broken || all[r].broken;
        busy = all[r].busy ? r : busy;
    }
    if (rc == 0 && busy >= 0) {
        rc = *ret && want
                 ? err_set(e, ERR_OUTPUT, "no checkpoint is saved: rank %d still has to do with the last one", busy)
                 : 0;
        *ret = false;
    }
    for (int r = 0; *ret && r < c->world; r++)
        w->writers[r] = all[r].write;
    free(all);
    if (!*ret || !broken)
        return rc;
    close_group(w);
    return open_group(w, e);
}

/* What a rank that writes says of the run in the manifest. */
static int describe(struct snapshot_writer *w, const struct position *at, struct err *e)
{
    w->meta = meta_make(at, w->id);
    if (!w->meta)
        return err_set(e, -ENOMEM, "no memory for the manifest of step %lld", (long long)at->updates);
    meta_add_scale(w->meta, &w->state->loss_scale);
    return choices_add(w->state->device, w->meta, e);
}

int snapshot_writer_save(struct snapshot_writer *w, const struct position *at, int64_t epochs, struct err *e)
{
    int64_t start = clock_ns();
    assert(!w->full && !w->fresh);
    w->slices.updates = at->updates;
    w->given = !w->writers[rank_of(w)];
    int rc = w->given ? 0 : describe(w, at, e);
    if (rc == 0)
        rc = slices_copy(&w->slices, e);
    if (rc < 0) {
        cJSON_Delete(w->meta);
        w->meta = NULL;
        deal_abandon(w->deal);
        return rc;
    }
    w->epochs = epochs;
    pthread_mutex_lock(&w->lock);
    w->saved = (struct snapshot_saved){
        .step = at->updates, .copy_ms = (double)(clock_ns() - start) / 1e6, .bytes = slices_bytes(&w->slices)};
    w->full = true;
    if (w->o.sync)
        write_now(w);
    else
        pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return 0;
}

void snapshot_writer_best(struct snapshot_writer *w, const struct snapshot_best *best)
{
    pthread_mutex_lock(&w->lock);
    assert(w->best.updates == best->updates || (!w->to_mark && !w->marking));
    const bool failed = !w->full && w->rc < 0 && w->saved.step == best->updates;
    w->best = *best;
    w->to_mark = !failed;
    w->best_told = failed ? w->rc : 0;
    if (w->o.sync && w->to_mark)
        mark_best(w);
    else
        pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

int snapshot_writer_best_result(struct snapshot_writer *w, struct snapshot_best *ret)
{
    pthread_mutex_lock(&w->lock);
    const int told = w->best_told;
    *ret = w->best;
    w->best_told = 0;
    pthread_mutex_unlock(&w->lock);
    return told;
}

int snapshot_writer_result(struct snapshot_writer *w, struct snapshot_saved *ret, struct err *e)
{
    pthread_mutex_lock(&w->lock);
    int rc = !w->fresh ? 0 : w->rc < 0 ? err_set(e, w->rc, "%s", w->why.text) : 1;
    if (w->fresh)
        *ret = w->saved;
    w->fresh = false;
    pthread_mutex_unlock(&w->lock);
    return rc;
}

bool snapshot_writer_make_room(struct snapshot_writer *w)
{
    struct err e;
    int64_t step;
    if (ckpt_make_room(w->o.dir, &step, &e) < 0) {
        log_warn("ckpt", "no room is made for the last checkpoint: %s", e.text);
        return false;
    }
    if (step >= 0)
        log_warn("ckpt", "step %lld, the oldest that is not the best, is removed to make room for the last checkpoint",
                 (long long)step);
    return step >= 0;
}

void snapshot_writer_close(struct snapshot_writer *w, int64_t timeout_ms)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->quit = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->threaded && snapshot_writer_wait(w, timeout_ms, NULL) < 0) {
        pthread_detach(w->thread); /* it writes on until the process ends; its memory stays */
        return;
    }
    if (w->threaded)
        pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    cJSON_Delete(w->meta);
    close_group(w);
    slices_finish(&w->slices);
    free(w->writers);
    free(w);
}
