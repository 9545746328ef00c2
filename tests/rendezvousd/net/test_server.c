/* The server over real sockets: every command, order, limits, and clients that go at the wrong moment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "tests/rendezvousd/harness.h"
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static int start(void **state, const struct server_options *o)
{
    *state = harness_start(o);
    return 0;
}

static int set_up(void **state)
{
    return start(state, NULL);
}

static int tear_down(void **state)
{
    harness_stop(*state);
    return 0;
}

static int open_client(void **state)
{
    return client_open(harness_port(*state));
}

static const char *const dialogue[][2] = {
    {"PING\r\n", "+PONG\r\n"},
    {"ping hello\r\n", "$5\r\nhello\r\n"},
    {"PING a b\r\n", "-ERR wrong number of arguments for 'ping' command\r\n"},
    {"ECHO x\r\n", "$1\r\nx\r\n"},
    {"GET a\r\n", "$-1\r\n"},
    {"SET a 1\r\n", "+OK\r\n"},
    {"GET a\r\n", "$1\r\n1\r\n"},
    {"SET a 2 NX\r\n", "$-1\r\n"},
    {"SET z 2 XX\r\n", "$-1\r\n"},
    {"SET a 3 xx\r\n", "+OK\r\n"},
    {"SET a 3 NX XX\r\n", "-ERR syntax error\r\n"},
    {"SET a 3 EX 10 PX 10\r\n", "-ERR syntax error\r\n"},
    {"SETNX a 9\r\n", ":0\r\n"},
    {"SETNX b 9\r\n", ":1\r\n"},
    {"INCR a\r\n", ":4\r\n"},
    {"INCRBY a -10\r\n", ":-6\r\n"},
    {"DECR a\r\n", ":-7\r\n"},
    {"DECRBY a -7\r\n", ":0\r\n"},
    {"INCRBY a 1x\r\n", "-ERR value is not an integer or out of range\r\n"},
    {"DECRBY a -9223372036854775808\r\n", "-ERR decrement would overflow\r\n"},
    {"SET t text\r\n", "+OK\r\n"},
    {"INCR t\r\n", "-ERR value is not an integer or out of range\r\n"},
    {"SET m 9223372036854775807\r\n", "+OK\r\n"},
    {"INCR m\r\n", "-ERR increment or decrement would overflow\r\n"},
    {"APPEND t ual\r\n", ":7\r\n"},
    {"APPEND new x\r\n", ":1\r\n"},
    {"EXISTS a a nope\r\n", ":2\r\n"},
    {"MSET k1 v1 k2 v2\r\n", "+OK\r\n"},
    {"MSET k1 v1 k2\r\n", "-ERR wrong number of arguments for 'mset' command\r\n"},
    {"MGET k1 nope k2\r\n", "*3\r\n$2\r\nv1\r\n$-1\r\n$2\r\nv2\r\n"},
    {"KEYS k[12]\r\n", "-ERR unknown command 'KEYS', with args beginning with: 'k[12]' \r\n"},
    {"DEL k1 k2 nope\r\n", ":2\r\n"},
    {"DBSIZE\r\n", ":5\r\n"},
    {"SELECT 0\r\n", "+OK\r\n"},
    {"SELECT 1\r\n", "-ERR DB index is out of range\r\n"},
    {"SELECT x\r\n", "-ERR value is not an integer or out of range\r\n"},
    {"COMMAND DOCS\r\n", "*0\r\n"},
    {"CLIENT GETNAME\r\n", "$-1\r\n"},
    {"CLIENT SETNAME me\r\n", "+OK\r\n"},
    {"CLIENT GETNAME\r\n", "$2\r\nme\r\n"},
    {"CLIENT SETNAME 'a b'\r\n", "-ERR Client names cannot contain spaces, newlines or special characters.\r\n"},
    {"CLIENT ID\r\n", ":1\r\n"},
    {"CLIENT SETNAME\r\n", "-ERR wrong number of arguments for 'client|setname' command\r\n"},
    {"CLIENT NONE\r\n", "-ERR unknown subcommand 'NONE'. Try CLIENT HELP.\r\n"},
    {"HELLO 3\r\n", "-NOPROTO unsupported protocol version\r\n"},
    {"HELLO 2\r\n",
     "*14\r\n$6\r\nserver\r\n$11\r\nrendezvousd\r\n$7\r\nversion\r\n$5\r\n" CRUN_VERSION "\r\n$5\r\nproto\r\n:2\r\n"
     "$2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"},
    {"FLUSHDB maybe\r\n", "-ERR syntax error\r\n"},
    {"FLUSHDB\r\n", "+OK\r\n"},
    {"DBSIZE\r\n", ":0\r\n"},
    {"STORE.PING\r\n", "+STORE\r\n"},
    {"STORE.CAS c 0 '' one\r\n", "*2\r\n:1\r\n$3\r\none\r\n"},
    {"STORE.CAS c 0 '' two\r\n", "*2\r\n:0\r\n$3\r\none\r\n"},
    {"STORE.CAS c 1 x two\r\n", "*2\r\n:0\r\n$3\r\none\r\n"},
    {"STORE.CAS c 1 one two\r\n", "*2\r\n:1\r\n$3\r\ntwo\r\n"},
    {"STORE.CAS d 1 one two\r\n", "*2\r\n:0\r\n$-1\r\n"},
    {"STORE.CAS d 2 one two\r\n", "-ERR syntax error\r\n"},
    {"STORE.WAIT c 0\r\n", ":1\r\n"},
    {"STORE.WAIT c d 0\r\n", ":0\r\n"},
    {"STORE.WAIT c d 5\r\n", ":0\r\n"},
    {"STORE.WAIT d x\r\n", "-ERR timeout is not an integer or out of range\r\n"},
    {"STORE.WAIT d -1\r\n", "-ERR timeout is negative\r\n"},
    {"GET\r\n", "-ERR wrong number of arguments for 'get' command\r\n"},
    {"FOO bar 'b\\'z'\r\n", "-ERR unknown command 'FOO', with args beginning with: 'bar' 'b'z' \r\n"},
    {"*2\r\n$2\r\n\r\n\r\n$1\r\nx\r\n", "-ERR unknown command '  ', with args beginning with: 'x' \r\n"},
    {"QUIT\r\n", "+OK\r\n"},
};

static void every_command_answers_as_redis_does(void **state)
{
    int fd = open_client(state);
    for (size_t i = 0; i < sizeof dialogue / sizeof *dialogue; i++)
        client_talk(fd, dialogue[i][0], dialogue[i][1]);
    client_expect_closed(fd);
}

static void info_tells_clients_and_memory(void **state)
{
    char b[2048] = {0};
    int fd = open_client(state);
    client_say(fd, "INFO\r\n");
    assert_true(recv(fd, b, sizeof b - 1, 0) > 0);
    assert_non_null(strstr(b, "connected_clients:1\r\n"));
    assert_non_null(strstr(b, "used_memory:"));
    close(fd);
}

static void replies_keep_their_order_when_a_wait_blocks_the_pipeline(void **state)
{
    int a = open_client(state), b = open_client(state);
    client_say(a, "SET x 1\r\nSTORE.WAIT y 60000\r\nGET y\r\nSET z 1\r\nSTORE.WAIT w 60000\r\nPING\r\n");
    client_expect(a, "+OK\r\n");
    client_expect_silence(a, 30);
    client_talk(b, "EXISTS z\r\n", ":0\r\n"); /* nothing behind the wait was done */
    client_talk(b, "SET y 7\r\n", "+OK\r\n");
    client_expect(a, ":1\r\n$1\r\n7\r\n+OK\r\n");
    client_expect_silence(a, 30);
    client_talk(b, "SET w 7\r\n", "+OK\r\n");
    client_expect(a, ":1\r\n+PONG\r\n");
    close(a);
    close(b);
}

