/* The machine as a log: whoever replays it is the machine, at every step of random schedules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/rdzv/machine/rdzv.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state;

static int draw(int n) /* 0 .. n-1 */
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return (int)((z ^ (z >> 27)) >> 33) % n;
}

static struct rdzv_config draw_config(void)
{
    struct rdzv_config c = {.min_nodes = 1 + draw(3),
                            .max_restarts = draw(6),
                            .restart_window_ms = draw(2) * (1 + draw(60000)),
                            .backoff_ms = draw(2) * (1 + draw(3000)),
                            .backoff_max_ms = 5000,
                            .backoff_reset_ms = draw(20000),
                            .order = (enum rdzv_order)draw(3),
                            .join_timeout_ms = 1 + draw(60000),
                            .last_call_ms = draw(5000),
                            .silence_ms = 1 + draw(5000),
                            .kill_ms = draw(1000),
                            .first_round = 1};
    c.max_nodes = c.min_nodes + draw(4);
    return c;
}

static struct rdzv_event draw_event(const struct rdzv *r)
{
    static const enum rdzv_event_kind kinds[] = {
        RDZV_JOIN, RDZV_JOIN, RDZV_JOIN,   RDZV_JOIN,   RDZV_JOIN,   RDZV_JOIN,  RDZV_FAIL, RDZV_FAIL, RDZV_DONE,
        RDZV_GONE, RDZV_GONE, RDZV_SILENT, RDZV_SILENT, RDZV_RESUME, RDZV_LEAVE, RDZV_TICK, RDZV_TICK, RDZV_TICK};
    struct rdzv_event ev = {.kind = kinds[draw(18)],
                            .slots = 1 + draw(8),
                            .node_rank = draw(4) - 1,
                            .port = draw(65536),
                            .cause = {.exit_code = draw(256), .rank = draw(9) - 1, .text = "it failed"}};
    if (draw(300) == 0)
        ev.kind = RDZV_DRAIN;
    snprintf(ev.node, sizeof ev.node, "node %d", draw(9));
    snprintf(ev.addr, sizeof ev.addr, "10.0.0.%d", draw(9));
    snprintf(ev.addrs, sizeof ev.addrs, "%s,fe80::1%%eth0", ev.addr);
    snprintf(ev.role, sizeof ev.role, "%s", draw(2) ? "trainer" : "");
    ev.round = rdzv_round(r) - (rdzv_round(r) > 0 && draw(10) == 0);
    return ev;
}

static void snapshot(const struct rdzv *r, int64_t now, struct buf *b)
{
    buf_clear(b);
    assert_int_equal(rdzv_snapshot(r, now, b, NULL), 0);
}

static void replay(struct rdzv *r, const struct buf *b, int64_t now)
{
    struct err e;
    if (rdzv_replay(r, b->data ? b->data : "", b->len, now, &e) < 0)
        fail_msg("%s", e.text);
}

static void same_state(const struct rdzv *a, const struct rdzv *b, int64_t now)
{
    struct buf sa = {0}, sb = {0};
    snapshot(a, now, &sa);
    snapshot(b, now, &sb);
    assert_string_equal(sa.data, sb.data);
    int64_t da = rdzv_deadline(a), db = rdzv_deadline(b); /* one that is over is due now */
    assert_int_equal(da < now ? now : da, db < now ? now : db);
    buf_free(&sa);
    buf_free(&sb);
}

static void same_effects(const struct rdzv_effects *a, const struct rdzv_effects *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++)
        assert_memory_equal(&a->v[i], &b->v[i], sizeof a->v[i]);
}

