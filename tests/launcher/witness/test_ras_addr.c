/* Addresses for NCCL's RAS. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/witness/ras_addr.h"

/* The address as a number; its port has been looked at. */
static uint32_t address_of(pid_t crun, int local)
{
    char text[RAS_ADDRESS_MAX], *port = strchr(ras_address(crun, local, text), ':');
    struct in_addr a;
    assert_non_null(port);
    assert_string_equal(port, ":28028");
    *port = '\0';
    assert_int_equal(inet_pton(AF_INET, text, &a), 1);
    return ntohl(a.s_addr);
}

static void each_worker_has_an_address_of_its_own_on_the_loopback(void **state)
{
    uint32_t v[1000];
    for (int i = 0; i < 1000; i++) {
        v[i] = address_of(4711, i);
        const uint32_t second = v[i] >> 16 & 255, last = v[i] & 255;
        assert_true(v[i] >> 24 == 127 && second >= 64 && second < 192 && last > 0 && last < 255);
        for (int k = 0; k < i; k++)
            assert_true(v[k] != v[i]);
    }
}

static void jobs_of_neighbouring_processes_share_none(void **state)
{
    for (pid_t crun = 1; crun < 2000; crun++)
        for (int next = 1; next < 8; next++)
            assert_true(address_of(crun, 0) != address_of(crun + next, 0));
}

static void a_list_is_what_the_workers_have(void **state)
{
    char list[RAS_ADDRESS_MAX], first[RAS_ADDRESS_MAX], expected[RAS_ADDRESS_MAX + 8];
    ras_list(4711, 1, list);
    assert_string_equal(list, ras_address(4711, 0, first));
    ras_list(4711, 8, list);
    snprintf(expected, sizeof expected, "%.*s-8:28028", (int)(strchr(first, ':') - first), first);
    assert_string_equal(list, expected);
    ras_list(4711, 4096, list);
    assert_non_null(strstr(list, ".1-254:28028"));
    assert_true(strlen(list) < 32); /* rendezvousd keeps no more */
}

static void what_the_user_set_stays(void **state)
{
    unsetenv(RAS_VARIABLE);
    unsetenv("NCCL_RAS_ENABLE");
    assert_true(ras_gives_addresses());
    setenv("NCCL_RAS_ENABLE", "1", 1);
    assert_true(ras_gives_addresses());
    setenv("NCCL_RAS_ENABLE", "0", 1);
    assert_true(ras_is_off() && !ras_gives_addresses());
    unsetenv("NCCL_RAS_ENABLE");
    setenv(RAS_VARIABLE, "localhost:12345", 1);
    assert_true(!ras_is_off() && !ras_gives_addresses());
    unsetenv(RAS_VARIABLE);
}

static void what_the_user_set_is_an_address_with_a_port(void **state)
{
    static const char *const bad[] = {"", " ", "localhost", ":28028", "localhost:", "localhost:x", "10.0.0.1:70000"};
    static const char *const good[] = {"localhost:28028", "10.0.0.1:1", "[::1]:28028"};
    unsetenv(RAS_VARIABLE);
    assert_null(ras_typed_badly());
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv(RAS_VARIABLE, bad[i], 1);
        assert_string_equal(ras_typed_badly(), bad[i]);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        setenv(RAS_VARIABLE, good[i], 1);
        assert_null(ras_typed_badly());
    }
    unsetenv(RAS_VARIABLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_user_set_is_an_address_with_a_port),
        cmocka_unit_test(each_worker_has_an_address_of_its_own_on_the_loopback),
        cmocka_unit_test(jobs_of_neighbouring_processes_share_none),
        cmocka_unit_test(a_list_is_what_the_workers_have),
        cmocka_unit_test(what_the_user_set_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
