/* Arrays that double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>

#include "common/base/array.h"
#include "common/base/err.h"

static void elements_stay_while_the_array_grows(void **state)
{
    int *v = NULL;
    size_t cap = 0, moves = 0;
    for (size_t n = 0; n < 1000; n++) {
        const size_t had = cap;
        assert_int_equal(0, ARRAY_GROW(v, cap, n + 1, "numbers", NULL));
        assert_true(cap > n);
        moves += cap != had;
        v[n] = (int)n;
    }
    assert_int_equal(8, moves); /* 8, 16, ... 1024 */
    for (int i = 0; i < 1000; i++)
        assert_int_equal(i, v[i]);
    assert_int_equal(0, ARRAY_GROW(v, cap, 5000, "numbers", NULL)); /* at once */
    assert_true(cap >= 5000 && v[999] == 999);
    free(v);
    (void)state;
}

static void what_cannot_be_had_changes_nothing(void **state)
{
    static const size_t needs[] = {SIZE_MAX / 2, SIZE_MAX / sizeof(int), SIZE_MAX};
    int *v = NULL, *was;
    size_t cap = 0;
    struct err e;
    assert_int_equal(0, ARRAY_GROW(v, cap, 1, "numbers", NULL));
    was = v;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        assert_int_equal(-ENOMEM, ARRAY_GROW(v, cap, needs[i], "numbers", &e));
        assert_ptr_equal(was, v);
        assert_int_equal(8, cap);
    }
    free(v);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_stay_while_the_array_grows),
        cmocka_unit_test(what_cannot_be_had_changes_nothing),
    };
    return cmocka_run_group_tests_name("arrays that double", tests, NULL, NULL);
}
