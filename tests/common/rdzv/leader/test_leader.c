/* The leader of a run id, without any home: what it makes of events and of its own decisions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/rdzv/leader/leader.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { SILENCE = 3000, KILL = 1000 };

static int64_t now = 1000000, wall = 1764000000000;
static uint64_t drawn;

static int64_t tell_wall(void)
{
    return wall;
}

static struct leader *make(void)
{
    struct leader *l;
    struct err e;
    const struct leader_options o = {.run = "r", .principal = "alice", .wall_ms = tell_wall};
    if (leader_create(&l, &o, &e) < 0)
        fail_msg("%s", e.text);
    return l;
}

static struct rdzv_config settings(int min, int max, int restarts)
{
    struct rdzv_config c;
    rdzv_config_defaults(&c);
    c.min_nodes = min;
    c.max_nodes = max;
    c.max_restarts = restarts;
    c.last_call_ms = 0;
    return c;
}

static int join_as(struct leader *l, const char *node, const struct rdzv_config *c, uint64_t round,
                   const char *instance)
{
    struct rdzv_event ev = {.kind = RDZV_JOIN, .round = round, .slots = 1, .node_rank = -1, .port = 1};
    snprintf(ev.node, sizeof ev.node, "%s", node);
    snprintf(ev.addr, sizeof ev.addr, "10.0.0.1");
    const struct leader_event ask = {
        .kind = LEADER_ASK, .ask = &ev, .settings = c, .instance = instance, .draw = ++drawn};
    return leader_step(l, &ask, now, NULL);
}

static int say(struct leader *l, enum rdzv_event_kind kind, const char *node, uint64_t round)
{
    struct rdzv_event ev = {.kind = kind, .round = round, .cause = {.exit_code = 7, .rank = 0}};
    snprintf(ev.node, sizeof ev.node, "%s", node);
    return leader_step(l, &(struct leader_event){.kind = LEADER_ASK, .ask = &ev}, now, NULL);
}

static void event(struct leader *l, enum leader_event_kind kind, const char *node)
{
    assert_int_equal(leader_step(l, &(struct leader_event){.kind = kind, .node = node}, now, NULL), 0);
}

static void pass(struct leader *l, int64_t ms)
{
    for (int64_t until = now + ms; now < until;) {
        now += 100;
        event(l, LEADER_TICK, NULL);
    }
}

static const struct rdzv_news *news(const struct leader *l, const char *node)
{
    static const struct rdzv_news none;
    const struct leader_member *m = leader_find(l, node);
    return m && m->has_news ? &m->news : &none;
}

/* Another leader, from what this one has decided. */
static struct leader *succeed(struct leader *before, struct buf *log)
{
    struct leader *l = make();
    struct err e = {0};
    leader_destroy(before);
    if (leader_replay(l, log->data, log->len, now, &e) < 0 || leader_restore(l, now, 0, &e) < 0)
        fail_msg("%s", e.text);
    return l;
}

static void decide(struct leader *l, struct buf *log)
{
    assert_true(leader_undecided(l));
    assert_int_equal(leader_decide(l, now, false, log, NULL), 0);
    assert_false(leader_undecided(l));
}

/* Both nodes of a job died with their leader; the same run id is started again. */
static struct leader *rerun_of_the_dead(int restarts, struct rdzv_config *ret)
{
    struct buf log = {0};
    struct leader *l = make();
    *ret = settings(2, 2, restarts);
    assert_int_equal(join_as(l, "old1", ret, 0, ""), 0);
    assert_int_equal(join_as(l, "old2", ret, 0, ""), 0);
    assert_int_equal(news(l, "old1")->kind, RDZV_NEWS_ROUND);
    decide(l, &log);
    l = succeed(l, &log);
    buf_free(&log);
    return l;
}