/* One schedule: a follower takes each delta over; a successor made from a snapshot goes the next step itself. */
static int schedule(uint64_t seed)
{
    struct rdzv *r, *follower, *successor;
    struct rdzv_effects fx = {0}, fx2 = {0};
    struct buf delta = {0}, whole = {0};
    int64_t now = 1000;
    int taken = 0;
    random_state = seed;
    struct rdzv_config c = draw_config();
    assert_int_equal(rdzv_create(&r, &c, NULL), 0);
    assert_int_equal(rdzv_create(&follower, &c, NULL), 0);
    for (int i = 0; i < 150; i++) {
        struct rdzv_event ev = draw_event(r);
        now += draw(3) ? draw(300) : draw(4000);
        bool late = rdzv_deadline(r) < now && ev.kind != RDZV_TICK && draw(2);
        if (late)
            ev = (struct rdzv_event){.kind = RDZV_TICK};
        snapshot(r, now, &whole);
        assert_int_equal(rdzv_create(&successor, &c, NULL), 0);
        replay(successor, &whole, now);
        int rc = rdzv_step(r, &ev, now, &fx, NULL);
        assert_int_equal(rdzv_step(successor, &ev, now, &fx2, NULL), rc);
        same_effects(&fx, &fx2);
        same_state(r, successor, now);
        rdzv_destroy(successor);
        taken += rc == 0;
        if (draw(5) == 0)
            continue; /* several steps, one delta */
        buf_clear(&delta);
        assert_int_equal(rdzv_delta(r, now, &delta, NULL), 0);
        replay(follower, &delta, now);
        same_state(r, follower, now);
        buf_clear(&delta);
        assert_int_equal(rdzv_delta(r, now, &delta, NULL), 0);
        assert_int_equal(delta.len, 0); /* nothing has changed since */
    }
    rdzv_destroy(r);
    rdzv_destroy(follower);
    rdzv_effects_free(&fx);
    rdzv_effects_free(&fx2);
    buf_free(&delta);
    buf_free(&whole);
    return taken;
}

static void a_replayed_machine_is_the_machine_at_every_step(void **state)
{
    int taken = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++)
        taken += schedule(seed);
    assert_true(taken > 400 * 30);
}

static void join(struct rdzv *r, const char *node, int64_t now, struct rdzv_effects *fx)
{
    struct rdzv_event ev = {.kind = RDZV_JOIN, .slots = 2, .node_rank = -1};
    snprintf(ev.node, sizeof ev.node, "%s", node);
    assert_int_equal(rdzv_step(r, &ev, now, fx, NULL), 0);
}

static struct rdzv_config plain(int min, int max)
{
    return (struct rdzv_config){.min_nodes = min,
                                .max_nodes = max,
                                .join_timeout_ms = 600000,
                                .last_call_ms = 30000,
                                .silence_ms = 3000,
                                .kill_ms = 1000,
                                .first_round = 1};
}

static void durations_start_anew_with_a_successor(void **state)
{
    struct rdzv *r, *successor;
    struct rdzv_effects fx = {0};
    struct rdzv_config c = plain(1, 2);
    struct rdzv_event silent = {.kind = RDZV_SILENT, .node = "a"};
    struct buf b = {0};
    (void)state;
    assert_int_equal(rdzv_create(&r, &c, NULL), 0);
    assert_int_equal(rdzv_create(&successor, &c, NULL), 0);
    join(r, "a", 0, &fx);
    join(r, "b", 0, &fx);
    assert_int_equal(rdzv_step(r, &silent, 500, &fx, NULL), 0);
    assert_int_equal(rdzv_delta(r, 1500, &b, NULL), 0);
    replay(successor, &b, 9000000);
    assert_int_equal(rdzv_deadline(r), 4500);
    assert_int_equal(rdzv_deadline(successor), 9000000 + 3000);
    rdzv_destroy(r);
    rdzv_destroy(successor);
    rdzv_effects_free(&fx);
    buf_free(&b);
}

