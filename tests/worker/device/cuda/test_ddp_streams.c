/* Buckets on a communication stream of the cuda device, over a GPU that is not there: what is enqueued in a walk, what
 * a captured run takes along, what a replayed one leaves to be done, and how an abort shows. The communicator's sum is
 * a kernel, `world` times what is there, so graphs hold it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/tiny.h"
#include "worker/comm/comm.h"
#include "worker/device/cuda/cuda.h"
#include "worker/parallel/ddp.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

enum { WORLD = 3, BATCH = 2, SIZE = TINY_SIZE, CALLS = 64 };

struct fake_comm {
    struct comm base;
    struct device *device;
    int calls, fail_at; /* fail_at: this call fails; -1: none */
    bool aborted;
    void *streams[CALLS];
    const char *from[CALLS];
    size_t n[CALLS];
    enum dtype type[CALLS];
    const void *lent[CALLS];
    int nlent;
};

static int comm_all_reduce(struct comm *c, enum comm_channel ch, void *buf, size_t n, enum dtype t, enum comm_op op,
                           void *stream, struct err *e)
{
    struct fake_comm *f = (struct fake_comm *)c;
    const int i = f->calls++;
    if (i == f->fail_at)
        return err_set(e, -ECONNRESET, "NCCL: all-reduce: remote process exited");
    if (i < CALLS) {
        f->streams[i] = stream;
        f->from[i] = buf;
        f->n[i] = n;
        f->type[i] = t;
    }
    return f->device->ops->async->convert(f->device, stream, buf, t, buf, t, n, WORLD, e);
}

static int comm_check(struct comm *c, struct err *e)
{
    return ((struct fake_comm *)c)->aborted ? err_set(e, -ECANCELED, "the communicator was aborted") : 0;
}

static void comm_lend(struct comm *c, enum comm_channel ch, void *buf, size_t bytes)
{
    struct fake_comm *f = (struct fake_comm *)c;
    f->lent[f->nlent++] = buf;
}

/* The memory must still be there. */
static void comm_reclaim(struct comm *c, enum comm_channel ch, void *buf)
{
    struct fake_comm *f = (struct fake_comm *)c;
    memset(buf, 0, 1);
    for (int i = 0; i < f->nlent; i++)
        if (f->lent[i] == buf)
            f->lent[i--] = f->lent[--f->nlent];
}

static const struct comm_ops stream_ops = {.name = "nccl",
                                           .host_buffers = false,
                                           .all_reduce = comm_all_reduce,
                                           .check = comm_check,
                                           .lend = comm_lend,
                                           .reclaim = comm_reclaim};

struct bench {
    struct gpu *gpu;
    struct device *d;
    struct program *p;
    struct ownership own;
    struct state s;
    struct plan *plan;
    struct fake_comm comm;
    struct ddp *ddp;
    struct ddp_stats stats;
    bool half;
    float *alone; /* (n_reduce): what one rank has */
    uint8_t images[BATCH * SIZE * SIZE];
    int32_t labels[BATCH];
    float weights[BATCH];
};

static void fine(int rc, const struct err *e)
{
    if (rc < 0)
        fail_msg("%s", e->text);
}

static int run(struct bench *b, const struct run_hooks *h, bool accumulate, struct err *e)
{
    const struct run_args a = {.batch = {b->images, b->labels, b->weights},
                               .grad_scale = 1,
                               .accumulate = accumulate,
                               .params_version = 1,
                               .hooks = h};
    return b->d->ops->run(b->plan, &a, e);
}

