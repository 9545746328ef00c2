/* Turns: what a client may ask for at once, and what is done of it before others are heard. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvousd/net/front.h"
#include "rendezvousd/net/server_impl.h"
#include "rendezvousd/net/turn.h"
#include "tests/rendezvousd/harness.h"
#include "tests/rendezvousd/rig.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TURNS_MAX = 10000 };

static void turn_once(struct rig *r)
{
    uv_run(&r->loop, UV_RUN_NOWAIT);
}

static size_t count(const struct buf *b, char c)
{
    size_t n = 0;
    for (size_t i = 0; i < b->len; i++)
        n += b->data[i] == c;
    return n;
}

/* What has come to fd by now, without a turn of the loop. */
static void look(int fd, struct buf *in)
{
    char bytes[65536];
    for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
        assert_int_equal(buf_add(in, bytes, (size_t)n), 0);
}

static void say(int fd, const struct buf *b)
{
    assert_int_equal(send(fd, b->data, b->len, MSG_NOSIGNAL), b->len);
}

static void a_pipeline_goes_on_after_others_were_heard(void **state)
{
    enum { PINGS = 10 * TURN_REQUESTS };
    struct rig r;
    struct buf pings = {0}, long_one = {0}, short_one = {0};
    (void)state;
    rig_start(&r, NULL);
    const int a = rig_open(&r), b = rig_open(&r);
    for (int i = 0; i < PINGS; i++)
        buf_addstr(&pings, "PING\r\n");
    say(a, &pings);
    turn_once(&r);
    assert_int_equal(send(b, "PING\r\n", 6, MSG_NOSIGNAL), 6);
    for (int turns = 0; short_one.len == 0 && turns < TURNS_MAX; turns++) {
        turn_once(&r);
        look(b, &short_one);
    }
    look(a, &long_one);
    assert_int_equal(count(&short_one, '+'), 1);
    assert_in_range(count(&long_one, '+'), 1, PINGS - 1); /* it had its turn, and waits for the next */
    for (int turns = 0; count(&long_one, '+') < PINGS && turns < TURNS_MAX; turns++) {
        turn_once(&r);
        look(a, &long_one);
    }
    assert_int_equal(count(&long_one, '+'), PINGS);
    rig_close(&r, a);
    rig_close(&r, b);
    rig_stop(&r);
    buf_free(&pings);
    buf_free(&long_one);
    buf_free(&short_one);
}

static void many_pipelines_are_answered_in_order_and_in_full(void **state)
{
    enum { CLIENTS = 20, ROUNDS = 3000 };
    struct rig r;
    struct buf ask = {0}, want = {0}, got[CLIENTS] = {{0}};
    int fd[CLIENTS];
    (void)state;
    rig_start(&r, NULL);
    for (int i = 1; i <= ROUNDS; i++) {
        buf_printf(&ask, "ECHO %d\r\n", i);
        buf_printf(&want, "$%d\r\n%d\r\n", i < 10 ? 1 : i < 100 ? 2 : i < 1000 ? 3 : 4, i);
    }
    for (int i = 0; i < CLIENTS; i++) {
        fd[i] = rig_open(&r);
        say(fd[i], &ask);
    }
    for (int turns = 0; turns < TURNS_MAX && got[CLIENTS - 1].len < want.len; turns++) {
        turn_once(&r);
        for (int i = 0; i < CLIENTS; i++)
            look(fd[i], &got[i]);
    }
    for (int i = 0; i < CLIENTS; i++) {
        while (got[i].len < want.len) {
            turn_once(&r);
            look(fd[i], &got[i]);
        }
        assert_memory_equal(got[i].data, want.data, want.len);
        assert_int_equal(got[i].len, want.len);
        rig_close(&r, fd[i]);
        buf_free(&got[i]);
    }
    rig_stop(&r);
    buf_free(&ask);
    buf_free(&want);
}

static void a_busy_client_that_goes_is_forgotten(void **state)
{
    struct rig r;
    struct buf pings = {0};
    struct server_stats st;
    (void)state;
    rig_start(&r, NULL);
    const int a = rig_open(&r);
    for (int i = 0; i < 20 * TURN_REQUESTS; i++)
        buf_addstr(&pings, "PING\r\n");
    say(a, &pings);
    turn_once(&r);
    rig_close(&r, a);
    do {
        turn_once(&r);
        server_stats(r.server, &st);
    } while (st.clients > 0);
    rig_stop(&r);
    buf_free(&pings);
}

