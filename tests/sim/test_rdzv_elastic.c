/* Who is in a round and in which order; when a failed job goes on at once, when it waits and when it ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "tests/sim/scenario.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct rdzv_event join_event(const char *node, int node_rank, const char *role, int slots)
{
    struct rdzv_event ev = {.kind = RDZV_JOIN, .node_rank = node_rank, .slots = slots};
    snprintf(ev.node, sizeof ev.node, "%s", node);
    snprintf(ev.role, sizeof ev.role, "%s", role);
    return ev;
}

/* A node of --spare. */
static void waits(struct job *j, const char *node, int node_rank)
{
    struct rdzv_event ev = join_event(node, node_rank, "", 1);
    ev.waits = true;
    assert_int_equal(step_event(j, &ev), 0);
}

static void joins(struct job *j, const char *node, int node_rank, uint64_t round)
{
    struct rdzv_event ev = join_event(node, node_rank, "", 1);
    ev.round = round;
    assert_int_equal(step_event(j, &ev), 0);
}

struct list {
    char text[256];
};

static int add_member(void *arg, const struct rdzv_member *m)
{
    struct list *l = arg;
    size_t n = strlen(l->text);
    snprintf(l->text + n, sizeof l->text - n, "%s%s", n ? " " : "", m->member ? m->node : "-");
    return 0;
}

/* Members in the order of their ranks; '-' for each spare. */
static void members_are(const struct job *j, const char *expected)
{
    struct list l = {""};
    assert_int_equal(rdzv_members(j->r, add_member, &l), 0);
    assert_string_equal(l.text, expected);
}

static void ranks_follow_the_numbers_that_users_gave(void **state)
{
    struct rdzv_config c = job_config(4, 4, 3);
    c.order = RDZV_ORDER_NODE_RANK;
    struct job j = begin_with(&c);
    (void)state;
    joins(&j, "z", 3, 0);
    joins(&j, "b", -1, 0);
    joins(&j, "y", 10, 0);
    joins(&j, "x", 0, 0);
    members_are(&j, "x z y b");
    assert_int_equal(step(&j, RDZV_GONE, "x", 0, 1), 0);
    joins(&j, "z", 3, 1);
    joins(&j, "b", -1, 1);
    joins(&j, "y", 10, 1);
    joins(&j, "w", 5, 0); /* in the middle, where its number says */
    members_are(&j, "z w y b");
    end(&j);
}

static void a_spare_displaces_nobody_whatever_its_number(void **state)
{
    struct rdzv_config c = job_config(2, 2, 3);
    c.order = RDZV_ORDER_NODE_RANK;
    struct job j = begin_with(&c);
    (void)state;
    joins(&j, "b", 5, 0);
    joins(&j, "c", 6, 0);
    waits(&j, "a", 0);
    members_are(&j, "b c -");
    assert_int_equal(step(&j, RDZV_FAIL, "b", 1, 1), 0);
    joins(&j, "b", 5, 1);
    joins(&j, "c", 6, 1);
    members_are(&j, "b c -");
    end(&j);
}

static void a_spare_takes_a_dead_nodes_place_at_once(void **state)
{
    struct job j = begin(2, 2, 3);
    (void)state;
    joins(&j, "a", -1, 0);
    joins(&j, "b", -1, 0);
    waits(&j, "spare", -1);
    j.now = 60000;
    says(&j, RDZV_GONE, "a", 0, "b: stop 1 failure; ");
    assert_int_equal(step(&j, RDZV_JOIN, "b", 1, 1), 0);
    assert_int_equal(rdzv_state(j.r), RDZV_RUNNING); /* no last call */
    assert_int_equal(rdzv_round(j.r), 2);
    members_are(&j, "b spare");
    end(&j);
}

/* Its command would never run, and nobody asked for that. */
static void a_node_beyond_the_last_place_is_turned_away(void **state)
{
    struct job j = begin(2, 2, 3);
    (void)state;
    joins(&j, "a", -1, 0);
    joins(&j, "b", -1, 0);
    says(&j, RDZV_JOIN, "c", 0, "c: no place of 2 at ; ");
    members_are(&j, "a b");
    /* between two rounds, where one of the two comes back */
    assert_int_equal(step(&j, RDZV_FAIL, "a", 1, 1), 0);
    joins(&j, "a", -1, 1);
    joins(&j, "d", -1, 0);
    says(&j, RDZV_JOIN, "b", 1,
         "a: round 2 failure, node 0/2 at , ranks 0+ of 3, restart 1; "
         "b: round 2 failure, node 1/2 at , ranks 1+ of 3, restart 1; "
         "d: no place of 2 at ; ");
    members_are(&j, "a b");
    end(&j);
}

