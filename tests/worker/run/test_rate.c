/* From options to a schedule: the published examples' own numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "common/base/err.h"
#include "worker/config/config.h"
#include "worker/run/rate.h"

static const struct train_config plain = {.batch_size = 256,
                                          .accumulate = 1,
                                          .num_epochs = 90,
                                          .base_lr = 0.1,
                                          .lr_step_epochs = 30,
                                          .lr_gamma = 0.1,
                                          .lr_power = 2,
                                          .warmup_start = 0.1};

static void expect(const struct train_config *c, int world, int64_t steps_per_epoch, int64_t step, double lr)
{
    struct schedule s = rate_schedule(c, world, (int)c->accumulate, steps_per_epoch, c->num_epochs * steps_per_epoch);
    struct err e = {0};
    if (schedule_check(&s, &e) < 0)
        fail_msg("%s", e.text);
    double got = schedule_lr(&s, step);
    if (!(fabs(got - lr) <= 1e-14 * s.base_lr))
        fail_msg("step %lld: %.17g instead of %.17g", (long long)step, got, lr);
}

static void horovod_scales_by_ranks_and_parts(void **state)
{
    struct train_config c = plain;
    c.lr_policy = LR_HOROVOD, c.base_lr = 0.0125, c.warmup_epochs = -1;
    expect(&c, 8, 100, 0, 0.012675);
    expect(&c, 8, 100, 499, 0.1);
    expect(&c, 8, 100, 3000, 0.01);
    c.accumulate = 2;
    expect(&c, 8, 100, 499, 0.2);
    const struct schedule cut = rate_schedule(&c, 8, 1, 100, 9000); /* a batch of 8 pictures has one part */
    assert_true(fabs(schedule_lr(&cut, 499) - 0.1) <= 1e-14);
    c.num_epochs = 1; /* ends within the warm-up */
    expect(&c, 8, 100, 0, 0.02535);
}

static void the_least_rate_is_scaled_as_the_base_rate(void **state)
{
    struct train_config c = plain;
    (void)state;
    c.lr_min = 0.01, c.lr_scale = LR_SCALE_WORKERS, c.num_epochs = 2;
    expect(&c, 4, 10, 10, 0.22); /* half of 0.4 and 0.04, in the middle */
    expect(&c, 4, 10, 20, 0.04);
}

/* Half of the nodes are lost, the global batch stays: so does the rate. A batch that follows the ranks is another
 * matter. */
static void ranks_that_go_change_no_rate_while_the_batch_stays(void **state)
{
    struct train_config c = plain;
    (void)state;
    c.lr_scale = LR_SCALE_WORKERS, c.lr_policy = LR_FIXED;
    assert_true(rate_workers(&c, 8, 256) == 8);
    c.batch_size = 128;
    assert_true(rate_workers(&c, 8, 256) == 4);
    expect(&c, 4, 10, 0, 0.4);
}

static void apex_scales_by_the_global_batch(void **state)
{
    struct train_config c = plain;
    c.lr_policy = LR_APEX, c.batch_size = 8 * 256, c.warmup_epochs = -1;
    expect(&c, 8, 100, 0, 0.0032);
    expect(&c, 8, 100, 8000, 0.0008);
}

static void the_scale_of_the_rate_is_ranks_or_batch(void **state)
{
    struct train_config c = plain;
    c.lr_policy = LR_FIXED, c.batch_size = 64;
    expect(&c, 4, 10, 0, 0.1);
    c.lr_scale = LR_SCALE_WORKERS;
    expect(&c, 4, 10, 0, 0.4);
    c.lr_scale = LR_SCALE_BATCH256;
    expect(&c, 4, 10, 0, 0.025);
}

/* 46875 and 23437 iterations an epoch: 1500000 images in batches of 32 and 64. */
static void caffe2s_step_size_is_thirty_epochs_of_iterations(void **state)
{
    struct train_config c = plain;
    c.lr_policy = LR_STEP, c.num_epochs = 1000;
    struct schedule s = rate_schedule(&c, 1, 1, 1500000 / 32, 1000 * (1500000 / 32));
    assert_int_equal(1406250, s.step_size);
    s = rate_schedule(&c, 2, 1, 1500000 / 64, 1000 * (1500000 / 64));
    assert_int_equal(703110, s.step_size);
    expect(&c, 1, 46875, 1406249, 0.1);
    expect(&c, 1, 46875, 1406250, 0.01);
}

static void warm_up_can_stay_or_rise_from_a_share(void **state)
{
    struct train_config c = plain;
    c.lr_policy = LR_FIXED, c.lr_warmup = WARMUP_CONSTANT, c.warmup_epochs = 2;
    expect(&c, 1, 10, 19, 0.01);
    expect(&c, 1, 10, 20, 0.1);
    c.lr_warmup = WARMUP_CAFFE2;
    expect(&c, 1, 10, 0, 0.01);
    expect(&c, 1, 10, 10, 0.055);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(horovod_scales_by_ranks_and_parts),
        cmocka_unit_test(the_least_rate_is_scaled_as_the_base_rate),
        cmocka_unit_test(ranks_that_go_change_no_rate_while_the_batch_stays),
        cmocka_unit_test(apex_scales_by_the_global_batch),
        cmocka_unit_test(the_scale_of_the_rate_is_ranks_or_batch),
        cmocka_unit_test(caffe2s_step_size_is_thirty_epochs_of_iterations),
        cmocka_unit_test(warm_up_can_stay_or_rise_from_a_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
