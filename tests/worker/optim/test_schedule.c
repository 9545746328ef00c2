#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/optim/schedule.h"

struct golden {
    int64_t step;
    double lr;
};

/* Bound: a few roundings of the formula in double. */
static void expect(const struct schedule *s, const struct golden *v, size_t n)
{
    struct err e = {0};
    if (schedule_check(s, &e) < 0)
        fail_msg("%s", e.text);
    for (size_t i = 0; i < n; i++) {
        double lr = schedule_lr(s, v[i].step);
        if (!(fabs(lr - v[i].lr) <= 1e-14 * s->base_lr))
            fail_msg("step %lld: %.17g instead of %.17g", (long long)v[i].step, lr, v[i].lr);
    }
}
#define EXPECT(s, ...)                                                                                                 \
    do {                                                                                                               \
        const struct golden v_[] = {__VA_ARGS__};                                                                      \
        expect(s, v_, sizeof v_ / sizeof *v_);                                                                         \
    } while (0)

/* Values from Python's math module. */
static void cosine_after_warm_up_follows_the_golden_table(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_COSINE, .base_lr = 0.1, .total_steps = 300, .warmup_steps = 15};
    EXPECT(&s, {0, 0.0066666666666666671}, {1, 0.013333333333333334}, {7, 0.053333333333333337}, {14, 0.1}, {15, 0.1},
           {16, 0.099996962294717162}, {100, 0.079611762633249011}, {157, 0.050275576907725023},
           {158, 0.049724423092274983}, {250, 0.0074040295580836525}, {298, 1.2150452025272429e-05},
           {299, 3.0377052828489685e-06}, {300, 0}, {1000, 0});
}

static void cosine_without_warm_up_starts_at_the_base_rate(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_COSINE, .base_lr = 0.4, .total_steps = 4};
    EXPECT(&s, {0, 0.4}, {1, 0.34142135623730951}, {2, 0.2}, {3, 0.058578643762690494}, {4, 0});
}

/* torch's CosineAnnealingLR(eta_min=0.1): the mean of both ends in the middle. */
static void cosine_ends_at_the_least_rate(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_COSINE, .base_lr = 0.4, .least = 0.1, .total_steps = 6, .warmup_steps = 2};
    EXPECT(&s, {0, 0.2}, {2, 0.4}, {3, 0.35606601717798213}, {4, 0.25}, {5, 0.14393398282201789}, {6, 0.1}, {9, 0.1});
    s.least = 0.5;
    struct err e = {0};
    assert_int_equal(schedule_check(&s, &e), -EINVAL);
    assert_string_equal(e.text, "the rate at the end, 0.5, is not between 0 and the base learning rate 0.4");
}

/* timm.scheduler.CosineLRScheduler(t_initial=10, lr_min=0.1, warmup_t=2, warmup_lr_init=0.04) of a rate of 0.4, 3 steps
 * an epoch, stepped at the end of each epoch with its number plus one, and with its number as DeiT does. */
static void timms_cosine_begins_with_the_run(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_TIMM,
                         .warmup = WARMUP_CAFFE2,
                         .warmup_start = 0.1,
                         .base_lr = 0.4,
                         .least = 0.1,
                         .total_steps = 30,
                         .warmup_steps = 6,
                         .hold = 3};
    EXPECT(&s, {0, 0.04}, {2, 0.04}, {3, 0.22}, {6, 0.37135254915624211}, {15, 0.25}, {29, 0.10734152255572697},
           {30, 0.1});
    s.late = true;
    EXPECT(&s, {0, 0.04}, {3, 0.04}, {5, 0.04}, {6, 0.22}, {9, 0.37135254915624211}, {18, 0.25});
}

/* torch: lr * 0.1^(epoch div 30), here with 1000 steps an epoch. */
static void step_drops_where_the_seeds_table_says(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_STEP, .base_lr = 0.1, .total_steps = 90000, .step_size = 30000, .gamma = 0.1};
    EXPECT(&s, {0, 0.1}, {29000, 0.1}, {29999, 0.1}, {30000, 0.01}, {59999, 0.01}, {60000, 0.001}, {89999, 0.001});
}