static void a_wait_is_answered_by_every_way_to_create_a_key(void **state)
{
    static const char *const ways[][2] = {{"SET k 1\r\n", "+OK\r\n"},
                                          {"SETNX k 1\r\n", ":1\r\n"},
                                          {"INCR k\r\n", ":1\r\n"},
                                          {"DECRBY k 1\r\n", ":-1\r\n"},
                                          {"APPEND k x\r\n", ":1\r\n"},
                                          {"MSET j 1 k 1\r\n", "+OK\r\n"},
                                          {"STORE.CAS k 0 '' v\r\n", "*2\r\n:1\r\n$1\r\nv\r\n"}};
    int a = open_client(state), b = open_client(state);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        client_say(a, "STORE.WAIT k 60000\r\n");
        while (harness_stats(*state).waiters == 0)
            ;
        client_talk(b, ways[i][0], ways[i][1]);
        client_expect(a, ":1\r\n");
        client_talk(b, "DEL k\r\n", ":1\r\n");
    }
    close(a);
    close(b);
}

static void a_wait_ends_at_its_timeout(void **state)
{
    int fd = open_client(state);
    int64_t t0 = clock_ms();
    client_talk(fd, "STORE.WAIT nope 60\r\nPING\r\n", ":0\r\n+PONG\r\n");
    int64_t took = clock_ms() - t0;
    assert_in_range(took, 59, 3000);
    assert_int_equal(harness_stats(*state).waiters, 0);
    close(fd);
}

