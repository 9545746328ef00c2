/* Batches are functions of (seed, epoch, step, rank, world): neither threads nor timing nor where a run began can be
 * seen in them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "tests/must.h"
#include "tests/worker/data/fixture.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/data/loader/decoded_cache.h"
#include "worker/data/loader/loader.h"
#include "worker/data/loader/sampler.h"
#include "worker/data/sets/dataset.h"

enum { N = 23, SIZE = 12, PIXELS = SIZE * SIZE * 3 };

struct fix {
    void *dir;
    struct dataset *data;
};

static void put_jpeg(const char *dir, int i)
{
    char name[32];
    struct buf b = {0};
    snprintf(name, sizeof name, "%c/%02d.jpg", "abc"[i * 3 / N], i);
    fixture_jpeg(&b, &(struct fixture){.w = 20 + i, .h = 40 - i, .kind = FIXTURE_RGB, .textured = true});
    fixture_file(dir, name, b.data, b.len);
    buf_free(&b);
}

static int set_up(void **state)
{
    struct fix *f = calloc(1, sizeof *f);
    struct err e = {0};
    assert_int_equal(scratch_make(&f->dir), 0);
    for (int i = 0; i < N; i++)
        put_jpeg(f->dir, i);
    if (dataset_open_folder(&f->data, f->dir, NULL, 0, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(f->data->n, N);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fix *f = *state;
    dataset_close(f->data);
    int rc = scratch_drop(&f->dir);
    free(f);
    return rc;
}

static struct loader_options options(void)
{
    return (struct loader_options){
        .sampler = {.world = 1, .batch = 5, .shuffle = true, .seed = 11},
        .input =
            {.size = SIZE, .channels = 3, .training = true, .augment = {0.3, 1, 3.0 / 4, 4.0 / 3, 0.5}, .seed = 11},
        .threads = 2,
        .timeout_ms = 20000,
    };
}

static struct loader *open_loader(struct dataset *d, const struct loader_options *o)
{
    struct err e = {0};
    struct loader *l = NULL;
    if (loader_create(&l, d, o, &e) != 0)
        fail_msg("%s", e.text);
    return l;
}

static void seek(struct loader *l, int64_t epoch, int64_t step, int64_t end)
{
    struct err e = {0};
    if (loader_seek(l, epoch, step, end, &e) != 0)
        fail_msg("%s", e.text);
}

/* All that comes until the end, one record a sample place: epoch, step, id, weight, label, pixels. */
static void drain(struct loader *l, size_t share, struct buf *out)
{
    struct loader_batch b;
    struct err e = {0};
    int rc;
    while ((rc = loader_next(l, &b, &e)) == 0) {
        buf_add(out, &b.epoch, sizeof b.epoch);
        buf_add(out, &b.step, sizeof b.step);
        buf_add(out, &b.count, sizeof b.count);
        buf_add(out, b.b.samples, b.count * sizeof *b.b.samples);
        buf_add(out, b.b.weights, share * sizeof *b.b.weights);
        buf_add(out, b.b.labels, share * sizeof *b.b.labels);
        buf_add(out, ((const uint8_t *)b.b.rows), share * PIXELS);
        loader_done(l, &b);
    }
    if (rc != -ENODATA)
        fail_msg("%s: %s", err_name(rc), e.text);
}

static void batches_are_the_same_bits_with_1_and_8_threads(void **state)
{
    struct fix *f = *state;
    struct buf got[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        struct loader_options o = options();
        o.threads = i ? 8 : 1;
        o.prefetch = i ? 2 : 0;
        struct loader *l = open_loader(f->data, &o);
        seek(l, 0, 0, 3);
        drain(l, 5, &got[i]);
        loader_destroy(l);
    }
    assert_int_equal(got[0].len, got[1].len);
    assert_true(got[0].len > 3 * N * PIXELS);
    assert_memory_equal(got[0].data, got[1].data, got[0].len);
    buf_free(&got[0]);
    buf_free(&got[1]);
}

static void a_run_begun_by_seek_goes_on_like_the_straight_one(void **state)
{
    struct fix *f = *state;
    struct loader_options o = options();
    struct buf straight = {0}, resumed = {0};
    struct loader *l = open_loader(f->data, &o);
    seek(l, 0, 0, 3);
    drain(l, 5, &straight);
    seek(l, 1, 3, 3);
    drain(l, 5, &resumed);
    assert_true(resumed.len > 0 && resumed.len < straight.len);
    assert_memory_equal(straight.data + straight.len - resumed.len, resumed.data, resumed.len);
    loader_destroy(l);
    buf_free(&straight);
    buf_free(&resumed);
}

