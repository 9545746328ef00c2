/* Threads that fill a ring of batches.
 *
 * Batches are numbered; batch q lives in slot q % slots. Its life: FREE -> (begin_batch: ids, labels' places and
 * weights are laid out) FILLING -> (the last sample is in) READY -> (loader_next) TAKEN -> (loader_done) FREE. The unit
 * of work is one sample, handed out in order under the lock and decoded outside of it, so one slow picture delays
 * nobody but its batch. What a sample becomes depends on (seed, pass, id, repetition) alone.
 *
 * What goes wrong:
 *   - a sample is gone or cannot be decoded: zero pixels, weight 0, counted, told when its batch is taken; with strict
 *     it is the batch's error;
 *   - the disk fails, or memory is out: the batch's error. Of several the first in order counts, whichever thread was
 *     quicker;
 *   - seek or destroy in the middle: threads finish the sample in hand, nothing new is handed out meanwhile;
 *   - a read that never ends: loader_next() fails in time, and destroy leaves the thread behind, with the loader's
 *     memory and the data set. */
#include "worker/data/loader/loader.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/array.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/data/loader/batch_log.h"
#include "worker/data/loader/left_out.h"
#include "worker/data/loader/mixing.h"
#include "worker/data/loader/reader.h"
#include "worker/data/loader/sampler.h"
#include "worker/data/sets/dataset.h"

/* That a thread may take to end the read that it is in when the loader is closed. Other ranks wait 5 s for the
 * launcher's word about whose fault it is (train.c). */
#define LINGER_MS 2000
#define PART_MS 1000 /* of a wait */
#define PREFETCH 4   /* batches that are ready ahead where the options name no number */

/* A sample of a batch that counts with weight 0. */
struct unsound {
    size_t place;
    uint32_t id;
    int label;
    struct err why;
};

enum slot_state { SLOT_FREE, SLOT_FILLING, SLOT_READY, SLOT_TAKEN };

struct slot {
    enum slot_state state;
    int64_t epoch, step;
    size_t count, pending, bad; /* samples; of them not done yet; undecodable */
    struct unsound *unsound;    /* (bad), in any order; fewer where memory is out, and with strict none */
    size_t n_unsound, unsound_cap;
    size_t failed;    /* place of the sample that *error is about */
    struct err error; /* code 0: none */
    uint8_t *rows;
    bool locked; /* rows: the device's */
    int32_t *labels;
    float *weights;
    uint32_t *samples;       /* (share) */
    struct showing *showing; /* (share); .id BATCH_PADDING: nothing is loaded there */
    int32_t *found;          /* (share) first labels as the samples have them; -1: it cannot be used */
    struct batch_mix *mix;   /* (share); NULL: nothing is erased or mixed */
};

struct loader {
    struct dataset *data;
    struct loader_options o;
    struct batch_log *log; /* the caller's side only; NULL: none */
    size_t share, row_bytes, row_labels;
    size_t stride; /* rows of a part */
    bool mixes;    /* batches have struct batch_mix */
    int64_t steps; /* per epoch */

    pthread_mutex_t lock; /* everything below */
    pthread_cond_t work;  /* threads: something may be handed out, or stopping */
    pthread_cond_t ready; /* loader_next, seek, destroy: a batch is ready, a thread is idle, or stopping */
    bool stopping, sought;
    int busy, waiting;              /* threads with a sample in hand; callers in loader_next() */
    int64_t epoch, step, end_epoch; /* of the next batch to begin */
    uint64_t order_pass;            /* of order; UINT64_MAX: none */
    uint32_t *order;
    uint64_t begun, taken;    /* batches begun by the threads, given to the caller */
    size_t handed;            /* rows of batch begun - 1 that were handed out, or are padding */
    struct left_out left_out; /* the caller's side only */
    struct loader_stats stats;

    int n_slots;
    struct slot *slots;
    int n_threads;
    struct thread {
        pthread_t id;
        struct loader *loader;
        struct reader reader;
        bool ended; /* with the lock */
    } * threads;
};

struct job { /* one sample, done without the lock */
    struct slot *slot;
    size_t place; /* in the batch */
    struct showing at;
};

/* --- handing out */

