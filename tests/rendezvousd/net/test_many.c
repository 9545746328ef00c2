/* Requests of many names: whole for everybody else, done in pieces, and never in the way of what touches no key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/net/front.h"
#include "rendezvousd/net/many.h"
#include "rendezvousd/net/turn.h"
#include "rendezvousd/store/keyspace.h"
#include "tests/rendezvousd/rig.h"
#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Names that take several turns: one has TURN_REQUESTS / TURN_PIECE pieces of MANY_NAMES. */
enum { NAMES = 30000, TURNS_MAX = 100000 };
static_assert(NAMES > 3 * TURN_REQUESTS / TURN_PIECE * MANY_NAMES, "one more than a few turns");

static void turn_once(struct rig *r)
{
    uv_run(&r->loop, UV_RUN_NOWAIT);
}

static void look(int fd, struct buf *in)
{
    char bytes[65536];
    for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
        assert_int_equal(buf_add(in, bytes, (size_t)n), 0);
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Turn until `n` bytes have come to fd. */
static void expect_bytes(struct rig *r, int fd, struct buf *in, size_t n)
{
    for (int turns = 0; in->len < n; turns++) {
        turn_once(r);
        look(fd, in);
        assert_in_range(turns, 0, TURNS_MAX);
    }
}

static void expect(struct rig *r, int fd, const char *reply)
{
    struct buf in = {0};
    expect_bytes(r, fd, &in, strlen(reply));
    assert_string_equal(in.data, reply);
    buf_free(&in);
}

static void send_all(struct rig *r, int fd, struct buf *b)
{
    for (size_t sent = 0; sent < b->len;) {
        const ssize_t n = send(fd, b->data + sent, b->len - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        sent += n > 0 ? (size_t)n : 0;
        turn_once(r);
    }
}

/* Begin one, so that the server has had one turn for it and no more: its last byte comes alone. */
static void begin(struct rig *r, int fd, const char *command, const char *value)
{
    struct buf b = {0};
    struct server_stats st;
    rig_names(&b, command, 0, NAMES, value, NULL);
    b.len--;
    send_all(r, fd, &b);
    server_stats(r->server, &st);
    const uint64_t before = st.commands;
    say(fd, "\n");
    for (int turns = 0; st.commands == before && turns < TURNS_MAX; turns++) {
        turn_once(r);
        server_stats(r->server, &st);
    }
    assert_int_equal(st.commands, before + 1);
    buf_free(&b);
}

static bool has_answered(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
}

static void nobody_sees_half_of_an_mset(void **state)
{
    struct rig r;
    (void)state;
    rig_start(&r, NULL);
    const int a = rig_open(&r), b = rig_open(&r);
    begin(&r, a, "MSET", "new");
    assert_false(has_answered(a));
    say(b, "MGET k0000000 k0029999\r\n");
    expect(&r, b, "*2\r\n$3\r\nnew\r\n$3\r\nnew\r\n");
    expect(&r, a, "+OK\r\n");
    begin(&r, a, "DEL", NULL);
    assert_false(has_answered(a));
    say(b, "EXISTS k0000000 k0029999\r\nDBSIZE\r\n");
    expect(&r, b, ":0\r\n:0\r\n");
    expect(&r, a, ":30000\r\n");
    rig_close(&r, a);
    rig_close(&r, b);
    rig_stop(&r);
}

static void what_touches_no_key_does_not_wait(void **state)
{
    struct rig r;
    struct jobs *jobs;
    struct err e;
    struct buf in = {0};
    (void)state;
    rig_start(&r, NULL);
    if (jobs_create(&jobs, &(struct jobs_options){.loop = &r.loop}, &e) < 0 || server_set_jobs(r.server, jobs, &e) < 0)
        fail_msg("%s", e.text);
    const int a = rig_open(&r), member = rig_open(&r);
    say(member, "RDZV.JOIN r n \"v=1 nnodes=2 slots=1\"\r\n");
    expect_bytes(&r, member, &in, 1);
    assert_true(in.len > 0 && in.data[0] == '$');
    begin(&r, a, "MSET", "v");
    say(member, "RDZV.NEXT r n 0 0\r\n");
    expect(&r, member, "$-1\r\n");
    assert_false(has_answered(a));
    expect(&r, a, "+OK\r\n");
    rig_close(&r, a);
    rig_close(&r, member);
    server_close(r.server, (void (*)(void *))jobs_destroy, jobs);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&r.loop), 0);
    buf_free(&in);
}

