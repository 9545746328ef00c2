#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/precision/loss_scale.h"

static void the_scale_starts_at_65536_and_halves_once_a_skip(void **state)
{
    (void)state;
    struct loss_scale s = loss_scale_dynamic();
    assert_true(s.scale == 65536);
    assert_int_equal(loss_scale_after(&s, false), LOSS_SCALE_SKIP);
    assert_int_equal(loss_scale_after(&s, false), LOSS_SCALE_SKIP);
    assert_true(s.scale == 16384);
    assert_int_equal(s.skipped, 2);
    assert_int_equal(loss_scale_after(&s, true), LOSS_SCALE_UPDATE);
    assert_true(s.scale == 16384);
}

static void the_scale_doubles_after_2000_clean_steps_in_a_row(void **state)
{
    (void)state;
    struct loss_scale s = loss_scale_dynamic();
    for (int i = 0; i < 1999; i++)
        loss_scale_after(&s, true);
    assert_true(s.scale == 65536);
    loss_scale_after(&s, false); /* the count begins anew */
    for (int i = 0; i < 1999; i++)
        loss_scale_after(&s, true);
    assert_true(s.scale == 32768);
    loss_scale_after(&s, true);
    assert_true(s.scale == 65536);
    assert_int_equal(s.clean, 0);
    assert_int_equal(s.skipped, 1);
}

static void the_scale_never_exceeds_2_to_the_24(void **state)
{
    (void)state;
    struct loss_scale s = loss_scale_dynamic();
    for (int i = 0; i < 12 * 2000; i++)
        assert_int_equal(loss_scale_after(&s, true), LOSS_SCALE_UPDATE);
    assert_true(s.scale == 16777216);
}

static void no_scale_helps_a_model_that_diverged(void **state)
{
    (void)state;
    struct loss_scale s = loss_scale_dynamic();
    int skips = 0;
    while (loss_scale_after(&s, false) == LOSS_SCALE_SKIP)
        skips++;
    assert_int_equal(skips, 30); /* from 2^16 down to 2^-14 */
}

static void a_fixed_scale_neither_moves_nor_skips(void **state)
{
    (void)state;
    struct loss_scale s = loss_scale_fixed(128);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(loss_scale_after(&s, true), LOSS_SCALE_UPDATE);
    assert_true(s.scale == 128);
    assert_int_equal(loss_scale_after(&s, false), LOSS_SCALE_HOPELESS);
    assert_int_equal(s.skipped, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_scale_starts_at_65536_and_halves_once_a_skip),
        cmocka_unit_test(the_scale_doubles_after_2000_clean_steps_in_a_row),
        cmocka_unit_test(the_scale_never_exceeds_2_to_the_24),
        cmocka_unit_test(no_scale_helps_a_model_that_diverged),
        cmocka_unit_test(a_fixed_scale_neither_moves_nor_skips),
    };
    return cmocka_run_group_tests_name("loss scale", tests, NULL, NULL);
}