static void begin_with(struct bench *b, enum dtype wire, size_t first_bytes, size_t bytes)
{
    static uint64_t seed; /* the GPU of each case has an order of its own */
    struct err e;
    memset(b, 0, sizeof *b);
    for (size_t i = 0; i < sizeof b->images; i++)
        b->images[i] = (uint8_t)(i * 31 + i / 7);
    for (int i = 0; i < BATCH; i++) {
        b->labels[i] = i;
        b->weights[i] = 1;
    }
    fake_gpu_open(&b->gpu, &(struct fake_options){.seed = seed++});
    fine(cuda_open_on(&b->d, b->gpu, NULL, &(struct cuda_options){.graphs = true}, &e), &e);
    fine(tiny_build(&b->p, &e), &e);
    struct layout l;
    const struct ownership_options pieces = {
        .elem_bytes = sizeof(float), .first_bucket_bytes = first_bytes, .bucket_bytes = bytes};
    fine(layout_plan(&l, WORLD, 1, 1, 0, &e), &e);
    fine(ownership_init(&b->own, &l, 0, b->p, &pieces, &e), &e);
    fine(state_init(&b->s, b->d, b->p, &b->own, &(struct state_options){.seed = 1}, &e), &e);
    const struct plan_options po = {.batch = BATCH,
                                    .training = true,
                                    .compute = DT_F32,
                                    .params = b->s.params,
                                    .stats = b->s.stats,
                                    .reduce = b->s.reduce};
    fine(b->d->ops->plan(b->d, b->p, &po, &b->plan, &e), &e);
    b->alone = calloc(b->p->n_reduce, sizeof *b->alone);
    fine(run(b, NULL, false, &e), &e);
    fake_gpu_wait(b->gpu, NULL);
    memcpy(b->alone, b->s.reduce, b->p->n_reduce * sizeof *b->alone);
    b->half = wire != DT_F32;
    b->comm = (struct fake_comm){.base = {&stream_ops, 0, WORLD}, .device = b->d, .fail_at = -1};
    const struct ddp_options d = {.wire = wire, .device = b->d};
    struct comm *const groups[LAYOUT_GROUPS] = {[LAYOUT_BATCH] = &b->comm.base};
    fine(ddp_create(&b->ddp, groups, &b->own, b->s.reduce, b->p->n_reduce - b->p->n_train, DT_F32, &d, &e), &e);
    ddp_stats(b->ddp, &b->stats);
    assert_int_equal(fake_gpu_counts(b->gpu)->urgent,
                     1); /* the communication stream alone: kernels of the backward pass would hold it up */
}

static void begin(struct bench *b, enum dtype wire)
{
    begin_with(b, wire, 64, 256);
    assert_true(b->stats.buckets > 3);
}

static void end(struct bench *b)
{
    const long frees = fake_gpu_counts(b->gpu)->frees;
    assert_int_equal(b->comm.nlent, b->half ? 2 : 1);
    ddp_destroy(b->ddp);
    assert_int_equal(b->comm.nlent, 0); /* while they were there */
    assert_int_equal(fake_gpu_counts(b->gpu)->frees - frees, b->half ? 1 : 0);
    b->d->ops->plan_close(b->plan);
    state_finish(&b->s);
    ownership_finish(&b->own);
    program_destroy(b->p);
    b->d->ops->close(b->d);
    free(b->alone);
}

static void one_step(struct bench *b)
{
    struct err e;
    ddp_begin(b->ddp, true);
    fine(run(b, ddp_hooks(b->ddp), false, &e), &e);
    fine(ddp_wait(b->ddp, &e), &e);
}

/* The sums, once the update, which is enqueued after the step, would see them. */
static const float *sums_of(const struct bench *b)
{
    fake_gpu_wait(b->gpu, b->d->ops->async->compute(b->d));
    return b->s.reduce;
}

static void assert_sums(const struct bench *b, float parts, const char *when)
{
    const float *sum = sums_of(b);
    for (size_t i = 0; i < b->p->n_reduce; i++)
        if (sum[i] != WORLD * (parts * b->alone[i]))
            fail_msg("%s: element %zu of %zu is %.9g, expected %.9g", when, i, b->p->n_reduce, (double)sum[i],
                     (double)(WORLD * (parts * b->alone[i])));
}

static void a_captured_run_takes_its_buckets_along_and_a_replayed_one_counts_them(void **state)
{
    (void)state;
    struct bench b;
    begin(&b, DT_F32);
    const int buckets = b.stats.buckets;
    one_step(&b); /* walked: every bucket is enqueued */
    assert_int_equal(b.comm.calls, buckets);
    assert_sums(&b, 1, "walked");
    one_step(&b); /* captured: enqueued into the graph, but for the last */
    assert_int_equal(b.comm.calls, 2 * buckets);
    assert_int_equal(fake_gpu_counts(b.gpu)->captures, 1);
    assert_sums(&b, 1, "captured");
    const long syncs = fake_gpu_counts(b.gpu)->syncs;
    for (int i = 1; i <= 3; i++) { /* launched again: the last alone is enqueued */
        one_step(&b);
        assert_int_equal(b.comm.calls, 2 * buckets + i);
        assert_sums(&b, 1, "replayed");
    }
    assert_int_equal(fake_gpu_counts(b.gpu)->launches, 4);
    assert_int_equal(fake_gpu_counts(b.gpu)->syncs, syncs); /* the host waits for nothing */
    end(&b);
}

