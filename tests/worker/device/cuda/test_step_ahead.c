/* Steps that the host does not wait for give what steps that it looks at give: losses, skipped steps, weights, to the
 * bit. The device is cuda over a GPU that is not there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/tiny.h"
#include "tests/worker/run/step_rig.h"
#include "worker/comm/comm.h"
#include "worker/device/cuda/cuda.h"

enum { BATCH = 4, STEPS = 20, KEEP = 64 };

struct course {
    const char *device; /* "cuda", "waits" (cuda, every step waited for), "ref" */
    enum update_rule rule;
    double clip, ema, fixed, trust; /* fixed: loss scale, 0: dynamic */
    const float *poison;            /* (STEPS): what becomes of a gradient, 0: nothing */
    int torn_at, fails_at;          /* steps at which others are lost: while its sums are taken; after it. 0: never */
    int steps, done, parts;
    struct step_result result[STEPS + 1];
    double scale[STEPS + 1];
    double weights[KEEP], average[KEEP];
    int64_t skipped;
    int rc;
    struct err e;
    struct fake_counts early, late; /* after 6 and after all steps were begun */
};

static struct course *current;
static bool others_are_lost;
static struct state *its_state;
static int begun;

static int run_and_poison(struct plan *plan, const struct run_args *a, struct err *e)
{
    const struct device_ops *ops = current->device[0] == 'r' ? &device_ref_ops : &device_cuda_ops;
    TRY(ops->run(plan, a, e));
    const float poison = current->poison ? current->poison[begun / current->parts] : 0;
    begun++;
    if (poison != 0 && its_state->real == DT_F64)
        ((double *)its_state->reduce)[3] = (double)poison;
    else if (poison != 0)
        return device_cuda_ops.async->store(its_state->device, (float *)its_state->reduce + 3, (double)poison, e);
    return 0;
}

static void keep(struct course *c, const struct step *t, const struct step_result *r)
{
    if (!r->done)
        return;
    c->scale[c->done] = t->state->loss_scale.scale;
    c->result[c->done++] = *r;
}

static int check(struct comm *comm, struct err *e)
{
    return others_are_lost ? err_set(e, -ECANCELED, "a rank is gone") : 0;
}

static int drain(struct course *c, struct step *t, struct err *e)
{
    struct step_result r[STEP_SENT_MOST];
    int n;
    TRY(train_drain(t, r, &n, e));
    for (int i = 0; i < n; i++)
        keep(c, t, &r[i]);
    return 0;
}

static int steps(struct course *c, struct step *t, const struct gpu *g, struct err *e)
{
    struct step_result r;
    for (int i = 0; i < c->steps; i++) {
        if (c->torn_at && i == c->torn_at) {
            TRY(device_cuda_ops.sync(t->state->device, e)); /* what was begun before is whole */
            device_cuda_ops.async->tear(t->state->device, true);
        }
        others_are_lost = c->fails_at && i > c->fails_at;
        TRY(train_step(t, 0.01 * (i + 1), (struct step_wishes){.stop = i == 7}, &r, e));
        keep(c, t, &r);
        if (g && i == 5)
            c->early = *fake_gpu_counts(g);
    }
    if (g)
        c->late = *fake_gpu_counts(g);
    TRY(train_catch_up(t, &r, e));
    keep(c, t, &r);
    return 0;
}

static void copy_weights(const struct state *s, const void *arena, double *to)
{
    for (int i = 0; i < KEEP; i++)
        to[i] = s->real == DT_F64 ? ((const double *)arena)[i] : (double)((const float *)arena)[i];
}

static int open_device(const char *name, struct device **ret, struct gpu **ret_gpu, struct err *e)
{
    if (name[0] == 'r')
        return device_ref_ops.open(ret, &(struct device_options){.threads = 1}, e);
    fake_gpu_open(ret_gpu, &(struct fake_options){0});
    return cuda_open_on(ret, *ret_gpu, NULL, &(struct cuda_options){.graphs = true}, e);
}

