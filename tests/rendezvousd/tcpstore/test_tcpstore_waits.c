/* Clients of the TCPStore protocol that wait, that share keys with RESP, and that misbehave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "rendezvousd/net/front.h"
#include "tests/rendezvousd/rig.h"
#include "tests/rendezvousd/tcpstore/tcpstore_words.h"
#include <stdlib.h>

static const struct server_options both = {.binary = &front_tcpstore};

/* --- exactly one answer to a wait */

enum { CLIENTS = 12, KEYS = 6, STEPS = 20000 };

static uint64_t rng;

static uint64_t draw(uint64_t below) /* xorshift64* */
{
    rng ^= rng >> 12;
    rng ^= rng << 25;
    rng ^= rng >> 27;
    return (rng * 0x2545f4914f6cdd1du >> 11) % below;
}

/* What the test knows of a client: the keys it waits for as a bit each (0: it does not), and what it must have
 * received. */
struct waiting {
    int fd;
    unsigned keys;
    struct buf expected;
};

struct world {
    struct rig rig;
    struct waiting client[CLIENTS];
    int writer;
    unsigned there; /* keys that exist */
    size_t waits, stops, cancels, gone;
};

static void put_keys(struct buf *b, unsigned keys)
{
    put_number(b, (uint64_t)__builtin_popcount(keys), 8);
    for (unsigned k = 0; k < KEYS; k++)
        if (keys >> k & 1)
            put_text(b, (char[]){'/', (char)('a' + k), 0});
}

static void send_all(struct world *w, int fd, struct buf *b)
{
    rig_send(&w->rig, fd, b->data, b->len);
    buf_free(b);
}

static void connect_client(struct world *w, struct waiting *c)
{
    struct buf b = {0};
    *c = (struct waiting){.fd = rig_open(&w->rig)};
    put_handshake(&b);
    send_all(w, c->fd, &b);
}

/* Keys came: whoever has all of his gets his answer. */
static void release(struct world *w)
{
    for (int i = 0; i < CLIENTS; i++) {
        struct waiting *c = &w->client[i];
        if (c->keys == 0 || (c->keys & ~w->there))
            continue;
        buf_add(&c->expected, "\0", 1);
        c->keys = 0;
        w->stops++;
    }
}

static void write_key(struct world *w, bool set)
{
    const unsigned k = (unsigned)draw(KEYS);
    struct buf b = {0};
    put_number(&b, set ? 1 : 8, 1);
    put_text(&b, (char[]){'/', (char)('a' + k), 0});
    if (set)
        put_text(&b, "v");
    send_all(w, w->writer, &b);
    w->there = set ? w->there | 1u << k : w->there & ~(1u << k);
    release(w);
}

static void begin_wait(struct world *w, struct waiting *c)
{
    struct buf b = {0};
    const unsigned keys = 1 + (unsigned)draw((1u << KEYS) - 1);
    put_number(&b, 6, 1);
    put_keys(&b, keys);
    c->keys = keys;
    w->waits++;
    send_all(w, c->fd, &b);
    release(w);
}

static void cancel(struct world *w, struct waiting *c)
{
    struct buf b = {0};
    put_number(&b, 12, 1);
    c->keys = 0;
    buf_add(&c->expected, "\1", 1);
    w->cancels++;
    send_all(w, c->fd, &b);
}

static void reconnect(struct world *w, struct waiting *c)
{
    rig_close(&w->rig, c->fd);
    buf_free(&c->expected);
    w->gone++;
    connect_client(w, c);
}

static void check_client(struct world *w, struct waiting *c, size_t step)
{
    struct buf got = {0};
    if (!rig_receive(&w->rig, c->fd, &got))
        fail_msg("step %zu: the server closed client %td", step, c - w->client);
    if (!same(&got, &c->expected))
        fail_msg("step %zu: client %td received %zu bytes, expected %zu", step, c - w->client, got.len,
                 c->expected.len);
    buf_free(&got);
    buf_free(&c->expected);
}

static void step(struct world *w)
{
    struct waiting *c = &w->client[draw(CLIENTS)];
    switch (draw(8)) {
    case 0:
    case 1:
        write_key(w, true);
        break;
    case 2:
    case 3:
        write_key(w, false);
        break;
    case 4:
        cancel(w, c); /* also where nothing waits: a timeout that crossed the answer */
        break;
    case 5:
        if (draw(4) == 0)
            reconnect(w, c);
        break;
    default:
        if (c->keys == 0)
            begin_wait(w, c);
    }
}

