/* All ways to spread a run: each possible, none twice, none left out; and which of them it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/config/cores.h"
#include "worker/pipeline/pipeline.h"
#include "worker/planner/planner.h"
#include "worker/planner/plans.h"

static const struct plan_limits four = {
    .world = 4, .local_world = 4, .batch = 16, .classes = 10, .cuts = 8, .zero3 = true, .chunks = 2};

static int count(const struct plan_limits *l, bool (*wanted)(const struct parallel_plan *))
{
    struct parallel_plan *all;
    struct err e;
    int n, found = 0;
    assert_int_equal(plans_list(&all, &n, l, &e), 0);
    for (int i = 0; i < n; i++) {
        const struct parallel_plan *p = &all[i];
        const struct pipeline line = {(enum pipeline_kind)p->schedule, p->stages, p->parts, p->chunks};
        assert_int_equal(p->data * p->tensor * p->stages, l->world);
        assert_true(p->parts * p->data * p->tensor <= l->batch && p->tensor <= l->classes);
        assert_int_equal(pipeline_check(&line, NULL), 0);
        assert_true(p->stages * p->chunks <= l->cuts || p->stages == 1);
        for (int j = 0; j < i; j++)
            assert_int_not_equal(memcmp(p, &all[j], sizeof *p), 0);
        found += !wanted || wanted(p);
    }
    free(all);
    return found;
}

static bool has_stages(const struct parallel_plan *p)
{
    return p->stages > 1;
}

static bool goes_by_node(const struct parallel_plan *p)
{
    return p->hierarchical;
}

static void every_possible_way_is_listed_once(void **state)
{
    (void)state;
    /* one stage: (4,1) (2,2) (1,4), parts 1 2 4, ZeRO 0 to 3 */
    const int one = 3 * 3 * 4;
    /* two: (2,1) (1,2), parts 1 2 4 8, ZeRO 0 to 3, twice gpipe, 1f1b; interleaved but for one part */
    const int two = 2 * 4 * 2 * (4 * 2 + 3);
    /* four: (1,1), parts 1 to 16, twice gpipe, 1f1b; interleaved with 4, 8, 16 */
    const int all = one + two + 2 * (5 * 2 + 3);
    assert_int_equal(count(&four, NULL), all);
    struct plan_limits l = four;
    l.parts = 4;
    assert_int_equal(count(&l, NULL), 3 * 4 + 2 * 4 * 2 * 3 + 2 * 3);
    l = four;
    l.cuts = 1; /* a model in one piece */
    assert_int_equal(count(&l, has_stages), 0);
    l = four;
    l.world = l.local_world = 1;
    assert_int_equal(count(&l, NULL), 5); /* parts alone */
    l = four;
    l.nodes = true;
    l.local_world = 2; /* sums of whole gradients over both nodes: one stage, ZeRO 0; of two stages each has its node */
    assert_int_equal(count(&l, goes_by_node), 3 * 3);
}

static void a_plan_is_its_options(void **state)
{
    (void)state;
    const struct train_config cfg = {.stages = 1, .accumulate = 1, .batch_size = 64};
    struct train_config as;
    char text[200];
    const struct parallel_plan p = {2, 2, 2, PIPELINE_INTERLEAVED, 2, 4, 3, true, false};
    plans_apply(&p, &cfg, &as);
    assert_int_equal(as.stages, 2);
    assert_int_equal(as.accumulate, 4);
    assert_int_equal(train_config_zero(&as), 3);
    assert_int_equal(train_config_tensor(&as, 8), 2);
    assert_int_equal(train_config_pipeline(&as).chunks, 2);
    assert_true(as.recompute);
    assert_int_equal(as.batch_size, 64);
    assert_string_equal(
        plans_options(&p, &cfg, text, sizeof text),
        "--model-parallel-size 2 --model-parallel-dim 1 --stages 2 --schedule interleaved --microbatches 4 "
        "--recompute --zero 3");
    const struct parallel_plan plain = {4, 1, 1, PIPELINE_1F1B, 1, 1, 0, false, true};
    assert_string_equal(plans_options(&plain, &cfg, text, sizeof text), "--allreduce hierarchical");
}

static void of_two_plans_one_is_simpler(void **state)
{
    (void)state;
    struct plan_limits l = four;
    struct parallel_plan *all;
    struct err e;
    int n;
    l.nodes = true;
    l.local_world = 2;
    assert_int_equal(plans_list(&all, &n, &l, &e), 0);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            assert_int_equal(plans_simpler(&all[i], &all[j]) + plans_simpler(&all[j], &all[i]), i != j);
    free(all);
}