static void set_ready(struct loader *l, struct slot *s)
{
    s->state = SLOT_READY;
    pthread_cond_broadcast(&l->ready);
}

/* In a batch that two passes share the order changes on the way. */
static struct showing showing_of(struct loader *l, struct place p)
{
    if (l->order_pass != p.pass)
        sampler_order(&l->o.sampler, p.pass, l->order);
    l->order_pass = p.pass;
    return (struct showing){.pass = p.pass, .id = l->order[p.at], .repetition = p.repetition};
}

/* A sample of a part into the slot. */
static void choose_sample(struct loader *l, struct slot *s, int part, size_t i)
{
    const size_t row = (size_t)part * l->stride + i;
    s->showing[row] = showing_of(l, sampler_place(&l->o.sampler, s->epoch, s->step, part, i));
    s->samples[row] = s->showing[row].id + s->showing[row].repetition * (uint32_t)l->data->n;
    s->count++;
    s->pending++;
}

static struct showing ask_showing(void *ctx, struct place p)
{
    return showing_of(ctx, p);
}

static void choose_partners(struct loader *l, struct slot *s, int part, size_t n)
{
    const struct mixing m = {&l->o.sampler, &l->o.mix, &l->o.input, s->epoch, s->step};
    const size_t first = (size_t)part * l->stride;
    s->pending += mixing_begin(&m, part, n, s->showing + first, ask_showing, l, s->mix + first);
}

/* Ids of the samples, in order, and where they go: part after part, each filled up with padding. */
static void choose_samples(struct loader *l, struct slot *s)
{
    const int parts = sampler_parts(&l->o.sampler);
    s->count = s->pending = 0;
    memset(s->samples, 0xff, l->share * sizeof *s->samples); /* BATCH_PADDING */
    memset(s->showing, 0xff, l->share * sizeof *s->showing);
    for (int part = 0; part < parts; part++) {
        const size_t n = sampler_count(&l->o.sampler, s->epoch, s->step, part);
        for (size_t i = 0; i < n; i++)
            choose_sample(l, s, part, i);
        if (s->mix)
            choose_partners(l, s, part, n);
    }
}

/* Rows and weights of a batch before its samples come. */
static void lay_padding(const struct loader *l, struct slot *s)
{
    memset(s->labels, 0, l->share * l->row_labels * sizeof *s->labels);
    for (size_t i = 0; i < l->share; i++) {
        const bool sample = s->samples[i] != BATCH_PADDING;
        s->weights[i] = sample ? 1.0f : 0.0f;
        if (s->showing[i].id == BATCH_PADDING)
            memset(s->rows + i * l->row_bytes, 0, l->row_bytes);
    }
}

/* Lay out the next batch in its slot: which samples, and the padding between them. */
static void begin_batch(struct loader *l, struct slot *s)
{
    s->epoch = l->epoch;
    s->step = l->step;
    s->bad = s->n_unsound = 0;
    s->error.code = 0;
    choose_samples(l, s);
    lay_padding(l, s);
    s->state = SLOT_FILLING;
    l->handed = 0;
    l->begun++;
    if (++l->step == l->steps) {
        l->step = 0;
        l->epoch++;
    }
    if (s->pending == 0)
        set_ready(l, s);
}

static struct slot *slot_of(struct loader *l, uint64_t batch)
{
    return &l->slots[batch % (uint64_t)l->n_slots];
}

/* Is a sample of batch begun - 1 still to be handed out? Passes over padding. */
static bool has_more(struct loader *l)
{
    const struct slot *s = slot_of(l, l->begun - 1);
    while (l->handed < l->share && s->showing[l->handed].id == BATCH_PADDING)
        l->handed++;
    return l->handed < l->share;
}

/* The next sample to do; false: nothing now. */
static bool hand_out(struct loader *l, struct job *j)
{
    if (!l->sought)
        return false;
    while (l->begun == 0 || !has_more(l)) {
        struct slot *next = slot_of(l, l->begun);
        if (l->epoch >= l->end_epoch || next->state != SLOT_FREE)
            return false;
        begin_batch(l, next);
    }
    struct slot *s = slot_of(l, l->begun - 1);
    const size_t row = l->handed++;
    *j = (struct job){.slot = s, .place = row, .at = s->showing[row]};
    return true;
}