static void a_turn_accepts_its_share_and_all_come_in(void **state)
{
    enum { CLIENTS = 3 * TURN_ACCEPTS };
    struct rig r;
    struct server_stats st;
    struct buf answer = {0};
    int fd[CLIENTS];
    (void)state;
    rig_start(&r, NULL);
    for (int i = 0; i < CLIENTS; i++)
        fd[i] = client_open(r.port);
    turn_once(&r);
    server_stats(r.server, &st);
    assert_in_range(st.clients, 1, TURN_ACCEPTS + 1); /* and the one that was left in the turn before */
    for (int turns = 0; st.clients < CLIENTS && turns < TURNS_MAX; turns++) {
        const size_t before = st.clients;
        turn_once(&r);
        server_stats(r.server, &st);
        assert_in_range(st.clients, before, before + TURN_ACCEPTS + 1);
    }
    assert_int_equal(st.clients, CLIENTS);
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(send(fd[i], "PING\r\n", 6, MSG_NOSIGNAL), 6);
    for (int i = 0; i < CLIENTS; i++) {
        buf_clear(&answer);
        for (int turns = 0; answer.len == 0 && turns < TURNS_MAX; turns++) {
            turn_once(&r);
            look(fd[i], &answer);
        }
        assert_int_equal(answer.len, 7);
        rig_close(&r, fd[i]);
    }
    rig_stop(&r);
    buf_free(&answer);
}

static void end_turn(uv_poll_t *h, int status, int events)
{
    struct rig *r = h->data;
    (void)status;
    (void)events;
    r->server->turns.over_ms = 1; /* long ago */
    uv_poll_stop(h);
}

static void who_is_left_by_a_turn_is_put_off_and_heard_in_the_next(void **state)
{
    struct rig r;
    struct buf answer = {0};
    uv_poll_t first;
    int ends[2];
    (void)state;
    rig_start(&r, NULL);
    const int a = rig_open(&r);
    const struct conn *c = r.server->conns;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(uv_poll_init(&r.loop, &first, ends[0]), 0);
    first.data = &r;
    assert_int_equal(uv_poll_start(&first, UV_READABLE, end_turn), 0);
    turn_once(&r);                               /* the kernel is asked about it from now on */
    assert_int_equal(write(ends[1], "x", 1), 1); /* is told of first */
    assert_int_equal(send(a, "PING\r\n", 6, MSG_NOSIGNAL), 6);
    turn_once(&r);
    look(a, &answer);
    assert_int_equal(answer.len, 0);
    assert_true(c->busy);
    assert_false(c->reading);
    for (int turns = 0; answer.len == 0 && turns < TURNS_MAX; turns++) {
        turn_once(&r);
        look(a, &answer);
    }
    assert_string_equal(answer.data, "+PONG\r\n");
    assert_false(c->busy);
    assert_true(c->reading);
    uv_close((uv_handle_t *)&first, NULL);
    rig_close(&r, a);
    rig_stop(&r);
    close(ends[0]);
    close(ends[1]);
    buf_free(&answer);
}

/* n keys k0000000, k0000001, ... */
static void make_keys(struct rig *r, int fd, int n)
{
    enum { AT_ONCE = 1000 };
    struct buf in = {0};
    for (int i = 0; i < n; i += AT_ONCE) {
        struct buf mset = {0};
        rig_names(&mset, "MSET", i, AT_ONCE, "v", NULL);
        rig_send(r, fd, mset.data, mset.len);
        while (count(&in, '+') < (size_t)(i / AT_ONCE) + 1) {
            turn_once(r);
            assert_true(rig_receive(r, fd, &in));
        }
        buf_free(&mset);
    }
    buf_free(&in);
}

static void what_was_flushed_is_gone_at_once_and_swept_up_in_turns(void **state)
{
    enum { KEYS = 100000 };
    struct rig r;
    struct buf in = {0};
    struct server_stats st;
    int turns = 0;
    (void)state;
    rig_start(&r, NULL);
    const int a = rig_open(&r);
    make_keys(&r, a, KEYS);
    assert_int_equal(send(a, "FLUSHDB\r\nDBSIZE\r\n", 17, MSG_NOSIGNAL), 17);
    while (count(&in, '\n') < 2) {
        turn_once(&r);
        look(a, &in);
    }
    assert_string_equal(in.data, "+OK\r\n:0\r\n");
    server_stats(r.server, &st);
    assert_true(st.memory_bytes > KEYS * 10); /* most of it is still to be freed */
    for (; st.memory_bytes > 100000 && turns < TURNS_MAX; turns++) {
        turn_once(&r);
        server_stats(r.server, &st);
    }
    assert_in_range(turns, 10, TURNS_MAX - 1);
    rig_close(&r, a);
    rig_stop(&r);
    buf_free(&in);
}