/* Two ranks over a set, three epochs; with a cache that they share, or NULL. */
static void drain_ranks(struct dataset *d, struct decoded_cache *cache, struct buf *out)
{
    for (int64_t epoch = 0; epoch < 3; epoch++)
        for (int rank = 0; rank < 2; rank++) {
            struct loader_options o = options();
            o.sampler.world = 2;
            o.sampler.rank = rank;
            o.cache = cache;
            struct loader *l = open_loader(d, &o);
            seek(l, epoch, 0, epoch + 1);
            drain(l, 3, out);
            loader_destroy(l);
        }
}

struct counted { /* a data set that counts what is read */
    struct dataset base;
    struct dataset *under;
    atomic_int reads;
};

static int counted_read(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e)
{
    struct counted *c = (struct counted *)d;
    atomic_fetch_add(&c->reads, 1);
    return c->under->ops->read(c->under, i, data, label, e);
}

static const char *counted_name(struct dataset *d, size_t i)
{
    struct counted *c = (struct counted *)d;
    return c->under->ops->sample_name(c->under, i);
}

static void break_file(struct fix *f, size_t i);

/* With room for all pictures, for some, and for none. */
static void a_cache_changes_no_bit_and_saves_reads(void **state)
{
    struct fix *f = *state;
    static const struct dataset_ops ops = {.name = "counted", .read = counted_read, .sample_name = counted_name};
    static const size_t rooms[] = {1 << 20, 32768, 512};
    struct buf plain = {0};
    break_file(f, 6); /* one that cannot be decoded is read each time */
    drain_ranks(f->data, NULL, &plain);
    for (int i = 0; i < 3; i++) {
        struct counted c = {.base = *f->data, .under = f->data};
        struct decoded_cache *cache;
        struct decoded_stats kept;
        struct buf got = {0};
        c.base.ops = &ops;
        MUST(decoded_cache_create(&cache, rooms[i], N, 3, e));
        drain_ranks(&c.base, cache, &got);
        decoded_cache_stats(cache, &kept);
        assert_int_equal(plain.len, got.len);
        assert_memory_equal(plain.data, got.data, got.len);
        assert_in_range(kept.pictures, i == 1, i == 0 ? N - 1 : i == 1 ? N - 2 : 0);
        assert_int_equal(3 * N - 2 * (int)kept.pictures,
                         atomic_load(&c.reads)); /* in the first epoch, and never again */
        buf_free(&got);
        decoded_cache_close(cache);
    }
    buf_free(&plain);
}

struct watched { /* a data set that tells of every sample read */
    struct dataset base;
    struct dataset *under;
    sem_t read;
};

static int watched_read(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e)
{
    struct watched *w = (struct watched *)d;
    int rc = w->under->ops->read(w->under, i, data, label, e);
    sem_post(&w->read);
    return rc;
}

static const char *watched_name(struct dataset *d, size_t i)
{
    struct watched *w = (struct watched *)d;
    return w->under->ops->sample_name(w->under, i);
}

