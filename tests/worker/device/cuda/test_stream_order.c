/* What the cuda device leaves to chance between its streams and what it does not: on a GPU that is not there, whose
 * streams run as late and in as odd an order as CUDA allows, other ones for every seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/tiny.h"
#include "worker/device/cuda/cuda.h"
#include "worker/program/program.h"

enum { BATCH = 2, STEPS = 7, SEEDS = 8, PIXELS = BATCH * TINY_SIZE * TINY_SIZE };

struct rig {
    struct gpu *gpu;
    struct program *p;
    struct device *d;
    struct plan *plan;
    void *params, *stats, *reduce;
    uint64_t version;
};

static void open_rig(struct rig *r, const struct fake_options *fake, bool graphs)
{
    *r = (struct rig){.version = 1};
    MUST(tiny_build(&r->p, e));
    fake_gpu_open(&r->gpu, fake);
    MUST(cuda_open_on(&r->d, r->gpu, NULL, &(struct cuda_options){.graphs = graphs}, e));
    MUST(r->d->ops->alloc(r->d, r->p->n_train * sizeof(float), &r->params, e));
    MUST(r->d->ops->alloc(r->d, r->p->n_stats * sizeof(float), &r->stats, e));
    MUST(r->d->ops->alloc(r->d, r->p->n_reduce * sizeof(float), &r->reduce, e));
    fake_gpu_wait(r->gpu, NULL);
    for (size_t i = 0; i < r->p->n_train; i++) /* device memory is plain memory here */
        ((float *)r->params)[i] = (float)((int)(i * 7 % 13) - 6) / 16;
    const struct plan_options o = {.batch = BATCH,
                                   .training = true,
                                   .compute = DT_F32,
                                   .params = r->params,
                                   .stats = r->stats,
                                   .reduce = r->reduce};
    MUST(r->d->ops->plan(r->d, r->p, &o, &r->plan, e));
}

static void close_rig(struct rig *r)
{
    r->d->ops->plan_close(r->plan);
    r->d->ops->release(r->d, r->params);
    r->d->ops->release(r->d, r->stats);
    r->d->ops->release(r->d, r->reduce);
    r->d->ops->close(r->d);
    program_destroy(r->p);
}

/* Batch k, unlike the others, added to what was there; its memory is free again when the next run begins. */
static void step(struct rig *r, int k)
{
    static uint8_t images[PIXELS];
    static const float weights[BATCH] = {1, 1};
    int32_t labels[BATCH];
    for (int i = 0; i < PIXELS; i++)
        images[i] = (uint8_t)(i * (2 * k + 31) + k);
    for (int i = 0; i < BATCH; i++)
        labels[i] = (i + k) % TINY_CLASSES;
    const struct run_args a = {
        .batch = {images, labels, weights}, .grad_scale = 1, .accumulate = k > 0, .params_version = r->version++};
    MUST(r->d->ops->run(r->plan, &a, e));
}

/* All batches; waits: the host lets each end before it begins the next. */
static void train(uint64_t seed, bool graphs, bool waits, float *ret, size_t n)
{
    struct rig r;
    open_rig(&r, &(struct fake_options){.seed = seed}, graphs);
    for (int k = 0; k < STEPS; k++) {
        step(&r, k);
        if (waits)
            fake_gpu_wait(r.gpu, NULL);
    }
    fake_gpu_wait(r.gpu, r.d->ops->async->compute(r.d));
    memcpy(ret, r.reduce, n * sizeof *ret);
    close_rig(&r);
}

static size_t sums_of_tiny(void)
{
    struct program *p;
    MUST(tiny_build(&p, e));
    const size_t n = p->n_reduce;
    program_destroy(p);
    return n;
}

/* Neither read before it is there, nor overwritten before it was read. */
static void every_step_sees_its_own_batch(void **state)
{
    (void)state;
    const size_t n = sums_of_tiny();
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    for (int graphs = 0; graphs < 2; graphs++) {
        train(0, graphs, true, want, n);
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            train(seed, graphs, false, got, n);
            for (size_t i = 0; i < n; i++)
                if (memcmp(&got[i], &want[i], sizeof *got))
                    fail_msg("seed %d, %s: sum %zu is %.9g, of batches one by one %.9g", (int)seed,
                             graphs ? "graphs" : "walks", i, (double)got[i], (double)want[i]);
        }
    }
    free(want);
    free(got);
}

/* They need nothing of what computes: not of the step before, and not of the one before that, whose end the host has
 * seen. */
static void batches_are_copied_while_the_step_before_computes(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, &(struct fake_options){.lazy = true}, true);
    for (int k = 0; k < 3; k++) {
        step(&r, 2 * k);
        step(&r, 2 * k + 1);
        assert_int_equal(2, fake_gpu_copy_ahead(r.gpu));
        MUST(r.d->ops->sync(r.d, e));
    }
    close_rig(&r);
}

static void order(struct rig *r, void *before, void *after)
{
    MUST(r->d->ops->async->order(r->d, before, after, e));
}

static void twice(struct rig *r, void *stream, float *x)
{
    MUST(r->d->ops->async->convert(r->d, stream, x, DT_F32, x, DT_F32, 1, 2, e));
}

/* A value is stored, doubled on another stream and taken back. */
static void what_is_ordered_between_streams_happens_in_that_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct rig r;
        void *side;
        open_rig(&r, &(struct fake_options){.seed = seed}, true);
        void *const compute = r.d->ops->async->compute(r.d);
        float *x = r.params;
        MUST(r.d->ops->async->open(r.d, &side, e));
        for (int i = 0; i < 8; i++) {
            MUST(r.d->ops->async->store(r.d, x, i, e));
            order(&r, compute, side);
            twice(&r, side, x);
            order(&r, side, compute);
            MUST(r.d->ops->blend(r.d, x + 1 + i, x, 1, 1, e));
        }
        fake_gpu_wait(r.gpu, compute);
        for (int i = 0; i < 8; i++)
            assert_true(x[1 + i] == (float)(2 * i));
        r.d->ops->async->close(r.d, side);
        close_rig(&r);
    }
}