static void all_keys_are_listed_once_however_many_there_are(void **state)
{
    enum { KEYS = 100000, NAME = 8 };
    const struct server_options both = {.binary = &front_tcpstore};
    static unsigned char seen[KEYS];
    struct rig r;
    struct buf in = {0};
    uint64_t n;
    (void)state;
    rig_start(&r, &both);
    const int redis = rig_open(&r), torch = rig_open(&r);
    make_keys(&r, redis, KEYS);
    rig_send(&r, torch, "\x00\xce\xf7\x85\x3c\x11\x0d\x01\x02\x03\x04", 11); /* LIST_KEYS, and a PING behind it */
    while (in.len < 8 + KEYS * (8 + NAME) + 4) {
        turn_once(&r);
        assert_true(rig_receive(&r, torch, &in));
    }
    memcpy(&n, in.data, 8);
    assert_int_equal(n, KEYS);
    const char *p = in.data + 8;
    for (int i = 0; i < KEYS; i++, p += 8 + NAME) {
        memcpy(&n, p, 8);
        assert_int_equal(n, NAME);
        seen[strtoul((char[8]){p[9], p[10], p[11], p[12], p[13], p[14], p[15], 0}, NULL, 10)]++;
    }
    assert_memory_equal(p, "\x01\x02\x03\x04", 4);
    for (int i = 0; i < KEYS; i++)
        assert_int_equal(seen[i], 1);
    rig_close(&r, redis);
    rig_close(&r, torch);
    rig_stop(&r);
    buf_free(&in);
}

static void turns_and_requests_are_timed(void **state)
{
    struct rig r;
    struct server_stats st;
    uint64_t turns = 0, requests = 0;
    struct buf pings = {0}, in = {0};
    (void)state;
    rig_start(&r, NULL);
    const int a = rig_open(&r);
    for (int i = 0; i < 3 * TURN_SAMPLE; i++)
        buf_addstr(&pings, "PING\r\n");
    rig_send(&r, a, pings.data, pings.len);
    while (count(&in, '+') < 3 * TURN_SAMPLE) {
        turn_once(&r);
        assert_true(rig_receive(&r, a, &in));
    }
    server_stats(r.server, &st);
    for (int i = 0; i <= TIMES_BOUNDS; i++) {
        turns += st.turns.counts[i];
        requests += st.requests.counts[i];
    }
    assert_true(turns > 0 && st.turns.longest_s <= st.turns.sum_s);
    assert_int_equal(requests, 3);
    assert_int_equal(st.commands, 3 * TURN_SAMPLE);
    rig_close(&r, a);
    rig_stop(&r);
    buf_free(&pings);
    buf_free(&in);
}

/* 300 spaces with 1,000 keys each, all of which end at once: some 20 ms of work. */
static void keys_of_many_jobs_that_end_at_once_do_not_hold_the_loop(void **state)
{
    enum { SPACES = 300, KEYS = 1000 };
    static struct space *spaces[SPACES];
    struct rig r;
    char key[16];
    size_t left = 0, turns = 0;
    (void)state;
    rig_start(&r, NULL);
    for (int i = 0; i < SPACES; i++) {
        assert_int_equal(space_create(&spaces[i], r.server, (size_t)1 << 30), 0);
        space_tick(spaces[i], r.server);
        for (int k = 0; k < KEYS; k++) {
            const int n = snprintf(key, sizeof key, "k%d", k);
            assert_int_equal(keyspace_set(spaces[i]->keys, key, (size_t)n, "v", 1, keyspace_now(spaces[i]->keys) + 1),
                             0);
        }
        space_expect_expiry(spaces[i], r.server);
    }
    do {
        turn_once(&r);
        left = 0;
        for (int i = 0; i < SPACES; i++)
            left += keyspace_count(spaces[i]->keys);
        turns += left > 0 && left < SPACES * KEYS; /* it has begun, and others are heard before it is done */
    } while (left > 0);
    assert_true(turns > 0);
    for (int i = 0; i < SPACES; i++)
        space_release(spaces[i]);
    rig_stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipeline_goes_on_after_others_were_heard),
        cmocka_unit_test(many_pipelines_are_answered_in_order_and_in_full),
        cmocka_unit_test(a_busy_client_that_goes_is_forgotten),
        cmocka_unit_test(who_is_left_by_a_turn_is_put_off_and_heard_in_the_next),
        cmocka_unit_test(a_turn_accepts_its_share_and_all_come_in),
        cmocka_unit_test(what_was_flushed_is_gone_at_once_and_swept_up_in_turns),
        cmocka_unit_test(all_keys_are_listed_once_however_many_there_are),
        cmocka_unit_test(turns_and_requests_are_timed),
        cmocka_unit_test(keys_of_many_jobs_that_end_at_once_do_not_hold_the_loop),
    };
    signal(SIGPIPE, SIG_IGN); /* as every program around a server does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