static void the_next_batches_are_made_while_the_caller_works_on_one(void **state)
{
    struct fix *f = *state;
    static const struct dataset_ops ops = {.name = "watched", .read = watched_read, .sample_name = watched_name};
    struct watched w = {.base = *f->data, .under = f->data};
    struct loader_options o = options();
    struct loader_batch b;
    struct timespec until;
    w.base.ops = &ops;
    sem_init(&w.read, 0, 0);
    o.prefetch = 2;
    struct loader *l = open_loader(&w.base, &o);
    seek(l, 0, 0, 1);
    assert_int_equal(loader_next(l, &b, NULL), 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    for (int i = 0; i < 2 * 5; i++) /* the batch that is held, and the one behind it */
        assert_int_equal(sem_timedwait(&w.read, &until), 0);
    loader_done(l, &b);
    loader_destroy(l);
    sem_destroy(&w.read);
}

static void a_seek_drops_what_was_prefetched(void **state)
{
    struct fix *f = *state;
    struct loader_options o = options();
    struct loader_batch b;
    struct loader *l = open_loader(f->data, &o);
    for (int64_t i = 0; i < 20; i++) {
        seek(l, i, i % 5, 30);
        assert_int_equal(loader_next(l, &b, NULL), 0);
        assert_int_equal(b.epoch, i);
        assert_int_equal(b.step, i % 5);
        loader_done(l, &b);
    }
    seek(l, 7, 5, 9); /* the end of epoch 7 */
    assert_int_equal(loader_next(l, &b, NULL), 0);
    assert_int_equal(b.epoch, 8);
    assert_int_equal(b.step, 0);
    loader_destroy(l);
}

/* Images by sample id, gathered from all ranks of a world over one epoch. */
static void gather(struct dataset *d, int world, uint8_t images[N][PIXELS], int seen[N])
{
    for (int rank = 0; rank < world; rank++) {
        struct loader_options o = options();
        o.sampler.world = world;
        o.sampler.rank = rank;
        struct loader *l = open_loader(d, &o);
        struct loader_batch b;
        int steps = 0;
        for (seek(l, 4, 0, 5); loader_next(l, &b, NULL) == 0; steps++) {
            for (size_t i = 0; i < b.count; i++) {
                seen[b.b.samples[i]]++;
                memcpy(images[b.b.samples[i]], ((const uint8_t *)b.b.rows) + i * PIXELS, PIXELS);
            }
            loader_done(l, &b);
        }
        assert_int_equal(steps, 5); /* also a rank that has nothing in the last one */
        loader_destroy(l);
    }
}

static void each_world_sees_every_sample_once_and_alike(void **state)
{
    static uint8_t first[N][PIXELS], images[N][PIXELS];
    struct fix *f = *state;
    static const int worlds[] = {1, 2, 3, 5};
    for (int w = 0; w < 4; w++) {
        int seen[N] = {0};
        gather(f->data, worlds[w], w ? images : first, seen);
        for (int i = 0; i < N; i++) {
            if (seen[i] != 1)
                fail_msg("world %d: sample %d came %d times", worlds[w], i, seen[i]);
            if (w)
                assert_memory_equal(images[i], first[i], PIXELS);
        }
    }
}

static void padding_has_weight_0_and_no_pixels(void **state)
{
    struct fix *f = *state;
    struct loader_options o = options();
    struct loader_batch b;
    o.sampler.world = 2;
    o.sampler.rank = 1;
    struct loader *l = open_loader(f->data, &o);
    seek(l, 0, 0, 1);
    for (int step = 0; step < 5; step++) {
        assert_int_equal(loader_next(l, &b, NULL), 0);
        assert_int_equal(b.count, step < 4 ? 3 : 2); /* of 5: 2 + 3; of 3: 1 + 2 */
        for (size_t i = 0; i < 3; i++)
            assert_true(b.b.weights[i] == (i < b.count ? 1.0f : 0.0f) &&
                        (b.b.samples[i] == BATCH_PADDING) == (i >= b.count));
        for (size_t i = b.count * PIXELS; i < 3 * PIXELS; i++)
            assert_int_equal(((const uint8_t *)b.b.rows)[i], 0);
        loader_done(l, &b);
    }
    assert_int_equal(loader_next(l, &b, NULL), -ENODATA);
    assert_int_equal(loader_next(l, &b, NULL), -ENODATA);
    loader_destroy(l);
}

static void evaluation_takes_the_files_in_order_through_the_central_crop(void **state)
{
    struct fix *f = *state;
    struct loader_options o = options();
    struct loader_batch b;
    o.input.training = o.sampler.shuffle = false;
    o.sampler.batch = 10;
    struct loader *l = open_loader(f->data, &o);
    seek(l, 0, 0, 1);
    for (uint32_t next = 0; loader_next(l, &b, NULL) == 0; loader_done(l, &b))
        for (size_t i = 0; i < b.count; i++, next++) {
            struct buf file = {0};
            struct image im;
            uint8_t want[PIXELS];
            int label;
            assert_int_equal(b.b.samples[i], next);
            assert_int_equal(f->data->ops->read(f->data, next, &file, &label, NULL), 0);
            assert_int_equal(image_decode(file.data, file.len, 3, &im, NULL), 0);
            assert_int_equal(fixture_eval(&im, 14, SIZE, want), 0); /* 12 * 256 / 224 = 13.7 */
            assert_memory_equal(((const uint8_t *)b.b.rows) + i * PIXELS, want, PIXELS);
            assert_int_equal(b.b.labels[i], label);
            image_free(&im);
            buf_free(&file);
        }
    loader_destroy(l);
}

/* File i of the set is cut in half. */
static void break_file(struct fix *f, size_t i)
{
    assert_int_equal(truncate(f->data->ops->sample_name(f->data, i), 400), 0);
}

static void a_bad_sample_gets_weight_0_and_is_reported_once(void **state)
{
    struct fix *f = *state;
    struct loader_options o = options();
    struct loader_stats stats;
    struct loader_batch b;
    break_file(f, 6);
    fixture_file(f->dir, "b/09.jpg", "just text", 9);
    struct loader *l = open_loader(f->data, &o);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        size_t bad = 0;
        int saved = fixture_capture_stderr();
        for (seek(l, epoch, 0, epoch + 1); loader_next(l, &b, NULL) == 0; loader_done(l, &b))
            for (size_t i = 0; i < b.count; i++) {
                bool is_bad = b.b.samples[i] == 6 || b.b.samples[i] == 9;
                bad += is_bad;
                assert_true(b.b.weights[i] == (is_bad ? 0.0f : 1.0f));
                for (size_t k = 0; is_bad && k < PIXELS; k++)
                    assert_int_equal(((const uint8_t *)b.b.rows)[i * PIXELS + k], 0);
            }
        long bytes = fixture_captured_bytes(saved);
        assert_int_equal(bad, 2);
        if (epoch == 0 ? bytes == 0 : bytes != 0)
            fail_msg("epoch %d: %ld bytes logged", (int)epoch, bytes);
    }
    loader_stats(l, &stats);
    assert_int_equal(stats.bad, 4);
    assert_int_equal(stats.images, 2 * N);
    loader_destroy(l);
}

