/* The bootstrap store on one thread: the loop turns after each thing a client does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/rendezvous/bootstrap.h"
#include "rendezvousd/net/front.h"
#include "rendezvousd/net/server.h"

enum { SILENCE_MS = 60000 };

struct rig {
    uv_loop_t loop;
    struct bootstrap b;
    struct err e;
};

static void turn(struct rig *r)
{
    for (int i = 0; i < 4; i++)
        uv_run(&r->loop, UV_RUN_NOWAIT);
}

static void start(struct rig *r, const struct bootstrap_options *o)
{
    uv_loop_init(&r->loop);
    bootstrap_init(&r->b, &r->loop, o);
}

static void finish(struct rig *r)
{
    bootstrap_close(&r->b);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&r->loop), 0);
}

static int prepare(struct rig *r)
{
    int port;
    if (bootstrap_prepare(&r->b, &port, &r->e) < 0)
        fail_msg("%s", r->e.text);
    return port;
}

static void use(struct rig *r, uint64_t round, int members)
{
    if (bootstrap_use(&r->b, round, members, "192.0.2.1,192.0.2.2", SILENCE_MS, &r->e) < 0)
        fail_msg("%s", r->e.text);
}

/* -1: refused. */
static int connect_to(int port)
{
    const struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)&sa, sizeof sa) == 0)
        return fd;
    close(fd);
    return -1;
}

/* What has come within some turns, or "nothing". */
static const char *answer_by_now(struct rig *r, int fd)
{
    static char text[512];
    turn(r);
    const ssize_t n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    if (n <= 0)
        return n == 0 || errno == ECONNRESET ? "the end" : "nothing";
    text[n] = 0;
    return text;
}

static const char *answer(struct rig *r, int fd)
{
    const int64_t deadline = clock_deadline(20000);
    const char *text;
    while (strcmp(text = answer_by_now(r, fd), "nothing") == 0 && clock_left(deadline))
        ;
    return text;
}

static const char *ask(struct rig *r, int fd, const char *request)
{
    turn(r);
    send(fd, request, strlen(request), MSG_NOSIGNAL);
    return answer(r, fd);
}

static const struct bootstrap_options alone = {.loopback_only = true, .run_id = "job"};
static const struct bootstrap_options many = {.run_id = "job"};

static void who_comes_before_the_rounds_news_waits_for_it(void **state)
{
    struct rig r;
    (void)state;
    start(&r, &many);
    const int fd = connect_to(prepare(&r));
    assert_true(fd >= 0);
    send(fd, "PING\r\n", 6, MSG_NOSIGNAL);
    assert_string_equal(answer_by_now(&r, fd), "nothing");
    use(&r, 1, 2);
    assert_string_equal(answer(&r, fd), "+PONG\r\n");
    close(fd);
    finish(&r);
}

static void a_port_stays_until_it_is_used_and_is_not_used_twice(void **state)
{
    struct rig r;
    (void)state;
    start(&r, &alone);
    const int first = prepare(&r);
    assert_int_equal(prepare(&r), first);
    use(&r, 1, 1);
    assert_int_equal(r.b.port, first);
    assert_int_not_equal(prepare(&r), first);
    finish(&r);
}

static int free_port(void)
{
    struct rig r;
    start(&r, &alone);
    const int port = prepare(&r);
    finish(&r);
    return port;
}

static void a_fixed_port_serves_round_after_round_with_new_keys(void **state)
{
    struct rig r;
    const struct bootstrap_options fixed = {.loopback_only = true, .run_id = "job", .fixed_port = free_port()};
    (void)state;
    start(&r, &fixed);
    for (uint64_t round = 1; round < 4; round++) {
        assert_int_equal(prepare(&r), fixed.fixed_port);
        use(&r, round, 1);
        const int fd = connect_to(fixed.fixed_port);
        assert_true(fd >= 0);
        assert_string_equal(ask(&r, fd, "SET k v\r\n"), "+OK\r\n");
        assert_string_equal(ask(&r, fd, "DBSIZE\r\n"), ":1\r\n");
        close(fd);
    }
    bootstrap_drop(&r.b); /* somebody else leads */
    turn(&r);
    assert_int_equal(connect_to(fixed.fixed_port), -1);
    assert_int_equal(prepare(&r), fixed.fixed_port);
    finish(&r);
}

static void a_fixed_port_that_is_taken_is_done_without(void **state)
{
    struct rig r, other;
    (void)state;
    start(&other, &alone);
    const struct bootstrap_options fixed = {.loopback_only = true, .run_id = "job", .fixed_port = prepare(&other)};
    start(&r, &fixed);
    assert_int_not_equal(prepare(&r), fixed.fixed_port);
    use(&r, 1, 1);
    assert_true(connect_to(r.b.port) >= 0);
    finish(&r);
    finish(&other);
}

