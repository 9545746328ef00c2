/* rendezvousd as a program: command line, readiness, exit codes; and Redis' own tools against it, where they are
 * installed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvousd/harness.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct run {
    pid_t pid;
    int out;          /* its stdout and stderr */
    char text[16384]; /* more than --help says: it is read to the end */
    size_t n;
};

static struct run begin(char *const argv[])
{
    struct run r = {0};
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    r.pid = fork();
    if (r.pid == 0) {
        dup2(p[1], 1);
        dup2(p[1], 2);
        signal(SIGINT, SIG_DFL); /* ignored where a shell runs us in the background */
        execvp(argv[0], argv);
        _exit(127);
    }
    close(p[1]);
    r.out = p[0];
    return r;
}

/* Read until `until` was said (NULL: to the end), at most 20 s. */
static void hear(struct run *r, const char *until)
{
    struct pollfd pf = {.fd = r->out, .events = POLLIN};
    while (r->n < sizeof r->text - 1 && (!until || !strstr(r->text, until))) {
        if (poll(&pf, 1, 20000) != 1) {
            kill(r->pid, SIGKILL);
            fail_msg("only '%s' was said, expected '%s'", r->text, until ? until : "the end");
        }
        ssize_t n = read(r->out, r->text + r->n, sizeof r->text - 1 - r->n);
        if (n <= 0)
            break;
        r->n += (size_t)n;
        r->text[r->n] = 0;
    }
}

