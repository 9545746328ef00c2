/* Steps as plays: what runs beside what, and what waits for what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/pipeline/pipeline.h"
#include "worker/planner/simulate.h"

static void near(double a, double b)
{
    if (fabs(a - b) > 1e-9 * (fabs(b) + 1))
        fail_msg("%.9g is not %.9g", a, b);
}

/* One actor that does these. */
static double alone(const struct action *all, int n, double cores, int ranks)
{
    struct actor a = {.ranks = ranks};
    struct err e;
    double seconds;
    for (int i = 0; i < n; i++)
        assert_int_equal(actor_add(&a, all[i], &e), 0);
    assert_int_equal(simulate(&a, 1, cores, &seconds, &e), 0);
    actor_finish(&a);
    return seconds;
}

#define ALONE(cores, ranks, ...)                                                                                       \
    alone((const struct action[]){__VA_ARGS__}, sizeof((const struct action[]){__VA_ARGS__}) / sizeof(struct action),  \
          cores, ranks)

static void reductions_hide_behind_what_computes(void **state)
{
    (void)state;
    near(ALONE(2, 1, {ACT_RUN, 2, 1}, {ACT_ASK, 1, 1}, {ACT_RUN, 3, 1}, {ACT_AWAIT, .number = 1}), 5);
    near(ALONE(2, 1, {ACT_RUN, 2, 1}, {ACT_ASK, 4, 1}, {ACT_RUN, 3, 1}, {ACT_AWAIT, .number = 1}, {ACT_RUN, 1, 1}), 7);
    /* the second one begins behind the first */
    near(ALONE(2, 1, {ACT_ASK, 4, 1}, {ACT_ASK, 4, 1}, {ACT_RUN, 3, 1}, {ACT_AWAIT, .number = 2}), 8);
    near(ALONE(2, 1, {ACT_ASK, 4, 1}, {ACT_ASK, 4, 1}, {ACT_RUN, 3, 1}, {ACT_AWAIT, .number = 1}), 4);
}

static void who_wants_more_processors_than_there_are_is_slower(void **state)
{
    (void)state;
    near(ALONE(2, 4, {ACT_RUN, 3, 1}), 6);
    /* one processor: 3 and 1 side by side at half speed until the 1 is over */
    near(ALONE(1, 1, {ACT_ASK, 1, 1}, {ACT_RUN, 3, 1}, {ACT_AWAIT, .number = 1}), 4);
    near(ALONE(1, 1, {ACT_ASK, 1, 0}, {ACT_RUN, 3, 1}, {ACT_AWAIT, .number = 1}), 3); /* a network that takes none */
    near(ALONE(2, 1, {ACT_ALONG, 5, 1}, {ACT_RUN, 3, 1}), 5);
}

/* Stages that take one second forward and two backward, and messages that take none: the schedule's own time. */
static double pipeline_seconds(const struct pipeline *p, double cores)
{
    struct actor actors[8] = {0};
    struct err e;
    double seconds;
    for (int s = 0; s < p->stages; s++) {
        actors[s] = (struct actor){.ranks = 1};
        for (int i = 0; i < pipeline_actions(p); i++) {
            const struct pipeline_action a = pipeline_action(p, s, i);
            if (a.from >= 0)
                assert_int_equal(
                    actor_add(&actors[s], (struct action){ACT_RECEIVE, .peer = a.from, .way = a.backward}, &e), 0);
            assert_int_equal(actor_add(&actors[s], (struct action){ACT_RUN, a.backward ? 2 : 1, 1}, &e), 0);
            if (a.to >= 0)
                assert_int_equal(actor_add(&actors[s], (struct action){ACT_SEND, .peer = a.to, .way = a.backward}, &e),
                                 0);
        }
    }
    assert_int_equal(simulate(actors, p->stages, cores, &seconds, &e), 0);
    for (int s = 0; s < p->stages; s++)
        actor_finish(&actors[s]);
    return seconds;
}

static void pipelines_have_the_bubble_of_their_schedule(void **state)
{
    (void)state;
    for (int s = 2; s <= 8; s *= 2)
        for (int m = s; m <= 4 * s; m *= 2) {
            const struct pipeline gpipe = {PIPELINE_GPIPE, s, m, 1}, one = {PIPELINE_1F1B, s, m, 1};
            near(pipeline_seconds(&gpipe, s), 3 * (m + s - 1));
            near(pipeline_seconds(&one, s), 3 * (m + s - 1));
            const struct pipeline two = {PIPELINE_INTERLEAVED, s, m, 2}; /* twice as many passes of the same length */
            near(pipeline_seconds(&two, s), 3 * (2 * m + s - 1));
        }
    near(pipeline_seconds(&(struct pipeline){PIPELINE_GPIPE, 2, 4, 1}, 1), 24); /* one processor: all work, no bubble */
}

static void messages_of_a_way_go_one_behind_the_other(void **state)
{
    (void)state;
    struct actor two[2] = {{.ranks = 1}, {.ranks = 1}};
    struct err e;
    double seconds;
    for (int i = 0; i < 3; i++) {
        actor_add(&two[0], (struct action){ACT_SENT, .way = 0, .number = 1}, &e);
        actor_add(&two[0], (struct action){ACT_RUN, 1, 1}, &e);
        actor_add(&two[0], (struct action){ACT_SEND, 4, 0, .peer = 1}, &e);
        actor_add(&two[1], (struct action){ACT_RECEIVE, .peer = 0}, &e);
    }
    assert_int_equal(simulate(two, 2, 2, &seconds, &e), 0);
    near(seconds, 1 + 3 * 4);
    actor_add(&two[1], (struct action){ACT_RECEIVE, .peer = 0}, &e);
    assert_int_equal(simulate(two, 2, 2, &seconds, &e), -EDEADLK);
    assert_non_null(strstr(e.text, "actor 1 waits"));
    actor_finish(&two[0]);
    actor_finish(&two[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_hide_behind_what_computes),
        cmocka_unit_test(who_wants_more_processors_than_there_are_is_slower),
        cmocka_unit_test(pipelines_have_the_bubble_of_their_schedule),
        cmocka_unit_test(messages_of_a_way_go_one_behind_the_other),
    };
    return cmocka_run_group_tests_name("steps as plays", tests, NULL, NULL);
}
