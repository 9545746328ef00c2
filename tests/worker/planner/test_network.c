/* What calls cost by the model, and finding the model by what calls cost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/parallel/layout.h"
#include "worker/planner/network.h"

#define MB 1e6

static void near(double a, double b)
{
    if (fabs(a - b) > 1e-9 * (fabs(b) + 1e-9))
        fail_msg("%.9g is not %.9g", a, b);
}

/* 10 us and 1 GB/s inside of a node of `local`, 100 us and 0.1 GB/s between. */
static struct network two_kinds(int local)
{
    struct network n = {.local = local, .known = {true, true}};
    for (int c = 0; c < NETWORK_CALLS; c++) {
        n.inside[c] = (struct network_link){10e-6, 1e-9, 0.5};
        n.between[c] = (struct network_link){100e-6, 1e-8, 0.25};
    }
    return n;
}

static void calls_cost_what_their_algorithm_sends(void **state)
{
    (void)state;
    const struct network n = two_kinds(4);
    const struct network_span two = {2, 1, 1}, four = {4, 1, 1};
    near(network_cost(&n, NETWORK_ALL_REDUCE, four, MB).seconds, 6 * 10e-6 + 1.5 * MB * 1e-9);
    near(network_cost(&n, NETWORK_ALL_REDUCE, four, 100).seconds, 10e-6 + 300 * 1e-9); /* an exchange */
    near(network_cost(&n, NETWORK_SCATTER, four, MB).seconds, 10e-6 + 0.75 * MB * 1e-9);
    near(network_cost(&n, NETWORK_GATHER, four, MB).seconds, 30e-6 + 0.75 * MB * 1e-9);
    near(network_cost(&n, NETWORK_MESSAGE, four, MB).seconds, 10e-6 + MB * 1e-9);
    near(network_cost(&n, NETWORK_HAND_OVER, two, MB).seconds, 10e-6 + MB * 1e-9);
    near(network_cost(&n, NETWORK_HAND_OVER, two, 100 * MB).seconds,
         10e-6 + (2 << 20) * 1e-9); /* what a socket takes */
    near(network_cost(&n, NETWORK_ALL_REDUCE, (struct network_span){1, 1, 1}, MB).seconds, 0);
    near(network_cost(&n, NETWORK_ALL_REDUCE, four, MB).cores, 0.5);
}

static void groups_on_several_nodes_go_at_the_pace_between_them(void **state)
{
    (void)state;
    const struct network n = two_kinds(2);
    const struct layout l = {.world = 8, .data = 4, .tensor = 2, .stages = 1};
    const struct layout_ranks batch = layout_group(&l, LAYOUT_BATCH, 0), data = layout_group(&l, LAYOUT_DATA, 0),
                              tensor = layout_group(&l, LAYOUT_TENSOR, 2);
    const struct network_span b = network_span(&n, &batch), d = network_span(&n, &data), t = network_span(&n, &tensor);
    assert_int_equal(b.nodes, 4);
    assert_int_equal(b.flows, 1);
    assert_int_equal(d.nodes, 4);
    assert_int_equal(d.flows, 2); /* both data groups cross the same links */
    assert_int_equal(t.nodes, 1);
    near(network_cost(&n, NETWORK_SCATTER, d, MB).seconds, 100e-6 + 2 * 0.75 * MB * 1e-8);
    near(network_cost(&n, NETWORK_SCATTER, t, MB).seconds, 10e-6 + 0.5 * MB * 1e-9);
}

static void node_by_node_is_three_calls_and_pays_where_links_between_are_slow(void **state)
{
    (void)state;
    struct network n = two_kinds(4);
    const struct network_span all = {8, 2, 1};
    const double flat = network_cost(&n, NETWORK_ALL_REDUCE, all, MB).seconds;
    near(flat, 14 * 100e-6 + 1.75 * MB * 1e-8);
    n.hierarchical = true;
    const double by_node = network_cost(&n, NETWORK_ALL_REDUCE, all, MB).seconds,
                 /* a quarter each, four rings side by side: of 250 kB, which is an exchange */
        between = 100e-6 + 4 * MB / 4 * 1e-8;
    near(by_node, 10e-6 + 0.75 * MB * 1e-9 + between + 30e-6 + 0.75 * MB * 1e-9);
    assert_true(by_node < flat);
    assert_false(network_is_hierarchical(&n, all, 1000)); /* small ones go straight */
    near(network_cost(&n, NETWORK_ALL_REDUCE, (struct network_span){2, 2, 1}, MB).seconds, 200e-6 + MB * 1e-8);
    near(network_cost(&n, NETWORK_ALL_REDUCE, (struct network_span){4, 1, 1}, MB).seconds, 60e-6 + 1.5 * MB * 1e-9);
}

static void a_fit_finds_the_line_and_never_less_than_nothing(void **state)
{
    (void)state;
    const double bytes[] = {4096, 65536, MB, 16 * MB};
    double seconds[4];
    for (int i = 0; i < 4; i++)
        seconds[i] = 2 * 30e-6 + bytes[i] * 2e-9;
    seconds[0] -= 30e-6; /* an exchange: one trip; and so is the second one */
    seconds[1] -= 30e-6;
    const struct network_link l = network_fit(NETWORK_ALL_REDUCE, bytes, seconds, 4, 0.7);
    near(l.alpha, 30e-6);
    near(l.beta, 2e-9);
    near(l.cores, 0.7);
    const double faster[] = {1e-3, 1e-3, 1e-3, 1e-4};
    const struct network_link odd = network_fit(NETWORK_MESSAGE, bytes, faster, 4, 0);
    assert_true(odd.alpha >= 0 && odd.beta >= 0);
}

static void a_link_is_a_time_and_a_rate(void **state)
{
    (void)state;
    struct network_link l[NETWORK_CALLS];
    struct err e;
    assert_int_equal(network_parse("50us,10", l, &e), 0);
    near(l[NETWORK_GATHER].alpha, 50e-6);
    near(l[NETWORK_GATHER].beta, 0.8e-9);
    for (int c = NETWORK_HAND_OVER; c <= NETWORK_ASK; c++) { /* not of the link: of the processor */
        near(l[c].alpha, 0);
        near(l[c].beta, 0);
    }
    assert_int_equal(network_parse("0.5ms,0.1", l, &e), 0);
    near(l[NETWORK_MESSAGE].alpha, 5e-4);
    static const char *const wrong[] = {"",        "50us",     "50,10", "50us,",  "50us,0",
                                        "-1us,10", "50us,10x", "us,10", "nanus,1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(network_parse(wrong[i], l, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, "is not TIME,GIGABIT"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_cost_what_their_algorithm_sends),
        cmocka_unit_test(groups_on_several_nodes_go_at_the_pace_between_them),
        cmocka_unit_test(node_by_node_is_three_calls_and_pays_where_links_between_are_slow),
        cmocka_unit_test(a_fit_finds_the_line_and_never_less_than_nothing),
        cmocka_unit_test(a_link_is_a_time_and_a_rate),
    };
    return cmocka_run_group_tests_name("the network's model", tests, NULL, NULL);
}
