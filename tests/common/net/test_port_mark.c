/* Marks on ports: they outlive the process that set them, and leave the port to who follows it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/net/port_mark.h"

/* A listener on all addresses, as a daemon's; *port: 0 lets the kernel pick. -1: the port is taken. */
static int listen_everywhere(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    if (bind(fd, (const struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 1) < 0) {
        close(fd);
        return -1;
    }
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static int free_port(void)
{
    int port = 0;
    close(listen_everywhere(&port));
    return port;
}

/* A process that marks the port, listens on it, and is killed. */
static void mark_and_die(int port)
{
    int ready[2];
    char c = 0;
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        const bool done = port_mark(port) == 0 && listen_everywhere(&port) >= 0 && port_is_marked(port);
        if (write(ready[1], done ? "y" : "n", 1) == 1)
            pause();
        _exit(1);
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    close(ready[0]);
    close(ready[1]);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(c, 'y');
}

static void a_mark_outlives_a_process_that_is_killed(void **state)
{
    const int port = free_port();
    (void)state;
    assert_false(port_is_marked(port));
    mark_and_die(port);
    assert_true(port_is_marked(port));
    assert_false(port_is_marked(free_port()));
    mark_and_die(port); /* whoever follows marks and listens at once */
    assert_true(port_is_marked(port));
}

static void the_port_of_another_is_not_marked(void **state)
{
    int port = 0;
    const int fd = listen_everywhere(&port);
    (void)state;
    assert_int_equal(port_mark(port), -EADDRINUSE);
    assert_false(port_is_marked(port));
    close(fd);
    assert_false(port_is_marked(port));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mark_outlives_a_process_that_is_killed),
        cmocka_unit_test(the_port_of_another_is_not_marked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