static void a_node_that_comes_while_a_member_is_silent_may_be_its_successor(void **state)
{
    (void)state;
    for (int back = 0; back < 2; back++) {
        struct job j = begin(2, 2, 1);
        joins(&j, "a", -1, 0);
        joins(&j, "b", -1, 0);
        assert_int_equal(step(&j, RDZV_SILENT, "b", 0, 1), 0);
        says(&j, RDZV_JOIN, "c", 0, "");
        if (back) {
            says(&j, RDZV_RESUME, "b", 0, "c: no place of 2 at ; ");
            members_are(&j, "a b");
        } else {
            ticks(&j, 4000, "a: stop 1 failure; ");
            assert_int_equal(step(&j, RDZV_JOIN, "a", 1, 1), 0);
            members_are(&j, "a c");
        }
        end(&j);
    }
}

static void numbered(struct job *j, const char *node, int node_rank, const char *expected)
{
    struct rdzv_event ev = join_event(node, node_rank, "", 1);
    ev.numbered = true;
    says_event(j, &ev, expected);
}

/* As srun with two tasks a node numbers them: 0 0 1 1. */
static void a_node_rank_that_is_a_place_is_given_once(void **state)
{
    struct rdzv_config c = job_config(2, 2, 1);
    c.order = RDZV_ORDER_NODE_RANK;
    struct job j = begin_with(&c);
    (void)state;
    numbered(&j, "a", 0, "");
    numbered(&j, "b", 0, "b: no place of 0 at : node rank 0 is taken by node 'a'; ");
    assert_int_equal(step(&j, RDZV_SILENT, "a", 0, 1), 0); /* that may be its predecessor */
    numbered(&j, "c", 0, "");
    numbered(&j, "d", 1,
             "c: round 1 start, node 0/2 at , ranks 0+ of 2, restart 0; "
             "d: round 1 start, node 1/2 at , ranks 1+ of 2, restart 0; ");
    numbered(&j, "e", 1, "e: no place of 2 at : node rank 1 is taken by node 'd'; ");
    end(&j);
}

static void first_come_is_first_ranked_and_stays_so(void **state)
{
    struct rdzv_config c = job_config(3, 3, 3);
    c.order = RDZV_ORDER_JOIN;
    struct job j = begin_with(&c);
    (void)state;
    joins(&j, "c", -1, 0);
    joins(&j, "a", -1, 0);
    joins(&j, "b", -1, 0);
    members_are(&j, "c a b");
    assert_int_equal(step(&j, RDZV_GONE, "a", 0, 1), 0);
    joins(&j, "z", -1, 0);
    joins(&j, "b", -1, 1);
    joins(&j, "c", -1, 1);
    members_are(&j, "c b z");
    end(&j);
}

static const struct rdzv_news *news_of(const struct job *j, const char *node)
{
    for (size_t i = 0; i < j->fx.n; i++)
        if (strcmp(j->fx.v[i].node, node) == 0)
            return &j->fx.v[i].news;
    fail_msg("%s was told nothing", node);
    return NULL;
}

static void ranks_count_among_the_workers_of_a_role(void **state)
{
    struct job j = begin(4, 4, 0);
    const struct {
        const char *node, *role;
        int slots, role_base, role_world;
    } nodes[] = {
        {"a", "trainer", 2, 0, 9}, {"b", "reader", 3, 0, 7}, {"c", "trainer", 7, 2, 9}, {"d", "reader", 4, 3, 7}};
    (void)state;
    for (int i = 3; i >= 0; i--) {
        struct rdzv_event ev = join_event(nodes[i].node, -1, nodes[i].role, nodes[i].slots);
        ev.port = 100 + i;
        assert_int_equal(step_event(&j, &ev), 0);
    }
    for (int i = 0; i < 4; i++) {
        const struct rdzv_news *n = news_of(&j, nodes[i].node);
        assert_int_equal(n->group_rank, i);
        assert_int_equal(n->role_base, nodes[i].role_base);
        assert_int_equal(n->role_world, nodes[i].role_world);
        assert_int_equal(n->leader_port, 100);
    }
    assert_int_equal(step(&j, RDZV_FAIL, "c", 1, 1), 0); /* the end as well names it, to nodes that missed the round */
    for (int i = 0; i < 4; i++) {
        const struct rdzv_news *n = news_of(&j, nodes[i].node);
        assert_int_equal(n->kind, RDZV_NEWS_END);
        assert_int_equal(n->group_rank, i);
        assert_int_equal(n->leader_port, 100);
    }
    end(&j);
}

