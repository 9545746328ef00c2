/* Dialling a name with several addresses, and servers whose replies have no end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/resp_conn.h"

enum { ADDRESSES = 2, FILL = 4, DEADLINE_MS = 600, LONG_MS = 4000 };

static struct sockaddr_in addresses[ADDRESSES]; /* of every name */

/* Stand before those of the C library. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret)
{
    (void)host, (void)port, (void)hints;
    struct addrinfo *list = calloc(ADDRESSES, sizeof *list);
    if (!list)
        return EAI_MEMORY;
    for (int i = 0; i < ADDRESSES; i++)
        list[i] = (struct addrinfo){.ai_family = AF_INET,
                                    .ai_socktype = SOCK_STREAM,
                                    .ai_addr = (struct sockaddr *)&addresses[i],
                                    .ai_addrlen = sizeof addresses[i],
                                    .ai_next = i + 1 < ADDRESSES ? &list[i + 1] : NULL};
    *ret = list;
    return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
    free(list);
}

static int listen_on(const char *host, int backlog, struct sockaddr_in *ret)
{
    socklen_t n = sizeof *ret;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *ret = (struct sockaddr_in){.sin_family = AF_INET};
    assert_int_equal(inet_pton(AF_INET, host, &ret->sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)ret, sizeof *ret), 0);
    assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)ret, &n), 0);
    return fd;
}

/* Nobody accepts and the backlog is full: further connections are neither made nor refused. */
struct black_hole {
    int listener, fill[FILL];
};

static struct black_hole dig(const char *host, struct sockaddr_in *ret)
{
    struct black_hole h = {.listener = listen_on(host, 0, ret)};
    for (int i = 0; i < FILL; i++) {
        h.fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        int rc = connect(h.fill[i], (struct sockaddr *)ret, sizeof *ret);
        assert_true(rc == 0 || errno == EINPROGRESS);
    }
    return h;
}

static void fill_in(struct black_hole *h)
{
    for (int i = 0; i < FILL; i++)
        close(h->fill[i]);
    close(h->listener);
}

static void an_address_that_swallows_everything_leaves_time_for_the_next(void **state)
{
    struct resp_conn c;
    struct err e = {0};
    struct black_hole hole = dig("127.0.0.1", &addresses[0]);
    int listener = listen_on("127.0.0.1", 8, &addresses[1]);
    resp_init(&c, -1);
    const int64_t start = clock_ms();
    int rc = resp_dial(&c, "twins", "1", clock_deadline(LONG_MS), &e);
    const int64_t took = clock_ms() - start;
    if (rc < 0 || took < LONG_MS / 2)
        fail_msg("%d '%s' after %lld ms", rc, e.text, (long long)took);
    resp_finish(&c);
    close(listener);
    fill_in(&hole);
}

static void all_addresses_together_keep_the_deadline(void **state)
{
    struct resp_conn c;
    struct err e = {0};
    struct black_hole a = dig("127.0.0.1", &addresses[0]), b = dig("127.0.0.1", &addresses[1]);
    resp_init(&c, -1);
    const int64_t start = clock_ms();
    int rc = resp_dial(&c, "twins", "1", clock_deadline(DEADLINE_MS), &e);
    const int64_t took = clock_ms() - start;
    if (rc != -ETIMEDOUT || took < DEADLINE_MS || took > DEADLINE_MS + 2000)
        fail_msg("%d '%s' after %lld ms", rc, e.text, (long long)took);
    resp_finish(&c);
    fill_in(&a);
    fill_in(&b);
}

/* --- replies */

/* A connection, and a process that sends `first`, then `again` up to so many times. Its exit code: 0 if fewer than
 * FEW_BYTES were taken off it. */
enum { FEW_BYTES = 8 << 20 };