/* 10,000 joins: each delta speaks of one node, but the last, which starts the round. */
static void a_delta_is_as_long_as_what_changed(void **state)
{
    enum { NODES = 10000 };
    struct rdzv *r;
    struct rdzv_effects fx = {0};
    struct rdzv_config c = plain(NODES, NODES);
    struct buf b = {0};
    char name[32];
    int64_t t0 = clock_ms();
    (void)state;
    assert_int_equal(rdzv_create(&r, &c, NULL), 0);
    for (int i = 0; i < NODES; i++) {
        snprintf(name, sizeof name, "n%d", i);
        join(r, name, i, &fx);
        buf_clear(&b);
        assert_int_equal(rdzv_delta(r, i, &b, NULL), 0);
        assert_true(b.len < 200 || i == NODES - 1);
    }
    assert_int_equal(fx.n, NODES);
    print_message("# %d nodes join, each logged: %lld ms to the last rank\n", NODES, (long long)(clock_ms() - t0));
    rdzv_destroy(r);
    rdzv_effects_free(&fx);
    buf_free(&b);
}

static void no_memory_for_a_delta_loses_nothing(void **state)
{
    struct rdzv *r, *follower;
    struct rdzv_effects fx = {0};
    struct rdzv_config c = plain(1, 2);
    struct buf small = {.max = 60}, b = {0};
    (void)state;
    assert_int_equal(rdzv_create(&r, &c, NULL), 0);
    assert_int_equal(rdzv_create(&follower, &c, NULL), 0);
    join(r, "a", 0, &fx);
    assert_int_equal(buf_addstr(&small, "before"), 0);
    assert_true(rdzv_delta(r, 0, &small, NULL) < 0);
    assert_string_equal(small.data, "before");
    assert_int_equal(rdzv_delta(r, 0, &b, NULL), 0);
    replay(follower, &b, 0);
    same_state(r, follower, 0);
    rdzv_destroy(r);
    rdzv_destroy(follower);
    rdzv_effects_free(&fx);
    buf_free(&small);
    buf_free(&b);
}

static void corrupt(const char *text, const char *why)
{
    struct rdzv *r;
    struct rdzv_config c = plain(1, 2);
    struct err e = {0};
    assert_int_equal(rdzv_create(&r, &c, NULL), 0);
    assert_int_equal(rdzv_replay(r, text, strlen(text), 0, &e), ERR_CORRUPT);
    assert_string_equal(e.text, why);
    rdzv_destroy(r);
}

static void a_damaged_log_is_refused_by_line(void **state)
{
    (void)state;
    corrupt("machine state=joining", "line 1 has no end");
    corrupt("machine state=joining\nmachin\n", "line 2 'machin': it begins with no word of this log");
    corrupt("machine round=1\n", "line 1 'machine round=1': there is no state=");
    corrupt("node slots=1\n", "line 1 'node slots=1': there is no id=");
    corrupt("node id=a slots=9999\n", "line 1 'node id=a slots=9999': slots=9999: expected a number from 1 to 4096");
    corrupt("machine state=running round=1 group_world=1 world_size=2 begun=1\n",
            "after line 1: 0 members and 0 gone make no group of 1");
    corrupt("restart age=5\n", "after line 1: 1 restarts are remembered without a window");
}

/* Any damage: refused, or a machine that holds its rules and can go on. */
static void damaged_logs_do_no_harm(void **state)
{
    struct rdzv_effects fx = {0};
    struct buf b = {0};
    int taken = 0;
    (void)state;
    random_state = 77;
    for (int i = 0; i < 4000; i++) {
        struct rdzv_config c = draw_config();
        struct rdzv *r;
        assert_int_equal(rdzv_create(&r, &c, NULL), 0);
        int64_t now = 0;
        for (int k = draw(40); k > 0; k--) {
            struct rdzv_event ev = draw_event(r);
            now += draw(1000);
            rdzv_step(r, &ev, now, &fx, NULL);
        }
        snapshot(r, now, &b);
        rdzv_destroy(r);
        for (int k = draw(4); k > 0; k--)
            b.data[draw((int)b.len)] = draw(2) ? (char)draw(256) : "0123456789 =\n"[draw(13)];
        assert_int_equal(rdzv_create(&r, &c, NULL), 0);
        if (rdzv_replay(r, b.data, b.len, now, NULL) == 0) {
            taken++;
            for (int k = 0; k < 20; k++) {
                struct rdzv_event ev = draw_event(r);
                now += draw(1000);
                rdzv_step(r, &ev, now, &fx, NULL);
            }
        }
        rdzv_destroy(r);
    }
    assert_true(taken > 500);
    rdzv_effects_free(&fx);
    buf_free(&b);
}