static void restarts_older_than_the_window_do_not_count(void **state)
{
    struct rdzv_config c = job_config(1, 1, 2);
    c.restart_window_ms = 1000;
    struct job j = begin_with(&c);
    const int64_t fails[] = {100, 600, 1101, 1601, 2601};
    uint64_t round = 0;
    (void)state;
    joins(&j, "a", -1, 0);
    for (size_t i = 0; i < sizeof fails / sizeof *fails; i++) {
        j.now = fails[i]; /* the one before the last is 1001 ms ago each time */
        assert_int_equal(step(&j, RDZV_FAIL, "a", ++round, 1), 0);
        assert_int_equal(rdzv_state(j.r), RDZV_STOPPING);
        joins(&j, "a", -1, round);
    }
    assert_int_equal(rdzv_restarts(j.r), 5); /* of its whole life */
    j.now = 2602;
    assert_int_equal(step(&j, RDZV_FAIL, "a", ++round, 1), 0);
    joins(&j, "a", -1, round);
    j.now = 3601; /* those at 2601 and 2602 count: one is exactly as old as the window, none older */
    says(&j, RDZV_FAIL, "a", ++round, "a: end 137; ");
    assert_int_equal(rdzv_state(j.r), RDZV_FAILED);
    end(&j);
}

static struct job begin_backoff(int min, int max)
{
    struct rdzv_config c = job_config(min, max, 100);
    c.backoff_ms = 100;
    c.backoff_max_ms = 350;
    c.backoff_reset_ms = 10000;
    return begin_with(&c);
}

/* a's worker fails and a comes back at once; the round is known to run again at `at`. */
static void fails_and_runs_again(struct job *j, int64_t at)
{
    uint64_t round = rdzv_round(j->r);
    assert_int_equal(step(j, RDZV_FAIL, "a", round, 1), 0);
    joins(j, "a", -1, round);
    if (at > j->now) {
        assert_int_equal(rdzv_state(j->r), RDZV_BACKOFF);
        assert_int_equal(rdzv_deadline(j->r), at);
        j->now = at;
        assert_int_equal(step(j, RDZV_TICK, "", 0, 1), 0);
    }
    assert_int_equal(rdzv_state(j->r), RDZV_RUNNING);
    assert_int_equal(rdzv_round(j->r), round + 1);
}

static void the_first_restart_is_immediate_and_each_further_one_waits_longer(void **state)
{
    struct job j = begin_backoff(1, 1);
    (void)state;
    joins(&j, "a", -1, 0);
    fails_and_runs_again(&j, 0);
    fails_and_runs_again(&j, 100);
    fails_and_runs_again(&j, 300);
    fails_and_runs_again(&j, 650); /* 400 is more than the most */
    fails_and_runs_again(&j, 1000);
    j.now = 11000; /* this round lived long enough */
    fails_and_runs_again(&j, 0);
    fails_and_runs_again(&j, 0);
    fails_and_runs_again(&j, 11100);
    end(&j);
}

static void the_wait_counts_from_the_failure(void **state)
{
    struct job j = begin_backoff(1, 1);
    (void)state;
    joins(&j, "a", -1, 0);
    fails_and_runs_again(&j, 0);
    assert_int_equal(step(&j, RDZV_FAIL, "a", 2, 1), 0);
    j.now = 99;
    joins(&j, "a", -1, 2);
    assert_int_equal(rdzv_state(j.r), RDZV_BACKOFF);
    assert_int_equal(rdzv_deadline(j.r), 100);
    j.now = 100;
    assert_int_equal(step(&j, RDZV_TICK, "", 0, 1), 0);
    assert_int_equal(step(&j, RDZV_FAIL, "a", 3, 1), 0);
    j.now = 350; /* stopping took longer than the wait */
    joins(&j, "a", -1, 3);
    assert_int_equal(rdzv_state(j.r), RDZV_RUNNING);
    end(&j);
}