static void keys_of_a_round_end_with_it(void **state)
{
    struct rig r;
    (void)state;
    start(&r, &alone);
    prepare(&r);
    use(&r, 1, 1);
    const int old = connect_to(r.b.port), old_port = r.b.port;
    assert_string_equal(ask(&r, old, "SET key 1\r\n"), "+OK\r\n");
    prepare(&r);
    assert_string_equal(ask(&r, old, "GET key\r\n"), "$1\r\n1\r\n"); /* it serves until the next round begins */
    use(&r, 2, 1);
    assert_string_equal(answer(&r, old), "the end");
    assert_int_equal(connect_to(old_port), -1);
    const int fresh = connect_to(r.b.port);
    assert_string_equal(ask(&r, fresh, "GET key\r\n"), "$-1\r\n");
    close(old);
    close(fresh);
    finish(&r);
}

static void both_languages_are_spoken(void **state)
{
    static const char handshake[] = "\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04";
    struct rig r;
    (void)state;
    start(&r, &alone);
    prepare(&r);
    use(&r, 1, 1);
    const int fd = connect_to(r.b.port);
    send(fd, handshake, sizeof handshake - 1, MSG_NOSIGNAL);
    assert_string_equal(answer(&r, fd), "\1\2\3\4");
    close(fd);
    finish(&r);
}

static void who_drops_the_round_serves_nobody(void **state)
{
    struct rig r;
    (void)state;
    start(&r, &many);
    prepare(&r);
    use(&r, 1, 2);
    const int served = r.b.port, prepared = prepare(&r);
    bootstrap_drop(&r.b);
    turn(&r);
    assert_int_equal(connect_to(served), -1);
    assert_int_equal(connect_to(prepared), -1);
    finish(&r);
}

static void a_majority_is_alive_when_enough_members_say_so(void **state)
{
    struct rig r;
    (void)state;
    start(&r, &many);
    prepare(&r);
    use(&r, 7, 5);
    const int fd = connect_to(r.b.port);
    assert_int_equal(bootstrap_alive(&r.b), 0);
    assert_string_equal(ask(&r, fd, "RDZV.ALIVE job node1 7\r\n"), "+ALIVE\r\n");
    assert_string_equal(ask(&r, fd, "RDZV.ALIVE job node1 7\r\n"), "+ALIVE\r\n");    /* said twice, counted once */
    assert_string_equal(ask(&r, fd, "RDZV.ALIVE job node2 7\r\n"), "+MAJORITY\r\n"); /* with ourselves 3 of 5 */
    assert_int_equal(bootstrap_alive(&r.b), 2);
    assert_non_null(strstr(ask(&r, fd, "RDZV.ALIVE job node1 6\r\n"), "-FENCED"));
    assert_non_null(strstr(ask(&r, fd, "RDZV.ALIVE other node1 7\r\n"), "-FENCED"));
    ask(&r, fd, "RDZV.ALIVE job node3 7\r\n");
    ask(&r, fd, "RDZV.ALIVE job node4 7\r\n");
    ask(&r, fd, "RDZV.ALIVE job node5 7\r\n");
    assert_non_null(strstr(ask(&r, fd, "RDZV.ALIVE job node6 7\r\n"), "-REFUSED"));
    close(fd);
    finish(&r);
}

static void one_port_serves_round_after_round(void **state)
{
    const struct server_options so = {.same_uid_only = true, .binary = &front_tcpstore};
    struct bootstrap_options o = {.run_id = "job"};
    struct rig r;
    (void)state;
    uv_loop_init(&r.loop);
    if (server_create(&o.shared, &r.loop, &so, &r.e) < 0 ||
        server_listen(o.shared, "127.0.0.1", 0, &o.shared_port, &r.e) < 0)
        fail_msg("%s", r.e.text);
    bootstrap_init(&r.b, &r.loop, &o);
    assert_int_equal(prepare(&r), o.shared_port);
    use(&r, 1, 2);
    const int old = connect_to(o.shared_port);
    assert_string_equal(ask(&r, old, "SET key 1\r\n"), "+OK\r\n");
    use(&r, 2, 2);
    assert_string_equal(answer(&r, old), "the end");
    const int fresh = connect_to(o.shared_port);
    assert_string_equal(ask(&r, fresh, "GET key\r\n"), "$-1\r\n");
    bootstrap_drop(&r.b);
    assert_string_equal(answer(&r, fresh), "the end");
    close(old);
    close(fresh);
    bootstrap_close(&r.b);
    server_close(o.shared, NULL, NULL);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&r.loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_comes_before_the_rounds_news_waits_for_it),
        cmocka_unit_test(a_port_stays_until_it_is_used_and_is_not_used_twice),
        cmocka_unit_test(a_fixed_port_serves_round_after_round_with_new_keys),
        cmocka_unit_test(a_fixed_port_that_is_taken_is_done_without),
        cmocka_unit_test(keys_of_a_round_end_with_it),
        cmocka_unit_test(both_languages_are_spoken),
        cmocka_unit_test(who_drops_the_round_serves_nobody),
        cmocka_unit_test(a_majority_is_alive_when_enough_members_say_so),
        cmocka_unit_test(one_port_serves_round_after_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