static void a_wait_is_answered_exactly_once(void **state)
{
    struct world w = {0};
    const char *seed = getenv("TEST_SEED");
    (void)state;
    rng = (seed ? strtoull(seed, NULL, 10) : 1) | 1;
    rig_start(&w.rig, &both);
    for (int i = 0; i < CLIENTS; i++)
        connect_client(&w, &w.client[i]);
    struct waiting writer;
    connect_client(&w, &writer);
    w.writer = writer.fd;
    for (size_t i = 0; i < STEPS; i++) {
        step(&w);
        for (int k = 0; k < CLIENTS; k++)
            check_client(&w, &w.client[k], i);
    }
    for (int i = 0; i < CLIENTS; i++)
        rig_close(&w.rig, w.client[i].fd);
    rig_close(&w.rig, w.writer);
    rig_stop(&w.rig);
    print_message("# %d steps: %zu waits, %zu answers, %zu cancels, %zu disconnects\n", STEPS, w.waits, w.stops,
                  w.cancels, w.gone);
}

/* --- queues, barriers, and clients that misbehave */

static int newer_client(struct rig *r)
{
    struct buf b = {0};
    const int fd = rig_open(r);
    put_handshake(&b);
    rig_send(r, fd, b.data, b.len);
    buf_free(&b);
    return fd;
}

/* A request of one key, perhaps with a value and a number behind it. */
static void ask(struct rig *r, int fd, int op, bool counted, const char *key, const char *v, int64_t number)
{
    struct buf b = {0};
    put_number(&b, (uint64_t)op, 1);
    if (counted)
        put_number(&b, 1, 8);
    put_text(&b, key);
    if (v)
        put_text(&b, v);
    if (number >= 0)
        put_number(&b, (uint64_t)number, 8);
    rig_send(r, fd, b.data, b.len);
    buf_free(&b);
}

static void expect(struct rig *r, int fd, const char *hex)
{
    struct buf want = {0}, got = {0};
    put_hex(&want, hex);
    assert_true(rig_receive(r, fd, &got));
    if (!same(&want, &got))
        fail_msg("%zu bytes came, expected %s", got.len, hex);
    buf_free(&want);
    buf_free(&got);
}

enum { SET = 1, GET = 3, WAIT = 6, CANCEL = 12, PUSH = 14, POP = 15, BARRIER = 18 };
#define ONE "0100000000000000"

static void an_item_wakes_one_of_those_who_wait_for_a_queue(void **state)
{
    struct rig r;
    (void)state;
    rig_start(&r, &both);
    const int first = newer_client(&r), second = newer_client(&r), writer = newer_client(&r);
    ask(&r, first, WAIT, true, "/q", NULL, -1);
    ask(&r, second, WAIT, true, "/q", NULL, -1);
    ask(&r, writer, PUSH, false, "/q", "a", -1);
    expect(&r, first, "00");
    expect(&r, second, "");
    ask(&r, first, POP, false, "/q", NULL, -1);
    expect(&r, first, ONE ONE "61");
    ask(&r, writer, PUSH, false, "/q", "b", -1);
    expect(&r, second, "00");
    rig_close(&r, first);
    rig_close(&r, second);
    rig_close(&r, writer);
    rig_stop(&r);
}

static void a_barrier_opens_when_all_have_come_and_not_for_who_gave_up(void **state)
{
    struct rig r;
    int fd[4];
    (void)state;
    rig_start(&r, &both);
    for (int i = 0; i < 4; i++)
        fd[i] = newer_client(&r);
    ask(&r, fd[0], BARRIER, false, "/b", NULL, 3);
    ask(&r, fd[1], BARRIER, false, "/b", NULL, 4); /* waits for one more than the others */
    rig_send(&r, fd[0], "\x0c", 1);
    expect(&r, fd[0], "01"); /* its coming counts all the same */
    ask(&r, fd[2], BARRIER, false, "/b", NULL, 3);
    expect(&r, fd[2], "00");
    expect(&r, fd[1], "");
    ask(&r, fd[3], BARRIER, false, "/b", NULL, 4);
    expect(&r, fd[3], "00");
    expect(&r, fd[1], "00");
    expect(&r, fd[0], "");
    for (int i = 0; i < 4; i++)
        rig_close(&r, fd[i]);
    rig_stop(&r);
}