static void a_client_that_goes_while_it_waits_leaves_nothing(void **state)
{
    int a = open_client(state), b = open_client(state);
    client_say(a, "STORE.WAIT x y z 60000\r\nGET x\r\n");
    while (harness_stats(*state).waiters == 0)
        ;
    close(a);
    while (harness_stats(*state).clients > 1)
        ;
    assert_int_equal(harness_stats(*state).waiters, 0);
    client_talk(b, "MSET x 1 y 1 z 1\r\nDEL x y z\r\n", "+OK\r\n:3\r\n");
    close(b);
    while (harness_stats(*state).clients > 0)
        ;
    assert_int_equal(harness_stats(*state).memory_bytes, 0);
}

static void a_client_that_goes_in_mid_request_leaves_nothing(void **state)
{
    static const char request[] = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhello\r\n";
    for (size_t n = 1; n < sizeof request - 1; n++) {
        int fd = open_client(state);
        client_send(fd, request, n);
        close(fd);
    }
    int fd = open_client(state);
    client_talk(fd, "DBSIZE\r\n", ":0\r\n");
    close(fd);
    while (harness_stats(*state).clients > 0)
        ;
    assert_int_equal(harness_stats(*state).memory_bytes, 0);
}

static void a_request_sent_byte_by_byte_is_understood(void **state)
{
    static const char request[] = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhello\r\nGET a\r\n";
    int fd = open_client(state);
    for (size_t i = 0; i < sizeof request - 1; i++)
        client_send(fd, request + i, 1);
    client_expect(fd, "+OK\r\n$5\r\nhello\r\n");
    close(fd);
}

static void ten_thousand_pipelined_requests_are_answered_in_order(void **state)
{
    struct buf say = {0}, reply = {0};
    int fd = open_client(state);
    for (int i = 1; i <= 10000; i++) {
        buf_addstr(&say, "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n");
        buf_printf(&reply, ":%d\r\n", i);
    }
    client_talk(fd, say.data, reply.data);
    buf_free(&say);
    buf_free(&reply);
    close(fd);
}

static void a_large_value_goes_there_and_back(void **state)
{
    size_t n = 8 << 20;
    char header[64], *value = malloc(n + 1);
    int fd = open_client(state);
    for (size_t i = 0; i < n; i++)
        value[i] = (char)('a' + i % 26);
    value[n] = 0;
    snprintf(header, sizeof header, "*3\r\n$3\r\nSET\r\n$1\r\nv\r\n$%zu\r\n", n);
    client_say(fd, header);
    client_send(fd, value, n);
    client_talk(fd, "\r\n", "+OK\r\n");
    snprintf(header, sizeof header, "$%zu\r\n", n);
    client_talk(fd, "GET v\r\n", header);
    client_expect(fd, value);
    client_expect(fd, "\r\n");
    free(value);
    close(fd);
}

static void a_protocol_error_is_said_and_ends_the_connection(void **state)
{
    int fd = open_client(state), other = open_client(state);
    client_talk(fd, "*1\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length\r\n");
    client_expect_closed(fd);
    client_talk(other, "PING\r\n", "+PONG\r\n");
    close(other);
}

static int two_clients(void **state)
{
    return start(state, &(struct server_options){.max_clients = 2});
}