static void next_fails(struct dataset *d, const struct loader_options *o, int code, const char *word)
{
    struct loader *l = open_loader(d, o);
    struct loader_batch b;
    struct err e = {0};
    int rc;
    seek(l, 0, 0, 1);
    while ((rc = loader_next(l, &b, &e)) == 0)
        loader_done(l, &b);
    if (rc != code || e.code != code || !strstr(e.text, word))
        fail_msg("got %s '%s', expected %s with '%s'", err_name(rc), e.text, err_name(code), word);
    assert_int_equal(loader_next(l, &b, &e), code);
    loader_destroy(l);
}

static void with_strict_a_bad_sample_fails_by_name(void **state)
{
    struct fix *f = *state;
    struct loader_options o = options();
    o.strict = true;
    o.threads = 8;
    break_file(f, 6);
    next_fails(f->data, &o, ERR_DATA, "a/06.jpg': not a whole JPEG image");
}

static void a_file_that_is_gone_is_a_bad_sample(void **state)
{
    struct fix *f = *state;
    struct loader_options o = options();
    struct loader_batch b;
    const char *loop = f->data->ops->sample_name(f->data, 6), *folder = f->data->ops->sample_name(f->data, 9);
    size_t bad = 0;
    assert_int_equal(unlink(f->data->ops->sample_name(f->data, 20)), 0);
    assert_int_equal(unlink(loop), 0);
    assert_int_equal(symlink(loop, loop), 0);
    assert_int_equal(unlink(folder), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
    struct loader *l = open_loader(f->data, &o);
    int saved = fixture_capture_stderr();
    for (seek(l, 0, 0, 1); loader_next(l, &b, NULL) == 0; loader_done(l, &b))
        for (size_t i = 0; i < b.count; i++) {
            const bool is_bad = b.b.samples[i] == 6 || b.b.samples[i] == 9 || b.b.samples[i] == 20;
            bad += is_bad;
            assert_true(b.b.weights[i] == (is_bad ? 0.0f : 1.0f));
        }
    assert_true(fixture_captured_bytes(saved) > 0);
    assert_int_equal(bad, 3);
    loader_destroy(l);
    o.strict = true;
    next_fails(f->data, &o, ERR_DATA, "cannot be read");
    assert_int_equal(rmdir(folder), 0);
}

static int read_of_a_bad_disk(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e)
{
    (void)d;
    (void)data;
    *label = 0;
    return i == 20 ? err_errno(e, EIO, "sample 20") : err_set(e, ERR_DATA, "no picture");
}

static void a_disk_that_fails_ends_it_even_without_strict(void **state)
{
    struct fix *f = *state;
    struct loader_options o = options();
    const struct dataset_ops broken = {
        .name = "broken", .read = read_of_a_bad_disk, .sample_name = f->data->ops->sample_name};
    const struct dataset_ops *real = f->data->ops;
    f->data->ops = &broken;
    next_fails(f->data, &o, -EIO, "sample 20");
    f->data->ops = real;
}

static void options_that_make_no_sense_are_refused(void **state)
{
    struct fix *f = *state;
    struct loader *l = NULL;
    struct loader_batch b;
    struct err e = {0};
    struct loader_options o = options();
    o.sampler.rank = 1;
    assert_int_equal(loader_create(&l, f->data, &o, &e), -EINVAL);
    o = options();
    o.input.augment.scale_min = 0;
    assert_int_equal(loader_create(&l, f->data, &o, &e), -EINVAL);
    o = options();
    o.input.channels = 4;
    assert_int_equal(loader_create(&l, f->data, &o, &e), -EINVAL);
    o = options();
    o.input.training = o.sampler.shuffle = false;
    o.input.scale = SIZE - 1;
    assert_int_equal(loader_create(&l, f->data, &o, &e), ERR_USAGE);
    o = options();
    l = open_loader(f->data, &o);
    assert_int_equal(loader_next(l, &b, &e), -EINVAL);
    assert_int_equal(loader_seek(l, 0, 6, 1, &e), -EINVAL);
    loader_destroy(l);
    loader_destroy(NULL);
}

static void it_can_be_closed_with_a_full_ring_and_in_the_middle(void **state)
{
    struct fix *f = *state;
    struct loader_options o = options();
    o.threads = 4;
    o.prefetch = 1;
    for (int i = 0; i < 20; i++) {
        struct loader *l = open_loader(f->data, &o);
        struct loader_batch b;
        seek(l, 0, 0, 1000);
        for (int k = 0; k < i % 3; k++) /* kept: the ring is full then */
            assert_int_equal(loader_next(l, &b, NULL), 0);
        loader_destroy(l);
    }
}

/* A source whose reads wait until they are let go. */
struct stuck {
    struct dataset base;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool reads, open;
};

static int stuck_read(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e)
{
    struct stuck *s = (struct stuck *)d;
    pthread_mutex_lock(&s->lock);
    s->reads = true;
    pthread_cond_broadcast(&s->changed);
    while (!s->open)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    *label = 0;
    fixture_jpeg(data, &(struct fixture){.w = 8, .h = 8, .kind = FIXTURE_GREY});
    return 0;
}

static const char *stuck_name(struct dataset *d, size_t i)
{
    (void)d;
    return i < 10 ? "a picture on a dead server" : "?";
}

static void a_batch_that_does_not_come_is_an_error_in_time(void **state)
{
    static const struct dataset_ops ops = {.name = "stuck", .read = stuck_read, .sample_name = stuck_name};
    struct stuck s = {.base = {.ops = &ops, .n = 10, .classes = 1}, .open = false};
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.changed, NULL);
    struct loader_options o = options();
    struct loader_batch b;
    struct err e = {0};
    o.timeout_ms = 30;
    struct loader *l = open_loader(&s.base, &o);
    seek(l, 0, 0, 1);
    pthread_mutex_lock(&s.lock);
    while (!s.reads)
        pthread_cond_wait(&s.changed, &s.lock);
    pthread_mutex_unlock(&s.lock);
    assert_int_equal(loader_next(l, &b, &e), -ETIMEDOUT);
    assert_non_null(strstr(e.text, "30 ms: 'a picture on a dead server' is still being read"));
    assert_int_equal(loader_seek(l, 0, 0, 1, &e), -ETIMEDOUT);
    assert_non_null(strstr(e.text, "is stuck for 30 ms: 'a picture on a dead server' is still being read"));
    pthread_mutex_lock(&s.lock);
    s.open = true;
    pthread_cond_broadcast(&s.changed);
    pthread_mutex_unlock(&s.lock);
    loader_destroy(l);
    pthread_cond_destroy(&s.changed);
    pthread_mutex_destroy(&s.lock);
}

