/* What the cuda device does on the host, on a GPU that counts its calls: nothing is taken and nobody waits after the
 * first steps, runs are walked, captured and launched when they should be, and errors leave things as they were. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/tiny.h"
#include "worker/device/cuda/plan.h"
#include "worker/program/program.h"

enum { BATCH = 2, SIZE = 8, CLASSES = 5 };

struct rig {
    struct program *p;
    struct gpu *gpu;
    struct device *d;
    struct plan *plan;
    struct arenas at;
    struct fake_counts at_close;
    uint8_t images[BATCH * SIZE * SIZE * 3];
    int32_t labels[BATCH];
    float weights[BATCH];
    struct run_args run;
};

static struct program *small(void)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("small", input_pictures(3, SIZE, SIZE, mean, std));
    int x = program_conv(p, "conv", program_input(p), 8, 3, 1, 1, false);
    x = program_relu(p, "relu", program_bn(p, "bn", x, 1e-5f, false));
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", x), CLASSES));
    MUST(program_differentiate(p, e));
    return p;
}

static void open_device(struct rig *r, bool graphs, size_t memory)
{
    *r = (struct rig){.p = small()};
    fake_gpu_open(&r->gpu, &(struct fake_options){.memory = memory, .at_close = &r->at_close});
    MUST(cuda_open_on(&r->d, r->gpu, NULL, &(struct cuda_options){.graphs = graphs}, e));
    arenas_open(&r->at, r->d, r->p);
    for (int i = 0; i < BATCH; i++)
        r->weights[i] = 1;
    r->run = (struct run_args){
        .batch = {.rows = r->images, .labels = r->labels, .weights = r->weights}, .grad_scale = 1, .params_version = 1};
}

static int plan_of(struct rig *r, int batch, struct plan **ret, struct err *e)
{
    const struct plan_options o = {.batch = batch,
                                   .training = true,
                                   .compute = DT_F32,
                                   .params = r->at.params,
                                   .stats = r->at.stats,
                                   .reduce = r->at.reduce};
    return r->d->ops->plan(r->d, r->p, &o, ret, e);
}

static void open_rig(struct rig *r, bool graphs)
{
    open_device(r, graphs, 0);
    MUST(plan_of(r, BATCH, &r->plan, e));
}

static void close_rig(struct rig *r)
{
    r->d->ops->plan_close(r->plan);
    arenas_close(&r->at, r->d);
    r->d->ops->close(r->d);
    program_destroy(r->p);
}

static void step(struct rig *r)
{
    MUST(r->d->ops->run(r->plan, &r->run, e));
    r->run.params_version++;
}

static struct fake_counts now(const struct rig *r)
{
    return *fake_gpu_counts(r->gpu);
}

static void after_two_steps_nothing_is_taken_and_the_host_does_not_wait(void **state)
{
    struct rig r;
    open_rig(&r, true);
    step(&r);
    step(&r);
    const struct fake_counts before = now(&r);
    for (int i = 0; i < 5; i++)
        step(&r);
    const struct fake_counts after = now(&r);
    assert_int_equal(before.allocs, after.allocs);
    assert_int_equal(before.frees, after.frees);
    assert_int_equal(before.host_allocs, after.host_allocs);
    assert_int_equal(before.syncs, after.syncs);
    assert_int_equal(before.copies_out, after.copies_out);
    assert_int_equal(before.copies_in + 5, after.copies_in); /* a batch, in one piece */
    close_rig(&r);
}

static void a_run_is_walked_once_captured_once_and_then_launched(void **state)
{
    struct rig r;
    open_rig(&r, true);
    step(&r);
    assert_int_equal(0, now(&r).captures);
    step(&r);
    assert_int_equal(1, now(&r).captures);
    assert_int_equal(1, now(&r).launches);
    for (int i = 0; i < 4; i++)
        step(&r);
    assert_int_equal(1, now(&r).captures);
    assert_int_equal(5, now(&r).launches);
    close_rig(&r);
}

