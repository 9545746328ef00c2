/* What a position of a step shows, and what it is mixed with and how, is the same for any number of ranks, threads and
 * parts, and wherever a run begins. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "tests/worker/data/fixture.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/data/loader/loader.h"
#include "worker/data/sets/dataset.h"

enum { N = 24, SIZE = 12, PIXELS = SIZE * SIZE * 3, BATCH = 10, EPOCHS = 2, STEPS = 3 };

struct fix {
    void *dir;
    struct dataset *data;
};

/* Every ninth picture is none. */
static int set_up(void **state)
{
    struct fix *f = calloc(1, sizeof *f);
    struct err e = {0};
    assert_int_equal(scratch_make(&f->dir), 0);
    for (int i = 0; i < N; i++) {
        char name[32];
        struct buf b = {0};
        snprintf(name, sizeof name, "%c/%02d.jpg", "abc"[i * 3 / N], i);
        fixture_jpeg(&b, &(struct fixture){.w = 20 + i, .h = 40 - i, .kind = FIXTURE_RGB, .textured = true});
        fixture_file(f->dir, name, b.data, i % 9 == 2 ? 3 : b.len);
        buf_free(&b);
    }
    if (dataset_open_folder(&f->data, f->dir, NULL, 0, &e) != 0)
        fail_msg("%s", e.text);
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

struct seen { /* a position */
    uint32_t sample;
    int32_t label;
    float weight;
    struct batch_mix mix;                 /* .partner 1: it has one, ... */
    uint8_t row[PIXELS], partner[PIXELS]; /* ... whose pixels these are */
};
struct run {
    struct seen at[EPOCHS][STEPS][BATCH];
};

struct how {
    int world, threads, parts, repetitions;
    size_t group;
    int64_t begin; /* step of the first epoch */
};

static struct loader_options options(const struct how *h, int rank)
{
    return (struct loader_options){
        .sampler = {.rank = rank,
                    .world = h->world,
                    .batch = BATCH,
                    .shuffle = true,
                    .seed = 11,
                    .parts = h->parts,
                    .repetitions = h->repetitions},
        .input = {.size = SIZE,
                  .channels = 3,
                  .training = true,
                  .augment = {0.3, 1, 3.0 / 4, 4.0 / 3, 0.5},
                  .policy = {.kind = POLICY_TRIVIAL, .ops = 1},
                  .erase = 0.5,
                  .seed = 11},
        .mix = {.mixup = 0.8, .cutmix = 1, .group = h->group},
        .threads = h->threads,
        .timeout_ms = 20000,
    };
}

static void note(struct run *r, const struct loader_batch *b, size_t row, size_t position)
{
    struct seen *s = &r->at[b->epoch][b->step][position];
    assert_int_equal(s->sample, BATCH_PADDING); /* nobody else has it */
    s->sample = b->b.samples[row];
    s->label = b->b.labels[row];
    s->weight = b->b.weights[row];
    s->mix = b->b.mix[row];
    memcpy(s->row, (const uint8_t *)b->b.rows + row * PIXELS, PIXELS);
    if (s->mix.partner)
        memcpy(s->partner, (const uint8_t *)b->b.rows + ((int64_t)row + s->mix.partner) * PIXELS, PIXELS);
    s->mix.partner = s->mix.partner != 0;
}

static void load_rank(const struct fix *f, const struct how *h, int rank, struct run *r)
{
    struct loader_options o = options(h, rank);
    struct loader *l;
    struct loader_batch b;
    struct err e = {0};
    int rc = loader_create(&l, f->data, &o, &e);
    if (rc < 0 || (rc = loader_seek(l, 0, h->begin, EPOCHS, &e)) < 0)
        fail_msg("%s", e.text);
    o.sampler.n = N;
    o.sampler.mix_group = h->group;
    const size_t stride = sampler_part_rows(&o.sampler) + sampler_part_others(&o.sampler);
    while ((rc = loader_next(l, &b, &e)) == 0) {
        assert_int_equal(b.rows, stride * (size_t)sampler_parts(&o.sampler));
        for (int part = 0; part < sampler_parts(&o.sampler); part++)
            for (size_t i = 0; i < sampler_count(&o.sampler, b.epoch, b.step, part); i++) {
                const size_t row = (size_t)part * stride + i;
                note(r, &b, row, sampler_position(&o.sampler, b.epoch, b.step, part, i));
                const int64_t other = (int64_t)row + b.b.mix[row].partner, first = (int64_t)((size_t)part * stride);
                assert_true(other >= first && other < first + (int64_t)stride); /* in the same part of the plan */
            }
        loader_done(l, &b);
    }
    assert_int_equal(rc, -ENODATA);
    loader_destroy(l);
}

static struct run *load(const struct fix *f, const struct how *h)
{
    struct run *r = calloc(1, sizeof *r);
    assert_non_null(r);
    for (int i = 0; i < EPOCHS * STEPS * BATCH; i++)
        (&r->at[0][0][0])[i].sample = BATCH_PADDING;
    for (int rank = 0; rank < h->world; rank++)
        load_rank(f, h, rank, r);
    return r;
}

static const struct how straight = {.world = 1, .threads = 1, .parts = 1, .repetitions = 3, .group = 8};

static void ranks_threads_parts_and_resuming_change_nothing(void **state)
{
    static const struct how all[] = {{2, 3, 1, 3, 8, 0}, {3, 2, 1, 3, 8, 0}, {4, 1, 1, 3, 8, 0}, {1, 4, 3, 3, 8, 0},
                                     {2, 2, 2, 3, 8, 0}, {4, 2, 2, 3, 8, 0}, {1, 2, 1, 3, 8, 2}, {3, 2, 2, 3, 8, 1}};
    struct run *one = load(*state, &straight);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct run *other = load(*state, &all[i]);
        for (int k = 0; k < EPOCHS * STEPS * BATCH; k++) {
            const struct seen *a = &one->at[0][0][0] + k, *b = &other->at[0][0][0] + k;
            if (k >= all[i].begin * BATCH && memcmp(a, b, sizeof *a) != 0)
                fail_msg("%d ranks, %d threads, %d parts from step %d: position %d differs", all[i].world,
                         all[i].threads, all[i].parts, (int)all[i].begin, k);
        }
        free(other);
    }
    free(one);
}