static void a_client_too_many_is_told_so(void **state)
{
    int a = open_client(state), b = open_client(state);
    client_talk(a, "PING\r\n", "+PONG\r\n");
    client_talk(b, "PING\r\n", "+PONG\r\n");
    int c = open_client(state);
    client_expect(c, "-ERR max number of clients reached\r\n");
    client_expect_closed(c);
    client_talk(a, "PING\r\n", "+PONG\r\n");
    assert_int_equal(harness_stats(*state).refused, 1);
    close(b);
    while (harness_stats(*state).clients > 1)
        ;
    c = open_client(state);
    client_talk(c, "PING\r\n", "+PONG\r\n");
    close(a);
    close(c);
}

/* A limit below the descriptors that are open: whatever the server gives up, there is none for one more. */
static void without_descriptors_clients_wait_and_those_who_are_here_are_served(void **state)
{
    struct rlimit before, none;
    int here = open_client(state), later = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    client_talk(here, "PING\r\n", "+PONG\r\n");
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    client_connect(later, harness_port(*state));
    client_say(later, "PING\r\n");
    for (int i = 0; i < 3; i++) {
        client_talk(here, "PING\r\n", "+PONG\r\n");
        client_expect_silence(later, 60);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    client_expect(later, "+PONG\r\n");
    close(here);
    close(later);
}

static int small_memory(void **state)
{
    return start(state, &(struct server_options){.max_memory_bytes = 100000, .max_request_bytes = 1 << 20});
}

static void writes_beyond_the_memory_limit_are_refused_and_reads_are_not(void **state)
{
    static const char oom[] = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    char value[30001], say[30100];
    int fd = open_client(state);
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = 0;
    for (int i = 0; i < 3; i++) {
        snprintf(say, sizeof say, "SET k%d %s\r\n", i, value);
        client_talk(fd, say, "+OK\r\n");
    }
    snprintf(say, sizeof say, "MSET a 1 k9 %s\r\n", value);
    client_talk(fd, say, oom);
    client_talk(fd, "EXISTS a\r\nDBSIZE\r\n", ":0\r\n:3\r\n");
    client_talk(fd, "DEL k0 k1\r\nSET a 1\r\n", ":2\r\n+OK\r\n");
    assert_true(harness_stats(*state).memory_bytes <= 100000);
    close(fd);
}

static void a_request_that_memory_cannot_hold_ends_its_connection_only(void **state)
{
    char *chunk = calloc(1, 200000);
    int fd = open_client(state), other = open_client(state);
    client_say(fd, "*2\r\n$3\r\nGET\r\n$1000000\r\n");
    client_send(fd, chunk, 200000);
    client_expect_closed(fd);
    client_talk(other, "SET a 1\r\n", "+OK\r\n");
    free(chunk);
    close(other);
}

static int small_output(void **state)
{
    return start(state, &(struct server_options){.max_output_bytes = 1 << 20});
}

static void a_client_that_does_not_read_is_closed(void **state)
{
    char value[60001], say[60100];
    int slow = open_client(state), other = open_client(state);
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = 0;
    snprintf(say, sizeof say, "SET k %s\r\n", value);
    client_talk(other, say, "+OK\r\n");
    struct buf gets = {0};
    for (int i = 0; i < 1000; i++) /* 60 MB of replies: far more than the kernel keeps for a reader */
        buf_addstr(&gets, "GET k\r\n");
    client_send(slow, gets.data, gets.len);
    while (harness_stats(*state).clients > 1)
        ;
    client_talk(other, "PING\r\n", "+PONG\r\n");
    assert_true(harness_stats(*state).memory_bytes < 2 << 20);
    buf_free(&gets);
    close(slow);
    close(other);
}

static int short_requests(void **state)
{
    return start(state, &(struct server_options){.request_timeout_ms = 80, .max_args = 8});
}

static void an_unfinished_request_is_not_waited_for(void **state)
{
    int fd = open_client(state), idle = open_client(state);
    int64_t t0 = clock_ms();
    client_say(fd, "PING\r\n*2\r\n$3\r\nGET\r\n");
    client_expect(fd, "+PONG\r\n");
    client_expect_closed(fd);
    assert_in_range(clock_ms() - t0, 50, 3000);
    client_talk(idle, "PING\r\n", "+PONG\r\n"); /* who asks nothing may stay */
    close(idle);
}

static void a_client_may_wait_longer_than_a_request_may_take(void **state)
{
    int fd = open_client(state);
    client_say(fd, "STORE.WAIT x 200\r\nGET");
    client_expect(fd, ":0\r\n");
    client_expect_closed(fd); /* then the unfinished GET is timed */
}

static void a_client_of_another_protocol_is_told_so_at_once(void **state)
{
    int fd = open_client(state);
    client_send(fd, "\0", 1);
    client_expect(fd,
                  "-ERR Protocol error: byte 00 begins no RESP request (is this a client of PyTorch's TCPStore?)\r\n");
    client_expect_closed(fd);
}

static void too_many_arguments_are_refused(void **state)
{
    int fd = open_client(state);
    client_talk(fd, "*8\r\n$3\r\nDEL\r\n$1\r\na\r\n$1\r\na\r\n$1\r\na\r\n$1\r\na\r\n$1\r\na\r\n$1\r\na\r\n$1\r\na\r\n",
                ":0\r\n");
    client_talk(fd, "*9\r\n", "-ERR Protocol error: invalid multibulk length\r\n");
    client_expect_closed(fd);
}

static void closing_fails_those_who_wait(void **state)
{
    struct harness *h = harness_start(NULL);
    int fd = client_open(harness_port(h));
    (void)state;
    client_say(fd, "STORE.WAIT x 60000\r\n");
    while (harness_stats(h).waiters == 0)
        ;
    harness_stop(h);
    client_expect_closed(fd);
}

static void a_thousand_waiters_are_released_at_once(void **state)
{
    enum { N = 1000 };
    int fd[N], b = open_client(state);
    for (int i = 0; i < N; i++) {
        fd[i] = open_client(state);
        client_say(fd[i], "STORE.WAIT go 100000\r\n");
    }
    while (harness_stats(*state).waiters < N)
        ;
    int64_t t0 = clock_ns();
    client_talk(b, "SET go 1\r\n", "+OK\r\n");
    for (int i = 0; i < N; i++)
        client_expect(fd[i], ":1\r\n");
    print_message("# %d waiters released in %.1f ms\n", N, (double)(clock_ns() - t0) / 1e6);
    for (int i = 0; i < N; i++)
        close(fd[i]);
    close(b);
}

int main(void)
{
#define WITH(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH(every_command_answers_as_redis_does),
        WITH(info_tells_clients_and_memory),
        WITH(replies_keep_their_order_when_a_wait_blocks_the_pipeline),
        WITH(a_wait_is_answered_by_every_way_to_create_a_key),
        WITH(a_wait_ends_at_its_timeout),
        WITH(a_client_that_goes_while_it_waits_leaves_nothing),
        WITH(a_client_that_goes_in_mid_request_leaves_nothing),
        WITH(a_request_sent_byte_by_byte_is_understood),
        WITH(ten_thousand_pipelined_requests_are_answered_in_order),
        WITH(a_large_value_goes_there_and_back),
        WITH(a_protocol_error_is_said_and_ends_the_connection),
        cmocka_unit_test_setup_teardown(a_client_too_many_is_told_so, two_clients, tear_down),
        WITH(without_descriptors_clients_wait_and_those_who_are_here_are_served),
        cmocka_unit_test_setup_teardown(writes_beyond_the_memory_limit_are_refused_and_reads_are_not, small_memory,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_request_that_memory_cannot_hold_ends_its_connection_only, small_memory,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_client_that_does_not_read_is_closed, small_output, tear_down),
        cmocka_unit_test_setup_teardown(an_unfinished_request_is_not_waited_for, short_requests, tear_down),
        cmocka_unit_test_setup_teardown(a_client_may_wait_longer_than_a_request_may_take, short_requests, tear_down),
        WITH(a_client_of_another_protocol_is_told_so_at_once),
        cmocka_unit_test_setup_teardown(too_many_arguments_are_refused, short_requests, tear_down),
        cmocka_unit_test(closing_fails_those_who_wait),
        WITH(a_thousand_waiters_are_released_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
