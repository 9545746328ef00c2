/* Events, news and settings as text: what is written is read again, and what strangers write is refused with a
 * reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state = 1;

static uint64_t draw(void) /* splitmix64 */
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 27);
}

static int64_t between(int64_t lo, int64_t hi)
{
    return draw() % 3 == 0   ? lo
           : draw() % 2 == 0 ? hi
                             : lo + (int64_t)(draw() % ((uint64_t)hi - (uint64_t)lo + (hi - lo < INT64_MAX)));
}

/* Any bytes but NUL, of any length that fits; the rest zero. */
static void draw_text(char *ret, size_t cap)
{
    size_t n = draw() % 4 == 0 ? cap - 1 : draw() % cap;
    memset(ret, 0, cap);
    for (size_t i = 0; i < n; i++)
        ret[i] = (char)(1 + draw() % 255);
}

static void every_field_of_an_event_comes_back(void **state)
{
    struct buf b = {0};
    (void)state;
    for (int i = 0; i < 2000; i++) {
        struct rdzv_event ev, back;
        struct err e;
        memset(&ev, 0, sizeof ev);
        ev.kind = (enum rdzv_event_kind)(i % (RDZV_TICK + 1));
        ev.node_rank = ev.cause.rank = -1;
        draw_text(ev.node, sizeof ev.node);
        if (ev.kind == RDZV_JOIN || ev.kind == RDZV_FAIL || ev.kind == RDZV_DONE)
            ev.round = (uint64_t)between(0, INT64_MAX);
        if (ev.kind == RDZV_JOIN) {
            ev.slots = (int)between(1, RDZV_SLOTS_MAX);
            ev.node_rank = (int)between(-1, INT_MAX);
            ev.port = (int)between(0, 65535);
            draw_text(ev.addr, sizeof ev.addr);
            draw_text(ev.addrs, sizeof ev.addrs);
            draw_text(ev.role, sizeof ev.role);
            draw_text(ev.instance, sizeof ev.instance);
            ev.restarts = (int)between(0, INT_MAX);
        }
        if (ev.kind == RDZV_FAIL || ev.kind == RDZV_GONE) {
            ev.cause.exit_code = (int)between(0, 255);
            ev.cause.rank = (int)between(-1, INT_MAX);
            ev.cause.fatal = ev.kind == RDZV_FAIL && (draw() & 1);
            draw_text(ev.cause.text, sizeof ev.cause.text);
        }
        buf_clear(&b);
        assert_int_equal(rdzv_event_encode(&ev, &b), 0);
        assert_null(memchr(b.data, '\n', b.len));
        if (rdzv_event_decode(b.data, b.len, &back, &e) < 0)
            fail_msg("%s: %s", b.data, e.text);
        assert_memory_equal(&ev, &back, sizeof ev);
    }
    buf_free(&b);
}

static void every_field_of_news_comes_back(void **state)
{
    struct buf b = {0};
    (void)state;
    for (int i = 0; i < 2000; i++) {
        struct rdzv_news n, back;
        struct err e;
        memset(&n, 0, sizeof n);
        n.kind = (enum rdzv_news_kind)(1 + i % 3);
        n.seq = (uint64_t)between(0, INT64_MAX);
        n.round = (uint64_t)between(0, INT64_MAX);
        n.why = (enum rdzv_reason)(draw() % 4);
        n.restart_count = (int)between(0, INT_MAX);
        n.group_rank = n.rank_base = n.role_base = n.cause.rank = -1;
        if (n.kind == RDZV_NEWS_ROUND) {
            n.group_rank = (int)between(-1, INT_MAX);
            n.group_world = (int)between(0, INT_MAX);
            n.rank_base = (int)between(-1, INT_MAX);
            n.world_size = (int)between(0, INT_MAX);
            n.role_base = (int)between(-1, INT_MAX);
            n.role_world = (int)between(0, INT_MAX);
            draw_text(n.leader_addr, sizeof n.leader_addr);
            n.leader_port = (int)between(0, 65535);
            n.spare = draw() & 1;
        } else {
            n.cause.exit_code = (int)between(0, 255);
            n.cause.rank = (int)between(-1, INT_MAX);
            draw_text(n.cause.text, sizeof n.cause.text);
        }
        if (n.kind == RDZV_NEWS_END)
            n.exit_code = (int)between(0, 255);
        buf_clear(&b);
        assert_int_equal(rdzv_news_encode(&n, &b), 0);
        if (rdzv_news_decode(b.data, b.len, &back, &e) < 0)
            fail_msg("%s: %s", b.data, e.text);
        assert_memory_equal(&n, &back, sizeof n);
    }
    buf_free(&b);
}