static void a_rerun_of_a_job_whose_nodes_are_dead_is_a_new_job(void **state)
{
    (void)state;
    for (int restarts = 0; restarts < 2; restarts++) {
        struct rdzv_config c, other = settings(2, 2, 5);
        struct leader *l = rerun_of_the_dead(restarts, &c);
        assert_int_equal(join_as(l, "new1", &other, 0, ""), -EAGAIN);
        pass(l, SILENCE + KILL - 200);
        assert_int_equal(join_as(l, "new1", &other, 0, ""), -EAGAIN);
        pass(l, 400);
        assert_int_equal(join_as(l, "new1", &other, 0, ""), 0);
        assert_int_equal(join_as(l, "new2", &other, 0, ""), 0);
        assert_int_equal(news(l, "new1")->kind, RDZV_NEWS_ROUND);
        assert_int_equal(news(l, "new1")->round, 1);
        assert_int_equal(news(l, "new1")->restart_count, 0);
        leader_destroy(l);
    }
}

/* One of them lives: then it is that job, and who joins is a new node of it. */
static void a_job_that_one_node_is_left_of_goes_on(void **state)
{
    struct rdzv_config c;
    struct leader *l = rerun_of_the_dead(1, &c);
    (void)state;
    assert_int_equal(join_as(l, "new1", &c, 0, ""), -EAGAIN);
    event(l, LEADER_HEARD, "old1");
    assert_int_equal(join_as(l, "new1", &c, 0, ""), 0); /* old2 may live: it waits */
    for (int i = 0; i < 50; i++) {
        pass(l, 100);
        event(l, LEADER_HEARD, "old1");
        join_as(l, "new1", &c, 0, "");
    }
    assert_int_equal(news(l, "old1")->kind, RDZV_NEWS_STOP);
    assert_int_equal(join_as(l, "old1", &c, 1, leader_instance(l)), 0);
    assert_int_equal(news(l, "new1")->kind, RDZV_NEWS_ROUND);
    assert_int_equal(news(l, "new1")->round, 2);
    assert_int_equal(news(l, "new1")->restart_count, 1);
    leader_destroy(l);
}

/* The answers to all its JOINs were lost, but it has heard of a round: of which job, it does not know. */
static void a_round_without_an_instance_proves_no_part_in_a_job(void **state)
{
    struct rdzv_config c;
    struct leader *l = rerun_of_the_dead(1, &c);
    (void)state;
    assert_int_equal(join_as(l, "new1", &c, 1, ""), -EAGAIN);
    event(l, LEADER_HEARD, "old1");
    assert_int_equal(join_as(l, "new1", &c, 1, ""), 0);
    leader_destroy(l);
}

static struct leader *failed_job(struct rdzv_config *c)
{
    struct leader *l = make();
    *c = settings(2, 2, 0);
    join_as(l, "a", c, 0, "");
    join_as(l, "b", c, 0, "");
    assert_int_equal(say(l, RDZV_FAIL, "b", 1), 0);
    assert_true(leader_is_over(l));
    return l;
}

static void restarts_are_not_carried_into_the_next_instance(void **state)
{
    struct rdzv_config c, more = settings(1, 1, 3);
    struct leader *l = failed_job(&c);
    (void)state;
    event(l, LEADER_GONE, "a");
    event(l, LEADER_GONE, "b");
    assert_int_equal(join_as(l, "x", &more, 0, ""), 0);
    assert_int_equal(news(l, "x")->kind, RDZV_NEWS_ROUND);
    assert_int_equal(news(l, "x")->round, 1);
    assert_int_equal(news(l, "x")->restart_count, 0);
    leader_destroy(l);
}

static void elders_are_waited_for_as_long_as_they_are_heard(void **state)
{
    struct rdzv_config c, one = settings(1, 1, 0);
    struct leader *l = failed_job(&c);
    (void)state;
    event(l, LEADER_GONE, "b");
    assert_int_equal(join_as(l, "x", &one, 0, ""), 0);
    for (int i = 0; i < 80; i++) { /* its workers take 8 s to stop */
        pass(l, 100);
        event(l, LEADER_HEARD, "a");
        event(l, LEADER_HEARD, "x");
        assert_int_equal(news(l, "x")->kind, 0);
    }
    event(l, LEADER_GONE, "a");
    event(l, LEADER_HEARD, "x");
    event(l, LEADER_TICK, NULL);
    assert_int_equal(news(l, "x")->kind, RDZV_NEWS_ROUND);
    leader_destroy(l);
}