/* From the simplest on. */
static void fewer_mechanisms_are_simpler_than_smaller_ones(void **state)
{
    (void)state;
    const struct parallel_plan in_order[] = {
        {4, 1, 1, PIPELINE_1F1B, 1, 1, 0, false, false}, /* none */
        {4, 1, 1, PIPELINE_1F1B, 1, 1, 1, false, false}, /* one: ZeRO, parts, a tensor group */
        {4, 1, 1, PIPELINE_1F1B, 1, 1, 3, false, false},
        {4, 1, 1, PIPELINE_1F1B, 1, 2, 0, false, false},
        {2, 2, 1, PIPELINE_1F1B, 1, 1, 0, false, false},
        {4, 1, 1, PIPELINE_1F1B, 1, 2, 1, false, false}, /* two */
        {2, 1, 2, PIPELINE_1F1B, 1, 4, 0, false, false},
        {2, 1, 2, PIPELINE_GPIPE, 1, 4, 0, false, false},
        {2, 1, 2, PIPELINE_INTERLEAVED, 2, 4, 0, false, false}, /* three */
        {2, 1, 2, PIPELINE_1F1B, 1, 4, 0, true, false},
    };
    for (size_t i = 1; i < sizeof in_order / sizeof *in_order; i++)
        assert_true(plans_simpler(&in_order[i - 1], &in_order[i]));
}

static struct planner_row row(int parts, int zero, double seconds)
{
    return (struct planner_row){.plan = {2, 1, 1, PIPELINE_1F1B, 1, parts, zero, false, false},
                                .as = {.seconds = seconds},
                                .fits = seconds > 0,
                                .timed = seconds > 0};
}

/* rows: 0, 1: with 1 and 2 parts; 2: ZeRO 1. Seconds 0: it does not fit. */
static struct planner_choice pick(struct planner_row rows[3], double plain, double parts, double zero, const char *why)
{
    struct planner_choice c = {.rows = rows, .n = 3};
    char text[200];
    rows[0] = row(1, 0, plain);
    rows[1] = row(2, 0, parts);
    rows[2] = row(1, 1, zero);
    planner_pick(&c);
    if (c.chosen >= 0)
        assert_string_equal(planner_why(&c, text, sizeof text), why);
    return c;
}

static void what_predictions_do_not_tell_apart_goes_to_the_simplest(void **state)
{
    (void)state;
    struct planner_row rows[3];
    struct planner_choice c = pick(rows, 0.0889, 0.1, 0.0847,
                                   "the simplest of 2 within 8 % of the fastest: predictions do not tell these apart");
    assert_int_equal(c.chosen, 0);
    assert_int_equal(c.next, 2);
    c = pick(rows, 0.0847, 0.1, 0.0889,
             "the fastest, and the simplest of 2 within 8 % of it: predictions do not tell these "
             "apart");
    assert_int_equal(c.chosen, 0);
    c = pick(rows, 0.0947, 0.1, 0.0847, "it is the fastest, by more than 8 %");
    assert_int_equal(c.chosen, 2);
    assert_int_equal(c.next, 0);
    /* only what fits counts: neither the fastest nor the simplest else */
    c = pick(rows, 0, 0.1, 0.101, "the simplest of 2 within 8 % of the fastest: predictions do not tell these apart");
    assert_int_equal(c.chosen, 2);
    c = pick(rows, 0, 0.1, 0, "no other plan fits");
    assert_int_equal(c.chosen, 1);
    assert_int_equal(c.next, -1);
    c = pick(rows, 0, 0, 0, "");
    assert_int_equal(c.chosen, -1);
    assert_int_equal(c.alike, 0);
}

static void ranks_that_share_processors_measure_side_by_side(void **state)
{
    const int cores = cores_of_process();
    const struct train_config one = {.threads = 1}, too_many = {.threads = 2 * cores};
    (void)state;
    assert_int_equal(planner_measures(&one, 1), 1);
    assert_int_equal(planner_measures(&one, cores), cores);
    assert_int_equal(planner_measures(&one, 2 * cores), 2 * cores);
    assert_int_equal(planner_measures(&one, 5 * cores), 2 * cores);
    assert_int_equal(planner_measures(&too_many, 4), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_possible_way_is_listed_once),
        cmocka_unit_test(a_plan_is_its_options),
        cmocka_unit_test(of_two_plans_one_is_simpler),
        cmocka_unit_test(fewer_mechanisms_are_simpler_than_smaller_ones),
        cmocka_unit_test(what_predictions_do_not_tell_apart_goes_to_the_simplest),
        cmocka_unit_test(ranks_that_share_processors_measure_side_by_side),
    };
    return cmocka_run_group_tests_name("ways to spread a run", tests, NULL, NULL);
}