static void a_resize_is_no_failure(void **state)
{
    struct job j = begin_backoff(1, 2);
    (void)state;
    joins(&j, "a", -1, 0);
    j.now = 30000;
    assert_int_equal(step(&j, RDZV_TICK, "", 0, 1), 0);
    fails_and_runs_again(&j, 0);
    joins(&j, "b", -1, 0);
    joins(&j, "a", -1, 2);
    assert_int_equal(rdzv_state(j.r), RDZV_RUNNING); /* at once */
    assert_int_equal(rdzv_restarts(j.r), 1);
    end(&j);
}

static void who_comes_while_the_job_backs_off_takes_part(void **state)
{
    struct job j = begin_backoff(1, 2);
    (void)state;
    joins(&j, "a", -1, 0);
    j.now = 30000;
    assert_int_equal(step(&j, RDZV_TICK, "", 0, 1), 0);
    fails_and_runs_again(&j, 0);
    assert_int_equal(step(&j, RDZV_FAIL, "a", 2, 1), 0);
    joins(&j, "a", -1, 2);
    says(&j, RDZV_JOIN, "b", 0, "");
    assert_int_equal(rdzv_state(j.r), RDZV_BACKOFF);
    assert_int_equal(rdzv_deadline(j.r), 30100);
    j.now = 30100;
    assert_int_equal(step(&j, RDZV_TICK, "", 0, 1), 0);
    members_are(&j, "a b");
    end(&j);
}

/* a and b of at least two back off. */
static struct job begin_backing_off(void)
{
    struct job j = begin_backoff(2, 2);
    joins(&j, "a", -1, 0);
    joins(&j, "b", -1, 0);
    for (uint64_t round = 1; round <= 2; round++) {
        assert_int_equal(step(&j, RDZV_FAIL, "a", round, 1), 0);
        joins(&j, "a", -1, round);
        joins(&j, "b", -1, round);
    }
    assert_int_equal(rdzv_state(j.r), RDZV_BACKOFF);
    return j;
}

static void a_job_that_loses_its_minimum_while_it_backs_off_waits_for_more(void **state)
{
    struct job j = begin_backing_off();
    (void)state;
    says(&j, RDZV_GONE, "b", 0, "");
    assert_int_equal(rdzv_state(j.r), RDZV_JOINING);
    joins(&j, "c", -1, 0);
    assert_int_equal(rdzv_state(j.r), RDZV_BACKOFF); /* the wait is not over */
    assert_int_equal(rdzv_deadline(j.r), 100);
    end(&j);
}

static void a_node_that_leaves_between_rounds_drains_the_job_below_its_minimum(void **state)
{
    struct job j = begin_backing_off();
    (void)state;
    says(&j, RDZV_LEAVE, "b", 0, "b: end 75; a: end 75; ");
    assert_int_equal(rdzv_state(j.r), RDZV_DRAINED);
    end(&j);
    j = begin(2, 3, 3);
    joins(&j, "a", -1, 0);
    joins(&j, "b", -1, 0);
    joins(&j, "c", -1, 0);
    assert_int_equal(step(&j, RDZV_FAIL, "a", 1, 1), 0);
    joins(&j, "b", -1, 1);
    says(&j, RDZV_LEAVE, "b", 0, "b: end 75; "); /* two are left */
    joins(&j, "c", -1, 1);
    says(&j, RDZV_LEAVE, "c", 0,
         "c: end 75; "); /* one is not enough: it is told to end as soon as its workers are gone */
    says(&j, RDZV_JOIN, "a", 1, "a: end 75; ");
    assert_int_equal(rdzv_state(j.r), RDZV_DRAINED);
    end(&j);
}

static void is_stopped(struct job *j, const char *node, const char *expected, const char *told)
{
    struct rdzv_event ev = {.kind = RDZV_LEAVE, .cause = {.rank = -1, .text = "SIGINT"}};
    snprintf(ev.node, sizeof ev.node, "%s", node);
    says_event(j, &ev, expected);
    assert_string_equal(j->fx.v[j->fx.n - 1].news.cause.text, told);
}