static void take_in(struct loader *l, const struct job *j, int rc, int label, struct err *e)
{
    struct slot *s = j->slot;
    const bool ours = s->samples[j->place] != BATCH_PADDING; /* else its rank tells of it */
    s->found[j->place] = rc < 0 ? -1 : label;
    if (rc == ERR_DATA && ours) {
        s->weights[j->place] = 0.0f;
        s->bad++;
        l->stats.bad++;
        if (!l->o.strict && ARRAY_RESERVE(s->unsound, s->unsound_cap, s->n_unsound + 1) == 0)
            s->unsound[s->n_unsound++] = (struct unsound){.place = j->place, .id = j->at.id, .label = label, .why = *e};
    }
    if (rc < 0 && (rc != ERR_DATA || l->o.strict) && (s->error.code == 0 || j->place < s->failed)) {
        s->failed = j->place;
        s->error = *e;
        s->error.code = rc;
        if (rc == ERR_DATA)
            err_wrap(&s->error, "'%s'", l->data->ops->sample_name(l->data, j->at.id));
    }
    l->stats.images++;
    if (--s->pending > 0)
        return;
    if (s->mix)
        mixing_end(s->mix, s->found, l->share, l->o.mix.least, s->labels);
    set_ready(l, s);
}

/* false: the reader was left behind, and nothing of the loader may be touched. */
static bool do_job(struct loader *l, struct reader *r, const struct job *j)
{
    struct err e = {0};
    int32_t *labels = j->slot->labels + j->place * l->row_labels;
    uint8_t *dst = j->slot->rows + j->place * l->row_bytes;
    const struct reader_source source = {.data = l->data, .cache = l->o.cache, .input = &l->o.input};
    const int rc = reader_load(r, &source, j->at, dst, labels, &e);
    if (reader_is_left(r))
        return false;
    const int label = labels[0];
    if (rc < 0) {
        memset(dst, 0, l->row_bytes);
        memset(labels, 0, l->row_labels * sizeof *labels);
    }
    pthread_mutex_lock(&l->lock);
    take_in(l, j, rc, label, &e);
    if (--l->busy == 0 && !l->sought) /* a seek waits for it */
        pthread_cond_broadcast(&l->ready);
    pthread_mutex_unlock(&l->lock);
    return true;
}

/* The next sample; false: the loader is being closed. */
static bool await_job(struct loader *l, struct job *ret)
{
    pthread_mutex_lock(&l->lock);
    while (!l->stopping && !hand_out(l, ret))
        pthread_cond_wait(&l->work, &l->lock); /* seek, done or destroy */
    const bool more = !l->stopping;
    l->busy += more;
    pthread_mutex_unlock(&l->lock);
    return more;
}

static void *loader_thread(void *arg)
{
    struct thread *t = arg;
    struct job j;
    while (await_job(t->loader, &j) && do_job(t->loader, &t->reader, &j))
        ;
    reader_finish(&t->reader);
    if (reader_is_left(&t->reader))
        return NULL;
    pthread_mutex_lock(&t->loader->lock);
    t->ended = true;
    pthread_cond_broadcast(&t->loader->ready); /* destroy waits for it */
    pthread_mutex_unlock(&t->loader->lock);
    return NULL;
}

/* --- life */

static int check_options(struct loader_options *o, struct err *e)
{
    o->sampler.mix_group = mix_is_on(&o->mix) ? o->mix.group : 0;
    TRY(sampler_check(&o->sampler, e));
    TRY(input_check(&o->input, e));
    if (o->threads < 1 || o->threads > 4096 || o->prefetch < 0)
        return err_set(e, -EINVAL, "a loader needs 1 to 4096 threads, not %d", o->threads);
    o->strict = o->strict || o->input.tokens;
    o->timeout_ms = o->timeout_ms ? o->timeout_ms : LOADER_TIMEOUT_MS;
    return 0;
}

/* What is ready, and the one the caller holds. */
static int slots(const struct loader_options *o)
{
    return (o->prefetch ? o->prefetch : PREFETCH) + 1;
}

size_t loader_bytes(const struct loader_options *o)
{
    return (size_t)slots(o) * sampler_rows(&o->sampler) * input_bytes(&o->input);
}