static void an_elder_that_falls_silent_is_waited_for_until_its_workers_are_dead(void **state)
{
    struct rdzv_config c, one = settings(1, 1, 0);
    struct leader *l = failed_job(&c);
    struct buf log = {0};
    (void)state;
    event(l, LEADER_GONE, "b");
    assert_int_equal(join_as(l, "x", &one, 0, ""), 0);
    decide(l, &log);
    pass(l, 2000);
    l = succeed(l, &log); /* who leads next waits as well: it does not know how long has passed */
    event(l, LEADER_HEARD, "x");
    pass(l, 2900);
    event(l, LEADER_HEARD, "x");
    pass(l, KILL);
    assert_int_equal(news(l, "x")->kind, 0);
    event(l, LEADER_HEARD, "x");
    pass(l, 200);
    assert_int_equal(news(l, "x")->kind, RDZV_NEWS_ROUND);
    buf_free(&log);
    leader_destroy(l);
}

/* The instance of "a" and "b" has failed while they worked; "c" begins the next. */
static struct leader *begin_next(const struct rdzv_config *c, struct buf *log)
{
    struct leader *l = make();
    assert_int_equal(join_as(l, "a", c, 0, NULL), 0);
    assert_int_equal(join_as(l, "b", c, 0, NULL), 0);
    assert_int_equal(news(l, "a")->kind, RDZV_NEWS_ROUND);
    assert_int_equal(say(l, RDZV_FAIL, "a", news(l, "a")->round), 0);
    assert_true(leader_is_over(l));
    for (const char *const *node = (const char *const[]){"a", "b", NULL}; *node; node++) {
        event(l, LEADER_TOLD, *node);
        leader_step(l, &(struct leader_event){.kind = LEADER_SEEN, .node = *node, .seq = UINT64_MAX}, now, NULL);
    }
    assert_int_equal(join_as(l, "c", c, 0, NULL), 0);
    decide(l, log);
    return l;
}

static void an_elder_that_has_joined_is_none_after_a_restart(void **state)
{
    const struct rdzv_config c = settings(2, 2, 0);
    struct buf log = {0};
    struct leader *l = begin_next(&c, &log);
    (void)state;
    assert_true(leader_find(l, "b")->elder);
    assert_int_equal(join_as(l, "b", &c, 0, NULL), 0);
    decide(l, &log);
    l = succeed(l, &log);
    assert_false(leader_find(l, "b")->elder);
    assert_true(leader_find(l, "a")->elder);
    leader_destroy(l);
    buf_free(&log);
}

static void news_of_the_next_instance_are_numbered_above_those_before_also_after_a_restart(void **state)
{
    const struct rdzv_config c = settings(2, 2, 0);
    struct buf log = {0};
    struct leader *l = begin_next(&c, &log);
    (void)state;
    const uint64_t before = leader_find(l, "b")->seq;
    assert_true(before >= 2);
    assert_int_equal(join_as(l, "b", &c, 0, NULL), 0);
    decide(l, &log);
    l = succeed(l, &log);
    assert_int_equal(join_as(l, "b", &c, 0, NULL), 0);
    assert_int_equal(join_as(l, "c", &c, 0, NULL), 0);
    for (int i = 0; i < 100 && news(l, "b")->kind != RDZV_NEWS_ROUND; i++) {
        event(l, LEADER_HEARD, "b");
        event(l, LEADER_HEARD, "c");
        pass(l, 100);
    }
    assert_true(leader_find(l, "b")->seq > before);
    leader_destroy(l);
    buf_free(&log);
}

/* It was killed while it waited, and its leader with it: the round is of those that are heard. */
static void who_waited_for_the_first_round_counts_only_once_it_is_heard(void **state)
{
    struct rdzv_config c = settings(2, 2, 0);
    (void)state;
    for (int lives = 0; lives < 2; lives++) {
        struct buf log = {0};
        struct leader *l = make();
        assert_int_equal(join_as(l, "old", &c, 0, ""), 0);
        decide(l, &log);
        l = succeed(l, &log);
        assert_int_equal(join_as(l, "new1", &c, 0, ""), 0);
        assert_int_equal(news(l, "new1")->kind, 0);
        if (lives)
            event(l, LEADER_HEARD, "old");
        else
            assert_int_equal(join_as(l, "new2", &c, 0, ""), 0);
        assert_int_equal(news(l, "new1")->kind, RDZV_NEWS_ROUND);
        assert_int_equal(news(l, "old")->kind, lives ? RDZV_NEWS_ROUND : 0);
        leader_destroy(l);
        buf_free(&log);
    }
}