static void what_differs_is_captured_anew(void **state)
{
    struct rig r;
    const struct run_hooks none = {0};
    open_rig(&r, true);
    for (int i = 0; i < 3; i++)
        step(&r);
    r.run.accumulate = true;
    for (int i = 0; i < 3; i++)
        step(&r);
    assert_int_equal(2, now(&r).captures);
    r.run.smoothing = 0.1;
    for (int i = 0; i < 3; i++)
        step(&r);
    assert_int_equal(3, now(&r).captures);
    r.run.hooks = &none; /* that want nothing are no other run */
    step(&r);
    r.run.accumulate = false;
    r.run.smoothing = 0;
    r.run.grad_scale = 1024; /* in device memory: nor is this */
    r.run.hooks = NULL;
    step(&r);
    assert_int_equal(3, now(&r).captures);
    close_rig(&r);
}

struct hook {
    long ready, captured, replayed;
    bool fail;
};

static int on_ready(void *ctx, size_t first, size_t end, void *stream, struct err *e)
{
    struct hook *h = ctx;
    h->ready++;
    return h->fail ? err_set(e, -ECANCELED, "rank 3 has gone") : 0;
}

static int on_captured(void *ctx, void *stream, struct err *e)
{
    ((struct hook *)ctx)->captured++;
    return 0;
}

static int on_replayed(void *ctx, void *stream, struct err *e)
{
    ((struct hook *)ctx)->replayed++;
    return 0;
}

static void hooks_are_called_while_a_run_is_captured_and_told_of_each_launch(void **state)
{
    struct rig r;
    struct hook h = {0};
    const struct run_hooks hooks = {.ctx = &h, .ready = on_ready, .captured = on_captured, .replayed = on_replayed};
    open_rig(&r, true);
    step(&r);
    step(&r);
    r.run.hooks = &hooks;
    step(&r);
    const long ready = h.ready;
    assert_true(ready > 0);
    step(&r);
    assert_int_equal(2 * ready, h.ready);
    assert_int_equal(1, h.captured);
    assert_int_equal(0, h.replayed);
    step(&r);
    step(&r);
    assert_int_equal(2 * ready, h.ready);
    assert_int_equal(1, h.captured);
    assert_int_equal(2, h.replayed);
    close_rig(&r);
}

/* Loader threads decode into page-locked memory: nobody copies it on the host, and after run() they may decode the next
 * batch there, whatever the card is at. */
static void page_locked_pictures_go_from_where_they_are(void **state)
{
    struct rig plain, locked;
    void *p;
    open_rig(&plain, true);
    open_rig(&locked, true);
    arenas_fill(&plain.at, plain.p);
    arenas_fill(&locked.at, locked.p);
    MUST(locked.d->ops->async->host_alloc(locked.d, sizeof plain.images, &p, e));
    locked.run.batch.rows = p;
    locked.run.batch.locked = true;
    for (int i = 0; i < 4; i++) {
        noise_fill(plain.images, sizeof plain.images);
        plain.images[0] = (uint8_t)i;
        memcpy(p, plain.images, sizeof plain.images);
        step(&plain);
        step(&locked);
        assert_ptr_equal(p, now(&locked).copied_in);
        assert_ptr_not_equal(plain.images, now(&plain).copied_in); /* of a copy */
        memset(p, 0xee, sizeof plain.images);
    }
    fake_gpu_wait(plain.gpu, NULL);
    fake_gpu_wait(locked.gpu, NULL);
    assert_memory_equal(plain.at.reduce, locked.at.reduce, plain.p->n_reduce * sizeof(float));
    locked.d->ops->async->host_release(locked.d, p);
    close_rig(&plain);
    close_rig(&locked);
    (void)state;
}

static void eager_runs_capture_nothing(void **state)
{
    struct rig r;
    open_rig(&r, false);
    for (int i = 0; i < 5; i++)
        step(&r);
    assert_int_equal(0, now(&r).captures);
    assert_int_equal(0, now(&r).launches);
    close_rig(&r);
}