static void lost_decisions_are_made_up_for(void **state)
{
    struct rdzv *r;
    struct rdzv_effects fx = {0};
    struct rdzv_config c = plain(1, 1);
    struct rdzv_event fail = {.kind = RDZV_FAIL, .node = "a", .round = 10};
    (void)state;
    c.max_restarts = 2;
    for (c.restart_window_ms = 0; c.restart_window_ms <= 5000; c.restart_window_ms += 5000) {
        assert_int_equal(rdzv_create(&r, &c, NULL), 0);
        assert_int_equal(rdzv_raise(r, 9, 2, 100, NULL), 0);
        assert_int_equal(rdzv_raise(r, 3, 1, 100, NULL), 0);
        join(r, "a", 100, &fx);
        assert_int_equal(rdzv_round(r), 10);
        assert_int_equal(rdzv_restarts(r), 2);
        assert_int_equal(rdzv_raise(r, 9, 7, 100, NULL), 0);
        assert_int_equal(rdzv_check(r, NULL), 0);
        assert_int_equal(rdzv_step(r, &fail, 200, &fx, NULL), 0);
        assert_int_equal(rdzv_state(r), RDZV_FAILED);
        rdzv_destroy(r);
    }
    rdzv_effects_free(&fx);
}

struct seen {
    char text[256];
    int stop_at;
};

static int see(void *arg, const struct rdzv_member *m)
{
    struct seen *s = arg;
    size_t n = strlen(s->text);
    snprintf(s->text + n, sizeof s->text - n, "%s %d %d+%d%s%s; ", m->node, m->group_rank, m->rank_base, m->slots,
             m->member ? " member" : "", m->ready ? " ready" : "");
    return s->stop_at > 0 && --s->stop_at == 0 ? 7 : 0;
}

static void members_are_visited_in_the_order_of_their_ranks(void **state)
{
    struct rdzv *r;
    struct rdzv_effects fx = {0};
    struct rdzv_config c = plain(2, 2);
    struct seen all = {0}, one = {.stop_at = 1};
    (void)state;
    assert_int_equal(rdzv_create(&r, &c, NULL), 0);
    assert_int_equal(rdzv_members(r, see, &all), 0);
    join(r, "n10", 0, &fx);
    join(r, "n9", 0, &fx);
    struct rdzv_event spare = {.kind = RDZV_JOIN, .node = "spare", .slots = 2, .node_rank = -1, .waits = true};
    assert_int_equal(rdzv_step(r, &spare, 0, &fx, NULL), 0);
    assert_int_equal(rdzv_members(r, see, &all), 0);
    assert_string_equal(all.text, "n9 0 0+2 member; n10 1 2+2 member; spare -1 -1+2 ready; ");
    assert_int_equal(rdzv_members(r, see, &one), 7);
    assert_string_equal(one.text, "n9 0 0+2 member; ");
    rdzv_destroy(r);
    rdzv_effects_free(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replayed_machine_is_the_machine_at_every_step),
        cmocka_unit_test(durations_start_anew_with_a_successor),
        cmocka_unit_test(a_delta_is_as_long_as_what_changed),
        cmocka_unit_test(no_memory_for_a_delta_loses_nothing),
        cmocka_unit_test(a_damaged_log_is_refused_by_line),
        cmocka_unit_test(damaged_logs_do_no_harm),
        cmocka_unit_test(lost_decisions_are_made_up_for),
        cmocka_unit_test(members_are_visited_in_the_order_of_their_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
