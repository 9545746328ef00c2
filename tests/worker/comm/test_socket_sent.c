/* All that was written to a connection counts, also while its other end reads nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "worker/comm/socket_sent.h"

static void what_the_kernel_still_has_counts(void **state)
{
    static const char some[1 << 16];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    const int door = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
    int64_t written = 0;
    ssize_t n;
    (void)state;
    assert_int_equal(bind(door, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(door, 1), 0);
    assert_int_equal(getsockname(door, (struct sockaddr *)&a, &len), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    while ((n = send(fd, some, sizeof some, MSG_DONTWAIT)) > 0)
        written += n;
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(socket_sent(fd), written);
    close(fd);
    close(door);
}

static void what_is_no_connection_is_refused(void **state)
{
    (void)state;
    assert_int_equal(socket_sent(-1), -EBADF);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_kernel_still_has_counts),
        cmocka_unit_test(what_is_no_connection_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
