/* Whose connection is it? Own sockets, another user's (when run as root), IPv6 and v4-mapped ones, and the server's
 * refusal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/addr.h"
#include "rendezvousd/gate/peer_uid.h"
#include "rendezvousd/gate/peer_uid_proc.h"
#include "tests/rendezvousd/harness.h"
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OTHER_UID = 54321, WAIT_MS = 20000 };

/* Connect from `from` family to a listener on `host`; returns our end, *peer the other. Skips where there is no
 * IPv6. */
static int accept_one(const char *host, int family, int *peer)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof v6;
    bool any = strcmp(host, "::") == 0;
    int off = 0, l = socket(strchr(host, ':') ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    if (l < 0)
        skip();
    if (strchr(host, ':')) {
        v6.sin6_addr = any ? in6addr_any : in6addr_loopback;
        setsockopt(l, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (bind(l, (struct sockaddr *)&v6, sizeof v6) < 0)
            skip();
    } else {
        assert_int_equal(bind(l, (struct sockaddr *)&v4, sizeof v4), 0);
    }
    assert_int_equal(listen(l, 1), 0);
    assert_int_equal(getsockname(l, (struct sockaddr *)&v6, &n), 0);
    v4.sin_port = v6.sin6_port; /* at the same place in both */
    v6.sin6_addr = in6addr_loopback;
    *peer = socket(family, SOCK_STREAM, 0);
    assert_int_equal(family == AF_INET ? connect(*peer, (struct sockaddr *)&v4, sizeof v4)
                                       : connect(*peer, (struct sockaddr *)&v6, sizeof v6),
                     0);
    int fd = accept(l, NULL, NULL);
    assert_true(fd >= 0);
    close(l);
    return fd;
}

/* As peer_uid() asks where there is no NETLINK_SOCK_DIAG. */
static int by_proc(int fd, uid_t *ret)
{
    struct sockaddr_storage peer, own;
    socklen_t n = sizeof peer, m = sizeof own;
    uint8_t peer_ip[ADDR_BYTES], own_ip[ADDR_BYTES];
    assert_int_equal(getpeername(fd, (struct sockaddr *)&peer, &n), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &m), 0);
    assert_true(addr_of((struct sockaddr *)&peer, peer_ip) && addr_of((struct sockaddr *)&own, own_ip));
    return peer_uid_proc(peer_ip, (uint16_t)addr_port_of((struct sockaddr *)&peer), own_ip,
                         (uint16_t)addr_port_of((struct sockaddr *)&own), ret);
}

static void is_ours(const char *host, int family)
{
    int peer, fd = accept_one(host, family, &peer);
    struct err e = {0};
    uid_t uid = (uid_t)-1;
    int asker = -1;
    for (int i = 0; i < 2; i++) { /* by a new socket, and by one that was used */
        uid = (uid_t)-1;
        if (peer_uid(&asker, fd, &uid, &e) < 0)
            fail_msg("%s", e.text);
        assert_int_equal(uid, geteuid());
        assert_true(asker >= 0 || socket(AF_NETLINK, SOCK_DGRAM, NETLINK_SOCK_DIAG) < 0);
    }
    uid = (uid_t)-1;
    assert_int_equal(by_proc(fd, &uid), 0);
    assert_int_equal(uid, geteuid());
    peer_uid_close(&asker);
    assert_int_equal(asker, -1);
    close(peer);
    close(fd);
}

static void our_own_connection_is_ours(void **state)
{
    (void)state;
    is_ours("127.0.0.1", AF_INET);
}

static void our_own_connection_over_ipv6_is_ours(void **state)
{
    (void)state;
    is_ours("::1", AF_INET6);
}

static void our_own_connection_to_a_listener_of_both_families_is_ours(void **state)
{
    (void)state;
    is_ours("::", AF_INET);
}

static void a_socket_that_was_closed_belongs_to_nobody(void **state)
{
    int peer, fd = accept_one("127.0.0.1", AF_INET, &peer);
    struct err e;
    uid_t uid = 12345;
    (void)state;
    close(peer);
    int asker = -1;
    assert_int_equal(peer_uid(&asker, fd, &uid, &e), -ENOENT);
    assert_int_equal(uid, 12345);
    peer_uid_close(&asker);
    close(fd);
}