static struct rdzv_config settings(void)
{
    struct rdzv_config c;
    memset(&c, 0, sizeof c);
    c.min_nodes = 2;
    c.max_nodes = 4;
    c.max_restarts = 3;
    c.max_node_failures = 2;
    c.restart_window_ms = 60000;
    c.backoff_ms = 1000;
    c.backoff_max_ms = 30000;
    c.backoff_reset_ms = 10000;
    c.order = RDZV_ORDER_NODE_RANK;
    c.join_timeout_ms = 600000;
    c.last_call_ms = 30000;
    c.silence_ms = 3000;
    c.kill_ms = 1000;
    c.first_round = 7;
    return c;
}

static void settings_come_back_beside_a_join(void **state)
{
    struct rdzv_config c = settings(), back = {0};
    struct rdzv_event ev = {.kind = RDZV_JOIN, .node = "node 1", .slots = 8, .node_rank = -1, .port = 5}, ev_back;
    struct buf b = {0};
    struct err e;
    (void)state;
    assert_int_equal(rdzv_config_encode(&c, &b), 0);
    assert_string_equal(
        b.data,
        "v=1 nnodes=2:4 max_restarts=3 max_node_failures=2 restart_window=60000 backoff=1000 backoff_max=30000 backoff_reset=10000 "
        "order=node-rank join_timeout=600000 last_call=30000 silence=3000 kill=1000 first_round=7");
    assert_int_equal(rdzv_event_encode(&ev, &b), 0);
    assert_int_equal(rdzv_config_decode(b.data, b.len, &back, &e), 0);
    assert_memory_equal(&c, &back, sizeof c);
    assert_int_equal(rdzv_event_decode(b.data, b.len, &ev_back, &e), 0);
    assert_string_equal(ev_back.node, "node 1");
    assert_int_equal(ev_back.port, 5);
    buf_free(&b);
}

static void settings_of_another_protocol_are_refused_with_both_versions(void **state)
{
    struct rdzv_config c = {.min_nodes = 1};
    struct err e;
    (void)state;
#define DECODE(text) rdzv_config_decode(text, strlen(text), &c, &e)
    assert_int_equal(DECODE("v=2 nnodes=1:1"), -EINVAL);
    assert_string_equal(e.text, "protocol version 2, but this program speaks version 1");
    assert_int_equal(DECODE("nnodes=1:1"), -EINVAL);
    assert_string_equal(e.text, "protocol version is missing, but this program speaks version 1");
    assert_int_equal(DECODE("v=1 nnodes=3:2"), -EINVAL);
    assert_string_equal(e.text, "nnodes=3:2: expected MIN:MAX with 1 <= MIN <= MAX <= 100000");
    assert_int_equal(DECODE("v=1 nnodes=5"), 0);
    assert_int_equal(c.min_nodes, 5);
    assert_int_equal(c.max_nodes, 5);
    assert_int_equal(DECODE("v=1 nnodes=1:2 silence=-1"), -EINVAL);
    rdzv_config_defaults(&c);
    assert_int_equal(DECODE("v=1 silence=4000"), 0); /* what is not said stays */
    assert_int_equal(c.silence_ms, 4000);
    assert_int_equal(c.join_timeout_ms, 600000);
    assert_int_equal(c.order, RDZV_ORDER_HOST);
#undef DECODE
}

