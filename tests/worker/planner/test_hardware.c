/* What operations and links of machines that are not here take, by their published figures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/device.h"
#include "worker/planner/hardware.h"
#include "worker/planner/network.h"
#include "worker/planner/rank_step.h"
#include "worker/program/program.h"

static void near(double a, double b)
{
    if (fabs(a - b) > 1e-9 * fabs(b))
        fail_msg("%.9g is not %.9g", a, b);
}

/* A conv and what rides along with the batch norm behind it, a pool, a layer. */
static struct program *net(void)
{
    const float mean[] = {0}, std[] = {1};
    struct err e;
    struct program *p = program_create("net", input_pictures(1, 8, 8, mean, std));
    int x = program_conv(p, "conv", program_input(p), 64, 3, 1, 1, false);
    x = program_conv(p, "deep", x, 64, 3, 1, 1, false);
    x = program_relu(p, "relu", program_bn(p, "bn", x, 1e-5F, false));
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "pool", x), 10));
    assert_int_equal(program_differentiate(p, &e), 0);
    return p;
}

static int find(const struct program *p, enum op_kind kind, int nth)
{
    for (int i = 0; i < p->nops; i++)
        if (p->ops[i].kind == kind && nth-- == 0)
            return i;
    fail_msg("no such operation");
    return -1;
}

static void every_row_has_an_efficiency_of_its_chip(void **state)
{
    (void)state;
    struct hardware h, like;
    struct err e;
    for (int id = 0; id < HARDWARE_KINDS; id++) {
        assert_int_equal(hardware_open(&h, (enum hardware_id)id, &e), 0);
        assert_true(h.efficiency > 0.3 && h.efficiency < 1);
        assert_true(h.rate > 0 && h.batch > 0 && h.half >= h.fp32);
        assert_int_equal(hardware_gpus((enum hardware_id)id), h.gpus);
    }
    assert_int_equal(hardware_open(&h, HARDWARE_TITAN_XP, &e), 0);
    assert_int_equal(hardware_open(&like, HARDWARE_TITAN_X, &e), 0);
    near(h.efficiency, like.efficiency);
    assert_string_equal(h.fitted, like.text);
}

static void an_operation_takes_its_products_or_its_memory(void **state)
{
    (void)state;
    const struct hardware h = {.fp32 = 1e12, .half = 4e12, .memory = 1e9, .efficiency = 0.5},
                          fast = {.fp32 = 1e9, .half = 4e9, .memory = 1e15, .efficiency = 0.5};
    const struct plan_options wide = {.batch = 4, .training = true, .compute = DT_F32},
                              half = {.batch = 4, .training = true, .compute = DT_F16};
    const double map = 4 * 64 * 64, weights = 64 * 64 * 9; /* (N,C,h,w) */
    struct program *p = net();
    struct op_times *t;
    struct err e;
    double update = 0;
    assert_int_equal(op_times_create(&t, &e), 0);
    const struct op_load load = {p, &wide}, halves = {p, &half};
    assert_int_equal(hardware_times(&h, t, &load, &e), 0);
    const int deep = find(p, OP_CONV, 1), relu = find(p, OP_RELU, 0), bn = find(p, OP_BN, 0);
    near(op_times_of(t, &load, deep), (2 * map + weights) * 4 / 1e9 / 0.5);
    near(op_times_of(t, &load, bn), 0); /* the ReLU behind it does it */
    near(op_times_of(t, &load, relu), 3 * map * 4 / 1e9 / 0.5);
    near(op_times_of(t, &load, find(p, OP_BN_BWD, 0)), 6 * map * 4 / 1e9 / 0.5);
    assert_true(op_times_get(t, RANK_STEP_UPDATE, &update));
    near(update, 20 / 1e9 / 0.5);
    assert_int_equal(hardware_times(&h, t, &halves, &e), 0);
    near(op_times_of(t, &halves, deep), (2 * map + weights) * 2 / 1e9 / 0.5);
    assert_int_equal(hardware_times(&fast, t, &load, &e), 0); /* in place of what was known */
    near(op_times_of(t, &load, deep), 2 * weights * 64 * 4 / 1e9 / 0.5);
    near(op_times_of(t, &load, find(p, OP_CONV_BWD_PARAM, 0)), 2 * weights * 64 * 4 / 1e9 / 0.5);
    assert_int_equal(hardware_times(&fast, t, &halves, &e), 0);
    near(op_times_of(t, &halves, deep), 2 * weights * 64 * 4 / 4e9 / 0.5);
    op_times_destroy(t);
    program_destroy(p);
}

static void calls_take_a_share_of_the_gpu(void **state)
{
    (void)state;
    const struct hardware h = {
        .sms = 50, .channels = 5, .link = 10e9, .network = 1e9, .trip = 20e-6, .efficiency = 0.5};
    struct network n = {.local = 8};
    hardware_network(&h, 4, &n);
    assert_true(n.known[0] && n.known[1]);
    near(n.inside[NETWORK_ALL_REDUCE].beta, 1 / 5e9);
    near(n.between[NETWORK_ALL_REDUCE].beta, 1 / 0.5e9);
    near(n.between[NETWORK_ALL_REDUCE].cores, 0.4);
    near(n.between[NETWORK_ALL_REDUCE].alpha, 20e-6);
    assert_true(n.between[NETWORK_HAND_OVER].alpha == 0 && n.between[NETWORK_HAND_OVER].beta == 0);
    /* 64 ranks on 8 nodes: there and back, six times half of what is left */
    near(network_cost(&n, NETWORK_ALL_REDUCE, (struct network_span){64, 8, 1}, 1e8).seconds,
         12 * 20e-6 + 2 * 63 / 64.0 * 1e8 / 0.5e9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_has_an_efficiency_of_its_chip),
        cmocka_unit_test(an_operation_takes_its_products_or_its_memory),
        cmocka_unit_test(calls_take_a_share_of_the_gpu),
    };
    return cmocka_run_group_tests_name("machines that are not here", tests, NULL, NULL);
}
