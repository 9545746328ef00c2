#include "common/base/ranges.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const char *text_of(const int *v, int n, char *out, size_t cap)
{
    struct ranges r = {.out = out, .cap = cap};
    out[0] = '\0';
    for (int i = 0; i < n; i++)
        ranges_add(&r, v[i]);
    assert_int_equal(r.len, strlen(out));
    return out;
}

static void neighbours_become_ranges(void **state)
{
    const int v[] = {0, 1, 2, 5, 7, 8, 100};
    char out[64];
    (void)state;
    assert_string_equal(text_of(v, 0, out, sizeof out), "");
    assert_string_equal(text_of(v, 1, out, sizeof out), "0");
    assert_string_equal(text_of(v, 3, out, sizeof out), "0-2");
    assert_string_equal(text_of(v, 7, out, sizeof out), "0-2,5,7-8,100");
}

static void a_text_is_cut_short(void **state)
{
    const int v[] = {10, 12, 13, 15, 17};
    char out[6];
    (void)state;
    for (int n = 0; n <= 5; n++) {
        text_of(v, n, out, sizeof out);
        assert_true(strncmp(out, "10,12-13", strlen(out)) == 0);
    }
    assert_string_equal(out, "10,12");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_become_ranges),
        cmocka_unit_test(a_text_is_cut_short),
    };
    return cmocka_run_group_tests_name("ranges", tests, NULL, NULL);
}