static void agents_that_disagree_are_told_both_values(void **state)
{
    struct rdzv_config a = settings(), b = settings();
    struct err e;
    (void)state;
    b.first_round = 99;
    assert_int_equal(rdzv_config_differs(&a, &b, &e), 0);
    b.max_nodes = 3;
    assert_int_equal(rdzv_config_differs(&a, &b, &e), ERR_REFUSED);
    assert_string_equal(e.text, "the job was started with --nnodes 2:4, not 2:3");
    b = a;
    b.order = RDZV_ORDER_HOST;
    assert_int_equal(rdzv_config_differs(&a, &b, &e), ERR_REFUSED);
    assert_string_equal(e.text, "the job was started with --rank-order node-rank, not host");
    b = a;
    b.join_timeout_ms = 600001;
    assert_int_equal(rdzv_config_differs(&a, &b, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "the job was started with a join_timeout of 600 s, not 600.001 (--rdzv-conf "));
    assert_non_null(strstr(e.text, "where that is not given it follows --shutdown-timeout, ")); /* another option's */
    b = a;
    b.backoff_ms = a.backoff_ms + 1000;
    assert_int_equal(rdzv_config_differs(&a, &b, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "with --restart-backoff "));
    b = a;
    b.kill_ms = a.kill_ms + 1;
    assert_int_equal(rdzv_config_differs(&a, &b, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "by another version of crun, with a kill's bound of "));
    /* no setting is forgotten, and no option named that there is not */
    int64_t *const times[] = {&b.restart_window_ms, &b.backoff_ms,   &b.backoff_max_ms, &b.backoff_reset_ms,
                              &b.join_timeout_ms,   &b.last_call_ms, &b.silence_ms,     &b.kill_ms};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        b = a;
        ++*times[i];
        assert_int_equal(rdzv_config_differs(&a, &b, &e), ERR_REFUSED);
        assert_null(strstr(e.text, "--rdzv-conf backoff"));
    }
    b = a;
    b.max_restarts = 4;
    assert_int_equal(rdzv_config_differs(&a, &b, &e), ERR_REFUSED);
}

static void durations_have_bounds(void **state)
{
    struct rdzv_config c = settings();
    struct err e;
    (void)state;
    assert_int_equal(rdzv_config_check_times(&c, &e), 0);
    int64_t *const times[] = {&c.silence_ms,       &c.kill_ms,           &c.backoff_ms,      &c.backoff_max_ms,
                              &c.backoff_reset_ms, &c.restart_window_ms, &c.join_timeout_ms, &c.last_call_ms};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        c = settings();
        *times[i] = i < 4 ? 600000 : 604800000;
        assert_int_equal(rdzv_config_check_times(&c, &e), 0);
        ++*times[i];
        assert_int_equal(rdzv_config_check_times(&c, &e), -EINVAL);
    }
    assert_string_equal(e.text, "last_call=604800001: expected at most 604800000 ms (7 days)");
}

static void what_is_missing_has_its_default(void **state)
{
    struct rdzv_event ev;
    struct rdzv_news n;
    struct err e;
    (void)state;
    assert_int_equal(rdzv_event_decode("kind=join unknown=1", 19, &ev, &e), 0);
    assert_int_equal(ev.node_rank, -1);
    assert_int_equal(ev.cause.rank, -1);
    assert_int_equal(ev.slots, 0);
    assert_string_equal(ev.addrs, "");
    assert_int_equal(rdzv_news_decode("kind=end", 8, &n, &e), 0);
    assert_int_equal(n.group_rank, -1);
    assert_int_equal(n.rank_base, -1);
    assert_int_equal(n.role_base, -1);
    assert_int_equal(n.cause.rank, -1);
}