static socklen_t fill(struct sockaddr_storage *sa, const char *text)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)sa;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)sa;
    sa->ss_family = strchr(text, ':') ? AF_INET6 : AF_INET;
    inet_pton(sa->ss_family, text, sa->ss_family == AF_INET ? (void *)&v4->sin_addr : (void *)&v6->sin6_addr);
    return sa->ss_family == AF_INET ? sizeof *v4 : sizeof *v6;
}

/* From that address to that one, both of this host; exit code for the parent. */
static int connect_between(const char *from, const char *to)
{
    struct sockaddr_storage a = {0}, b = {0};
    socklen_t n;
    struct err e = {0};
    uid_t uid = (uid_t)-1;
    int asker = -1;
    n = fill(&a, from);
    fill(&b, to);
    const int l = socket(b.ss_family, SOCK_STREAM, 0), peer = socket(a.ss_family, SOCK_STREAM, 0);
    const int64_t end = clock_deadline(WAIT_MS);
    while (bind(l, (struct sockaddr *)&b, n) < 0) /* the kernel readies an IPv6 address in the background */
        if (errno != EADDRNOTAVAIL || clock_left(end) == 0)
            return 2;
    if (listen(l, 1) < 0 || getsockname(l, (struct sockaddr *)&b, &n) < 0 || bind(peer, (struct sockaddr *)&a, n) < 0)
        return 3;
    while (connect(peer, (struct sockaddr *)&b, n) < 0)
        if (errno != ENETUNREACH || clock_left(end) == 0)
            return 4;
    const int rc = peer_uid(&asker, accept(l, NULL, NULL), &uid, &e);
    if (rc < 0)
        print_error("%s -> %s: %s\n", from, to, e.text);
    return rc == 0 && uid == geteuid() ? 0 : 1;
}

/* In a network of its own, so that this host has such addresses. */
static int connect_between_addresses(void)
{
    if (unshare(CLONE_NEWNET) < 0 ||
        system("{ ip link set lo up; ip addr add 10.9.0.1/24 dev lo; ip addr add 10.9.0.2/24 dev lo; "
               "ip addr add 10.9.1.1/32 dev lo; ip route add local 10.8.0.0/16 dev lo; } >/dev/null 2>&1") != 0)
        return 77;
    const int v4 = connect_between("10.9.1.1", "10.9.0.1") | connect_between("10.9.0.2", "10.9.0.1") |
                   connect_between("10.8.7.6", "10.9.0.1") | connect_between("10.9.0.1", "127.0.0.1");
    const bool has_v6 = system("ip addr add fd00::1/128 dev lo nodad >/dev/null 2>&1 && "
                               "ip addr add fd00::2/128 dev lo nodad >/dev/null 2>&1") == 0;
    return v4 | (has_v6 ? connect_between("fd00::1", "fd00::2") : 0);
}

static void any_address_of_this_host_is_local(void **state)
{
    int status = -1;
    (void)state;
    const pid_t pid = fork();
    if (pid == 0)
        _exit(connect_between_addresses());
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip(); /* only root can have such a network */
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* In a child of another uid: connect and report what the server says. */
static int visit_as_other(int port)
{
    pid_t pid = fork();
    if (pid == 0) {
        char b[128] = {0};
        if (setuid(OTHER_UID) < 0)
            _exit(3);
        int fd = client_open(port);
        client_say(fd, "PING\r\n");
        ssize_t n = recv(fd, b, sizeof b - 1, MSG_WAITALL);
        (void)n;
        _exit(strncmp(b, "-NOPERM ", 8) == 0 ? 0 : strncmp(b, "+PONG", 5) == 0 ? 1 : 2);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

static void another_user_is_refused_with_a_reason(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can become somebody else */
    struct harness *h = harness_start(&(struct server_options){.same_uid_only = true});
    int fd = client_open(harness_port(h));
    client_talk(fd, "PING\r\n", "+PONG\r\n");
    assert_int_equal(visit_as_other(harness_port(h)), 0);
    assert_int_equal(harness_stats(h).refused, 1);
    client_talk(fd, "PING\r\n", "+PONG\r\n");
    close(fd);
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(our_own_connection_is_ours),
        cmocka_unit_test(our_own_connection_over_ipv6_is_ours),
        cmocka_unit_test(our_own_connection_to_a_listener_of_both_families_is_ours),
        cmocka_unit_test(a_socket_that_was_closed_belongs_to_nobody),
        cmocka_unit_test(any_address_of_this_host_is_local),
        cmocka_unit_test(another_user_is_refused_with_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