/* The news that one of two is dead may be on its way when its successor joins. */
static void a_full_job_is_known_to_be_full_once_all_members_were_heard_again(void **state)
{
    struct rdzv_config c = settings(2, 2, 3);
    (void)state;
    for (int lives = 0; lives < 2; lives++) {
        struct leader *l = make();
        join_as(l, "a", &c, 0, "");
        join_as(l, "b", &c, 0, "");
        assert_int_equal(join_as(l, "c", &c, 0, ""), -EAGAIN);
        pass(l, 100);
        event(l, LEADER_HEARD, "a");
        assert_int_equal(join_as(l, "c", &c, 0, ""), -EAGAIN);
        event(l, lives ? LEADER_HEARD : LEADER_LOST, "b");
        assert_int_equal(join_as(l, "c", &c, 0, ""), 0);
        assert_int_equal(news(l, "c")->kind, lives ? RDZV_NEWS_END : 0);
        assert_int_equal(news(l, "c")->exit_code, lives ? EXIT_UNAVAILABLE : 0);
        leader_destroy(l);
    }
}

/* Two tasks on each node of a Slurm step: the second ones must not run the program again. */
static void who_found_all_places_taken_begins_no_job_when_that_one_has_succeeded(void **state)
{
    struct rdzv_config c = settings(2, 2, 0);
    (void)state;
    for (int succeeds = 0; succeeds < 2; succeeds++) {
        struct leader *l = make();
        join_as(l, "a", &c, 0, "");
        join_as(l, "b", &c, 0, "");
        assert_int_equal(join_as(l, "c", &c, 0, ""), -EAGAIN);
        assert_int_equal(say(l, succeeds ? RDZV_DONE : RDZV_FAIL, "a", 1), 0);
        assert_int_equal(say(l, RDZV_DONE, "b", 1), 0);
        assert_true(leader_is_over(l));
        assert_int_equal(join_as(l, "c", &c, 0, ""), 0);
        assert_int_equal(news(l, "c")->kind, succeeds ? RDZV_NEWS_END : 0);
        assert_int_equal(news(l, "c")->exit_code, succeeds ? EXIT_UNAVAILABLE : 0);
        assert_int_equal(join_as(l, "d", &c, 0, ""), 0); /* it came after the end: the next job */
        assert_int_equal(news(l, "d")->kind, 0);
        assert_false(leader_is_over(l));
        leader_destroy(l);
    }
}

static void who_takes_over_knows_job_and_news(void **state)
{
    struct rdzv_config c = settings(2, 2, 3);
    struct leader *l = make();
    struct buf log = {0}, first = {0}, second = {0};
    (void)state;
    join_as(l, "a", &c, 0, "");
    decide(l, &log);
    join_as(l, "b", &c, 0, "");
    assert_int_equal(say(l, RDZV_FAIL, "a", 1), 0);
    decide(l, &log);
    assert_int_equal(leader_text(l, now, &first, NULL), 0);
    l = succeed(l, &log);
    event(l, LEADER_HEARD, "a");
    event(l, LEADER_HEARD, "b");
    assert_int_equal(leader_text(l, now, &second, NULL), 0);
    assert_string_equal(first.data, second.data);
    assert_int_equal(leader_find(l, "a")->news.kind, RDZV_NEWS_STOP);
    leader_destroy(l);
    buf_free(&log);
    buf_free(&first);
    buf_free(&second);
}