static int train(struct course *c, struct device *d, struct gpu *g, struct err *e)
{
    struct device_ops ops = *d->ops;
    const struct device_ops *own = d->ops;
    struct program *p;
    struct comm *comm;
    struct step_rig rig;
    const struct step_rig_options o = {
        .optimizer = {.rule = c->rule,
                      .momentum = 0.9,
                      .beta2 = 0.99,
                      .eps = 1e-8,
                      .clip_norm = c->clip,
                      .ema = c->ema,
                      .trust = c->trust},
        .precision = {.half = DT_F16, .scale = c->fixed ? loss_scale_fixed(c->fixed) : loss_scale_dynamic()},
        .batch = BATCH,
        .steps = STEPS,
        .parts = c->parts};
    TRY(tiny_build(&p, e));
    TRY(comm_open(&comm, "local", &(struct comm_options){.world = 1, .name = "t", .timeout_ms = 1000}, e));
    TRY(step_rig_open(&rig, d, p, comm, &o, e));
    ops.run = run_and_poison;
    struct comm_ops calls = *comm->ops;
    const struct comm_ops *own_calls = comm->ops;
    calls.check = check;
    comm->ops = &calls;
    if (c->device[0] == 'w')
        ops.async = NULL;
    d->ops = &ops;
    current = c;
    its_state = &rig.state;
    begun = 0;
    const int rc = steps(c, &rig.step, g, e);
    if (c->torn_at || c->fails_at)
        TRY(drain(c, &rig.step, &(struct err){0}));
    if (g)
        fake_gpu_wait(g, NULL);
    copy_weights(&rig.state, rig.state.params, c->weights);
    if (c->ema > 0)
        copy_weights(&rig.state, rig.state.ema_params, c->average);
    c->skipped = rig.state.loss_scale.skipped;
    d->ops = own;
    step_rig_close(&rig);
    comm->ops = own_calls;
    comm->ops->close(comm);
    return rc;
}

static void go(struct course *c)
{
    struct device *d = NULL;
    struct gpu *g = NULL;
    c->steps = c->steps ? c->steps : STEPS;
    c->parts = c->parts ? c->parts : 1;
    if (open_device(c->device, &d, &g, &c->e) < 0)
        fail_msg("%s", c->e.text);
    c->rc = train(c, d, g, &c->e);
    d->ops->close(d);
}

static void assert_fine(const struct course *c)
{
    if (c->rc < 0)
        fail_msg("%s: %s", c->device, c->e.text);
    assert_int_equal(c->done, c->steps);
}

static void assert_same(const struct course *a, const struct course *b)
{
    for (int i = 0; i < a->steps; i++) {
        const struct step_result *x = &a->result[i], *y = &b->result[i];
        if (memcmp(&x->loss, &y->loss, sizeof x->loss) || x->top1 != y->top1 || x->count != y->count ||
            x->skipped != y->skipped || x->stop != y->stop || x->lr != y->lr || a->scale[i] != b->scale[i] ||
            (x->grad_norm != y->grad_norm && !(isnan(x->grad_norm) && isnan(y->grad_norm))))
            fail_msg("step %d: %s: loss %.9g norm %.9g skipped %d scale %g lr %g; "
                     "%s: loss %.9g norm %.9g skipped %d scale %g lr %g",
                     i + 1, a->device, x->loss, x->grad_norm, x->skipped, a->scale[i], x->lr, b->device, y->loss,
                     y->grad_norm, y->skipped, b->scale[i], y->lr);
        assert_true(x->grad_norm != 0);
    }
    assert_memory_equal(a->weights, b->weights, sizeof a->weights);
    assert_memory_equal(a->average, b->average, sizeof a->average);
    assert_int_equal(a->skipped, b->skipped);
}

static const float infinities[STEPS] = {[3] = INFINITY, [4] = NAN, [11] = -INFINITY, [STEPS - 1] = INFINITY};

/* The longest course, which three tests look at. */
static const struct course *long_course(void)
{
    static struct course c = {.device = "cuda", .rule = UPDATE_SGD, .ema = 0.9, .poison = infinities};
    if (c.done == 0)
        go(&c);
    assert_fine(&c);
    return &c;
}

static void steps_nobody_waits_for_end_where_the_others_end(void **state)
{
    (void)state;
    const struct course *ahead = long_course();
    struct course waits = {.device = "waits", .rule = UPDATE_SGD, .ema = 0.9, .poison = infinities};
    go(&waits);
    assert_fine(&waits);
    assert_int_equal(ahead->skipped, 4);
    assert_same(ahead, &waits);
}

static void adam_counts_no_skipped_step_and_parts_add_up(void **state)
{
    (void)state;
    static const struct course kinds[] = {{.rule = UPDATE_ADAM, .clip = 0.5},
                                          {.rule = UPDATE_NESTEROV, .parts = 2},
                                          {.rule = UPDATE_LARS, .clip = 0.5, .trust = 0.01}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct course ahead = kinds[k], waits = kinds[k];
        ahead.device = "cuda";
        waits.device = "waits";
        ahead.poison = waits.poison = infinities;
        ahead.steps = waits.steps = 7;
        go(&ahead);
        go(&waits);
        assert_fine(&ahead);
        assert_fine(&waits);
        assert_int_equal(ahead.skipped, 2);
        assert_same(&ahead, &waits);
    }
}