/* Of a client that asks for ever others are not kept from their keys. */
static void others_go_before_the_next_one(void **state)
{
    enum { AGAIN = 20 };
    struct rig r;
    struct buf ask = {0}, got = {0};
    (void)state;
    rig_start(&r, NULL);
    const int a = rig_open(&r), b = rig_open(&r);
    for (int i = 0; i < AGAIN; i++)
        rig_names(&ask, "EXISTS", 0, NAMES / AGAIN, NULL, NULL);
    rig_names(&ask, "EXISTS", 0, NAMES, NULL, NULL);
    begin(&r, a, "EXISTS", NULL);
    say(b, "SET k0000000 v\r\n");
    send_all(&r, a, &ask);
    expect(&r, b, "+OK\r\n");
    expect_bytes(&r, a, &got, 4 * (AGAIN + 2));
    assert_memory_equal(got.data, ":0\r\n:1\r\n", 8); /* the second one sees what b has set */
    rig_close(&r, a);
    rig_close(&r, b);
    rig_stop(&r);
    buf_free(&ask);
    buf_free(&got);
}

/* Here b's turn comes before that of a, whose request is over when all have been looked at: the next one to be heard is
 * one of those who come later, of whom one comes each time. */
static void who_comes_later_goes_later(void **state)
{
    enum { PINGS = 2 * TURN_REQUESTS, PONG = 7, LATER = 8 };
    struct rig r;
    struct buf ask = {0}, pipeline = {0}, got = {0};
    int later[LATER], come = 0;
    (void)state;
    rig_start(&r, NULL);
    const int a = rig_open(&r), b = rig_open(&r);
    rig_names(&ask, "EXISTS", 0, NAMES, NULL, NULL);
    ask.len--;
    send_all(&r, a, &ask);
    for (int i = 0; i < LATER; i++) {
        later[i] = rig_open(&r);
        send_all(&r, later[i], &ask);
    }
    for (int i = 0; i < PINGS; i++)
        buf_addstr(&pipeline, "PING\r\n");
    buf_addstr(&pipeline, "SET k0000000 v\r\n");
    say(b, pipeline.data);
    turn_once(&r);
    say(a, "\n");
    for (int turns = 0; !has_answered(later[0]) && (come == 0 || !has_answered(later[come - 1])); turns++) {
        look(b, &got);
        if (come < LATER && got.len >= PINGS * PONG && !has_answered(a)) /* b is at its SET */
            say(later[come++], "\n");
        turn_once(&r);
        assert_in_range(turns, 0, TURNS_MAX);
    }
    look(b, &got);
    assert_int_equal(got.len, PINGS * PONG + 5);
    while (come < LATER)
        say(later[come++], "\n");
    for (int i = 0; i < LATER; i++) {
        expect(&r, later[i], ":1\r\n");
        rig_close(&r, later[i]);
    }
    rig_close(&r, a);
    rig_close(&r, b);
    rig_stop(&r);
    buf_free(&ask);
    buf_free(&pipeline);
    buf_free(&got);
}

static size_t clients(struct rig *r)
{
    struct server_stats st;
    server_stats(r->server, &st);
    return st.clients;
}

