/* Dialling a name with several addresses. */
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
#include <sys/socket.h>
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_that_swallows_everything_leaves_time_for_the_next),
        cmocka_unit_test(all_addresses_together_keep_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