/* As a log may have it that was written by a version that lost the name. */
static void a_job_without_a_name_is_not_that_of_who_joins(void **state)
{
    struct rdzv_config c = settings(1, 1, 0);
    struct leader *l = make();
    const char *text = "@job format=2 run= principal= instance= v=1 nnodes=1:1\n"
                       "machine state=succeeded begun=1 group_world=1 world_size=1 done=1 round=1\n";
    struct err e = {0};
    (void)state;
    if (leader_replay(l, text, strlen(text), now, &e) < 0 || leader_restore(l, now, 0, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(join_as(l, "two", &c, 0, ""), 0);
    assert_int_equal(news(l, "two")->kind, RDZV_NEWS_ROUND);
    leader_destroy(l);
}

/* What people look at, as JSON. */
static void a_cause_is_told_whole_and_as_utf8(void **state)
{
    struct rdzv_config c = settings(1, 1, 1);
    struct leader *l = make();
    struct rdzv_event ev = {.kind = RDZV_FAIL, .round = 1, .node = "n", .cause = {.exit_code = 7, .rank = 0}};
    char expected[512];
    (void)state;
    assert_int_equal(join_as(l, "n", &c, 0, ""), 0);
    snprintf(ev.cause.text, sizeof ev.cause.text, "%0240d Z\xc3\xbcrich \xc3", 1); /* cut by who reports it */
    assert_int_equal(leader_step(l, &(struct leader_event){.kind = LEADER_ASK, .ask = &ev}, now, NULL), 0);
    const struct leader_history *h = leader_history(l);
    bool told = false;
    snprintf(expected, sizeof expected, "node n reports a failure: %0240d Z\xc3\xbcrich ?", 1);
    for (uint64_t i = 0; i < h->event_count; i++)
        told = told || strcmp(h->events[i].text, expected) == 0;
    assert_true(told);
    assert_int_equal(h->restart_count, 1);
    assert_string_equal(h->restarts[0].cause.text, strchr(expected, '0'));
    leader_destroy(l);
}

static void another_format_is_refused_with_a_sentence(void **state)
{
    struct leader *l = make();
    struct err e = {0};
    const char *text = "@job format=4 run=r principal= instance=1 v=1 nnodes=1:1\n";
    (void)state;
    assert_int_equal(leader_replay(l, text, strlen(text), now, &e), ERR_MISMATCH);
    assert_string_equal(e.text, "its format is 4, but this program reads formats 2 and 3");
    text = "@job format=1 run=r principal= instance=1 v=1 nnodes=1:1\n";
    assert_int_equal(leader_replay(l, text, strlen(text), now, &e), ERR_MISMATCH);
    text = "D epoch=1-x holder=node0 home=folder instance=5\n"; /* as crun once wrote it */
    assert_int_equal(leader_replay(l, text, strlen(text), now, &e), ERR_CORRUPT);
    leader_destroy(l);
}

/* What a leader acknowledged whose claim still held when ours was made may last so much longer. */
static void nobody_is_given_up_before_the_grace_is_over(void **state)
{
    struct rdzv_config c = settings(1, 2, 3);
    struct buf log = {0};
    struct err e = {0};
    (void)state;
    for (int64_t grace = 0; grace <= 1500; grace += 1500) {
        struct leader *l = make();
        join_as(l, "a", &c, 0, "");
        join_as(l, "b", &c, 0, "");
        decide(l, &log);
        leader_destroy(l);
        l = make();
        if (leader_replay(l, log.data, log.len, now, &e) < 0 || leader_restore(l, now, grace, &e) < 0)
            fail_msg("%s", e.text);
        for (int64_t ms = 0; ms < SILENCE + KILL + grace - 100; ms += 100) {
            event(l, LEADER_HEARD, "a");
            pass(l, 100);
            assert_int_equal(rdzv_nodes(leader_machine(l)), 2);
        }
        event(l, LEADER_HEARD, "a");
        pass(l, 200);
        assert_int_equal(news(l, "a")->kind, RDZV_NEWS_STOP);
        leader_destroy(l);
        buf_clear(&log);
    }
    buf_free(&log);
}

/* Until the end of a hold, too, an answer moves a node's lease. */
static void who_is_heard_until_a_hold_ends_has_a_silence_and_a_kill(void **state)
{
    const struct rdzv_config c = settings(1, 2, 3);
    struct buf log = {0};
    struct leader *l = make();
    (void)state;
    join_as(l, "a", &c, 0, "");
    join_as(l, "b", &c, 0, "");
    decide(l, &log);
    l = succeed(l, &log);
    leader_hold(l, now + 5000, now);
    for (int i = 0; i < 50; i++) {
        event(l, LEADER_HEARD, "b");
        pass(l, 100);
    }
    for (int64_t ms = 0; ms < SILENCE + KILL - 100; ms += 100) {
        event(l, LEADER_HEARD, "a");
        pass(l, 100);
        assert_int_equal(rdzv_nodes(leader_machine(l)), 2);
    }
    event(l, LEADER_HEARD, "a");
    pass(l, 200);
    assert_int_equal(rdzv_nodes(leader_machine(l)), 1);
    leader_destroy(l);
    buf_free(&log);
}

/* Though nobody says a word, and nobody is given up then: the next leader must not hold once more. */
static void the_end_of_a_hold_is_a_decision(void **state)
{
    const struct rdzv_config c = settings(1, 2, 3);
    struct buf log = {0};
    struct leader *l = make();
    (void)state;
    join_as(l, "a", &c, 0, "");
    join_as(l, "b", &c, 0, "");
    decide(l, &log);
    l = succeed(l, &log);
    leader_hold(l, now + 5000, now);
    assert_int_equal(leader_deadline(l), now + 5000);
    pass(l, 5000);
    assert_true(leader_undecided(l));
    assert_int_equal(rdzv_nodes(leader_machine(l)), 2);
    assert_true(leader_deadline(l) > now);
    leader_destroy(l);
    buf_free(&log);
}

/* Nodes of a lost instance were taken into this one, which is over: another of them must not begin it again. */
static void a_successor_knows_whose_end_it_is(void **state)
{
    const struct rdzv_config c = settings(2, 3, 3);
    const struct rdzv_event drain = {.kind = RDZV_DRAIN, .cause.rank = -1};
    const char *lost = "00000000000000aa";
    struct buf log = {0};
    struct leader *l = make();
    char instance[LEADER_INSTANCE_LEN + 1];
    (void)state;
    assert_int_equal(join_as(l, "new", &c, 0, ""), 0);
    decide(l, &log);
    assert_int_equal(join_as(l, "survivor", &c, 5, lost), 0);
    decide(l, &log);
    l = succeed(l, &log);
    assert_int_equal(leader_step(l, &(struct leader_event){.kind = LEADER_DRAIN, .ask = &drain}, now, NULL), 0);
    assert_true(leader_is_over(l));
    snprintf(instance, sizeof instance, "%s", leader_instance(l));
    assert_int_equal(join_as(l, "late", &c, 5, lost), 0);
    assert_string_equal(leader_instance(l), instance);
    assert_int_equal(news(l, "late")->kind, RDZV_NEWS_END);
    leader_destroy(l);
    buf_free(&log);
}

/* Until version 0.1 members asked by numbers in a Redis and in a folder. */
static void answers_of_older_logs_are_passed_over(void **state)
{
    struct leader *l = make();
    const char *text =
        "@reign epoch=1-x holder=node0 home=folder\n@job format=2 run=r principal= instance=5 v=1 nnodes=1:1\n"
        "machine state=joining\n@answer host_node=a inc=1 instance=5 q=1 answer=ok\n";
    struct err e = {0};
    (void)state;
    if (leader_replay(l, text, strlen(text), now, &e) < 0)
        fail_msg("%s", e.text);
    leader_destroy(l);
}

/* Its leader decided nothing for an hour, and was killed; a minute later another one leads. Whether elders may live is
 * no matter for a wall clock. */
static void a_job_is_as_old_under_its_next_leader(void **state)
{
    const struct rdzv_config c = settings(1, 1, 0);
    struct leader *l = make();
    struct buf log = {0};
    (void)state;
    assert_int_equal(join_as(l, "a", &c, 0, ""), 0);
    decide(l, &log);
    wall += 3660000;
    l = succeed(l, &log);
    assert_int_equal(now - leader_history(l)->started_ms, 3660000);
    assert_int_equal(now - leader_history(l)->counted_ms, 0);
    buf_clear(&log);
    assert_int_equal(leader_text(l, now, &log, NULL), 0);
    wall -= 7200000; /* the next machine's clock is wrong: no job is younger for that */
    l = succeed(l, &log);
    assert_int_equal(now - leader_history(l)->started_ms, 3660000);
    leader_destroy(l);
    buf_free(&log);
}

/* The leader's only address that its JOIN names is of no use elsewhere. reached: ours, as the second node has it. */
static const char *address_elsewhere(const char *addrs, const char *reached)
{
    static char found[RDZV_ADDR_MAX + 1];
    const struct rdzv_config c = settings(2, 2, 0);
    struct leader *l = make();
    struct rdzv_event first = {.kind = RDZV_JOIN, .node = "a", .slots = 1, .node_rank = -1, .addr = "127.0.0.1"},
                      second = {.kind = RDZV_JOIN, .node = "b", .slots = 1, .node_rank = -1, .addr = "10.0.0.2"};
    snprintf(first.addrs, sizeof first.addrs, "%s", addrs);
    leader_step(l, &(struct leader_event){.kind = LEADER_ASK, .ask = &first, .settings = &c, .draw = 1}, now, NULL);
    leader_step(
        l, &(struct leader_event){.kind = LEADER_ASK, .ask = &second, .settings = &c, .draw = 2, .reached = reached},
        now, NULL);
    assert_int_equal(news(l, "b")->kind, RDZV_NEWS_ROUND);
    snprintf(found, sizeof found, "%s", news(l, "b")->leader_addr);
    leader_destroy(l);
    return found;
}

static void nodes_elsewhere_get_an_address_that_they_reach(void **state)
{
    (void)state;
    assert_string_equal(address_elsewhere("127.0.0.1,,10.0.0.7,10.0.0.8", NULL), "10.0.0.7");
    assert_string_equal(address_elsewhere("127.0.0.1,10.0.0.7", "10.9.9.9"), "10.9.9.9");
    assert_string_equal(address_elsewhere("127.0.0.1,::1", NULL), "127.0.0.1"); /* there is no better one */
    assert_true(leader_lists_address("10.0.0.1,10.0.0.11", "10.0.0.11"));
    assert_false(leader_lists_address("10.0.0.1,10.0.0.11", "10.0.0.12"));
    assert_false(leader_lists_address("10.0.0.1,,10.0.0.2", ""));
}

static void who_asks_again_is_told_the_end_again(void **state)
{
    const struct rdzv_config c = settings(1, 1, 0);
    struct leader *l = make();
    (void)state;
    join_as(l, "a", &c, 0, "");
    say(l, RDZV_DONE, "a", 1);
    assert_int_equal(news(l, "a")->kind, RDZV_NEWS_END);
    event(l, LEADER_TOLD, "a");
    while (leader_next_fresh(l))
        ;
    assert_int_equal(join_as(l, "a", &c, 0, leader_instance(l)), 0);
    assert_ptr_equal(leader_next_fresh(l), leader_find(l, "a"));
    leader_destroy(l);
}

/* Numbers of a log that no clock has been at. */
static void an_age_beyond_all_times_is_passed_over(void **state)
{
#define JOB "@job format=2 run=r principal=alice instance=1 v=1 nnodes=1:1\n"
    static const char *const logs[] = {JOB "@age ms=9223372036854775807\n", JOB "@age ms=-1\n",
                                       JOB "@age at=1 ms=9223372036854775807\n",
                                       JOB "@age at=9223372036854775807 ms=0\n"};
    (void)state;
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        struct leader *l = make();
        struct err e;
        if (leader_replay(l, logs[i], strlen(logs[i]), now, &e) < 0)
            fail_msg("%s", e.text);
        assert_in_range(leader_history(l)->started_ms, 0, now);
        leader_destroy(l);
    }
}

static void a_line_of_no_known_kind_is_refused(void **state)
{
    static const char text[] = "@wonder node=a\n";
    struct leader *l = make();
    struct err e;
    (void)state;
    assert_int_equal(leader_replay(l, text, strlen(text), now, &e), ERR_CORRUPT);
    assert_string_equal(e.text, "a line begins with '@wonder node=a', which no version writes");
    leader_destroy(l);
}

/* --- any order of events */

static uint32_t dice = 1;

static uint32_t draw(uint32_t below)
{
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 8) % below;
}