static void step_counts_from_step_0_even_after_warm_up(void **state)
{
    (void)state;
    struct schedule s = {
        .policy = LR_STEP, .base_lr = 1, .total_steps = 100, .warmup_steps = 4, .step_size = 10, .gamma = 0.5};
    EXPECT(&s, {0, 0.25}, {3, 1}, {4, 1}, {9, 1}, {10, 0.5}, {19, 0.5}, {20, 0.25}, {99, pow(0.5, 9)});
}

/* Epochs 30, 60, 80 of 100 steps. */
static void multistep_drops_at_its_milestones(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_MULTISTEP,
                         .base_lr = 0.1,
                         .total_steps = 9000,
                         .gamma = 0.1,
                         .milestones = {3000, 6000, 8000},
                         .n_milestones = 3};
    EXPECT(&s, {0, 0.1}, {2999, 0.1}, {3000, 0.01}, {5999, 0.01}, {6000, 0.001}, {8000, 0.0001}, {8999, 0.0001});
}

static void poly_falls_to_0_at_the_end(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_POLY, .base_lr = 0.4, .total_steps = 12, .warmup_steps = 2, .power = 2};
    EXPECT(&s, {0, 0.2}, {1, 0.4}, {2, 0.4}, {7, 0.1}, {11, 0.004}, {12, 0}, {99, 0});
}

/* Caffe2's formulas. */
static void exp_and_inv_follow_caffe2(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_EXP, .base_lr = 0.1, .total_steps = 100, .gamma = 0.5};
    EXPECT(&s, {0, 0.1}, {1, 0.05}, {3, 0.0125});
    s.policy = LR_INV;
    s.power = 0.75;
    s.gamma = 0.1;
    EXPECT(&s, {0, 0.1}, {10, 0.1 * pow(2, -0.75)}, {90, 0.1 * pow(10, -0.75)});
}

static void fixed_stays(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_FIXED, .base_lr = 0.05, .total_steps = 10, .warmup_steps = 2};
    EXPECT(&s, {0, 0.025}, {1, 0.05}, {2, 0.05}, {9, 0.05}, {1000000, 0.05});
}

static void warm_up_over_the_whole_run_never_divides_by_zero(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_COSINE, .base_lr = 0.2, .total_steps = 2, .warmup_steps = 2};
    EXPECT(&s, {0, 0.1}, {1, 0.2}, {2, 0});
}

static void unusable_schedules_are_refused_with_the_value(void **state)
{
    (void)state;
    const struct schedule good = {.policy = LR_STEP, .base_lr = 0.1, .total_steps = 10, .step_size = 3, .gamma = 0.1};
    struct schedule bad[10];
    const char *says[] = {"policy 10",     "rate -1",     "rate nan", "run of 0", "warm-up of -1",
                          "warm-up of 11", "step size 0", "gamma 0",  "power 0",  "17 milestones"};
    for (int i = 0; i < 10; i++)
        bad[i] = good;
    bad[0].policy = (enum lr_policy)10;
    bad[1].base_lr = -1;
    bad[2].base_lr = NAN;
    bad[3].total_steps = 0;
    bad[4].warmup_steps = -1;
    bad[5].warmup_steps = 11;
    bad[6].step_size = 0;
    bad[7].gamma = 0;
    bad[8].policy = LR_POLY;
    bad[9].n_milestones = 17;
    for (int i = 0; i < 10; i++) {
        struct err e = {0};
        int rc = schedule_check(&bad[i], &e);
        if (rc != -EINVAL || !strstr(e.text, says[i]))
            fail_msg("case %d: %s '%s' instead of '%s'", i, err_name(rc), e.text, says[i]);
    }
    struct schedule fixed = bad[6];
    fixed.policy = LR_FIXED; /* its step size does not matter */
    assert_int_equal(schedule_check(&fixed, NULL), 0);
}

static void policies_have_the_names_of_the_option(void **state)
{
    (void)state;
    assert_string_equal(schedule_policy_name(LR_COSINE), "cosine");
    assert_string_equal(schedule_policy_name(LR_STEP), "step");
    assert_string_equal(schedule_policy_name(LR_FIXED), "fixed");
    assert_string_equal(schedule_policy_name(LR_APEX), "apex");
    assert_null(schedule_policy_name((enum lr_policy)(LR_APEX + 1)));
}