static int finish(struct run *r)
{
    int status;
    hear(r, NULL);
    close(r->out);
    waitpid(r->pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static char *program(void)
{
    char *p = getenv("RENDEZVOUSD");
    if (!p)
        fail_msg("RENDEZVOUSD is not set: run under meson test");
    return p;
}

static struct run daemon_start(int *port)
{
    struct run r = begin((char *[]){program(), "--port", "0", NULL});
    hear(&r, "\n");
    if (sscanf(r.text, "rendezvousd ready on 127.0.0.1:%d\n", port) != 1)
        fail_msg("said '%s'", r.text);
    return r;
}

static void says_and_exits(char *const argv[], int code, const char *what)
{
    struct run r = begin(argv);
    int got = finish(&r);
    if (got != code || !strstr(r.text, what))
        fail_msg("exit %d, expected %d; said '%s', expected '%s'", got, code, r.text, what);
}

static void it_serves_until_a_signal_and_exits_0(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        int port;
        struct run r = daemon_start(&port);
        int fd = client_open(port);
        client_talk(fd, "SET a 1\r\n", "+OK\r\n");
        kill(r.pid, signals[i]);
        client_expect_closed(fd);
        assert_int_equal(finish(&r), 0);
    }
}

static void a_port_in_use_is_one_sentence_and_exit_69(void **state)
{
    int port;
    char text[16];
    struct run r = daemon_start(&port);
    (void)state;
    snprintf(text, sizeof text, "%d", port);
    says_and_exits((char *[]){program(), "--port", text, "--port-timeout", "0", NULL}, 69, "Address already in use");
    kill(r.pid, SIGTERM);
    assert_int_equal(finish(&r), 0);
}

static void the_port_file_holds_the_port_and_goes_with_the_daemon(void **state)
{
    char dir[] = "/tmp/rendezvousd-XXXXXX", path[64], text[16] = {0};
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/port", dir);
    struct run r = begin((char *[]){program(), "--port", "0", "--port-file", path, NULL});
    hear(&r, "ready");
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    fd = client_open(atoi(text));
    client_talk(fd, "PING\r\n", "+PONG\r\n");
    close(fd);
    kill(r.pid, SIGTERM);
    assert_int_equal(finish(&r), 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(rmdir(dir), 0); /* nothing else was left */
    says_and_exits((char *[]){program(), "--port", "0", "--port-file", "/nonexistent/port", NULL}, 73,
                   "/nonexistent/port");
}

static void an_address_beyond_loopback_needs_insecure(void **state)
{
    (void)state;
    says_and_exits((char *[]){program(), "--bind", "0.0.0.0", "--port", "0", NULL}, 2,
                   "--bind 0.0.0.0: beyond loopback clients must authenticate");
    says_and_exits((char *[]){program(), "--bind", "::", "--port", "0", NULL}, 2, "--bind ::");
    struct run r = begin((char *[]){program(), "--bind", "0.0.0.0", "--port", "0", "--insecure", NULL});
    hear(&r, "rendezvousd ready on 0.0.0.0:");
    kill(r.pid, SIGTERM);
    assert_int_equal(finish(&r), 0);
}

static bool has_ipv6(void)
{
    const struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool bound = fd >= 0 && bind(fd, (const struct sockaddr *)&loopback, sizeof loopback) == 0;
    if (fd >= 0)
        close(fd);
    return bound;
}

static void each_address_is_told_with_its_port(void **state)
{
    (void)state;
    int first = -1, second = -2;
    if (!has_ipv6()) {
        print_message("# SKIP no IPv6 here\n");
        skip();
    }
    struct run r = begin((char *[]){program(), "--bind", "127.0.0.1,::1", "--port", "0", NULL});
    hear(&r, "\n");
    sscanf(r.text, "rendezvousd ready on 127.0.0.1:%d,[::1]:%d\n", &first, &second);
    if (first != second)
        fail_msg("said '%s'", r.text);
    kill(r.pid, SIGTERM);
    assert_int_equal(finish(&r), 0);
}

static void a_wrong_command_line_is_one_sentence_and_exit_2(void **state)
{
    (void)state;
    says_and_exits((char *[]){program(), "--port", "70000", NULL}, 2, "port");
    says_and_exits((char *[]){program(), "--prot", "1", NULL}, 2, "port");
    says_and_exits((char *[]){program(), "extra", NULL}, 2, "extra");
    for (int insecure = 0; insecure < 2; insecure++)
        says_and_exits((char *[]){program(), "--bind", "localhost", insecure ? "--insecure" : NULL, NULL}, 2,
                       "address 'localhost': expected an IPv4 or IPv6 address such as 127.0.0.1");
}

static void help_version_and_configuration_are_printed(void **state)
{
    (void)state;
    says_and_exits((char *[]){program(), "--help", NULL}, 0, "--port-file");
    says_and_exits((char *[]){program(), "--version", NULL}, 0, "rendezvousd ");
    says_and_exits((char *[]){program(), "--port", "1", "--print-config", NULL}, 0, "port = 1");
}

static void need(const char *tool)
{
    char cmd[64];
    snprintf(cmd, sizeof cmd, "command -v %s >/dev/null", tool);
    if (system(cmd) != 0) {
        print_message("# SKIP %s is not installed\n", tool);
        skip();
    }
}

static void redis_cli_talks_to_it(void **state)
{
    int port;
    char text[16];
    (void)state;
    need("redis-cli");
    struct run r = daemon_start(&port);
    snprintf(text, sizeof text, "%d", port);
    says_and_exits((char *[]){"redis-cli", "-p", text, "set", "a", "hello world", NULL}, 0, "OK");
    says_and_exits((char *[]){"redis-cli", "-p", text, "get", "a", NULL}, 0, "hello world");
    says_and_exits((char *[]){"redis-cli", "-p", text, "store.wait", "a", "100", NULL}, 0, "1");
    kill(r.pid, SIGTERM);
    assert_int_equal(finish(&r), 0);
}

static void redis_benchmark_runs_against_it(void **state)
{
    int port;
    char text[16];
    (void)state;
    need("redis-benchmark");
    struct run r = daemon_start(&port);
    snprintf(text, sizeof text, "%d", port);
    says_and_exits((char *[]){"redis-benchmark", "-p", text, "-q", "--csv", "-n", "20000", "-c", "50", "-P", "16", "-t",
                              "incr,set,get", NULL},
                   0, "\"INCR\"");
    kill(r.pid, SIGTERM);
    assert_int_equal(finish(&r), 0);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_serves_until_a_signal_and_exits_0),
        cmocka_unit_test(a_port_in_use_is_one_sentence_and_exit_69),
        cmocka_unit_test(the_port_file_holds_the_port_and_goes_with_the_daemon),
        cmocka_unit_test(an_address_beyond_loopback_needs_insecure),
        cmocka_unit_test(each_address_is_told_with_its_port),
        cmocka_unit_test(a_wrong_command_line_is_one_sentence_and_exit_2),
        cmocka_unit_test(help_version_and_configuration_are_printed),
        cmocka_unit_test(redis_cli_talks_to_it),
        cmocka_unit_test(redis_benchmark_runs_against_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
