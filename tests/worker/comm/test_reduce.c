/* The arithmetic of reductions, and names of backends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/comm/reduce.h"

static void bf16_sums_stay_in_fp32_until_the_end(void **state)
{
    /* 256 + 1 + 1 in bf16 steps would stay at 256 (8 bits of mantissa); in fp32 it is 258, which bf16 holds. */
    uint16_t a[3] = {0}, b[3] = {0}, out[3];
    uint16_t big = bf16_from_f32(256), one = bf16_from_f32(1);
    a[0] = b[0] = one;
    uint16_t first[3] = {big, big, big};
    const void *parts[] = {first, a, b};
    reduce_many(out, parts, 3, 3, DT_BF16, COMM_SUM);
    assert_int_equal(f32_from_bf16(out[0]), 258);
    assert_int_equal(f32_from_bf16(out[1]), 256);
}

static void f16_sums_stay_in_fp32_until_the_end(void **state)
{
    /* 2048 + 1 + 1 in fp16 steps would stay at 2048; and what is too large only on the way is no infinity. */
    uint16_t first[2] = {f16_from_f32(2048), f16_from_f32(60000)}, a[2] = {f16_from_f32(1), f16_from_f32(60000)},
             b[2] = {f16_from_f32(1), f16_from_f32(-60000)}, out[2];
    const void *parts[] = {first, a, b};
    reduce_many(out, parts, 3, 2, DT_F16, COMM_SUM);
    assert_int_equal(f32_from_f16(out[0]), 2050);
    assert_true(f32_from_f16(out[1]) == f32_from_f16(first[1]));
}

static void the_output_may_be_one_of_the_inputs(void **state)
{
    enum { N = 5000 }; /* more than a block */
    static double x[3][N];
    for (int i = 0; i < N; i++)
        for (int p = 0; p < 3; p++)
            x[p][i] = i + 1000 * p;
    const void *parts[] = {x[0], x[1], x[2]};
    reduce_many(x[1], parts, 3, N, DT_F64, COMM_SUM);
    for (int i = 0; i < N; i++)
        assert_true(x[1][i] == 3.0 * i + 3000);
}

static void integer_sums_wrap(void **state)
{
    int64_t a = INT64_MAX, b = 1;
    reduce_find(DT_I64, COMM_SUM)(&a, &b, 1);
    assert_true(a == INT64_MIN);
}

static void types_that_cannot_be_reduced_are_named(void **state)
{
    struct err e;
    assert_int_equal(reduce_check(DT_U8, COMM_SUM, &e), -EINVAL);
    assert_non_null(strstr(e.text, "U8"));
    assert_int_equal(reduce_check(DT_BF16, COMM_MIN, &e), 0);
}

static void an_unknown_backend_is_answered_with_the_list(void **state)
{
    struct err e;
    struct comm *c = NULL;
    struct comm_options o = {.world = 1, .timeout_ms = 1000, .name = "x"};
    assert_int_equal(comm_open(&c, "smoke", &o, &e), -EINVAL);
    assert_non_null(strstr(e.text, "'smoke'"));
    assert_non_null(strstr(e.text, "local"));
}

static void impossible_ranks_and_timeouts_are_refused(void **state)
{
    struct err e;
    struct comm *c = NULL;
    struct comm_options o = {.rank = 3, .world = 3, .timeout_ms = 1000, .name = "x"};
    assert_int_equal(comm_open(&c, "auto", &o, &e), -EINVAL);
    assert_non_null(strstr(e.text, "rank 3"));
    o = (struct comm_options){.rank = 0, .world = 1, .timeout_ms = 0, .name = "x"};
    assert_int_equal(comm_open(&c, "auto", &o, &e), -EINVAL);
    o = (struct comm_options){.rank = 0, .world = 2, .timeout_ms = 1, .name = "x"};
    assert_int_equal(comm_open(&c, "local", &o, &e), -EINVAL);
}

static void a_world_of_one_needs_nobody(void **state)
{
    struct err e;
    struct comm *c = NULL;
    struct comm_options o = {.world = 1, .timeout_ms = 1000, .name = "x"};
    assert_int_equal(comm_open(&c, "auto", &o, &e), 0);
    assert_string_equal(c->ops->name, "local");
    double x[2] = {1, 2}, y[2] = {0};
    assert_int_equal(c->ops->all_reduce(c, COMM_CONTROL, x, 2, DT_F64, COMM_SUM, NULL, &e), 0);
    assert_true(x[0] == 1 && x[1] == 2);
    assert_int_equal(c->ops->all_gather(c, COMM_CONTROL, x, y, sizeof x, NULL, &e), 0);
    assert_memory_equal(x, y, sizeof x);
    assert_int_equal(c->ops->reduce_scatter(c, COMM_CONTROL, x, y, 2, DT_F64, COMM_SUM, NULL, &e), 0);
    assert_int_equal(c->ops->barrier(c, COMM_CONTROL, &e), 0);
    c->ops->abort(c);
    assert_int_equal(c->ops->barrier(c, COMM_CONTROL, &e), -ECANCELED);
    c->ops->close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_sums_stay_in_fp32_until_the_end),
        cmocka_unit_test(f16_sums_stay_in_fp32_until_the_end),
        cmocka_unit_test(the_output_may_be_one_of_the_inputs),
        cmocka_unit_test(integer_sums_wrap),
        cmocka_unit_test(types_that_cannot_be_reduced_are_named),
        cmocka_unit_test(an_unknown_backend_is_answered_with_the_list),
        cmocka_unit_test(impossible_ranks_and_timeouts_are_refused),
        cmocka_unit_test(a_world_of_one_needs_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