/* The half of a run that was captured until then must never be launched. */
static void an_error_within_a_capture_leaves_the_device_as_it_was(void **state)
{
    struct rig r;
    struct hook h = {0};
    struct err e = {0};
    const struct run_hooks hooks = {.ctx = &h, .ready = on_ready};
    open_rig(&r, true);
    r.run.hooks = &hooks;
    step(&r);
    h.fail = true;
    assert_int_equal(-ECANCELED, r.d->ops->run(r.plan, &r.run, &e));
    if (!strstr(e.text, "rank 3 has gone"))
        fail_msg("%s", e.text);
    assert_int_equal(0, now(&r).launches);
    h.fail = false;
    const long ready = h.ready;
    step(&r);
    assert_true(h.ready > ready); /* captured anew */
    assert_int_equal(2, now(&r).captures);
    assert_int_equal(1, now(&r).launches);
    close_rig(&r);
}

static void eager_and_captured_runs_give_the_same_bits(void **state)
{
    struct rig r[2];
    for (int k = 0; k < 2; k++) {
        open_rig(&r[k], k);
        for (size_t i = 0; i < sizeof r->images; i++)
            r[k].images[i] = (uint8_t)(i * 37);
        memset(r[k].at.params, 0, r[k].p->n_train * sizeof(float));
        for (size_t i = 0; i < r[k].p->n_train; i++)
            r[k].at.params[i] = (float)((int)(i * 7 % 13) - 6) / 16;
        for (int i = 0; i < 3; i++)
            step(&r[k]);
        MUST(r[k].d->ops->sync(r[k].d, e));
    }
    assert_memory_equal(r[0].at.reduce, r[1].at.reduce, r[0].p->n_reduce * sizeof(float));
    close_rig(&r[0]);
    close_rig(&r[1]);
}

static void more_kinds_of_runs_than_are_kept_push_out_old_ones(void **state)
{
    struct rig r;
    open_rig(&r, true);
    for (int k = 0; k < 12; k++) {
        r.run.smoothing = k / 100.0;
        for (int i = 0; i < 2; i++)
            step(&r);
    }
    assert_int_equal(12, now(&r).captures);
    close_rig(&r);
    assert_int_equal(12, r.at_close.graphs_closed);
}

/* The number that the message gives does fit. */
static void out_of_memory_names_the_largest_tenants_and_a_batch_that_fits(void **state)
{
    struct rig r;
    struct err why = {0};
    unsigned fits = 0;
    open_device(&r, true, (size_t)96 << 20);
    assert_int_equal(-ENOMEM, plan_of(&r, 16384, &r.plan, &why));
    print_message("# %s\n", why.text);
    const char *number = strstr(why.text, "); ");
    assert_non_null(strstr(why.text, "a batch of 16384 samples"));
    assert_non_null(strstr(why.text, "largest: conv"));
    assert_true(number && sscanf(number, "); %u samples would fit", &fits) == 1 && fits > 1000 && fits < 16384);
    MUST(plan_of(&r, (int)fits, &r.plan, e));
    close_rig(&r);
}

/* Whichever piece of a plan is the first that does not fit. */
static void out_of_memory_is_said_of_the_whole_plan(void **state)
{
    struct rig r;
    open_device(&r, true, 0);
    MUST(plan_of(&r, BATCH, &r.plan, e));
    const struct cuda_plan *pl = (const struct cuda_plan *)r.plan;
    const size_t whole = now(&r).bytes, pieces[] = {pl->workspace_bytes, (size_t)pl->ntable * sizeof *pl->table,
                                                    pl->partial_doubles * sizeof(double), pl->memory_bytes};
    close_rig(&r);
    size_t below = whole;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct err why = {0};
        assert_true(pieces[i] > 0);
        open_device(&r, true, below - 1);
        assert_int_equal(-ENOMEM, plan_of(&r, BATCH, &r.plan, &why));
        if (!strstr(why.text, "(largest: ") || !strstr(why.text, "samples would fit"))
            fail_msg("%s", why.text);
        close_rig(&r);
        below -= pieces[i];
    }
}