static void refused(const char *text, const char *why)
{
    struct rdzv_event ev = {.slots = 77}, before = ev;
    struct err e;
    assert_int_equal(rdzv_event_decode(text, strlen(text), &ev, &e), -EINVAL);
    assert_string_equal(e.text, why);
    assert_memory_equal(&ev, &before, sizeof ev); /* untouched on failure */
}

static void hostile_text_is_refused_by_name_and_value(void **state)
{
    char text[2000];
    (void)state;
    refused("", "the event has no kind=");
    refused("node=a", "the event has no kind=");
    refused("kind=jump", "kind=jump: expected a word from 'join' to 'tick'");
    refused("kind=join slots=0", "slots=0: expected a number from 1 to 4096");
    refused("kind=join slots=4097", "slots=4097: expected a number from 1 to 4096");
    refused("kind=join slots=", "slots=: expected a number from 1 to 4096");
    refused("kind=join slots=1x", "slots=1x: expected a number from 1 to 4096");
    refused("kind=join slots=+1", "slots=+1: expected a number from 1 to 4096");
    refused("kind=join port=65536", "port=65536: expected a number from 0 to 65535");
    refused("kind=join node_rank=-2", "node_rank=-2: expected a number from -1 to 2147483647");
    refused("kind=join round=9223372036854775808",
            "round=9223372036854775808: expected a number from 0 to 9223372036854775807");
    refused("kind=join round=99999999999999999999999999999999999999999999",
            "round=9999999999999999999999999999999999999999: expected a number from 0 to 9223372036854775807");
    refused("kind=join slots=1 slots=2", "field 'slots' stands twice");
    refused("kind=join  slots=1", "' slots=1' at byte 10: expected fields key=value with single spaces between");
    refused(" kind=join", "' kind=join' at byte 0: expected fields key=value with single spaces between");
    refused("kind=join ", "'' at byte 10: expected fields key=value with single spaces between");
    refused("kind=join =1", "'=1' at byte 10: expected fields key=value with single spaces between");
    refused("kind=join\nx", "field kind=join?x: spaces, '=' and bytes outside printable ASCII are written %XX");
    refused("kind=join node=%", "field node=%: a '%' is followed by two hex digits, not 00");
    refused("kind=join node=%4", "field node=%4: a '%' is followed by two hex digits, not 00");
    refused("kind=join node=a%4g", "field node=a%4g: a '%' is followed by two hex digits, not 00");
    refused("kind=join node=%00", "field node=%00: a '%' is followed by two hex digits, not 00");
    refused("kind=join node=a=b", "field node=a=b: spaces, '=' and bytes outside printable ASCII are written %XX");
    refused("kind=join node=\xc3\xa4", "field node=??: spaces, '=' and bytes outside printable ASCII are written %XX");
    snprintf(text, sizeof text, "kind=join node=%096d", 0);
    refused(text, "node=0000000000000000000000000000000000000000...: expected at most 95 bytes");
    snprintf(text, sizeof text, "kind=done %0100d=1", 0);
    struct rdzv_event ev;
    assert_int_equal(rdzv_event_decode(text, strlen(text), &ev, NULL), 0); /* a long unknown key is an unknown key */
}

/* Cut, flipped and doubled records: every answer is a record or -EINVAL, never a read beyond the end (sanitizers
 * watch). */