/* A source that reads a byte of a pipe. */
struct piped {
    struct dataset base;
    int bytes;
};

static int piped_read(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e)
{
    char byte;
    if (read(((struct piped *)d)->bytes, &byte, 1) != 1)
        return err_set(e, -EIO, "no byte");
    *label = 0;
    fixture_jpeg(data, &(struct fixture){.w = 8, .h = 8, .kind = FIXTURE_GREY});
    return 0;
}

enum { PATIENCE_MS = 5000 }; /* a stop of any length costs one part of it, a second */

/* A process that waits for a batch, and says so before. */
static pid_t wait_in_a_child(int bytes, int says)
{
    static const struct dataset_ops ops = {.name = "piped", .read = piped_read, .sample_name = stuck_name};
    const pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct piped p = {.base = {.ops = &ops, .n = 5, .classes = 1}, .bytes = bytes};
    struct loader_options o = options();
    struct loader_batch b;
    struct err e = {0};
    struct loader *l;
    o.timeout_ms = PATIENCE_MS;
    if (loader_create(&l, &p.base, &o, &e) < 0 || loader_seek(l, 0, 0, 1, &e) < 0 || write(says, "", 1) != 1)
        _exit(2);
    _exit(loader_next(l, &b, &e) == 0 ? 0 : 1);
}

