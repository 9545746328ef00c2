/* PyTorch's clients, byte for byte, against the server; and both languages under the same cuts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvousd/net/front.h"
#include "rendezvousd/tcpstore/tcpstore.h"
#include "tests/rendezvousd/harness.h"
#include "tests/rendezvousd/rig.h"
#include "tests/rendezvousd/tcpstore/tcpstore_recorded.h"
#include "tests/rendezvousd/tcpstore/tcpstore_words.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct server_options both = {.binary = &front_tcpstore};

/* --- the recorded dialogues */

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

/* What torch 2.15's servers answer an ADD of 1 to these values; 0: they close. */
static void an_add_reads_what_was_set_as_pytorch_does(void **state)
{
    static const struct {
        const char *value;
        int64_t sum;
    } cases[] = {{"5", 6},
                 {"-7", -6},
                 {" 5", 6},
                 {"\t\n\v 5", 6},
                 {"+5", 6},
                 {"5abc", 6},
                 {"5 ", 6},
                 {"010", 11},
                 {"0x10", 1},
                 {"", 0},
                 {"abc", 0},
                 {"- 5", 0},
                 {"+-5", 0},
                 {"9223372036854775808", 0},
                 {"-9223372036854775808", -INT64_MAX}};
    struct rig r;
    (void)state;
    rig_start(&r, &both);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b = {0}, got = {0}, want = {0};
        const int fd = rig_open(&r);
        put_handshake(&b);
        put_number(&b, 1, 1); /* SET */
        put_text(&b, "/n");
        put_text(&b, cases[i].value);
        put_number(&b, 4, 1); /* ADD */
        put_text(&b, "/n");
        put_number(&b, 1, 8);
        rig_send(&r, fd, b.data, b.len);
        const bool open = rig_receive(&r, fd, &got);
        put_number(&want, (uint64_t)cases[i].sum, 8);
        if (cases[i].sum == 0 ? open : !same(&got, &want))
            fail_msg("'%s': %s, %zu bytes", cases[i].value, open ? "open" : "closed", got.len);
        rig_close(&r, fd);
        buf_free(&b);
        buf_free(&got);
        buf_free(&want);
    }
    rig_stop(&r);
}

/* --- cuts */

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

/* --- lengths that lie */

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newer_client_is_answered_byte_for_byte),
        cmocka_unit_test(the_older_client_is_answered_byte_for_byte),
        cmocka_unit_test(an_add_reads_what_was_set_as_pytorch_does),
        cmocka_unit_test(the_newer_protocol_does_not_depend_on_cuts),
        cmocka_unit_test(the_older_protocol_does_not_depend_on_cuts),
        cmocka_unit_test(resp_does_not_depend_on_cuts),
        cmocka_unit_test(a_length_takes_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