static void damaged_records_do_no_harm(void **state)
{
    struct buf b = {0};
    struct rdzv_event ev = {
        .kind = RDZV_JOIN, .node = "n%1", .slots = 3, .node_rank = 2, .addr = "10.0.0.1", .role = "r r"};
    struct rdzv_config c = settings();
    int taken = 0;
    (void)state;
    assert_int_equal(rdzv_event_encode(&ev, &b), 0);
    assert_int_equal(rdzv_config_encode(&c, &b), 0);
    for (int i = 0; i < 20000; i++) {
        size_t n = draw() % (b.len + 1);
        char *p = malloc(n + !n);
        struct rdzv_event back;
        struct rdzv_config c_back = {0};
        struct rdzv_news news;
        memcpy(p, b.data, n);
        for (uint64_t k = draw() % 3; n > 0 && k > 0; k--)
            p[draw() % n] = draw() % 2 ? (char)draw() : " =%\n"[draw() % 4];
        int rc = rdzv_event_decode(p, n, &back, NULL);
        assert_true(rc == 0 || rc == -EINVAL);
        taken += rc == 0;
        rc = rdzv_config_decode(p, n, &c_back, NULL);
        assert_true(rc == 0 || rc == -EINVAL);
        rc = rdzv_news_decode(p, n, &news, NULL);
        assert_true(rc == 0 || rc == -EINVAL);
        free(p);
    }
    assert_true(taken > 100);
    buf_free(&b);
}

static void single_fields_are_written_and_found(void **state)
{
    struct buf b = {0};
    char v[16] = "untouched";
    (void)state;
    assert_int_equal(rdzv_field_text(&b, "instance", "a b=c%\n\xff"), 0);
    assert_int_equal(rdzv_field_int(&b, "epoch", INT64_MIN), 0);
    assert_int_equal(rdzv_field_text(&b, "empty", ""), 0);
    assert_string_equal(b.data, "instance=a%20b%3Dc%25%0A%FF epoch=-9223372036854775808 empty=");
    assert_int_equal(rdzv_field_find(b.data, b.len, "poch", v, sizeof v), 0);
    assert_int_equal(rdzv_field_find(b.data, b.len, "epoch", v, sizeof v), -EINVAL); /* too long */
    assert_string_equal(v, "untouched");
    assert_int_equal(rdzv_field_find(b.data, b.len, "instance", v, sizeof v), 1);
    assert_string_equal(v, "a b=c%\n\xff");
    assert_int_equal(rdzv_field_find(b.data, b.len, "empty", v, sizeof v), 1);
    assert_string_equal(v, "");
    assert_int_equal(buf_addstr(&b, "\n"), 0);
    assert_int_equal(rdzv_field_int(&b, "next", 5), 0);
    assert_non_null(strstr(b.data, "empty=\nnext=5"));
    struct buf small = {.max = 10};
    assert_int_equal(rdzv_field_text(&small, "a", "b"), 0);
    assert_int_equal(rdzv_field_text(&small, "key", "longer"), -E2BIG);
    assert_string_equal(small.data, "a=b"); /* whole or not at all */
    buf_free(&small);
    buf_free(&b);
}

static void people_read_a_refusal_without_its_word(void **state)
{
    (void)state;
    assert_string_equal(rdzv_refusal("NOJOB run 'j' is unknown here"), "run 'j' is unknown here");
    assert_string_equal(rdzv_refusal("ERR max number of clients"), "max number of clients");
    assert_string_equal(rdzv_refusal("A connection"), "A connection");
    assert_string_equal(rdzv_refusal("NOAUTH"), "NOAUTH");
    assert_string_equal(rdzv_refusal("NOAUTH "), "NOAUTH ");
    assert_string_equal(rdzv_refusal("run 'j'"), "run 'j'");
    assert_string_equal(rdzv_refusal(""), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_of_an_event_comes_back),
        cmocka_unit_test(every_field_of_news_comes_back),
        cmocka_unit_test(settings_come_back_beside_a_join),
        cmocka_unit_test(settings_of_another_protocol_are_refused_with_both_versions),
        cmocka_unit_test(agents_that_disagree_are_told_both_values),
        cmocka_unit_test(durations_have_bounds),
        cmocka_unit_test(what_is_missing_has_its_default),
        cmocka_unit_test(hostile_text_is_refused_by_name_and_value),
        cmocka_unit_test(damaged_records_do_no_harm),
        cmocka_unit_test(single_fields_are_written_and_found),
        cmocka_unit_test(people_read_a_refusal_without_its_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