static void nap(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Ctrl-Z, a coffee, fg: the batch comes soon after, and had not been waited for in the meantime. */
static void a_process_that_is_stopped_does_not_wait(void **state)
{
    (void)state;
    int bytes[2], says[2], status;
    char byte;
    assert_int_equal(pipe(bytes), 0);
    assert_int_equal(pipe(says), 0);
    const pid_t pid = wait_in_a_child(bytes[0], says[1]);
    assert_int_equal(read(says[0], &byte, 1), 1);
    nap(50); /* it waits; if not yet, this test sees less */
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    nap(PATIENCE_MS + 500);
    assert_int_equal(kill(pid, SIGCONT), 0);
    nap(50);
    assert_int_equal(write(bytes[1], "12345", 5), 5);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    for (int i = 0; i < 2; i++) {
        close(bytes[i]);
        close(says[i]);
    }
}

static int read_for_ever(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e)
{
    (void)d, (void)i, (void)data, (void)label, (void)e;
    while (pause() < 0)
        ;
    return 0;
}

/* The reads never end; neither they nor what they read from hold up the end of the process. */
static void reads_that_never_end_are_left_behind(void **state)
{
    static struct dataset_ops for_ever; /* threads go on to use it */
    struct fix *f = *state;
    struct loader_options o = options();
    struct loader_batch b;
    struct err e = {0};
    for_ever = *f->data->ops;
    for_ever.read = read_for_ever;
    f->data->ops = &for_ever;
    o.timeout_ms = 200;
    struct loader *l = open_loader(f->data, &o);
    seek(l, 0, 0, 1);
    assert_int_equal(loader_next(l, &b, &e), -ETIMEDOUT);
    assert_non_null(strstr(e.text, ".jpg' is still being read"));
    const int saved = fixture_capture_stderr();
    loader_destroy(l);
    assert_true(fixture_captured_bytes(saved) > 0);
    const char *name = f->data->ops->sample_name(f->data, 0);
    dataset_close(f->data); /* by tear_down() again, and no time: threads are in it */
    assert_non_null(strstr(name, ".jpg"));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(batches_are_the_same_bits_with_1_and_8_threads),
        CASE(a_run_begun_by_seek_goes_on_like_the_straight_one),
        CASE(a_cache_changes_no_bit_and_saves_reads),
        CASE(the_next_batches_are_made_while_the_caller_works_on_one),
        CASE(a_seek_drops_what_was_prefetched),
        CASE(each_world_sees_every_sample_once_and_alike),
        CASE(padding_has_weight_0_and_no_pixels),
        CASE(evaluation_takes_the_files_in_order_through_the_central_crop),
        CASE(a_bad_sample_gets_weight_0_and_is_reported_once),
        CASE(with_strict_a_bad_sample_fails_by_name),
        CASE(a_file_that_is_gone_is_a_bad_sample),
        CASE(a_disk_that_fails_ends_it_even_without_strict),
        CASE(options_that_make_no_sense_are_refused),
        CASE(it_can_be_closed_with_a_full_ring_and_in_the_middle),
        cmocka_unit_test(a_process_that_is_stopped_does_not_wait), /* before any thread is left behind: it forks */
        CASE(reads_that_never_end_are_left_behind),
        cmocka_unit_test(a_batch_that_does_not_come_is_an_error_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