/* Horovod's ImageNet example: 0.0125 a rank, 8 ranks, 100 steps an epoch, 5 epochs of warm-up: factor 1/8 * (e * 7/5 +
 * 1) with e the epochs done after the step. */
static void horovods_warm_up_goes_from_one_ranks_rate_to_all_ranks(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_HOROVOD,
                         .warmup = WARMUP_HOROVOD,
                         .base_lr = 0.0125 * 8,
                         .warmup_start = 1.0 / 8,
                         .total_steps = 9000,
                         .warmup_steps = 500,
                         .gamma = 0.1,
                         .milestones = {3000, 6000, 8000},
                         .n_milestones = 3};
    EXPECT(&s, {0, 0.012675}, {99, 0.03}, {499, 0.1}, {500, 0.1}, {2999, 0.1}, {3000, 0.01}, {5999, 0.01},
           {6000, 0.001}, {8000, 0.0001});
}

/* Apex' ImageNet example: 0.1 * 2048 / 256, 100 steps an epoch: (1 + step + epoch * 100) / 500 with step from 1. */
static void apex_warm_up_counts_from_two(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_APEX,
                         .warmup = WARMUP_APEX,
                         .base_lr = 0.8,
                         .total_steps = 9500,
                         .warmup_steps = 500,
                         .gamma = 0.1,
                         .milestones = {3000, 6000, 8000, 9000},
                         .n_milestones = 4};
    EXPECT(&s, {0, 0.0032}, {1, 0.0048}, {498, 0.8}, {500, 0.8}, {2999, 0.8}, {3000, 0.08}, {7999, 0.008},
           {8000, 0.0008}, {9000, 0.00008});
}

/* LearningRate's linearWarmup and constantWarmup. */
static void caffe2s_warm_ups_start_at_their_multiplier(void **state)
{
    (void)state;
    struct schedule s = {.policy = LR_FIXED,
                         .warmup = WARMUP_CAFFE2,
                         .warmup_start = 0.2,
                         .base_lr = 0.5,
                         .total_steps = 100,
                         .warmup_steps = 10};
    EXPECT(&s, {0, 0.1}, {5, 0.3}, {9, 0.46}, {10, 0.5});
    s.warmup = WARMUP_CONSTANT;
    EXPECT(&s, {0, 0.1}, {9, 0.1}, {10, 0.5}, {99, 0.5});
}

/* int(30 * epoch_size / batch / num_shards) iterations, epoch_size rounded down to whole batches. */
static void caffe2_drops_by_iterations(void **state)
{
    (void)state;
    struct schedule s = {
        .policy = LR_STEP, .base_lr = 0.1, .total_steps = 46875000, .step_size = 1406250, .gamma = 0.1};
    EXPECT(&s, {0, 0.1}, {1406249, 0.1}, {1406250, 0.01}, {2812500, 0.001});
    s.step_size = 703110;
    EXPECT(&s, {703109, 0.1}, {703110, 0.01});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cosine_after_warm_up_follows_the_golden_table),
        cmocka_unit_test(cosine_ends_at_the_least_rate),
        cmocka_unit_test(timms_cosine_begins_with_the_run),
        cmocka_unit_test(cosine_without_warm_up_starts_at_the_base_rate),
        cmocka_unit_test(step_drops_where_the_seeds_table_says),
        cmocka_unit_test(step_counts_from_step_0_even_after_warm_up),
        cmocka_unit_test(multistep_drops_at_its_milestones),
        cmocka_unit_test(poly_falls_to_0_at_the_end),
        cmocka_unit_test(exp_and_inv_follow_caffe2),
        cmocka_unit_test(fixed_stays),
        cmocka_unit_test(warm_up_over_the_whole_run_never_divides_by_zero),
        cmocka_unit_test(unusable_schedules_are_refused_with_the_value),
        cmocka_unit_test(policies_have_the_names_of_the_option),
        cmocka_unit_test(horovods_warm_up_goes_from_one_ranks_rate_to_all_ranks),
        cmocka_unit_test(apex_warm_up_counts_from_two),
        cmocka_unit_test(caffe2s_warm_ups_start_at_their_multiplier),
        cmocka_unit_test(caffe2_drops_by_iterations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