static void the_others_hear_which_node_was_stopped_and_by_what(void **state)
{
    struct job j = begin(2, 3, 3);
    (void)state;
    for (int i = 0; i < 3; i++)
        joins(&j, (const char *[]){"a", "b", "c"}[i], -1, 0);
    is_stopped(&j, "a", "a: stop 1 resize; b: stop 1 resize; c: stop 1 resize; ", "node 'a' leaves after SIGINT");
    end(&j);
    j = begin(2, 2, 3);
    joins(&j, "a", -1, 0);
    joins(&j, "b", -1, 0);
    is_stopped(&j, "a", "a: stop 1 drain; b: stop 1 drain; ", "SIGINT on node 'a'");
    end(&j);
    j = begin_backing_off();
    is_stopped(&j, "b", "b: end 75; a: end 75; ", "SIGINT on node 'b'");
    end(&j);
}

static void leaves_unstarted(struct job *j, const char *node, const char *expected)
{
    struct rdzv_event ev = {.kind = RDZV_LEAVE, .cause = {.exit_code = 126, .rank = -1, .text = "cannot start"}};
    snprintf(ev.node, sizeof ev.node, "%s", node);
    says_event(j, &ev, expected);
}

/* Drained, it would be started again by those who start again what ends with 75, and fail again. */
static void nodes_that_cannot_start_fail_the_job_below_its_minimum(void **state)
{
    struct job j = begin(2, 4, 3);
    (void)state;
    for (int i = 0; i < 4; i++)
        joins(&j, (const char *[]){"a", "b", "c", "d"}[i], -1, 0);
    leaves_unstarted(&j, "b", "a: stop 1 resize; b: stop 1 resize; c: stop 1 resize; d: stop 1 resize; ");
    leaves_unstarted(&j, "b", ""); /* for the next of its workers */
    joins(&j, "b", -1, 1);
    leaves_unstarted(&j, "c", ""); /* two are left */
    leaves_unstarted(&j, "d", "a: end 126; c: end 126; d: end 126; ");
    assert_int_equal(rdzv_state(j.r), RDZV_FAILED);
    assert_int_equal(rdzv_restarts(j.r), 0);
    end(&j);
    j = begin_backing_off();
    leaves_unstarted(&j, "b", "b: end 75; a: end 126; "); /* it knows its own code */
    assert_int_equal(rdzv_state(j.r), RDZV_FAILED);
    end(&j);
    j = begin(2, 2, 3);
    joins(&j, "a", -1, 0);
    joins(&j, "b", -1, 0);
    says(&j, RDZV_LEAVE, "a", 0, "a: stop 1 drain; b: stop 1 drain; ");
    assert_string_equal(j.fx.v[1].news.cause.text, "node 'a'");
    leaves_unstarted(&j, "b", ""); /* it ends already, as somebody wished */
    end(&j);
}

static void a_repeated_leave_is_not_judged_anew(void **state)
{
    struct job j = begin(2, 3, 3);
    (void)state;
    joins(&j, "a", -1, 0);
    joins(&j, "b", -1, 0);
    joins(&j, "c", -1, 0);
    leaves_unstarted(&j, "b", "a: stop 1 resize; b: stop 1 resize; c: stop 1 resize; ");
    says(&j, RDZV_GONE, "c", 0, "");
    leaves_unstarted(&j, "b", "");
    says(&j, RDZV_JOIN, "b", 1, "b: end 75; ");
    says(&j, RDZV_JOIN, "a", 1, "");
    assert_int_equal(rdzv_state(j.r), RDZV_JOINING);
    end(&j);
}

static void fails(struct job *j, const char *node, uint64_t round)
{
    assert_int_equal(step(j, RDZV_FAIL, node, round, 1), 0);
}

static void a_node_that_fails_too_often_loses_its_seat_to_a_spare(void **state)
{
    struct rdzv_config c = job_config(2, 2, 10);
    c.max_node_failures = 2;
    struct job j = begin_with(&c);
    (void)state;
    joins(&j, "a", -1, 0);
    joins(&j, "b", -1, 0);
    waits(&j, "c", -1);
    members_are(&j, "a b -");
    fails(&j, "a", 1);
    joins(&j, "a", -1, 1);
    joins(&j, "b", -1, 1);
    members_are(&j, "a b -"); /* once is not often */
    fails(&j, "a", 2);
    fails(&j, "b", 2); /* the round was broken already: not counted */
    joins(&j, "a", -1, 2);
    joins(&j, "b", -1, 2);
    members_are(&j, "b c -");
    assert_int_equal(step(&j, RDZV_GONE, "c", 0, 1), 0); /* nobody else: it has a seat again */
    joins(&j, "b", -1, 3);
    members_are(&j, "b a");
    fails(&j, "a", 4);
    joins(&j, "b", -1, 4);
    joins(&j, "a", -1, 4);
    members_are(&j, "b a");
    end(&j);
}