/* Here it is closed because it holds most of the buffers' memory, of which others want more. */
static void what_a_client_that_goes_has_begun_to_change_is_finished(void **state)
{
    enum { OTHERS = 4, BEGUN = 600000, FEWER = 500000, MORE = 100000 };
    struct rig r;
    struct buf text = {0};
    int other[OTHERS];
    (void)state;
    rig_start(&r, &(struct server_options){.max_memory_bytes = 5888 * 1024});
    buf_addstr(&text, "*2\r\n$4\r\nECHO\r\n$1000000\r\n");
    while (text.len < BEGUN)
        buf_addstr(&text, "x");
    const int a = rig_open(&r), asker = rig_open(&r);
    for (int i = 0; i < OTHERS; i++) {
        other[i] = rig_open(&r);
        rig_send(&r, other[i], text.data, i == 0 ? FEWER : BEGUN);
    }
    assert_int_equal(clients(&r), OTHERS + 2);
    begin(&r, a, "MSET", "v");
    assert_int_equal(send(other[0], text.data + FEWER, MORE, MSG_NOSIGNAL), MORE);
    say(asker, "DBSIZE\r\n");
    for (int turns = 0; clients(&r) > OTHERS + 1; turns++) {
        turn_once(&r);
        assert_false(has_answered(asker));
        assert_in_range(turns, 0, TURNS_MAX);
    }
    expect(&r, asker, ":30000\r\n");
    for (int i = 0; i < OTHERS; i++)
        rig_close(&r, other[i]);
    rig_close(&r, asker);
    close(a);
    rig_stop(&r);
    buf_free(&text);
}

/* It finishes what it changes, and waits for nobody. */
static void a_server_that_ends_does_not_wait_for_it(void **state)
{
    static const char *const commands[] = {"MSET", "DEL", "EXISTS", "STORE.WAIT"};
    (void)state;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        struct rig r;
        rig_start(&r, NULL);
        const int a = rig_open(&r);
        begin(&r, a, commands[i], i == 0 ? "v" : NULL);
        rig_stop(&r);
        close(a);
    }
}