/* All gradients go after the run: the communication stream takes no part in the capture, nor may it be waited for. */
static void a_model_of_one_bucket_is_captured_too(void **state)
{
    (void)state;
    struct bench b;
    begin_with(&b, DT_F32, 1 << 20, 25 << 20);
    assert_int_equal(b.stats.buckets, 1);
    for (int i = 1; i <= 4; i++) {
        one_step(&b);
        assert_int_equal(b.comm.calls, i);
        assert_sums(&b, 1, "one bucket");
    }
    assert_int_equal(fake_gpu_counts(b.gpu)->captures, 1);
    end(&b);
}

static void buckets_go_in_order_on_a_stream_of_their_own(void **state)
{
    (void)state;
    struct bench b;
    begin(&b, DT_F32);
    one_step(&b);
    const char *at = b.s.reduce;
    for (int i = 0; i < b.comm.calls; i++) {
        assert_ptr_equal(b.comm.from[i], at);
        at += b.comm.n[i] * sizeof(float);
        assert_ptr_equal(b.comm.streams[i], b.comm.streams[0]);
        assert_ptr_not_equal(b.comm.streams[i], b.d->ops->async->compute(b.d));
    }
    assert_ptr_equal(at, (const char *)b.s.reduce + b.p->n_reduce * sizeof(float));
    assert_ptr_equal(b.comm.lent[0], b.s.reduce);
    end(&b);
}

static void parts_that_are_not_the_last_of_a_step_reduce_nothing(void **state)
{
    (void)state;
    struct bench b;
    struct err e;
    begin(&b, DT_F32);
    for (int step = 1; step <= 4; step++) {
        const int before = b.comm.calls;
        for (int part = 0; part < 3; part++) {
            ddp_begin(b.ddp, part == 2);
            fine(run(&b, part == 2 ? ddp_hooks(b.ddp) : ddp_idle_hooks(b.ddp), part > 0, &e), &e);
            if (part < 2)
                assert_int_equal(b.comm.calls, before);
        }
        fine(ddp_wait(b.ddp, &e), &e);
        assert_sums(&b, 3, "three parts");
    }
    end(&b);
}

static void halves_are_packed_and_unpacked_on_the_device(void **state)
{
    (void)state;
    struct bench b;
    begin(&b, DT_BF16);
    for (int step = 0; step < 4; step++) {
        one_step(&b);
        const float *sum = sums_of(&b);
        for (size_t i = 0; i < b.p->n_train; i++) {
            const float want = WORLD * b.alone[i], off = sum[i] - want;
            if ((off < 0 ? -off : off) > (want < 0 ? -want : want) * 0x1p-6f)
                fail_msg("step %d: gradient %zu is %.9g, expected %.9g", step, i, (double)sum[i], (double)want);
        }
        for (size_t i = b.p->n_train; i < b.p->n_reduce; i++)
            assert_true(sum[i] == WORLD * b.alone[i]);
    }
    assert_int_equal(b.comm.type[0], DT_BF16);
    end(&b);
}

static void what_failed_or_was_aborted_is_told(void **state)
{
    (void)state;
    struct bench b;
    struct err e;
    begin(&b, DT_F32);
    one_step(&b);
    assert_int_equal(ddp_check(b.ddp, &e), 0);
    b.comm.fail_at = b.comm.calls + 1; /* while the run is captured */
    ddp_begin(b.ddp, true);
    assert_int_equal(run(&b, ddp_hooks(b.ddp), false, &e), -ECONNRESET);
    if (!strstr(e.text, "remote process exited"))
        fail_msg("%s", e.text);
    assert_int_equal(ddp_wait(b.ddp, &e), -ECONNRESET);
    b.comm.aborted = true;
    assert_int_equal(ddp_check(b.ddp, &e), -ECANCELED);
    end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_captured_run_takes_its_buckets_along_and_a_replayed_one_counts_them),
        cmocka_unit_test(a_model_of_one_bucket_is_captured_too),
        cmocka_unit_test(buckets_go_in_order_on_a_stream_of_their_own),
        cmocka_unit_test(parts_that_are_not_the_last_of_a_step_reduce_nothing),
        cmocka_unit_test(halves_are_packed_and_unpacked_on_the_device),
        cmocka_unit_test(what_failed_or_was_aborted_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