static void repetitions_follow_one_another_and_differ(void **state)
{
    struct run *r = load(*state, &straight);
    int differ = 0, mixed = 0, cut = 0, erased = 0;
    for (int e = 0; e < EPOCHS; e++)
        for (int p = 0; p < N; p++) {
            const struct seen *s = &r->at[e][p / BATCH][p % BATCH],
                              *first = &r->at[e][p / 3 * 3 / BATCH][p / 3 * 3 % BATCH];
            assert_int_equal(s->sample % N, first->sample % N);
            assert_int_equal(s->sample / N, p % 3);
            differ += p % 3 && memcmp(s->row, first->row, PIXELS) != 0;
            mixed += s->mix.partner;
            cut += s->mix.partner && s->mix.keep == 1;
            erased += s->mix.erase.x1 > 0;
            assert_true(s->mix.share >= 0 && s->mix.share <= 0.5F);
        }
    print_message("# of %d: %d differ from their first, %d mixed, %d of them cut, %d erased\n", EPOCHS * N, differ,
                  mixed, cut, erased);
    assert_true(differ > EPOCHS * N / 3 && mixed >= N / 4 && cut > 0 && cut < mixed && erased > N / 2);
    free(r);
}

/* In groups of 8 of 10 positions with 3 repetitions: the one 3 before; the last 3 of a step are one another's; a whole
 * pass of repetitions has pictures next to themselves where a group begins in the middle of them. */
static void who_cannot_be_mixed_is_not(void **state)
{
    int bad = 0, same = 0;
    struct run *r = load(*state, &straight);
    for (int k = 0; k < EPOCHS * STEPS * BATCH; k++) {
        const int length = k / BATCH % STEPS == STEPS - 1 ? N - 2 * BATCH : BATCH, at = k % BATCH;
        if (at >= length)
            continue;
        const struct seen *step = &r->at[0][0][0] + k / BATCH * BATCH, *s = step + at,
                          *p = step + mix_partner(8, 3, (size_t)at, (size_t)length);
        const bool twin = s->sample % N == p->sample % N;
        bad += s->weight == 0;
        same += twin;
        if (s->weight == 0 || p->weight == 0 || twin) {
            assert_int_equal(s->mix.partner, 0);
            assert_true(s->mix.share == 0);
            continue;
        }
        assert_int_equal(s->mix.partner, 1);
        assert_memory_equal(s->partner, p->row, PIXELS);
        assert_true(memcmp(&s->mix.box, &p->mix.box, sizeof s->mix.box) == 0 || p->mix.partner == 0 ||
                    at / 8 != (int)(p - step) / 8);
    }
    print_message("# %d positions show a bad picture, %d the same as their partner\n", bad, same);
    assert_true(bad >= 1 && same > 0);
    free(r);
}

/* Other groups mix otherwise, and change nothing else. */
static void groups_count(void **state)
{
    struct how other = straight;
    other.group = 5;
    struct run *a = load(*state, &straight), *b = load(*state, &other);
    int differ = 0;
    for (int k = 0; k < EPOCHS * STEPS * BATCH; k++) {
        const struct seen *x = &a->at[0][0][0] + k, *y = &b->at[0][0][0] + k;
        differ += memcmp(&x->mix, &y->mix, sizeof x->mix) != 0;
        assert_memory_equal(x->row, y->row, PIXELS);
    }
    assert_true(differ > N / 2);
    free(a);
    free(b);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(ranks_threads_parts_and_resuming_change_nothing),
        CASE(repetitions_follow_one_another_and_differ),
        CASE(who_cannot_be_mixed_is_not),
        CASE(groups_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
