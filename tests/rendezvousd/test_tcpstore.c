/* PyTorch's clients, byte for byte, against the server; and both languages under the same cuts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/clock.h"
#include "rendezvousd/front.h"
#include "rendezvousd/tcpstore.h"
#include "tests/rendezvousd/harness.h"
#include "tests/rendezvousd/rig.h"
#include "tests/rendezvousd/tcpstore_recorded.h"
#include "tests/rendezvousd/tcpstore_words.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct server_options both = {.binary = &front_tcpstore};

/* ---- the recorded dialogues ---------------------------------------------------------------------------------------- */

static bool same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

/* LIST_KEYS has no order: the same count, length and keys. */
static bool same_list(const struct buf *a, const struct buf *b)
{
    if (a->len != b->len || a->len < 8 || memcmp(a->data, b->data, 8) != 0)
        return false;
    for (size_t at = 8; at < b->len;) {
        uint64_t n;
        memcpy(&n, b->data + at, 8);
        if (!memmem(a->data + 8, a->len - 8, b->data + at, 8 + (size_t)n))
            return false;
        at += 8 + (size_t)n;
    }
    return true;
}

static void replay(const struct recorded *steps, size_t n)
{
    struct rig r;
    int fds[3] = {-1, -1, -1};
    const char *title = "";
    bool lists = false;
    rig_start(&r, &both);
    for (size_t i = 0; i < n; i++) {
        const struct recorded *s = &steps[i];
        struct buf want = {0}, got = {0};
        int *fd = &fds[s->connection];
        if (s->what == '#') {
            title = s->hex;
            lists = strcmp(title, "list_keys") == 0;
            continue;
        }
        if (*fd < 0)
            *fd = rig_open(&r);
        put_hex(&want, s->hex);
        if (s->what == '>') {
            rig_send(&r, *fd, want.data, 1);
            rig_send(&r, *fd, want.data + 1, want.len - 1);
        }
        const bool answered = i + 1 < n && steps[i + 1].what == '<';
        if (s->what == '>' && !answered) { /* nothing may come */
            buf_clear(&want);
            rig_receive(&r, *fd, &got);
        }
        const bool open = s->what == '>' || rig_receive(&r, *fd, &got);
        if (s->what == '!' ? open : s->what == '<' && !open)
            fail_msg("%s: the server %s", title, open ? "did not close" : "closed");
        if ((s->what == '<' || !answered) && !(lists ? same_list(&got, &want) : same(&got, &want)))
            fail_msg("%s: answered %zu bytes, expected %zu: %s", title, got.len, want.len, s->hex);
        buf_free(&want);
        buf_free(&got);
    }
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            rig_close(&r, fds[i]);
    rig_stop(&r);
}

static void the_newer_client_is_answered_byte_for_byte(void **state)
{
    (void)state;
    replay(torch_2_15, sizeof torch_2_15 / sizeof *torch_2_15);
}

static void the_older_client_is_answered_byte_for_byte(void **state)
{
    (void)state;
    replay(torch_1_13, sizeof torch_1_13 / sizeof *torch_1_13);
}

/* ---- cuts ---------------------------------------------------------------------------------------------------------- */

/* Every request of a language, as bytes; what came before them on the connection. */
struct language {
    struct buf preamble;
    struct buf *requests;
    size_t n;
};

static void say(const struct language *l, const struct buf *first, const struct buf *second, struct buf *all)
{
    buf_add(all, l->preamble.data, l->preamble.len);
    buf_add(all, first->data, first->len);
    if (second)
        buf_add(all, second->data, second->len);
}

static size_t check_all_cuts(const struct language *l)
{
    size_t dialogues = 0;
    for (size_t i = 0; i < l->n; i++) {
        struct buf all = {0}, whole = {0};
        say(l, &l->requests[i], NULL, &all);
        rig_dialogue(&both, all.data, all.len, NULL, 0, &whole);
        for (size_t cut = 1; cut < all.len; cut++, dialogues++) {
            struct buf got = {0};
            rig_dialogue(&both, all.data, all.len, &cut, 1, &got);
            if (!same(&whole, &got))
                fail_msg("request %zu cut at byte %zu of %zu: other replies than uncut", i, cut, all.len);
            buf_free(&got);
        }
        buf_free(&all);
        buf_free(&whole);
    }
    return dialogues;
}

