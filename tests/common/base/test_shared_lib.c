#include "common/base/shared_lib.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"

struct functions {
    double (*cos)(double);
    double (*missing)(double);
};

static const struct lib_symbol known[] = {{"cos", offsetof(struct functions, cos)}};
static const struct lib_symbol unknown[] = {{"no_such_function", offsetof(struct functions, missing)}};

static void test_functions_are_filled_in_once(void **state)
{
    static struct functions f;
    static struct shared_lib lib = SHARED_LIB("libm.so.6", " (Debian: libc6)", "glibc", known, &f);
    (void)state;
    assert_ptr_equal(shared_lib_open(&lib, NULL), &f);
    assert_ptr_equal(shared_lib_open(&lib, NULL), &f);
    assert_true(f.cos(0) > 0.99);
}

static void test_what_is_missing_is_named(void **state)
{
    static struct functions f;
    static struct shared_lib none = SHARED_LIB("libnone.so.1", " (Debian: libnone1)", "none 1", known, &f);
    static struct shared_lib old = SHARED_LIB("libm.so.6", " (Debian: libc6)", "glibc 99", unknown, &f);
    struct err e = {0};
    (void)state;
    assert_null(shared_lib_open(&none, &e));
    assert_int_equal(e.code, -ENOENT);
    assert_non_null(strstr(e.text, "libnone.so.1 is not installed or cannot be loaded (Debian: libnone1): "));
    assert_null(shared_lib_open(&old, &e));
    assert_string_equal(e.text, "libm.so.6 has no no_such_function: expected glibc 99");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions_are_filled_in_once),
        cmocka_unit_test(test_what_is_missing_is_named),
    };
    return cmocka_run_group_tests_name("shared_lib", tests, NULL, NULL);
}