/* Zeros. Where page-locked memory is short, plain memory does. */
static uint8_t *alloc_rows(const struct loader *l, bool *ret_locked)
{
    const size_t bytes = l->share * l->row_bytes;
    const struct device_async *a = l->o.device ? l->o.device->ops->async : NULL;
    void *p = NULL;
    *ret_locked = a && a->host_alloc(l->o.device, bytes, &p, NULL) == 0;
    if (!*ret_locked)
        return calloc(l->share, l->row_bytes);
    memset(p, 0, bytes);
    return p;
}

static void free_rows(const struct loader *l, const struct slot *s)
{
    if (s->locked)
        l->o.device->ops->async->host_release(l->o.device, s->rows);
    else
        free(s->rows);
}

static int alloc_slots(struct loader *l, struct err *e)
{
    size_t n = l->share;
    l->slots = calloc((size_t)l->n_slots, sizeof *l->slots);
    for (int i = 0; l->slots && i < l->n_slots; i++) {
        struct slot *s = &l->slots[i];
        s->rows = alloc_rows(l, &s->locked);
        s->labels = calloc(n * l->row_labels, sizeof *s->labels);
        s->weights = calloc(n, sizeof *s->weights);
        s->samples = calloc(n, sizeof *s->samples);
        s->showing = calloc(n, sizeof *s->showing);
        s->found = calloc(n, sizeof *s->found);
        s->mix = l->mixes ? calloc(n, sizeof *s->mix) : NULL;
        if (!s->rows || !s->labels || !s->weights || !s->samples || !s->showing || !s->found || (l->mixes && !s->mix))
            return err_set(e, -ENOMEM, "no memory for %d batches of %zu samples of %zu bytes", l->n_slots, n,
                           l->row_bytes);
    }
    l->order = calloc(l->data->n, sizeof *l->order);
    l->threads = calloc((size_t)l->o.threads, sizeof *l->threads);
    if (!l->slots || !l->order || !l->threads)
        return err_set(e, -ENOMEM, "no memory for the order of %zu samples", l->data->n);
    return left_out_init(&l->left_out, l->data->n, l->o.sampler.world, e);
}

static void init_sync(struct loader *l)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->ready, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

int loader_create(struct loader **ret, struct dataset *d, const struct loader_options *o, struct err *e)
{
    struct loader_options checked = *o;
    if (d->n < 1 || d->n > UINT32_MAX)
        return err_set(e, ERR_DATA, "a data set of %zu samples cannot be loaded", d->n);
    checked.sampler.n = d->n;
    if (d->length != o->input.tokens)
        return err_set(e, -EINVAL, "samples of %d tokens, of a set that has %d", o->input.tokens, d->length);
    TRY(check_options(&checked, e));
    struct loader *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, -ENOMEM, "no memory for a loader");
    l->data = d;
    l->o = checked;
    l->share = sampler_rows(&l->o.sampler);
    l->row_bytes = input_bytes(&o->input);
    l->row_labels = input_labels(&o->input);
    l->stride = sampler_part_rows(&l->o.sampler) + sampler_part_others(&l->o.sampler);
    l->mixes = l->o.input.training && (mix_is_on(&l->o.mix) || l->o.input.erase > 0);
    l->steps = sampler_steps(&l->o.sampler);
    l->n_slots = slots(&checked);
    l->order_pass = UINT64_MAX;
    init_sync(l);
    int rc = alloc_slots(l, e);
    if (rc == 0 && o->batch_log)
        rc = batch_log_open(&l->log, o->batch_log, o->sampler.rank, o->sampler.world, e);
    for (; rc == 0 && l->n_threads < checked.threads; l->n_threads++) {
        struct thread *t = &l->threads[l->n_threads];
        t->loader = l;
        int code = pthread_create(&t->id, NULL, loader_thread, t);
        if (code) {
            rc = err_errno(e, code, "cannot start loader thread %d", l->n_threads);
            break;
        }
    }
    if (rc < 0)
        loader_destroy(l);
    else
        *ret = l;
    return rc;
}

static void timed_wait(struct loader *l, int64_t deadline_ms)
{
    const struct timespec t = clock_timespec(deadline_ms);
    pthread_cond_timedwait(&l->ready, &l->lock, &t);
}