static void a_job_without_spares_keeps_a_node_that_fails_and_its_rank(void **state)
{
    struct rdzv_config c = job_config(1, 3, 10);
    c.max_node_failures = 1;
    struct job j = begin_with(&c);
    (void)state;
    joins(&j, "a", -1, 0);
    joins(&j, "b", -1, 0);
    joins(&j, "c", -1, 0);
    fails(&j, "a", 1);
    joins(&j, "a", -1, 1);
    joins(&j, "b", -1, 1);
    joins(&j, "c", -1, 1);
    members_are(&j, "a b c");
    end(&j);
}

static void a_silence_noticed_late_counts_from_when_it_began(void **state)
{
    struct job j = begin(2, 2, 3);
    (void)state;
    j.now = 10000;
    joins(&j, "a", -1, 0);
    joins(&j, "b", -1, 0);
    assert_int_equal(step(&j, RDZV_SILENT, "a", 0, 1), 0);
    j.now = 9000;
    assert_int_equal(step(&j, RDZV_SILENT, "b", 0, 1), 0);
    assert_int_equal(rdzv_deadline(j.r), 13000);
    end(&j);
}

static void impossible_settings_are_refused(void **state)
{
    struct rdzv_config good = job_config(1, 1, 0), c;
    struct rdzv *r = NULL;
    (void)state;
#define REFUSED(member, value)                                                                                         \
    do {                                                                                                               \
        c = good;                                                                                                      \
        c.member = (value);                                                                                            \
        assert_int_equal(rdzv_create(&r, &c, NULL), -EINVAL);                                                          \
    } while (0)
    REFUSED(restart_window_ms, -1);
    REFUSED(backoff_ms, -1);
    REFUSED(backoff_ms, 1); /* the most is 0 */
    REFUSED(backoff_reset_ms, -1);
    REFUSED(max_node_failures, -1);
    REFUSED(order, (enum rdzv_order)3);
    REFUSED(silence_ms, 0);
#undef REFUSED
    assert_null(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_follow_the_numbers_that_users_gave),
        cmocka_unit_test(a_spare_displaces_nobody_whatever_its_number),
        cmocka_unit_test(a_spare_takes_a_dead_nodes_place_at_once),
        cmocka_unit_test(a_node_beyond_the_last_place_is_turned_away),
        cmocka_unit_test(a_node_that_comes_while_a_member_is_silent_may_be_its_successor),
        cmocka_unit_test(a_node_rank_that_is_a_place_is_given_once),
        cmocka_unit_test(first_come_is_first_ranked_and_stays_so),
        cmocka_unit_test(ranks_count_among_the_workers_of_a_role),
        cmocka_unit_test(restarts_older_than_the_window_do_not_count),
        cmocka_unit_test(the_first_restart_is_immediate_and_each_further_one_waits_longer),
        cmocka_unit_test(the_wait_counts_from_the_failure),
        cmocka_unit_test(a_resize_is_no_failure),
        cmocka_unit_test(who_comes_while_the_job_backs_off_takes_part),
        cmocka_unit_test(a_job_that_loses_its_minimum_while_it_backs_off_waits_for_more),
        cmocka_unit_test(a_node_that_leaves_between_rounds_drains_the_job_below_its_minimum),
        cmocka_unit_test(the_others_hear_which_node_was_stopped_and_by_what),
        cmocka_unit_test(nodes_that_cannot_start_fail_the_job_below_its_minimum),
        cmocka_unit_test(a_repeated_leave_is_not_judged_anew),
        cmocka_unit_test(a_node_that_fails_too_often_loses_its_seat_to_a_spare),
        cmocka_unit_test(a_job_without_spares_keeps_a_node_that_fails_and_its_rank),
        cmocka_unit_test(a_silence_noticed_late_counts_from_when_it_began),
        cmocka_unit_test(impossible_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