static void an_mset_without_room_for_all_changes_nothing(void **state)
{
    struct rig r;
    struct buf b = {0};
    (void)state;
    rig_start(&r, &(struct server_options){.max_memory_bytes = 1 << 20});
    const int a = rig_open(&r), other = rig_open(&r);
    rig_names(&b, "MSET", 0, 8000, "v", NULL); /* they take more than the request */
    send_all(&r, a, &b);
    expect(&r, a, "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    say(other, "DBSIZE\r\n");
    expect(&r, other, ":0\r\n");
    rig_close(&r, a);
    rig_close(&r, other);
    rig_stop(&r);
    buf_free(&b);
}

/* What a request of many names has asked room for is no reason to refuse what comes after it. */
static void who_waits_for_an_mset_is_judged_after_it(void **state)
{
    const size_t all = NAMES * keyspace_entry_bytes(8, 1), n = all * 3 / 4;
    struct rig r;
    struct buf fill = {0}, set = {0};
    (void)state;
    rig_start(&r, &(struct server_options){.max_memory_bytes = 2 * all + 4096});
    const int a = rig_open(&r), b = rig_open(&r);
    rig_names(&fill, "MSET", 0, NAMES, "v", NULL);
    send_all(&r, a, &fill);
    expect(&r, a, "+OK\r\n");
    buf_printf(&set, "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$%zu\r\n", n);
    char *value = calloc(1, n);
    assert_non_null(value);
    buf_add(&set, value, n);
    send_all(&r, b, &set);
    begin(&r, a, "MSET", "w");
    assert_false(has_answered(a));
    say(b, "\r\n");
    expect(&r, b, "+OK\r\n");
    expect(&r, a, "+OK\r\n");
    rig_close(&r, a);
    rig_close(&r, b);
    rig_stop(&r);
    free(value);
    buf_free(&fill);
    buf_free(&set);
}

/* It is one moment: of keys that end together it finds all or none. */
static void keys_that_expire_do_so_before_it_or_after_it(void **state)
{
    enum { LIFE_MS = 1000 };
    struct rig r;
    struct buf in = {0};
    (void)state;
    rig_start(&r, NULL);
    const int a = rig_open(&r), b = rig_open(&r);
    say(b, "SET k0000000 v PX 1000\r\nSET k0029999 v PX 1000\r\n");
    expect(&r, b, "+OK\r\n+OK\r\n");
    begin(&r, a, "EXISTS", NULL);
    for (int64_t end = clock_ms() + LIFE_MS + 10; clock_ms() < end;)
        usleep(1000);
    expect_bytes(&r, a, &in, 4);
    assert_true(strcmp(in.data, ":2\r\n") == 0 || strcmp(in.data, ":0\r\n") == 0); /* 0: it took a second to begin */
    say(b, "EXISTS k0000000 k0029999\r\n");
    expect(&r, b, ":0\r\n");
    rig_close(&r, a);
    rig_close(&r, b);
    rig_stop(&r);
    buf_free(&in);
}

/* --- waits */

static size_t memory(struct rig *r)
{
    struct server_stats st;
    server_stats(r->server, &st);
    return st.memory_bytes;
}

static void a_wait_for_many_keys_ends_with_the_last_one_and_leaves_nothing(void **state)
{
    struct rig r;
    struct buf wait = {0}, mset = {0};
    struct server_stats st;
    (void)state;
    rig_start(&r, NULL);
    const int a = rig_open(&r), b = rig_open(&r);
    rig_names(&mset, "MSET", 1, NAMES - 1, "v", NULL);
    send_all(&r, b, &mset);
    expect(&r, b, "+OK\r\n");
    const size_t before = memory(&r);
    rig_names(&wait, "STORE.WAIT", 0, NAMES, NULL, "100000");
    send_all(&r, a, &wait);
    do {
        turn_once(&r);
        server_stats(r.server, &st);
    } while (st.waiters == 0);
    say(b, "DEL k0000100\r\nSET k0000000 v\r\nPING\r\n"); /* while names are linked, or after it */
    expect(&r, b, ":1\r\n+OK\r\n+PONG\r\n");
    assert_false(has_answered(a));
    say(b, "SET k0000100 v\r\n");
    expect(&r, b, "+OK\r\n");
    expect(&r, a, ":1\r\n");
    for (int turns = 0; memory(&r) > before + 4096 && turns < TURNS_MAX; turns++)
        turn_once(&r);
    assert_in_range(memory(&r), before, before + 4096); /* the key that came */
    server_stats(r.server, &st);
    assert_int_equal(st.waiters, 0);
    rig_close(&r, a);
    rig_close(&r, b);
    rig_stop(&r);
    buf_free(&wait);
    buf_free(&mset);
}

static void a_cancelled_wait_of_torch_is_answered_however_it_was_cut(void **state)
{
    struct rig r;
    struct buf b = {0};
    const uint64_t n = NAMES, len = 8;
    char name[16];
    (void)state;
    rig_start(&r, &(struct server_options){.binary = &front_tcpstore});
    const int a = rig_open(&r);
    buf_add(&b, "\x00\xce\xf7\x85\x3c\x06", 6); /* WAIT */
    buf_add(&b, &n, 8);
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "k%07d", i);
        buf_add(&b, &len, 8);
        buf_add(&b, name, 8);
    }
    buf_add(&b,
            "\x0c\x0d"
            "DONE",
            6); /* CANCEL_WAIT, PING */
    send_all(&r, a, &b);
    expect(&r, a,
           "\x01"
           "DONE");
    rig_close(&r, a);
    rig_stop(&r);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_sees_half_of_an_mset),
        cmocka_unit_test(what_touches_no_key_does_not_wait),
        cmocka_unit_test(others_go_before_the_next_one),
        cmocka_unit_test(who_comes_later_goes_later),
        cmocka_unit_test(what_a_client_that_goes_has_begun_to_change_is_finished),
        cmocka_unit_test(a_server_that_ends_does_not_wait_for_it),
        cmocka_unit_test(an_mset_without_room_for_all_changes_nothing),
        cmocka_unit_test(who_waits_for_an_mset_is_judged_after_it),
        cmocka_unit_test(keys_that_expire_do_so_before_it_or_after_it),
        cmocka_unit_test(a_wait_for_many_keys_ends_with_the_last_one_and_leaves_nothing),
        cmocka_unit_test(a_cancelled_wait_of_torch_is_answered_however_it_was_cut),
    };
    signal(SIGPIPE, SIG_IGN); /* as every program around a server does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