/* With the lock: until the thread has ended; false: it is stuck in a read. */
static bool await_end(struct loader *l, struct thread *t, int64_t deadline_ms)
{
    uint32_t id;
    while (!t->ended) {
        const int64_t now = clock_ms();
        if (now >= deadline_ms && reader_is_reading(&t->reader, &id) && reader_leave(&t->reader)) {
            log_warn("data", "'%s' is still being read: the thread is left behind",
                     l->data->ops->sample_name(l->data, id));
            return false;
        }
        timed_wait(l, now < deadline_ms ? deadline_ms : now + 100);
    }
    return true;
}

/* All threads have ended; false: some are left behind, and with them what they read from and where they stand. */
static bool join_threads(struct loader *l)
{
    const int64_t deadline = clock_ms() + (l->o.timeout_ms / 2 < LINGER_MS ? l->o.timeout_ms / 2 : LINGER_MS);
    bool all = true;
    for (int i = 0; i < l->n_threads; i++) {
        struct thread *t = &l->threads[i];
        pthread_mutex_lock(&l->lock);
        const bool ended = await_end(l, t, deadline);
        pthread_mutex_unlock(&l->lock);
        if (ended)
            pthread_join(t->id, NULL);
        else
            pthread_detach(t->id);
        all = all && ended;
    }
    l->data->left_behind = l->data->left_behind || !all;
    return all;
}

void loader_destroy(struct loader *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->stopping = true;
    pthread_cond_broadcast(&l->work);
    pthread_cond_broadcast(&l->ready);
    while (l->waiting > 0) /* they were woken just now and only leave */
        pthread_cond_wait(&l->ready, &l->lock);
    pthread_mutex_unlock(&l->lock);
    const bool all = join_threads(l);
    batch_log_close(l->log);
    if (!all)
        return;
    for (int i = 0; l->slots && i < l->n_slots; i++) {
        free_rows(l, &l->slots[i]);
        free(l->slots[i].unsound);
        free(l->slots[i].labels);
        free(l->slots[i].weights);
        free(l->slots[i].samples);
        free(l->slots[i].showing);
        free(l->slots[i].found);
        free(l->slots[i].mix);
    }
    free(l->slots);
    free(l->order);
    left_out_finish(&l->left_out);
    free(l->threads);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->ready);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* --- the caller's side */

/* In parts, of which none counts for more than it should take: a process that was stopped (Ctrl-Z) for hours has not
 * waited for hours. */
static int wait_a_part(struct loader *l, int64_t *left_ms)
{
    const int64_t begin = clock_ms(), part = *left_ms < PART_MS ? *left_ms : PART_MS;
    timed_wait(l, begin + part);
    const int64_t took = clock_ms() - begin;
    *left_ms -= took < part ? took : part;
    return *left_ms > 0 ? 0 : -ETIMEDOUT;
}

/* Of threads that read, the first is named: it has most likely waited as long. */
static int too_late(const struct loader *l, struct err *e)
{
    uint32_t id;
    for (int i = 0; i < l->n_threads; i++)
        if (reader_is_reading(&l->threads[i].reader, &id))
            return err_set(e, -ETIMEDOUT, "'%s' is still being read", l->data->ops->sample_name(l->data, id));
    return err_set(e, -ETIMEDOUT, "no file is being read");
}

