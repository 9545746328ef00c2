/* Which addresses are those of the host itself; hosts and ports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
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

/* As "host port", "-" where there is none, "?" where the text is refused. */
static const char *split_text(const char *text)
{
    static char out[128];
    struct host_port p;
    if (!addr_split(text, strlen(text), &p))
        return "?";
    snprintf(out, sizeof out, "%.*s %.*s", (int)p.host_len, p.host, p.port ? (int)p.port_len : 1,
             p.port ? p.port : "-");
    return out;
}

static void hosts_are_divided_from_their_ports(void **state)
{
    static const struct {
        const char *text, *parts;
    } cases[] = {
        {"node1", "node1 -"},
        {"node1:29400", "node1 29400"},
        {"10.0.0.7:", "10.0.0.7 "},
        {"[::1]", "::1 -"},
        {"[::1]:7", "::1 7"},
        {"fe80::1", "fe80::1 -"},
        {"", "?"},
        {":1", "?"},
        {"[]:1", "?"},
        {"[::1", "?"},
        {"[::1]7", "?"},
        {"a]:1", "?"},
        {"a[b", "?"},
    };
    struct host_port p;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(split_text(cases[i].text), cases[i].parts) != 0)
            fail_msg("\"%s\" is read as \"%s\"", cases[i].text, split_text(cases[i].text));
    assert_true(addr_split("::1", 3, &p) && p.bare_v6);
    assert_true(addr_split("[::1]", 5, &p) && !p.bare_v6);
    assert_true(addr_split("a:1,b:2", 3, &p) && p.port_len == 1); /* nothing beyond n is looked at */
}

static void ports_are_from_1_to_65535(void **state)
{
    static const char *const none[] = {"", "0", "65536", "-1", "+1", " 1", "1x", "000001", "99999999999999999999"};
    (void)state;
    assert_int_equal(addr_port("1", 1), 1);
    assert_int_equal(addr_port("65535", 5), 65535);
    assert_int_equal(addr_port("80,", 2), 80);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(addr_port(none[i], strlen(none[i])), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback_is_known_in_every_form),
        cmocka_unit_test(both_versions_are_read_as_one_form),
        cmocka_unit_test(hosts_are_divided_from_their_ports),
        cmocka_unit_test(ports_are_from_1_to_65535),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