static void both_languages_see_the_same_keys(void **state)
{
    struct rig r;
    (void)state;
    rig_start(&r, &both);
    const int torch = newer_client(&r), redis = rig_open(&r);
    struct buf got = {0};
    ask(&r, torch, WAIT, true, "/k", NULL, -1);
    rig_send(&r, redis, "SET /k v\r\n", 10);
    expect(&r, torch, "00");
    ask(&r, torch, PUSH, false, "/q", "item", -1);
    rig_send(&r, redis, "TYPE /q\r\nGET /q\r\n", 17);
    assert_true(rig_receive(&r, redis, &got));
    assert_string_equal(got.data, "+OK\r\n+list\r\n"
                                  "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n");
    buf_free(&got);
    rig_close(&r, torch);
    rig_close(&r, redis);
    rig_stop(&r);
}

/* The older client's second connection is silent for ever; one that stops within a request is not waited for. */
static void who_begins_must_go_on_and_who_never_begins_may_stay(void **state)
{
    static const char *const beginnings[] = {"00", "00cef785", "00cef7853c0602", "05010000", "000200"};
    enum { N = sizeof beginnings / sizeof *beginnings };
    const struct server_options impatient = {.binary = &front_tcpstore, .request_timeout_ms = 100};
    struct rig r;
    int fd[N];
    (void)state;
    rig_start(&r, &impatient);
    const int silent = rig_open(&r), waiting = newer_client(&r);
    ask(&r, waiting, WAIT, true, "/never", NULL, -1);
    for (int i = 0; i < N; i++) {
        struct buf b = {0};
        fd[i] = rig_open(&r);
        put_hex(&b, beginnings[i]);
        rig_send(&r, fd[i], b.data, b.len);
        buf_free(&b);
    }
    const int64_t deadline = clock_deadline(5000);
    for (int i = 0; i < N; i++) {
        struct buf got = {0};
        while (rig_receive(&r, fd[i], &got))
            if (clock_left(deadline) == 0)
                fail_msg("a request that began with %s is still waited for", beginnings[i]);
            else
                rig_turn(&r);
        buf_free(&got);
        rig_close(&r, fd[i]);
    }
    for (const int64_t later = clock_deadline(200); clock_left(later) > 0;)
        rig_turn(&r);
    expect(&r, silent, "");
    expect(&r, waiting, "");
    rig_close(&r, silent);
    rig_close(&r, waiting);
    rig_stop(&r);
}

static void what_cannot_be_done_closes_the_connection(void **state)
{
    const struct server_options small = {.binary = &front_tcpstore, .max_memory_bytes = 256 * 1024};
    struct rig r;
    struct buf got = {0};
    (void)state;
    rig_start(&r, &small);
    const int full = newer_client(&r), text = newer_client(&r), other = newer_client(&r);
    char *value = calloc(1, 100001);
    memset(value, 'x', 100000);
    for (int i = 0; i < 3; i++)
        ask(&r, full, SET, false, (char[]){'/', (char)('a' + i), 0}, value, -1);
    assert_false(rig_receive(&r, full, &got)); /* the third does not fit */
    ask(&r, text, SET, false, "/a", "text", -1);
    ask(&r, text, 4, false, "/a", NULL, 1); /* ADD */
    assert_false(rig_receive(&r, text, &got));
    ask(&r, other, GET, false, "/a", NULL, -1);
    expect(&r, other,
           "0400000000000000"
           "74657874");
    free(value);
    buf_free(&got);
    rig_close(&r, full);
    rig_close(&r, text);
    rig_close(&r, other);
    rig_stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_is_answered_exactly_once),
        cmocka_unit_test(an_item_wakes_one_of_those_who_wait_for_a_queue),
        cmocka_unit_test(a_barrier_opens_when_all_have_come_and_not_for_who_gave_up),
        cmocka_unit_test(both_languages_see_the_same_keys),
        cmocka_unit_test(who_begins_must_go_on_and_who_never_begins_may_stay),
        cmocka_unit_test(what_cannot_be_done_closes_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