static void skips_and_scales_are_those_of_the_reference_device(void **state)
{
    (void)state;
    const struct course *ahead = long_course();
    struct course ref = {.device = "ref", .rule = UPDATE_SGD, .ema = 0.9, .poison = infinities};
    go(&ref);
    assert_fine(&ref);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(ahead->result[i].skipped, ref.result[i].skipped);
        assert_true(ahead->scale[i] == ref.scale[i]);
        assert_true(ahead->result[i].stop == (i == 7));
        if (i < 5 && fabs(ahead->result[i].loss - ref.result[i].loss) > 1e-3 * fabs(ref.result[i].loss))
            fail_msg("step %d: loss %.9g, ref has %.9g", i + 1, ahead->result[i].loss, ref.result[i].loss);
    }
}

static void once_graphs_are_there_no_step_waits_or_takes_memory(void **state)
{
    (void)state;
    const struct course *c = long_course();
    assert_int_equal(c->late.syncs, c->early.syncs);
    assert_int_equal(c->late.allocs, c->early.allocs);
    assert_int_equal(c->late.host_allocs, c->early.host_allocs);
    assert_int_equal(c->late.captures, c->early.captures);
    assert_int_equal(c->late.launches - c->early.launches, STEPS - 6);
}

static void a_fixed_scale_that_overflows_ends_training_and_changes_nothing_more(void **state)
{
    (void)state;
    struct course c = {.device = "cuda", .rule = UPDATE_SGD, .fixed = 128, .poison = infinities, .steps = 6},
                  until = {.device = "cuda", .rule = UPDATE_SGD, .fixed = 128, .steps = 3};
    go(&c);
    go(&until);
    assert_fine(&until);
    assert_int_equal(c.rc, ERR_DIVERGED);
    assert_int_equal(c.done, 3);
    assert_memory_equal(c.weights, until.weights, sizeof c.weights);
}

/* Device memory after `lost`, which broke off, is that after `whole`, and results of all its steps came. */
static void assert_broke_off_after(const struct course *lost, const struct course *whole)
{
    assert_fine(whole);
    assert_int_equal(lost->rc, -ECANCELED);
    assert_int_equal(lost->done, whole->steps);
    for (int i = 0; i < whole->steps; i++)
        assert_true(lost->result[i].loss == whole->result[i].loss && lost->scale[i] == whole->scale[i]);
    assert_memory_equal(lost->weights, whole->weights, sizeof whole->weights);
    assert_memory_equal(lost->average, whole->average, sizeof whole->average);
    assert_int_equal(lost->skipped, whole->skipped);
}

/* Collectives are ended, and the graphs of two steps go on, and are judged. */
static void a_step_whose_sums_are_torn_changes_nothing(void **state)
{
    (void)state;
    struct course lost = {.device = "cuda", .rule = UPDATE_ADAM, .ema = 0.9, .poison = infinities, .torn_at = 8},
                  whole = {.device = "cuda", .rule = UPDATE_ADAM, .ema = 0.9, .poison = infinities, .steps = 8};
    go(&lost);
    go(&whole);
    assert_broke_off_after(&lost, &whole);
}

/* Others are lost once the device had all of the last two steps, of which the host has seen neither. */
static void steps_that_were_whole_count_though_others_are_lost(void **state)
{
    (void)state;
    struct course lost = {.device = "cuda", .rule = UPDATE_ADAM, .ema = 0.9, .poison = infinities, .fails_at = 8},
                  whole = {.device = "cuda", .rule = UPDATE_ADAM, .ema = 0.9, .poison = infinities, .steps = 9};
    go(&lost);
    go(&whole);
    assert_broke_off_after(&lost, &whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_nobody_waits_for_end_where_the_others_end),
        cmocka_unit_test(adam_counts_no_skipped_step_and_parts_add_up),
        cmocka_unit_test(skips_and_scales_are_those_of_the_reference_device),
        cmocka_unit_test(once_graphs_are_there_no_step_waits_or_takes_memory),
        cmocka_unit_test(a_fixed_scale_that_overflows_ends_training_and_changes_nothing_more),
        cmocka_unit_test(a_step_whose_sums_are_torn_changes_nothing),
        cmocka_unit_test(steps_that_were_whole_count_though_others_are_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
