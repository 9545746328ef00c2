/* RDZV.* as bytes on connections: every verb, every error word, and what the end of a connection means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "rendezvousd/jobs/jobs.h"
#include "tests/rendezvousd/harness.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SETTINGS "v=1 nnodes=2 max_restarts=3"

/* --- a server with jobs, on a thread of its own */

struct host {
    uv_loop_t loop;
    uv_async_t stop;
    uv_thread_t thread;
    struct server *server;
    struct jobs *jobs;
    int port;
};

static void on_closed(void *arg)
{
    struct host *h = arg;
    jobs_destroy(h->jobs);
}

static void on_stop(uv_async_t *a)
{
    struct host *h = a->data;
    server_close(h->server, on_closed, h);
    uv_close((uv_handle_t *)a, NULL);
}

static void run(void *arg)
{
    uv_run(arg, UV_RUN_DEFAULT);
}

static int alive(void *arg, const char *run_id, const char *node, uint64_t round)
{
    (void)arg;
    if (strcmp(run_id, "j") != 0 || round != 3)
        return ERR_FENCED;
    return strcmp(node, "stranger") == 0 ? ERR_REFUSED : strcmp(node, "lonely") != 0;
}

static int start(void **state)
{
    struct host *h = calloc(1, sizeof *h);
    struct err e;
    uv_loop_init(&h->loop);
    uv_async_init(&h->loop, &h->stop, on_stop);
    h->stop.data = h;
    if (jobs_create(&h->jobs, &(struct jobs_options){.loop = &h->loop}, &e) < 0 ||
        server_create(&h->server, &h->loop, &(struct server_options){.alive = alive}, &e) < 0 ||
        server_set_jobs(h->server, h->jobs, &e) < 0 || server_listen(h->server, "127.0.0.1", 0, &h->port, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(uv_thread_create(&h->thread, run, &h->loop), 0);
    *state = h;
    return 0;
}

static int stop(void **state)
{
    struct host *h = *state;
    uv_async_send(&h->stop);
    uv_thread_join(&h->thread);
    assert_int_equal(uv_loop_close(&h->loop), 0);
    free(h);
    return 0;
}

/* --- a client */

static int dial(void **state)
{
    return client_open(((struct host *)*state)->port);
}

/* One whole reply (a line, or a bulk string with its header), within 20 s. */
static const char *hear(int fd, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = 0;
    for (;;) {
        char *nl = strstr(out, "\r\n");
        if (nl && out[0] != '$')
            return out;
        if (nl && (atoi(out + 1) < 0 || strlen(nl + 2) >= (size_t)atoi(out + 1) + 2))
            return out;
        struct pollfd pf = {.fd = fd, .events = POLLIN};
        if (poll(&pf, 1, 20000) != 1)
            fail_msg("no reply within 20 s, so far: %s", out);
        ssize_t r = recv(fd, out + n, cap - n - 1, 0);
        if (r <= 0)
            fail_msg("the server hung up after: %s", out);
        n += (size_t)r;
        out[n] = 0;
    }
}

static void expect_part(int fd, const char *say, const char *part)
{
    char reply[16384];
    client_say(fd, say);
    if (!strstr(hear(fd, reply, sizeof reply), part))
        fail_msg("%s: expected '%s' in: %s", say, part, reply);
}

/* a and b are node1 and node2 of run j, in round 1. */
static void begin_round(int a, int b)
{
    expect_part(a, "RDZV.JOIN j node1 slots=2 " SETTINGS "\r\n", "instance=");
    expect_part(b, "RDZV.JOIN j node2 slots=2 port=7 " SETTINGS "\r\n", "epoch=1 seq=0 v=1");
    expect_part(a, "RDZV.NEXT j node1 0 5000\r\n", "kind=round seq=1 round=1");
    expect_part(b, "RDZV.NEXT j node2 0 5000\r\n", "rank_base=2");
}

/* --- cases */

static void a_round_runs_and_ends(void **state)
{
    int a = dial(state), b = dial(state);
    char reply[4096];
    begin_round(a, b);
    client_say(a, "RDZV.NEXT j node1 1 5000\r\n"); /* blocks */
    client_expect_silence(a, 50);
    client_talk(b, "RDZV.DONE j node2 1\r\n", "+OK\r\n");
    client_talk(a, "RDZV.DONE j node1 1\r\n", "$-1\r\n+OK\r\n"); /* ends the NEXT first */
    expect_part(a, "RDZV.NEXT j node1 1 5000\r\n", "kind=end");
    expect_part(b, "RDZV.NEXT j node2 1 5000\r\n", "kind=end");
    client_say(b, "RDZV.NEXT j node2 99 100\r\n");
    assert_non_null(strstr(hear(b, reply, sizeof reply), "-REFUSED"));
    close(a);
    close(b);
}

static void nodes_of_a_failed_job_do_not_run(void **state)
{
    int a = dial(state), b = dial(state);
    begin_round(a, b);
    client_talk(b, "RDZV.FAIL j node2 1 code=9 fatal=1\r\n", "+OK\r\n");
    expect_part(a, "RDZV.STATUS j\r\n", "\"state\":\"failed\"");
    expect_part(a, "RDZV.STATUS j\r\n", "\"group_rank\":1,\"rank_base\":2,\"state\":\"stopping\",\"connected\":true");
    close(b);
    client_say(a, "RDZV.NEXT j node1 1 5000\r\n");
    expect_part(a, "", "kind=end");
    expect_part(a, "RDZV.STATUS j\r\n", "\"group_rank\":1,\"rank_base\":2,\"state\":\"ended\",\"connected\":false");
    close(a);
}

static void next_answers_nil_at_its_timeout(void **state)
{
    int a = dial(state);
    expect_part(a, "RDZV.JOIN j node1 slots=2 " SETTINGS "\r\n", "instance=");
    client_talk(a, "RDZV.NEXT j node1 0 20\r\n", "$-1\r\n");
    client_talk(a, "RDZV.NEXT j node1 0 0\r\n", "$-1\r\n");
    close(a);
}

static void group_rank_0_is_told_all_addresses(void **state)
{
    int a = dial(state), b = dial(state);
    char reply[4096];
    expect_part(a, "RDZV.JOIN j node1 slots=2 addrs=10.0.0.7,fe80::1 " SETTINGS "\r\n", "instance=");
    expect_part(b, "RDZV.JOIN j node2 slots=2 " SETTINGS "\r\n", "instance=");
    expect_part(a, "RDZV.NEXT j node1 0 5000\r\n", "member_addrs=10.0.0.7,fe80::1,127.0.0.1,127.0.0.1");
    client_say(b, "RDZV.NEXT j node2 0 5000\r\n");
    assert_null(strstr(hear(b, reply, sizeof reply), "member_addrs"));
    close(a);
    close(b);
}

static void every_refusal_has_its_word(void **state)
{
    static const char *const cases[][2] = {
        {"RDZV.JOIN default node3 slots=1 " SETTINGS "\r\n", "-REFUSED run id 'default'"},
        {"RDZV.JOIN j node3 slots=1 v=1 nnodes=3\r\n", "-DIFFERS "},
        {"RDZV.JOIN j node3 slots=1 v=9 nnodes=2\r\n", "-ERR protocol version 9"},
        {"RDZV.JOIN j node3 slots=0 " SETTINGS "\r\n", "-ERR slots=0: expected"},
        {"RDZV.JOIN k node3 slots=1 v=1 nnodes=2 join_timeout=1099511627776\r\n",
         "-ERR join_timeout=1099511627776: expected at most 604800000 ms (7 days)"},
        {"RDZV.JOIN k node3 slots=1 v=1 nnodes=2 silence=600001\r\n",
         "-ERR silence=600001: expected at most 600000 ms (10 minutes)"},
        {"RDZV.STATUS k\r\n", "-NOJOB "}, /* they have left nothing */
        {"RDZV.JOIN j node3 slots " SETTINGS "\r\n", "-ERR "},
        {"RDZV.JOIN j node3 kind=done slots=1 " SETTINGS "\r\n", "-ERR kind=: expected join"},
        {"RDZV.JOIN j\r\n", "-ERR wrong number of arguments"},
        {"RDZV.NEXT k node1 0 10\r\n", "-NOJOB run 'k' is unknown"},
        {"RDZV.NEXT j node9 0 10\r\n", "-REFUSED node 'node9' of run 'j' is unknown"},
        {"RDZV.NEXT j node1 x 10\r\n", "-ERR sequence number 'x'"},
        {"RDZV.NEXT j node1 0 -1\r\n", "-ERR timeout '-1'"},
        {"RDZV.FAIL j node1 0 code=1\r\n", "-FENCED fail of node 'node1' names round 0"},
        {"RDZV.DONE j node1 2\r\n", "-REFUSED "},
        {"RDZV.DONE k node1 1\r\n", "-NOJOB "},
        {"RDZV.LEAVE j node9\r\n", "-REFUSED "},
        {"RDZV.LEAVE j node1 code=x\r\n", "-ERR code=x: expected"},
        {"RDZV.DRAIN k\r\n", "-NOJOB "},
        {"RDZV.STOP k\r\n", "-NOJOB "},
        {"RDZV.ASK k stacks 1000\r\n", "-NOJOB "},
        {"RDZV.ASK j gossip 1000\r\n", "-ERR expected RDZV.ASK run stacks|logs timeout [RANK rank]"},
        {"RDZV.ASK j logs 1000 RANK\r\n", "-ERR expected RDZV.ASK"},
        {"RDZV.ASK j logs 99\r\n", "-ERR timeout 99: expected 100 to 60000 ms"},
        {"RDZV.ANSWER k node1 1 x\r\n", "-NOJOB "},
        {"RDZV.ANSWER j node1 x x\r\n", "-ERR question 'x'"},
        {"RDZV.STATUS j LONG\r\n", "-ERR expected RDZV.STATUS"},
        {"RDZV.STATUS j FROM\r\n", "-ERR expected RDZV.STATUS"},
        {"RDZV.STATUS j FROM x\r\n", "-ERR first node 'x'"},
        {"RDZV.ADMIN LIST x\r\n", "-ERR expected RDZV.ADMIN LIST"},
        {"RDZV.ADMIN stop j\r\n", "-ERR expected RDZV.ADMIN LIST"},
        {"RDZV.ADMIN evict k\r\n", "-NOJOB run 'k'"},
        {"RDZV.ADMIN drain j nobody\r\n", "-NOJOB run 'j'"},
        {"RDZV.ADMIN list\r\n", "\"principal\":\""},
        {"RDZV.REPORT j node1 ras=\033[31m\r\n", "-ERR ras: expected addresses of IPv4"},
        {"RDZV.REPORT j node1 step=x\r\n", "-ERR step 'x': expected a number"},
        {"RDZV.ALIVE j node1 2\r\n", "-FENCED "},
        {"RDZV.ALIVE j stranger 3\r\n", "-REFUSED "},
        {"RDZV.ALIVE j node1 3\r\n", "+MAJORITY"},
        {"RDZV.ALIVE j lonely 3\r\n", "+ALIVE"},
        {"RDZV.FAILURE j node1 3 text\r\n", "-ERR this server is no bootstrap store"},
        {"RDZV.STEPS j node1 3 text\r\n", "-ERR this server is no bootstrap store"},
        {"RDZV.QUIET j node1 3 text\r\n", "-ERR this server is no bootstrap store"},
    };
    int a = dial(state), b = dial(state), c = dial(state);
    begin_round(a, b);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_part(c, cases[i][0], cases[i][1]);
    close(a);
    close(b);
    close(c);
}

/* Each field of a record is searched for in all of it. */
static void a_record_has_a_limit(void **state)
{
    enum { FIELDS = 64 * 1024 };
    static const char *const heads[] = {"*4\r\n$9\r\nRDZV.JOIN\r\n$1\r\nj\r\n$5\r\nnode3\r\n",
                                        "*4\r\n$11\r\nRDZV.REPORT\r\n$1\r\nj\r\n$5\r\nnode1\r\n",
                                        "*5\r\n$9\r\nRDZV.FAIL\r\n$1\r\nj\r\n$5\r\nnode1\r\n$1\r\n1\r\n"};
    int a = dial(state), b = dial(state);
    struct buf fields = {0};
    begin_round(a, b);
    while (fields.len <= FIELDS)
        buf_addstr(&fields, "a=b ");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        struct buf rq = {0};
        buf_printf(&rq, "%s$%zu\r\n%s\r\n", heads[i], fields.len, fields.data);
        client_send(a, rq.data, rq.len);
        client_expect(a, "-ERR a record of more than 65536 bytes\r\n");
        buf_free(&rq);
    }
    buf_free(&fields);
    close(a);
    close(b);
}

static void a_failure_carries_its_cause(void **state)
{
    int a = dial(state), b = dial(state);
    begin_round(a, b);
    client_say(a, "RDZV.NEXT j node1 1 5000\r\n");
    client_talk(b, "RDZV.FAIL j node2 1 code=9 rank=3 text=out%20of%20memory\r\n", "+OK\r\n");
    expect_part(a, "", "text=out%20of%20memory");
    expect_part(a, "RDZV.STATUS j BRIEF\r\n", "state=stopping joined=0 min_nodes=2 max_nodes=2 round=1 restarts=1");
    expect_part(a, "RDZV.REPORT j node1 step=5 loss=0.5\r\n", "+OK");
    expect_part(a, "RDZV.STATUS j\r\n", "\"report\":{\"step\":5,\"loss\":0.5}");
    expect_part(a, "RDZV.STATUS\r\n", "{\"jobs\":[{\"run\":\"j\"");
    close(a);
    close(b);
}

static void an_operator_drains_a_job(void **state)
{
    int a = dial(state), b = dial(state), op = dial(state);
    begin_round(a, b);
    client_say(a, "RDZV.NEXT j node1 1 5000\r\n");
    client_talk(op, "RDZV.DRAIN j\r\n", "+OK\r\n");
    expect_part(a, "", "why=drain");
    expect_part(a, "RDZV.LEAVE j node1\r\n", "+OK");
    close(a);
    close(b);
    close(op);
}

static void end_of_file_proves_a_death(void **state)
{
    int a = dial(state), b = dial(state);
    begin_round(a, b);
    client_say(a, "RDZV.NEXT j node1 1 3000\r\n");
    client_say(b, "RDZV.NEXT j node2 1 3000\r\n");
    close(b);
    expect_part(a, "", "kind=stop"); /* before silence_ms and kill_ms are over */
    close(a);
}

static void reset(int fd)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static void a_reset_proves_nothing(void **state)
{
    int a = dial(state), b = dial(state), c = dial(state);
    begin_round(a, b);
    client_say(a, "RDZV.NEXT j node1 1 500\r\n");
    client_say(b, "RDZV.NEXT j node2 1 100\r\n"); /* its nil meets the reset */
    reset(b);
    client_expect(a, "$-1\r\n");
    expect_part(c, "RDZV.STATUS j\r\n", "node node2 is silent");
    client_talk(c, "RDZV.NEXT j node2 1 100\r\n", "$-1\r\n"); /* it comes back, and nothing has happened */
    expect_part(c, "RDZV.STATUS j BRIEF\r\n", "state=running");
    close(a);
    close(c);
}

/* As a guardian proves a death while a hung agent still holds the socket: the end first, then whatever. */
static void an_end_before_a_reset_is_proof(void **state)
{
    int a = dial(state), b = dial(state);
    begin_round(a, b);
    client_say(a, "RDZV.NEXT j node1 1 3000\r\n");
    client_say(b, "RDZV.NEXT j node2 1 3000\r\n");
    shutdown(b, SHUT_WR);
    reset(b);
    expect_part(a, "", "kind=stop");
    close(a);
}

static void a_newer_connection_voids_the_older(void **state)
{
    int a = dial(state), b = dial(state), newer = dial(state);
    begin_round(a, b);
    client_say(b, "RDZV.NEXT j node2 1 5000\r\n");
    client_expect_silence(b, 50);
    client_say(newer, "RDZV.NEXT j node2 1 100\r\n");
    expect_part(b, "", "-FENCED a newer connection");
    expect_part(b, "RDZV.DONE j node2 1\r\n", "-FENCED ");
    client_expect(newer, "$-1\r\n");
    close(b); /* stands for nobody */
    client_talk(newer, "RDZV.NEXT j node2 1 100\r\n", "$-1\r\n");
    close(a);
    close(newer);
}

/* The waiting connection is woken from inside the close of another one, not from a request. */
static void a_death_is_told_at_once(void **state)
{
    int a = dial(state), b = dial(state);
    struct pollfd pf = {.fd = a, .events = POLLIN};
    begin_round(a, b);
    client_say(a, "RDZV.NEXT j node1 1 60000\r\n");
    client_expect_silence(a, 50);
    close(b);
    assert_int_equal(poll(&pf, 1, 3000), 1);
    close(a);
}

static void a_question_travels_by_next_and_comes_back_as_one_answer(void **state)
{
    int a = dial(state), b = dial(state), asker = dial(state);
    begin_round(a, b);
    client_say(a, "RDZV.NEXT j node1 1 5000\r\n");
    client_expect_silence(a, 50);
    client_say(asker, "RDZV.ASK j stacks 5000\r\n");
    expect_part(a, "", "kind=round seq=0 ask=stacks id=1 ms=4000 rank=-1");
    expect_part(b, "RDZV.NEXT j node2 1 5000\r\n", "ask=stacks id=1");
    expect_part(a, "RDZV.ASK j logs 5000\r\n", "-LIMIT run 'j' is being asked for its stacks");
    client_talk(a, "RDZV.ANSWER j node1 1 one\r\n", "+OK\r\n");
    client_expect_silence(asker, 50);
    client_talk(b, "RDZV.ANSWER j node2 1 two\r\n", "+OK\r\n");
    expect_part(asker, "", "{\"id\":\"node1\",\"text\":\"one\"},{\"id\":\"node2\",\"text\":\"two\"}]}");
    client_say(asker, "RDZV.ASK j logs 60000 RANK 3\r\n");
    expect_part(a, "RDZV.NEXT j node1 1 5000\r\n", "ask=logs id=2 ms=48000 rank=3");
    close(asker); /* the question goes with it */
    asker = dial(state);
    char reply[1024];
    do
        client_say(asker, "RDZV.ASK j logs 100\r\n");
    while (strncmp(hear(asker, reply, sizeof reply), "-LIMIT", 6) == 0);
    assert_non_null(strstr(reply, "{\"id\":\"node1\",\"why\":\"it was not heard of in that time\"}"));
    close(a);
    close(b);
    close(asker);
}

static void a_job_is_stopped_at_once_by_who_may_drain_it(void **state)
{
    int a = dial(state), b = dial(state);
    begin_round(a, b);
    client_talk(b, "RDZV.STOP j\r\n", "+OK\r\n");
    expect_part(a, "RDZV.NEXT j node1 1 5000\r\n", "kind=end seq=2");
    expect_part(b, "RDZV.NEXT j node2 1 5000\r\n",
                "exit_code=143 code=143 text=principal%20'anyone'%20stopped%20the%20job%20(crun%20stop)");
    close(a);
    close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_round_runs_and_ends, start, stop),
        cmocka_unit_test_setup_teardown(nodes_of_a_failed_job_do_not_run, start, stop),
        cmocka_unit_test_setup_teardown(next_answers_nil_at_its_timeout, start, stop),
        cmocka_unit_test_setup_teardown(group_rank_0_is_told_all_addresses, start, stop),
        cmocka_unit_test_setup_teardown(every_refusal_has_its_word, start, stop),
        cmocka_unit_test_setup_teardown(a_record_has_a_limit, start, stop),
        cmocka_unit_test_setup_teardown(a_failure_carries_its_cause, start, stop),
        cmocka_unit_test_setup_teardown(an_operator_drains_a_job, start, stop),
        cmocka_unit_test_setup_teardown(end_of_file_proves_a_death, start, stop),
        cmocka_unit_test_setup_teardown(a_reset_proves_nothing, start, stop),
        cmocka_unit_test_setup_teardown(an_end_before_a_reset_is_proof, start, stop),
        cmocka_unit_test_setup_teardown(a_newer_connection_voids_the_older, start, stop),
        cmocka_unit_test_setup_teardown(a_death_is_told_at_once, start, stop),
        cmocka_unit_test_setup_teardown(a_question_travels_by_next_and_comes_back_as_one_answer, start, stop),
        cmocka_unit_test_setup_teardown(a_job_is_stopped_at_once_by_who_may_drain_it, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
