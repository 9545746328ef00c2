/* What the gate is made of: addresses in lists, tokens that are read again, audit lines that are counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/auth/auth.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "rendezvousd/gate/audit.h"
#include "rendezvousd/gate/peer_addr.h"
#include "rendezvousd/gate/tokens.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct peer_addr address(const char *text)
{
    struct peer_addr a = {0};
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (strchr(text, ':')) {
        assert_int_equal(inet_pton(AF_INET6, text, a.ip), 1);
    } else {
        memcpy(a.ip, mapped, 12);
        assert_int_equal(inet_pton(AF_INET, text, a.ip + 12), 1);
    }
    return a;
}

static void an_address_is_found_in_a_list_however_it_is_written(void **state)
{
    static const struct {
        const char *peer, *list;
        bool in;
    } cases[] = {
        {"10.0.0.5", "10.0.0.5", true},
        {"10.0.0.5", "10.0.0.50", false},
        {"10.0.0.5", "10.0.0.4,10.0.0.5,fe80::1", true},
        {"::ffff:10.0.0.5", "10.0.0.5", true},
        {"10.0.0.5", "::ffff:10.0.0.5", true},
        {"fe80::1", "FE80:0:0::1%eth0", true},
        {"fe80::1", "fe80::2", false},
        {"10.0.0.5", "", false},
        {"10.0.0.5", ",,10.0.0.5,", true},
        {"10.0.0.5", "node5,10.0.0.5x", false},
        {"0.0.0.0", "junk", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct peer_addr a = address(cases[i].peer);
        struct peer_list *l = peer_list_read(cases[i].list);
        if (peer_list_has(l, &a) != cases[i].in)
            fail_msg("%s in '%s': expected %d", cases[i].peer, cases[i].list, cases[i].in);
        free(l);
    }
    struct peer_addr a = address("10.0.0.5");
    assert_false(peer_list_has(NULL, &a));
}

static void a_peer_is_found_among_thousands(void **state)
{
    enum { MANY = 5000 };
    char text[16 * MANY], *at = text;
    (void)state;
    for (int i = 0; i < MANY; i++)
        at += sprintf(at, "%s10.%d.%d.7", i ? "," : "", i * 7 % 251, i / 251);
    struct peer_list *l = peer_list_read(text);
    assert_int_equal(l->n, MANY);
    for (int i = 0; i < MANY; i++) {
        char one[16], other[16];
        snprintf(one, sizeof one, "10.%d.%d.7", i * 7 % 251, i / 251);
        snprintf(other, sizeof other, "10.%d.%d.8", i * 7 % 251, i / 251);
        struct peer_addr yes = address(one), no = address(other);
        assert_true(peer_list_has(l, &yes));
        assert_false(peer_list_has(l, &no));
    }
    free(l);
}

static void loopback_is_all_of_127_and_one_of_v6(void **state)
{
    static const char *const yes[] = {"127.0.0.1", "127.200.3.4", "::1", "::ffff:127.0.0.1"};
    static const char *const no[] = {"128.0.0.1", "10.0.0.1", "::2", "fe80::1", "::ffff:10.0.0.1"};
    (void)state;
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        struct peer_addr a = address(yes[i]);
        assert_true(peer_addr_is_loopback(&a));
    }
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        struct peer_addr a = address(no[i]);
        assert_false(peer_addr_is_loopback(&a));
    }
}

static char path[] = "/tmp/tokens-XXXXXX";

static void write_tokens(const char *text)
{
    int fd = open(path, O_WRONLY | O_TRUNC);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void tokens_are_read_again_and_names_stay(void **state)
{
    struct tokens *t;
    struct err e;
    (void)state;
    close(mkstemp(path));
    write_tokens("alice 0123456789abcdef\nbob 0123456789abcdef\n");
    assert_int_equal(tokens_open(&t, path, false, &e), 0);
    assert_int_equal(tokens_count(t), 2);
    const struct principal *bob = tokens_principal(t, "bob");
    write_tokens("alice fedcba9876543210\n");
    assert_int_equal(tokens_reload(t, &e), 0);
    assert_null(tokens_find(t, "bob", 3));
    assert_string_equal(bob->name, "bob");
    assert_ptr_equal(tokens_principal(t, "bob"), bob);
    assert_string_equal(tokens_find(t, "alice", 5)->secret, "fedcba9876543210");
    write_tokens("alice short\n");
    assert_int_equal(tokens_reload(t, &e), ERR_USAGE);
    assert_string_equal(tokens_find(t, "alice", 5)->secret, "fedcba9876543210"); /* the old ones stay */
    tokens_close(t);
    unlink(path);
}

static void no_tokens_are_none(void **state)
{
    struct tokens *t;
    struct err e;
    (void)state;
    assert_int_equal(tokens_open(&t, NULL, false, &e), 0);
    assert_int_equal(tokens_count(t), 0);
    assert_int_equal(tokens_reload(t, &e), 0);
    tokens_close(t);
}

static int lines;
static char last[512];

static void on_line(void *arg, const char *line, size_t n)
{
    (void)arg;
    lines++;
    snprintf(last, sizeof last, "%.*s", (int)n, line);
}

static void refusals_beyond_a_burst_are_counted_and_told_later(void **state)
{
    struct audit a = {0};
    (void)state;
    log_redirect(on_line, NULL);
    for (int i = 0; i < 100; i++)
        audit_refusal(&a, 1000, "10.0.0.5:1", "wrong proof");
    assert_int_equal(lines, 20);
    audit_refusal(&a, 2500, "10.0.0.5:2", "wrong proof"); /* a second later: one more, and the count */
    assert_int_equal(lines, 22);
    assert_non_null(strstr(last, "refused peer=10.0.0.5:2 reason=wrong proof"));
    audit_refusal(&a, 2600, "10.0.0.5:3", "wrong proof");
    assert_int_equal(lines, 22);
    audit_finish(&a);
    assert_int_equal(lines, 23);
    assert_non_null(strstr(last, " 1 more peers were refused"));
    audit_finish(&a);
    assert_int_equal(lines, 23);
    for (int i = 0; i < 100; i++)
        audit_refusal(&a, 1000000, "10.0.0.5:1", "wrong proof"); /* no more than a burst, however long it was quiet */
    assert_int_equal(lines, 43);
    log_redirect(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_is_found_in_a_list_however_it_is_written),
        cmocka_unit_test(a_peer_is_found_among_thousands),
        cmocka_unit_test(loopback_is_all_of_127_and_one_of_v6),
        cmocka_unit_test(tokens_are_read_again_and_names_stay),
        cmocka_unit_test(no_tokens_are_none),
        cmocka_unit_test(refusals_beyond_a_burst_are_counted_and_told_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
