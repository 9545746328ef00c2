/* Which addresses are those of the host itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/net/addr.h"

static void loopback_is_known_in_every_form(void **state)
{
    static const struct {
        const char *host;
        bool loopback;
    } cases[] = {
        {"127.0.0.1", true},
        {"127.200.3.4", true},
        {"::1", true},
        {"::ffff:127.0.0.1", true},
        {"localhost", true},
        {"LocalHost", true},
        {"0:0:0:0:0:0:0:1", true},
        {"::1%lo", true},
        {"10.0.0.7", false},
        {"0.0.0.0", false},
        {"::", false},
        {"::ffff:10.0.0.7", false},
        {"2001:db8::1", false},
        {"::127.0.0.1", false},
        {"127.example", false},
        {"127.0.0.1.example", false},
        {"localhost.example", false},
        {"", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (addr_host_is_loopback(cases[i].host) != cases[i].loopback)
            fail_msg("\"%s\" is %sloopback", cases[i].host, cases[i].loopback ? "not " : "");
}

static void both_versions_are_read_as_one_form(void **state)
{
    uint8_t a[ADDR_BYTES], b[ADDR_BYTES];
    (void)state;
    assert_true(addr_read("10.0.0.7", a) && addr_read("::ffff:10.0.0.7", b));
    assert_memory_equal(a, b, sizeof a);
    assert_true(addr_read("fe80::1%eth0", a) && addr_read("fe80::1", b));
    assert_memory_equal(a, b, sizeof a);
    assert_false(addr_read("", a));
    assert_false(addr_read("10.0.0", a));
    assert_false(addr_read("node1", a));
    assert_false(addr_read("2001:0db8:0000:0000:0000:0000:0000:0001:2001:0db8:0000:0000:0000:0000:0000:0001", a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback_is_known_in_every_form),
        cmocka_unit_test(both_versions_are_read_as_one_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