int loader_seek(struct loader *l, int64_t epoch, int64_t step, int64_t end_epoch, struct err *e)
{
    if (epoch < 0 || step < 0 || step > l->steps)
        return err_set(e, -EINVAL, "step %lld of epoch %lld: an epoch has %lld steps", (long long)step,
                       (long long)epoch, (long long)l->steps);
    int64_t left_ms = l->o.timeout_ms;
    pthread_mutex_lock(&l->lock);
    l->sought = false;
    int rc = 0;
    while (l->busy > 0 && wait_a_part(l, &left_ms) == 0)
        ;
    if (l->busy > 0) {
        rc = too_late(l, e);
        err_wrap(e, "a loader thread is stuck for %lld ms", (long long)l->o.timeout_ms);
    } else {
        for (int i = 0; i < l->n_slots; i++)
            l->slots[i].state = SLOT_FREE;
        l->begun = l->taken = 0;
        l->handed = 0;
        l->epoch = step == l->steps ? epoch + 1 : epoch;
        l->step = step == l->steps ? 0 : step;
        l->end_epoch = end_epoch;
        l->sought = true;
        pthread_cond_broadcast(&l->work);
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

/* With the lock: until batch `taken` is ready. */
static int await_batch(struct loader *l, struct slot **ret, struct err *e)
{
    const int64_t begin = clock_ns();
    int64_t left_ms = l->o.timeout_ms;
    struct slot *s = slot_of(l, l->taken);
    int rc = 0;
    l->waiting++;
    while (!l->stopping && s->state != SLOT_READY && rc == 0)
        rc = wait_a_part(l, &left_ms);
    l->waiting--;
    l->stats.wait_ns += clock_ns() - begin;
    if (l->stopping) {
        pthread_cond_broadcast(&l->ready);
        return err_set(e, -ECANCELED, "the loader is being closed");
    }
    if (s->state != SLOT_READY) {
        rc = too_late(l, e);
        err_wrap(e, "no batch was ready within %lld ms", (long long)l->o.timeout_ms);
        return rc;
    }
    if (s->error.code) {
        if (e)
            *e = s->error;
        return s->error.code;
    }
    *ret = s;
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct unsound *x = a, *y = b;
    return (x->place > y->place) - (x->place < y->place);
}

/* Of a batch that was taken: batches that are made ahead may never be, and other ranks may have told first. */
static void tell_unsound(struct loader *l, struct slot *s)
{
    if (s->n_unsound > 0)
        qsort(s->unsound, s->n_unsound, sizeof *s->unsound, by_place);
    for (size_t i = 0; i < s->n_unsound; i++) {
        const struct unsound *u = &s->unsound[i];
        left_out_tell(&l->left_out, l->data, u->id, u->label, &u->why, clock_ms());
    }
}

struct left_out *loader_left_out(struct loader *l)
{
    return &l->left_out;
}

static bool at_end(const struct loader *l)
{
    return l->taken == l->begun && l->epoch >= l->end_epoch;
}

int loader_next(struct loader *l, struct loader_batch *ret, struct err *e)
{
    struct slot *s = NULL;
    int rc;
    pthread_mutex_lock(&l->lock);
    if (!l->sought)
        rc = err_set(e, -EINVAL, "loader_seek() comes first");
    else if (at_end(l))
        rc = err_set(e, -ENODATA, "the last epoch is over");
    else if (slot_of(l, l->taken)->state == SLOT_TAKEN)
        rc = err_set(e, -EBUSY, "all %d batches are borrowed; loader_done() frees one", l->n_slots);
    else
        rc = await_batch(l, &s, e);
    if (rc == 0) {
        s->state = SLOT_TAKEN;
        l->taken++;
        *ret = (struct loader_batch){
            .b = {.rows = s->rows,
                  .labels = s->labels,
                  .weights = s->weights,
                  .samples = s->samples,
                  .mix = s->mix,
                  .locked = s->locked},
            .slot = (int)(s - l->slots),
            .epoch = s->epoch,
            .step = s->step,
            .rows = l->share,
            .count = s->count,
            .bad = s->bad,
        };
    }
    pthread_mutex_unlock(&l->lock);
    if (rc == 0)
        tell_unsound(l, s);
    if (rc == 0 && l->log && (rc = batch_log_write(l->log, ret, &l->o.input, e)) < 0)
        loader_done(l, ret);
    return rc;
}

void loader_done(struct loader *l, const struct loader_batch *b)
{
    pthread_mutex_lock(&l->lock);
    assert(b->slot >= 0 && b->slot < l->n_slots);
    if (l->slots[b->slot].state == SLOT_TAKEN) { /* else a seek has taken it back */
        l->slots[b->slot].state = SLOT_FREE;
        pthread_cond_broadcast(&l->work);
    }
    pthread_mutex_unlock(&l->lock);
}

void loader_stats(const struct loader *l, struct loader_stats *ret)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&l->lock;
    pthread_mutex_lock(lock);
    *ret = l->stats;
    pthread_mutex_unlock(lock);
}