static void everything_is_given_back(void **state)
{
    struct rig r;
    open_device(&r, true, 0);
    const size_t before = now(&r).bytes;
    MUST(plan_of(&r, BATCH, &r.plan, e));
    assert_true(now(&r).bytes > before);
    for (int i = 0; i < 3; i++)
        step(&r);
    const long syncs = now(&r).syncs;
    r.d->ops->plan_close(r.plan);
    assert_int_equal(before, now(&r).bytes);
    assert_int_equal(syncs + 2, now(&r).syncs); /* copies and kernels may still use it */
    MUST(plan_of(&r, BATCH, &r.plan, e));
    close_rig(&r);
    assert_int_equal(0, r.at_close.bytes);
    assert_int_equal(r.at_close.allocs, r.at_close.frees);
    assert_int_equal(r.at_close.host_allocs, r.at_close.host_frees);
    assert_int_equal(r.at_close.graphs, r.at_close.graphs_closed);
}

/* What a failed plan had taken until then goes back, too. */
static void a_plan_that_fails_gives_everything_back(void **state)
{
    struct rig r;
    open_device(&r, true, (size_t)24 << 20);
    const struct fake_counts before = now(&r);
    assert_int_equal(-ENOMEM, plan_of(&r, 4096, &r.plan, NULL));
    assert_int_equal(before.bytes, now(&r).bytes);
    close_rig(&r);
    assert_int_equal(r.at_close.host_allocs, r.at_close.host_frees);
}

static void an_error_of_a_kernel_names_it_and_its_operation(void **state)
{
    struct rig r;
    struct err why = {0};
    open_rig(&r, true);
    step(&r);
    fake_gpu_fail_next(r.gpu, KERNEL_BN_APPLY);
    r.plan->ops->plan_close(r.plan);
    MUST(plan_of(&r, BATCH, &r.plan, e));
    assert_int_equal(-EIO, r.d->ops->run(r.plan, &r.run, &why));
    if (!strstr(why.text, "bn+relu") || !strstr(why.text, "illegal memory access"))
        fail_msg("%s", why.text);
    close_rig(&r);
}

struct told {
    int n;
    int64_t last;
    double bytes, flop;
};

static void hear(void *ctx, const struct run_span *s)
{
    struct told *t = ctx;
    assert_non_null(s->label);
    assert_true(s->op >= 0);
    assert_true(s->start_ns >= t->last && s->end_ns >= s->start_ns);
    assert_true(s->flop == 0 || s->bytes > 0);
    t->bytes += s->bytes;
    t->flop += s->flop;
    t->last = s->start_ns;
    t->n++;
}

static void a_traced_run_is_walked_and_tells_of_every_step(void **state)
{
    struct told told = {0};
    const struct run_trace trace = {.ctx = &told, .op = hear};
    struct rig r;
    (void)state;
    open_rig(&r, true);
    step(&r);
    step(&r);
    const size_t bytes = r.p->n_train * sizeof(float);
    void *before = malloc(bytes);
    MUST(r.d->ops->sync(r.d, e));
    memcpy(before, r.at.reduce, bytes);
    r.run.trace = &trace;
    step(&r);
    assert_true(told.n > 10 && told.bytes > 0 && told.flop > 0);
    assert_int_equal(1, now(&r).launches);
    assert_memory_equal(before, r.at.reduce, bytes);
    free(before);
    close_rig(&r);
    assert_int_equal(r.at_close.allocs, r.at_close.frees);
}