/* Two requests in one segment, in three cut at all places of the second, and in separate ones. */
static size_t check_all_pairs(const struct language *l)
{
    size_t dialogues = 0;
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < l->n; k++) {
            struct buf all = {0}, apart = {0};
            say(l, &l->requests[i], &l->requests[k], &all);
            const size_t first = l->preamble.len, second = first + l->requests[i].len;
            rig_dialogue(&both, all.data, all.len, (size_t[]){first, second}, 2, &apart);
            for (size_t cut = second + 1; cut <= all.len; cut++, dialogues++) {
                struct buf got = {0};
                rig_dialogue(&both, all.data, all.len, &cut, cut < all.len, &got);
                if (!same(&apart, &got))
                    fail_msg("requests %zu and %zu in one piece up to byte %zu: other replies than apart", i, k, cut);
                buf_free(&got);
            }
            buf_free(&all);
            buf_free(&apart);
        }
    return dialogues;
}

static void check_cuts(struct language *l, const char *name)
{
    size_t cuts = check_all_cuts(l), pairs = check_all_pairs(l);
    print_message("# %s: %zu requests, %zu cuts, %zu dialogues of pairs\n", name, l->n, cuts, pairs);
    for (size_t i = 0; i < l->n; i++)
        buf_free(&l->requests[i]);
    buf_free(&l->preamble);
}

enum { MAX_REQUESTS = 64 };

/* The requests of a recording that are answered at once; one that waits would hold those behind it. */
static size_t recorded_requests(const struct recorded *steps, size_t n, struct buf *requests)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (steps[i].what != '>' || steps[i].connection != 1 || strncmp(steps[i].hex, "00cef7853c", 10) == 0)
            continue;
        bool seen = false;
        struct buf one = {0};
        put_hex(&one, steps[i].hex);
        for (size_t k = 0; k < count; k++)
            seen = seen || same(&requests[k], &one);
        if (seen)
            buf_free(&one);
        else
            requests[count++] = one;
    }
    return count;
}

static void the_newer_protocol_does_not_depend_on_cuts(void **state)
{
    struct buf requests[MAX_REQUESTS] = {{0}};
    struct language l = {.requests = requests};
    (void)state;
    put_hex(&l.preamble, "00cef7853c0d56110000");
    l.n = recorded_requests(torch_2_15, sizeof torch_2_15 / sizeof *torch_2_15, requests);
    check_cuts(&l, "newer TCPStore");
}

static void the_older_protocol_does_not_depend_on_cuts(void **state)
{
    struct buf requests[MAX_REQUESTS] = {{0}};
    struct language l = {.requests = requests};
    (void)state;
    put_hex(&l.preamble, "030500000000000000696e69742f0100000000000000");
    l.n = recorded_requests(torch_1_13, sizeof torch_1_13 / sizeof *torch_1_13, requests);
    check_cuts(&l, "older TCPStore");
}

static void resp_does_not_depend_on_cuts(void **state)
{
    static const char *const lines[] = {
        "PING\r\n",
        "*1\r\n$4\r\nPING\r\n",
        "*2\r\n$4\r\nECHO\r\n$3\r\na\r\n\r\n",
        "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\nvv\r\n",
        "*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
        "*3\r\n$6\r\nINCRBY\r\n$1\r\nn\r\n$1\r\n5\r\n",
        "*5\r\n$4\r\nMSET\r\n$1\r\nx\r\n$1\r\n1\r\n$1\r\ny\r\n$0\r\n\r\n",
        "*3\r\n$4\r\nMGET\r\n$1\r\nx\r\n$1\r\nq\r\n",
        "*3\r\n$10\r\nSTORE.WAIT\r\n$1\r\na\r\n$1\r\n0\r\n",
        "*5\r\n$9\r\nSTORE.CAS\r\n$1\r\nc\r\n$1\r\n0\r\n$0\r\n\r\n$1\r\n1\r\n",
        "set 'in line' \"\\x41\\n\"\r\n",
        "*1\r\n$-1\r\n",
        "*2\r\n$4\r\nQUIT\r\n",
    };
    struct buf requests[sizeof lines / sizeof *lines] = {{0}};
    struct language l = {.requests = requests, .n = sizeof lines / sizeof *lines};
    (void)state;
    buf_addstr(&l.preamble, "*2\r\n$4\r\nECHO\r\n$5\r\nfirst\r\n");
    for (size_t i = 0; i < l.n; i++)
        buf_addstr(&requests[i], lines[i]);
    check_cuts(&l, "RESP");
}

/* ---- lengths that lie ---------------------------------------------------------------------------------------------- */

