/* Known results: right ones pass on every call, type and op of an in-process world, and one wrong element is
 * counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/worker/comm/ranks.h"
#include "worker/comm/known.h"

static const enum dtype types[] = {DT_F32, DT_F64, DT_F16, DT_BF16, DT_I64};

struct job {
    struct known k;
    size_t wrong[RANKS_MAX], spoiled[RANKS_MAX];
};

static int one(struct comm *c, int rank, void *arg, struct err *e)
{
    struct job *j = arg;
    struct known k = j->k;
    k.rank = rank;
    k.world = c->world;
    const size_t elem = dtype_size(k.type);
    char *in = calloc(k.n, elem), *out = calloc(k.n, elem);
    known_fill(&k, in);
    int rc = known_run(&k, c, COMM_CONTROL, in, out, NULL, e);
    char *got = known_in_place(k.call) ? in : out;
    j->wrong[rank] = known_wrong(&k, got);
    got[elem - 1] ^= 0x40;
    j->spoiled[rank] = known_out(&k) > 0 ? known_wrong(&k, got) : 1;
    free(in);
    free(out);
    return rc;
}

static void right_results_pass_and_a_wrong_element_is_counted(void **state)
{
    (void)state;
    struct ranks w;
    ranks_open(&w, "local", 3, 10000);
    for (int call = 0; call < KNOWN_CALL_COUNT; call++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (int op = COMM_SUM; op <= COMM_PROD; op++) {
                struct job j = {
                    .k = {
                        .call = (enum known_call)call, .type = types[t], .op = (enum comm_op)op, .root = 2, .n = 3003}};
                j.k.uneven = op % 2; /* nothing to calls that have no parts */
                ranks_run(&w, one, &j);
                for (int r = 0; r < 3; r++) {
                    assert_int_equal(w.rc[r], 0);
                    assert_int_equal(j.wrong[r], 0);
                    assert_int_equal(j.spoiled[r], 1);
                }
            }
    ranks_close(&w);
}

static void bus_bandwidth_is_what_a_link_carries(void **state)
{
    (void)state;
    assert_true(known_bus_factor(KNOWN_ALL_REDUCE, 4) == 1.5);
    assert_true(known_bus_factor(KNOWN_ALL_GATHER, 4) == 0.75);
    assert_true(known_bus_factor(KNOWN_REDUCE_SCATTER, 2) == 0.5);
    assert_true(known_bus_factor(KNOWN_BROADCAST, 4) == 1);
    assert_true(known_bus_factor(KNOWN_GATHER, 4) == 0.75);
    assert_true(known_bus_factor(KNOWN_SENDRECV, 4) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_results_pass_and_a_wrong_element_is_counted),
        cmocka_unit_test(bus_bandwidth_is_what_a_link_carries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
