/* The life of a save: the training thread fills the image (IDLE -> FULL) and goes on; the writer's thread checks and
 * writes it (FULL -> IDLE) and leaves a result. The image belongs to the writer's thread exactly while the state is
 * FULL.
 *
 * What goes wrong:
 *   - writing fails: it is the save's result, what was there before stays (ckpt_save);
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
#include "worker/snapshot/snapshot.h"
#include "worker/snapshot/snapshot_image.h"
#include "worker/snapshot/snapshot_meta.h"
#include "worker/state/choices.h"
#include "worker/state/state.h"

struct snapshot_writer {
    struct state *state;
    const struct snapshot_identity *id;
    struct snapshot_writer_options o;
    bool threaded;
    pthread_t thread;

    struct image im; /* and meta, epochs, saved.{step, copy_ms, bytes}: of the thread while full */
    cJSON *meta;
    int64_t epochs;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool full, marking, quit, fresh; /* fresh: a result that nobody has seen */
    int64_t best;                    /* step to be marked, -1: none */
    double best_top1;
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

static int write_image(struct snapshot_writer *w, struct err *e)
{
    const struct image *im = &w->im;
    TRY(image_check_finite(im, e));
    TRY(ckpt_save(w->o.dir, w->saved.step, im->model, im->n_model, im->train, im->n_train, w->meta, w->o.keep, e));
    if (w->o.name && w->epochs >= 0) {
        TRY(ckpt_link_epoch(w->o.dir, w->o.name, w->epochs, w->saved.step, e));
        rotate(w);
    }
    return 0;
}

/* With the lock, which is released meanwhile. */
static void write_now(struct snapshot_writer *w)
{
    struct err e = {0};
    int64_t start = clock_ns();
    pthread_mutex_unlock(&w->lock);
    int rc = write_image(w, &e);
    pthread_mutex_lock(&w->lock);
    cJSON_Delete(w->meta);
    w->meta = NULL;
    w->saved.began_ns = start;
    w->saved.write_ms = (double)(clock_ns() - start) / 1e6;
    w->rc = rc;
    w->why = e;
    w->full = false;
    w->fresh = true;
    if (rc < 0 && w->best == w->saved.step)
        w->best = -1;
    pthread_cond_broadcast(&w->changed);
}

/* It may have been saved before it was evaluated: a run that goes on from it is to know what there is to beat. */
static int tell_best(const struct snapshot_writer *w, int64_t step, double top1, struct err *e)
{
    const struct position best = {.best_top1 = top1, .best_updates = step};
    cJSON *more = meta_best(&best);
    int rc = ckpt_set_best(w->o.dir, step, e);
    if (rc == 0)
        rc = ckpt_amend(w->o.dir, step, more, e);
    cJSON_Delete(more);
    return rc;
}

static void mark_best(struct snapshot_writer *w)
{
    struct err e;
    const int64_t step = w->best;
    const double top1 = w->best_top1;
    w->best = -1;
    w->marking = true;
    pthread_mutex_unlock(&w->lock);
    if (tell_best(w, step, top1, &e) < 0)
        log_warn("ckpt", "step %lld is the best so far, but %s does not say so: %s", (long long)step, w->o.dir, e.text);
    rotate(w);
    pthread_mutex_lock(&w->lock);
    w->marking = false;
    pthread_cond_broadcast(&w->changed);
}

static void *writer_thread(void *arg)
{
    struct snapshot_writer *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        if (w->full)
            write_now(w);
        else if (w->best >= 0)
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

/* The pages are taken now, not in the first save. */
static void touch_pages(struct snapshot_writer *w)
{
    struct arena arena[ARENAS];
    image_arenas(&w->im, w->state, arena);
    for (int i = 0; i < ARENAS; i++)
        if (arena[i].bytes)
            memset(arena[i].host, 0, arena[i].bytes);
}

int snapshot_writer_open(struct snapshot_writer **ret, struct state *s, const struct snapshot_identity *id,
                         const struct snapshot_writer_options *o, struct err *e)
{
    struct snapshot_writer *w = calloc(1, sizeof *w);
    if (!w)
        return err_errno(e, ENOMEM, "writer of checkpoints");
    *w = (struct snapshot_writer){.state = s, .id = id, .o = *o, .best = -1};
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    int rc = image_init(&w->im, s, e);
    if (rc == 0) {
        touch_pages(w);
        rc = o->sync ? 0 : start_thread(w, e);
    }
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
    bool busy = w->full || w->marking || w->best >= 0;
    pthread_mutex_unlock(&w->lock);
    return busy;
}

int snapshot_writer_wait(struct snapshot_writer *w, int64_t timeout_ms, struct err *e)
{
    const struct timespec deadline = clock_timespec(clock_deadline(timeout_ms));
    int rc = 0;
    pthread_mutex_lock(&w->lock);
    while ((w->full || w->marking || w->best >= 0) && rc == 0)
        rc = -pthread_cond_timedwait(&w->changed, &w->lock, &deadline);
    if (rc < 0)
        rc = err_set(e, ERR_OUTPUT, "the checkpoint of step %lld is still being written after %lld s",
                     (long long)w->saved.step, (long long)timeout_ms / 1000);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

static int64_t image_bytes(const struct snapshot_writer *w)
{
    struct arena arena[ARENAS];
    int64_t sum = 0;
    image_arenas(&w->im, w->state, arena);
    for (int i = 0; i < ARENAS; i++)
        sum += (int64_t)arena[i].bytes;
    return sum;
}

int snapshot_give(const struct state *s, struct comm *const groups[LAYOUT_GROUPS], struct err *e)
{
    return image_collect(NULL, s, groups, e);
}

int snapshot_writer_save(struct snapshot_writer *w, const struct position *at, int64_t epochs, struct err *e)
{
    int64_t start = clock_ns();
    assert(!w->full && !w->fresh);
    TRY(image_download(&w->im, w->state, e));
    TRY(image_collect(&w->im, w->state, w->o.groups, e));
    w->im.updates = at->updates;
    w->meta = meta_make(at, w->id);
    meta_add_scale(w->meta, &w->state->loss_scale);
    int rc = choices_add(w->state->device, w->meta, e);
    if (rc < 0) {
        cJSON_Delete(w->meta);
        w->meta = NULL;
        return rc;
    }
    w->epochs = epochs;
    pthread_mutex_lock(&w->lock);
    w->saved = (struct snapshot_saved){
        .step = at->updates, .copy_ms = (double)(clock_ns() - start) / 1e6, .bytes = image_bytes(w)};
    w->full = true;
    if (w->o.sync)
        write_now(w);
    else
        pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return 0;
}

void snapshot_writer_best(struct snapshot_writer *w, int64_t step, double top1)
{
    pthread_mutex_lock(&w->lock);
    const bool failed = !w->full && w->rc < 0 && w->saved.step == step;
    w->best = failed ? -1 : step;
    w->best_top1 = top1;
    if (w->o.sync && w->best >= 0)
        mark_best(w);
    else
        pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
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
    image_finish(&w->im);
    free(w);
}