static void any_event(struct leader *l, const struct rdzv_config *c)
{
    static const char *const nodes[] = {"n1", "n2", "n3", "n4", "n5"};
    const uint64_t round = leader_machine(l) ? rdzv_round(leader_machine(l)) : 0;
    const char *node = nodes[draw(5)];
    const struct leader_member *m = leader_find(l, node);
    const struct rdzv_event drain = {.kind = RDZV_DRAIN, .cause.rank = -1};
    now += draw(4) ? draw(300) : draw(6000);
    switch (draw(12)) {
    case 0:
    case 1:
    case 2:
        join_as(l, node, c, draw(2) ? round : 0, draw(4) ? leader_instance(l) : "00000000000000ff");
        break;
    case 3:
        say(l, draw(2) ? RDZV_FAIL : RDZV_LEAVE, node, round);
        break;
    case 4:
    case 5:
        say(l, RDZV_DONE, node, round);
        break;
    case 6:
        leader_step(l, &(struct leader_event){.kind = LEADER_SEEN, .node = node, .seq = m ? m->seq : 0}, now, NULL);
        break;
    case 7:
        if (draw(30) == 0)
            leader_step(l, &(struct leader_event){.kind = LEADER_DRAIN, .ask = &drain}, now, NULL);
        break;
    case 8:
        if (draw(30) == 0)
            leader_hold(l, now + 5000, now);
        break;
    default:
        event(l, draw(3) ? LEADER_HEARD : draw(3) ? LEADER_TOLD : draw(2) ? LEADER_GONE : LEADER_LOST, node);
    }
    event(l, LEADER_TICK, NULL);
}