/* --- that the GPU which is not there would show it */

struct raw {
    struct gpu *gpu;
    struct gpu_stream *s[2];
    struct gpu_event *v;
    float *x; /* (2) */
};

static void open_raw(struct raw *r, const struct fake_options *fake)
{
    void *x;
    fake_gpu_open(&r->gpu, fake);
    for (int i = 0; i < 2; i++)
        MUST(r->gpu->ops->stream_open(r->gpu, false, &r->s[i], e));
    MUST(r->gpu->ops->event_open(r->gpu, false, &r->v, e));
    MUST(r->gpu->ops->alloc(r->gpu, 2 * sizeof(float), &x, e));
    r->x = x;
}

static void close_raw(struct raw *r)
{
    r->gpu->ops->release(r->gpu, r->x);
    r->gpu->ops->event_close(r->gpu, r->v);
    for (int i = 0; i < 2; i++)
        r->gpu->ops->stream_close(r->gpu, r->s[i]);
    r->gpu->ops->close(r->gpu);
}

static void store(struct raw *r, int stream, float value)
{
    const struct k_store k = {.to = r->x, .value = value};
    MUST(r->gpu->ops->kernel(r->gpu, r->s[stream], KERNEL_STORE, &k, e));
}

static void hand_over(struct raw *r, int from, int to)
{
    MUST(r->gpu->ops->event_record(r->gpu, r->v, r->s[from], e));
    MUST(r->gpu->ops->event_wait(r->gpu, r->v, r->s[to], e));
}

static void streams_that_nobody_ordered_end_in_either_order(void **state)
{
    int last[3] = {0};
    (void)state;
    for (uint64_t seed = 0; seed < 32; seed++) {
        struct raw r;
        open_raw(&r, &(struct fake_options){.seed = seed});
        store(&r, 0, 1);
        store(&r, 1, 2);
        fake_gpu_wait(r.gpu, NULL);
        last[(int)r.x[0]]++;
        close_raw(&r);
    }
    assert_true(last[1] >= 4 && last[2] >= 4);
}

static void nothing_happens_before_somebody_waits(void **state)
{
    struct raw r;
    float *locked, pageable = 1;
    void *p;
    (void)state;
    open_raw(&r, &(struct fake_options){.lazy = true});
    MUST(r.gpu->ops->host_alloc(r.gpu, sizeof *locked, &p, e));
    locked = p;
    *locked = 1;
    MUST(r.gpu->ops->copy_in(r.gpu, r.s[0], r.x, locked, sizeof *locked, e));
    MUST(r.gpu->ops->copy_in(r.gpu, r.s[0], r.x + 1, &pageable, sizeof pageable, e));
    *locked = pageable = 2; /* the former is on its way, the latter has been read */
    MUST(r.gpu->ops->stream_sync(r.gpu, r.s[1], e));
    assert_true(r.x[0] != r.x[0]);
    MUST(r.gpu->ops->stream_sync(r.gpu, r.s[0], e));
    assert_true(r.x[0] == 2 && r.x[1] == 1);
    r.gpu->ops->host_release(r.gpu, locked);
    close_raw(&r);
}

/* Stream 0 forks to stream 1 and, if joined, waits for it. */
static int capture(struct raw *r, bool joined, struct gpu_graph **ret, struct err *e)
{
    TRY(r->gpu->ops->capture_begin(r->gpu, r->s[0], e));
    store(r, 0, 1);
    hand_over(r, 0, 1);
    store(r, 1, 2);
    if (joined) {
        hand_over(r, 1, 0);
        store(r, 0, 3);
    }
    return r->gpu->ops->capture_end(r->gpu, r->s[0], ret, e);
}

static void a_graph_is_launched_with_the_order_that_was_captured(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct raw r;
        struct gpu_graph *x;
        open_raw(&r, &(struct fake_options){.seed = seed});
        MUST(capture(&r, true, &x, e));
        for (int i = 0; i < 4; i++) {
            store(&r, 0, 4);
            MUST(r.gpu->ops->graph_launch(r.gpu, x, r.s[0], e));
            MUST(r.gpu->ops->stream_sync(r.gpu, r.s[0], e));
            assert_true(r.x[0] == 3);
        }
        r.gpu->ops->graph_close(r.gpu, x);
        close_raw(&r);
    }
}

static void a_capture_that_leaves_a_stream_behind_is_refused(void **state)
{
    struct raw r;
    struct gpu_graph *x;
    struct err e = {0};
    (void)state;
    open_raw(&r, &(struct fake_options){.lazy = true});
    assert_true(capture(&r, false, &x, &e) < 0);
    assert_non_null(strstr(e.text, "without the streams"));
    r.gpu->ops->graph_close(r.gpu, x);
    close_raw(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_step_sees_its_own_batch),
        cmocka_unit_test(batches_are_copied_while_the_step_before_computes),
        cmocka_unit_test(what_is_ordered_between_streams_happens_in_that_order),
        cmocka_unit_test(streams_that_nobody_ordered_end_in_either_order),
        cmocka_unit_test(nothing_happens_before_somebody_waits),
        cmocka_unit_test(a_graph_is_launched_with_the_order_that_was_captured),
        cmocka_unit_test(a_capture_that_leaves_a_stream_behind_is_refused),
    };
    return cmocka_run_group_tests_name("order of streams", tests, NULL, NULL);
}