/* The report is what was really taken, but for arenas and small things. */
static void memory_is_reported_as_it_is_taken(void **state)
{
    struct plan_memory m;
    struct rig r;
    (void)state;
    open_device(&r, true, 0);
    const size_t before = now(&r).bytes;
    MUST(plan_of(&r, BATCH, &r.plan, e));
    r.d->ops->plan_memory(r.plan, &m);
    const size_t taken = now(&r).bytes - before, told = m.activations + m.weights + m.workspace;
    assert_true(m.activations > 0 && m.weights > 0 && m.workspace > 0);
    assert_true(told <= taken && taken - told < 4096);
    close_rig(&r);
}

/* What is released counts no longer, whoever had it; the peak stays. */
static void memory_is_counted_until_it_is_released(void **state)
{
    const size_t bytes = (size_t)8 << 20;
    size_t now_bytes, peak, before, first_peak;
    struct rig r;
    void *p;
    (void)state;
    open_rig(&r, true);
    for (int i = 0; i < 3; i++)
        step(&r);
    r.d->ops->memory(r.d, &before, &first_peak);
    assert_int_equal(before, now(&r).bytes);
    for (int i = 0; i < 2; i++) {
        MUST(r.d->ops->alloc(r.d, bytes, &p, e));
        r.d->ops->memory(r.d, &now_bytes, &peak);
        assert_int_equal(now_bytes, before + bytes);
        r.d->ops->release(r.d, p);
        r.d->ops->release(r.d, NULL);
        r.d->ops->memory(r.d, &now_bytes, &peak);
        assert_int_equal(now_bytes, before);
        assert_int_equal(now_bytes, now(&r).bytes);
        assert_true(peak >= first_peak && peak < first_peak + 2 * bytes);
    }
    close_rig(&r);
    assert_int_equal(r.at_close.allocs, r.at_close.frees);
}

static void rounding_is_that_of_the_halves(void **state)
{
    static const float values[] = {0, 1, -1.0009765f, 65519, 65520, 1e-8f, 3.14159265f, -0.1f, 1e30f};
    enum { N = sizeof values / sizeof *values };
    static const enum dtype types[] = {DT_F16, DT_BF16, DT_F32};
    (void)state;
    for (size_t t = 0; t < 3; t++) {
        struct rig r;
        open_rig(&r, false);
        float *x = r.at.params; /* device memory is plain memory here */
        memcpy(x, values, sizeof values);
        MUST(r.d->ops->round(r.d, x, N, types[t], e));
        MUST(r.d->ops->sync(r.d, e));
        for (size_t i = 0; i < N; i++)
            assert_true((double)x[i] == dtype_rounded(types[t], (double)values[i]));
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_two_steps_nothing_is_taken_and_the_host_does_not_wait),
        cmocka_unit_test(a_run_is_walked_once_captured_once_and_then_launched),
        cmocka_unit_test(what_differs_is_captured_anew),
        cmocka_unit_test(hooks_are_called_while_a_run_is_captured_and_told_of_each_launch),
        cmocka_unit_test(page_locked_pictures_go_from_where_they_are),
        cmocka_unit_test(eager_runs_capture_nothing),
        cmocka_unit_test(an_error_within_a_capture_leaves_the_device_as_it_was),
        cmocka_unit_test(eager_and_captured_runs_give_the_same_bits),
        cmocka_unit_test(more_kinds_of_runs_than_are_kept_push_out_old_ones),
        cmocka_unit_test(out_of_memory_names_the_largest_tenants_and_a_batch_that_fits),
        cmocka_unit_test(out_of_memory_is_said_of_the_whole_plan),
        cmocka_unit_test(everything_is_given_back),
        cmocka_unit_test(a_plan_that_fails_gives_everything_back),
        cmocka_unit_test(an_error_of_a_kernel_names_it_and_its_operation),
        cmocka_unit_test(a_traced_run_is_walked_and_tells_of_every_step),
        cmocka_unit_test(memory_is_reported_as_it_is_taken),
        cmocka_unit_test(memory_is_counted_until_it_is_released),
        cmocka_unit_test(rounding_is_that_of_the_halves),
    };
    return cmocka_run_group_tests_name("cuda device on the host", tests, NULL, NULL);
}
