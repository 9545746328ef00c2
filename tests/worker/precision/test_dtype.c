#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "worker/precision/dtype.h"

static void every_half_survives_the_way_through_a_float(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float f = f32_from_f16((uint16_t)h);
        if ((h & 0x7fff) > 0x7c00)
            assert_true(isnan(f) && isnan(f32_from_f16(f16_from_f32(f))));
        else
            assert_int_equal(f16_from_f32(f), h);
    }
}

/* Halves are equidistant to their neighbours' midpoints: the midpoint goes to the even one, a hair beside it to the
 * nearer. */
static void a_float_becomes_the_nearest_half_and_ties_the_even_one(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const float low = f32_from_f16((uint16_t)h), high = f32_from_f16((uint16_t)(h + 1)),
                    mid = low + (high - low) / 2;
        assert_int_equal(f16_from_f32(mid), h & 1 ? h + 1 : h);
        assert_int_equal(f16_from_f32(nextafterf(mid, 0)), h);
        assert_int_equal(f16_from_f32(nextafterf(mid, 1e9F)), h + 1);
        assert_int_equal(f16_from_f32(-mid), 0x8000 | (h & 1 ? h + 1 : h));
    }
}

static void what_is_too_large_for_a_half_is_infinity(void **state)
{
    (void)state;
    assert_int_equal(f16_from_f32(65519.996F), 0x7bff);
    assert_int_equal(f16_from_f32(65520), 0x7c00);
    assert_int_equal(f16_from_f32(-1e30F), 0xfc00);
    assert_int_equal(f16_from_f32(INFINITY), 0x7c00);
    assert_int_equal(f16_from_f32(0x1p-26F), 0);
    assert_true(isnan(f32_from_f16(f16_from_f32(NAN))));
}

/* 1 + 2^-11 + 2^-40: rounding to float first would leave a tie, and the tie go down. */
static void a_double_is_rounded_once(void **state)
{
    (void)state;
    assert_true(dtype_rounded(DT_F16, 1 + 0x1p-11) == 1);
    assert_true(dtype_rounded(DT_F16, 1 + 0x1p-11 + 0x1p-40) == 1 + 0x1p-10);
    assert_true(dtype_rounded(DT_F16, 1 + 3 * 0x1p-11 - 0x1p-40) == 1 + 0x1p-10);
    assert_true(dtype_rounded(DT_F16, -(1 + 0x1p-11 + 0x1p-40)) == -(1 + 0x1p-10));
    assert_true(dtype_rounded(DT_BF16, 1 + 0x1p-8 + 0x1p-45) == 1 + 0x1p-7);
    assert_true(dtype_rounded(DT_F16, 1e300) == INFINITY);
    assert_true(dtype_rounded(DT_F16, 1e-300) == 0);
    assert_true(dtype_rounded(DT_F32, 1e-300) == 1e-300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_survives_the_way_through_a_float),
        cmocka_unit_test(a_float_becomes_the_nearest_half_and_ties_the_even_one),
        cmocka_unit_test(what_is_too_large_for_a_half_is_infinity),
        cmocka_unit_test(a_double_is_rounded_once),
    };
    return cmocka_run_group_tests_name("element types", tests, NULL, NULL);
}