/* Nor does a successor that reads the decisions, which it says on the way. */
static void no_order_of_events_breaks_a_rule(void **state)
{
    uint64_t rounds = 0;
    (void)state;
    for (int life = 0; life < 400; life++) {
        const struct rdzv_config c = settings(1 + (int)draw(2), 2 + (int)draw(2), 2);
        struct leader *l = make();
        struct buf log = {0};
        for (int i = 0; i < 150; i++) {
            struct err e = {0};
            any_event(l, &c);
            if (leader_check(l, &e) < 0)
                fail_msg("event %d of life %d: %s", i, life, e.text);
            assert_string_equal(leader_machine(l) ? rdzv_broken(leader_machine(l)) : "", "");
            if (leader_undecided(l))
                decide(l, &log);
            if (draw(40) == 0)
                l = succeed(l, &log);
            while (leader_next_fresh(l))
                ;
        }
        rounds += leader_machine(l) ? rdzv_round(leader_machine(l)) : 0;
        leader_destroy(l);
        buf_free(&log);
    }
    assert_true(rounds > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_is_as_old_under_its_next_leader),
        cmocka_unit_test(a_rerun_of_a_job_whose_nodes_are_dead_is_a_new_job),
        cmocka_unit_test(a_job_that_one_node_is_left_of_goes_on),
        cmocka_unit_test(a_round_without_an_instance_proves_no_part_in_a_job),
        cmocka_unit_test(restarts_are_not_carried_into_the_next_instance),
        cmocka_unit_test(elders_are_waited_for_as_long_as_they_are_heard),
        cmocka_unit_test(an_elder_that_falls_silent_is_waited_for_until_its_workers_are_dead),
        cmocka_unit_test(an_elder_that_has_joined_is_none_after_a_restart),
        cmocka_unit_test(news_of_the_next_instance_are_numbered_above_those_before_also_after_a_restart),
        cmocka_unit_test(who_waited_for_the_first_round_counts_only_once_it_is_heard),
        cmocka_unit_test(a_full_job_is_known_to_be_full_once_all_members_were_heard_again),
        cmocka_unit_test(who_found_all_places_taken_begins_no_job_when_that_one_has_succeeded),
        cmocka_unit_test(who_takes_over_knows_job_and_news),
        cmocka_unit_test(nobody_is_given_up_before_the_grace_is_over),
        cmocka_unit_test(who_is_heard_until_a_hold_ends_has_a_silence_and_a_kill),
        cmocka_unit_test(the_end_of_a_hold_is_a_decision),
        cmocka_unit_test(a_successor_knows_whose_end_it_is),
        cmocka_unit_test(answers_of_older_logs_are_passed_over),
        cmocka_unit_test(a_job_without_a_name_is_not_that_of_who_joins),
        cmocka_unit_test(a_cause_is_told_whole_and_as_utf8),
        cmocka_unit_test(another_format_is_refused_with_a_sentence),
        cmocka_unit_test(nodes_elsewhere_get_an_address_that_they_reach),
        cmocka_unit_test(who_asks_again_is_told_the_end_again),
        cmocka_unit_test(an_age_beyond_all_times_is_passed_over),
        cmocka_unit_test(a_line_of_no_known_kind_is_refused),
        cmocka_unit_test(no_order_of_events_breaks_a_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