static size_t resident(void)
{
    unsigned long total = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lu %lu", &total, &pages) != 2)
        fail_msg("/proc/self/statm cannot be read");
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Where a length may stand: the bytes before it. */
static void a_length_takes_no_memory(void **state)
{
    static const struct {
        const char *before;
        uint64_t cap;
    } places[] = {
        {"00cef7853c01", TCPSTORE_KEY_MAX},                     /* SET: key */
        {"00cef7853c0101000000000000006b", (uint64_t)64 << 20}, /* SET: value */
        {"00cef7853c05", TCPSTORE_KEYS_MAX},                    /* CHECK: count */
        {"00cef7853c06", TCPSTORE_KEYS_MAX},                    /* WAIT: count */
        {"00cef7853c0a", TCPSTORE_KEYS_MAX},                    /* MULTI_GET: count */
        {"00cef7853c0b", TCPSTORE_KEYS_MAX},                    /* MULTI_SET: count */
        {"00cef7853c0b0200000000000000", TCPSTORE_KEY_MAX},     /* MULTI_SET: first key */
        {"00cef7853c12", TCPSTORE_KEY_MAX},                     /* BARRIER: key */
        {"00", TCPSTORE_KEY_MAX},                               /* older SET: key */
        {"01", TCPSTORE_KEY_MAX},                               /* older COMPARE_SET: key */
        {"05", TCPSTORE_KEYS_MAX},                              /* older WAIT: count */
    };
    size_t most = 0;
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const uint64_t cap = places[i].cap;
        const uint64_t lengths[] = {0, 1, cap, cap + 1, 1ull << 31, 1ull << 32, 1ull << 61, 1ull << 63, UINT64_MAX};
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            struct rig r;
            struct buf b = {0}, got = {0};
            rig_start(&r, &both);
            int fd = rig_open(&r);
            put_hex(&b, places[i].before);
            put_number(&b, lengths[k], 8);
            size_t before = resident();
            rig_send(&r, fd, b.data, b.len);
            size_t grown = resident() > before ? resident() - before : 0;
            most = grown > most ? grown : most;
            bool open = rig_receive(&r, fd, &got);
            if (lengths[k] > cap && open)
                fail_msg("place %zu: a length of %llu was taken", i, (unsigned long long)lengths[k]);
            if (lengths[k] < cap && !open)
                fail_msg("place %zu: a length of %llu was refused", i, (unsigned long long)lengths[k]);
            rig_close(&r, fd);
            rig_stop(&r);
            buf_free(&b);
            buf_free(&got);
        }
    }
    print_message("# memory grew by at most %zu KiB\n", most / 1024);
    assert_true(most < 1 << 20);
}

/* ---- exactly one answer to a wait ---------------------------------------------------------------------------------- */

enum { CLIENTS = 12, KEYS = 6, STEPS = 20000 };

static uint64_t rng;

static uint64_t draw(uint64_t below) /* xorshift64* */
{
    rng ^= rng >> 12;
    rng ^= rng << 25;
    rng ^= rng >> 27;
    return (rng * 0x2545f4914f6cdd1du >> 11) % below;
}

/* What the test knows of a client: the keys it waits for as a bit each (0: it does not), and what it must have received. */
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

/* ---- queues, barriers, and clients that misbehave ------------------------------------------------------------------ */

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
    rig_send(&r, redis, "LRANGE /q 0 -1\r\n", 16);
    assert_true(rig_receive(&r, redis, &got));
    assert_string_equal(got.data, "+OK\r\n*1\r\n$4\r\nitem\r\n");
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
        cmocka_unit_test(the_newer_client_is_answered_byte_for_byte),
        cmocka_unit_test(the_older_client_is_answered_byte_for_byte),
        cmocka_unit_test(the_newer_protocol_does_not_depend_on_cuts),
        cmocka_unit_test(the_older_protocol_does_not_depend_on_cuts),
        cmocka_unit_test(resp_does_not_depend_on_cuts),
        cmocka_unit_test(a_length_takes_no_memory),
        cmocka_unit_test(a_wait_is_answered_exactly_once),
        cmocka_unit_test(an_item_wakes_one_of_those_who_wait_for_a_queue),
        cmocka_unit_test(a_barrier_opens_when_all_have_come_and_not_for_who_gave_up),
        cmocka_unit_test(both_languages_see_the_same_keys),
        cmocka_unit_test(who_begins_must_go_on_and_who_never_begins_may_stay),
        cmocka_unit_test(what_cannot_be_done_closes_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
