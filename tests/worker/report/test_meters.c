#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/report/meters.h"

static struct meters_step step(int64_t epoch, double count, double seconds)
{
    return (struct meters_step){.epoch = epoch,
                                .loss = 2 * count,
                                .top1 = count / 2,
                                .top5 = count,
                                .count = count,
                                .seconds = seconds,
                                .data_seconds = seconds / 4};
}

static void means_weigh_by_images_and_begin_anew_with_an_epoch(void **state)
{
    (void)state;
    struct meters m = {0};
    struct progress_state s = {0};
    struct meters_step a = step(0, 30, 1), b = step(0, 10, 3), c = step(1, 10, 5);
    b.loss = 60;
    meters_add(&m, &a);
    meters_add(&m, &b);
    meters_show(&m, &s);
    assert_float_equal(s.loss.now, 6, 1e-12);
    assert_float_equal(s.loss.mean, 3, 1e-12);
    assert_float_equal(s.acc1.mean, 50, 1e-12);
    assert_float_equal(s.acc5.mean, 100, 1e-12);
    assert_float_equal(s.time.mean, 2, 1e-12);
    assert_float_equal(s.data.mean, 0.5, 1e-12);
    meters_add(&m, &c);
    meters_show(&m, &s);
    assert_float_equal(s.loss.mean, 2, 1e-12);
    assert_float_equal(s.time.mean, 5, 1e-12);
}

static void images_per_second_leave_the_warm_up_out(void **state)
{
    (void)state;
    struct meters m = {0};
    struct meters_step slow = step(0, 10, 10), quick = step(0, 10, 1);
    for (int i = 0; i < METERS_WARM_UP_STEPS; i++)
        meters_add(&m, &slow);
    assert_float_equal(meters_run_rate(&m), 1, 1e-12); /* nothing better is known */
    meters_add(&m, &quick);
    assert_float_equal(meters_epoch_rate(&m), 10, 1e-12);
    assert_float_equal(meters_run_rate(&m), 10, 1e-12);
    assert_float_equal(meters_step_seconds(&m), 1, 1e-12);
    quick.epoch = 1;
    quick.seconds = 0.5;
    meters_add(&m, &quick);
    assert_float_equal(meters_epoch_rate(&m), 20, 1e-12);
    assert_float_equal(meters_run_rate(&m), 20 / 1.5, 1e-12);
}

static void steps_without_images_or_time_divide_by_nothing(void **state)
{
    (void)state;
    struct meters m = {0};
    struct progress_state s = {0};
    struct meters_step none = step(0, 0, 0);
    meters_add(&m, &none);
    meters_show(&m, &s);
    assert_float_equal(s.loss.mean + s.rate.now + s.rate.mean + s.acc1.now, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_weigh_by_images_and_begin_anew_with_an_epoch),
        cmocka_unit_test(images_per_second_leave_the_warm_up_out),
        cmocka_unit_test(steps_without_images_or_time_divide_by_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