static pid_t serve(struct resp_conn *c, const char *first, const char *again, int times)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    resp_init(c, -1);
    c->fd = ends[0];
    c->reader = resp_reader_create(&c->bound, 65536);
    assert_non_null(c->reader);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        long all = 0;
        ssize_t n = send(ends[1], first, strlen(first), MSG_NOSIGNAL);
        close(ends[0]);
        for (int i = 0; i < times && n > 0; i++, all += n)
            n = send(ends[1], again, strlen(again), MSG_NOSIGNAL);
        _exit(n > 0 || all >= FEW_BYTES);
    }
    close(ends[1]);
    return pid;
}

static int wait_for(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_line_without_an_end_is_read_no_further(void **state)
{
    struct resp_conn c;
    redisReply *r;
    struct err e;
    char piece[16385] = "";
    (void)state;
    memset(piece, 'a', sizeof piece - 1);
    for (const char *const *first = (const char *const[]){"+", "-", ":", "$", "*", "+\n\r", "*2\r\n$1\r\na\r\n+", NULL};
         *first; first++) {
        const pid_t pid = serve(&c, *first, piece, 4096);
        c.max_reply = (size_t)256 << 20;
        assert_int_equal(resp_receive(&c, &r, clock_deadline(60000), &e), -E2BIG);
        assert_non_null(strstr(e.text, "in one line"));
        assert_int_equal(c.fd, -1);
        resp_finish(&c);
        assert_int_equal(wait_for(pid), 0);
    }
}

/* hiredis lets go of the elements' bytes while the reply is not whole. */
static void many_small_elements_are_a_long_reply_too(void **state)
{
    struct resp_conn c;
    redisReply *r;
    struct err e;
    (void)state;
    const pid_t pid = serve(&c, "*65536\r\n", "*8\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n:6\r\n:7\r\n:8\r\n", 65536);
    assert_int_equal(resp_receive(&c, &r, clock_deadline(60000), &e), -E2BIG);
    resp_finish(&c);
    assert_int_equal(wait_for(pid), 0);
}

static void long_strings_and_replies_that_follow_are_taken(void **state)
{
    struct resp_conn c;
    redisReply *r;
    struct err e;
    static char text[200000];
    (void)state;
    memset(text, 'b', sizeof text - 1);
    const pid_t pid = serve(&c, "$199999\r\n", text, 1);
    c.max_reply = 200100;
    /* nothing more is read once it is whole but for what came with it */
    const int rc = resp_receive(&c, &r, clock_deadline(60000), &e);
    assert_int_equal(rc, -ECONNRESET); /* its CRLF is missing: it is not whole */
    resp_finish(&c);
    assert_int_equal(wait_for(pid), 1);
    const pid_t next = serve(&c, "$3\r\nabc\r\n", "+OK\r\n", 1000);
    c.max_reply = 64; /* of each, not of all that came together */
    for (int i = 0; i <= 1000; i++) {
        assert_int_equal(resp_receive(&c, &r, clock_deadline(60000), &e), 0);
        assert_string_equal(r->str, i ? "OK" : "abc");
        freeReplyObject(r);
    }
    resp_finish(&c);
    assert_int_equal(wait_for(next), 1);
}

static void a_deadline_holds_within_a_reply(void **state)
{
    struct resp_conn c;
    redisReply *r;
    struct err e;
    static char text[100003];
    (void)state;
    memset(text, 'b', sizeof text - 1);
    memcpy(text + 100000, "\r\n", 2);
    const pid_t pid = serve(&c, "$100000\r\n", text, 1);
    assert_int_equal(wait_for(pid), 1); /* all of it is there */
    assert_int_equal(resp_receive(&c, &r, clock_deadline(0), &e), -ETIMEDOUT);
    assert_int_equal(c.fd, -1);
    resp_finish(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_that_swallows_everything_leaves_time_for_the_next),
        cmocka_unit_test(all_addresses_together_keep_the_deadline),
        cmocka_unit_test(a_line_without_an_end_is_read_no_further),
        cmocka_unit_test(many_small_elements_are_a_long_reply_too),
        cmocka_unit_test(long_strings_and_replies_that_follow_are_taken),
        cmocka_unit_test(a_deadline_holds_within_a_reply),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
