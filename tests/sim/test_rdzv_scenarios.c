/* The life of a job as rdzv.h tells it, one scenario a case: what is asked, and word for word what everybody is
 * told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "tests/sim/scenario.h"
#include <errno.h>
#include <string.h>

static void one_node_runs_fails_restarts_and_succeeds(void **state)
{
    struct job j = begin(1, 1, 1);
    (void)state;
    says(&j, RDZV_JOIN, "a", 0, "a: round 1 start, node 0/1 at @a, ranks 0+ of 2, restart 0; ");
    says(&j, RDZV_FAIL, "a", 1, "a: stop 1 failure; ");
    says(&j, RDZV_JOIN, "a", 1, "a: round 2 failure, node 0/1 at @a, ranks 0+ of 2, restart 1; ");
    says(&j, RDZV_DONE, "a", 2, "a: end 0; ");
    assert_int_equal(rdzv_state(j.r), RDZV_SUCCEEDED);
    end(&j);
}

static void a_used_up_budget_ends_the_job_with_the_culprits_code(void **state)
{
    struct job j = begin(1, 1, 0);
    (void)state;
    says(&j, RDZV_JOIN, "a", 0, "a: round 1 start, node 0/1 at @a, ranks 0+ of 2, restart 0; ");
    says(&j, RDZV_FAIL, "a", 1, "a: end 137; ");
    assert_string_equal(j.fx.v[0].news.cause.text, "killed");
    assert_int_equal(j.fx.v[0].news.cause.rank, 1);
    assert_int_equal(rdzv_state(j.r), RDZV_FAILED);
    assert_int_equal(step(&j, RDZV_JOIN, "b", 0, 1), ERR_REFUSED);
    end(&j);
}

static void nodes_are_ordered_by_number_and_keep_their_order(void **state)
{
    struct job j = begin(3, 3, 3);
    (void)state;
    says(&j, RDZV_JOIN, "node10", 0, "");
    says(&j, RDZV_JOIN, "node9", 0, "");
    says(&j, RDZV_JOIN, "node2", 0,
         "node2: round 1 start, node 0/3 at @node2, ranks 0+ of 6, restart 0; "
         "node9: round 1 start, node 1/3 at @node2, ranks 2+ of 6, restart 0; "
         "node10: round 1 start, node 2/3 at @node2, ranks 4+ of 6, restart 0; ");
    says(&j, RDZV_GONE, "node2", 0, "node10: stop 1 failure; node9: stop 1 failure; ");
    says(&j, RDZV_JOIN, "node10", 1, "");
    says(&j, RDZV_JOIN, "node9", 1, "");
    says(&j, RDZV_JOIN, "node1", 0,
         "node9: round 2 failure, node 0/3 at @node9, ranks 0+ of 6, restart 1; "
         "node10: round 2 failure, node 1/3 at @node9, ranks 2+ of 6, restart 1; "
         "node1: round 2 failure, node 2/3 at @node9, ranks 4+ of 6, restart 1; ");
    end(&j);
}

static void the_last_call_waits_for_more_than_the_minimum(void **state)
{
    struct job j = begin(1, 3, 0);
    (void)state;
    j.now = 100;
    says(&j, RDZV_JOIN, "a", 0, "");
    assert_int_equal(rdzv_state(j.r), RDZV_LAST_CALL);
    j.now = 5000;
    says(&j, RDZV_JOIN, "b", 0, "");
    ticks(&j, 30100,
          "a: round 1 start, node 0/2 at @a, ranks 0+ of 4, restart 0; b: round 1 start, node 1/2 at @a, ranks 2+ of "
          "4, restart 0; ");
    end(&j);
}

static void a_host_in_a_dead_hosts_place_lets_the_last_rounds_workers_end(void **state)
{
    static const char first[] = "a: round 3 start, node 0/2 at @a, ranks 0+ of 4, restart 0; "
                                "b: round 3 start, node 1/2 at @a, ranks 2+ of 4, restart 0; ";
    struct rdzv_config c = job_config(1, 2, 0);
    (void)state;
    c.first_round = 3;
    c.hold_ms = c.silence_ms + c.kill_ms;
    for (int full = 0; full < 2; full++) { /* a round that is full waits as well */
        c.max_nodes = full ? 2 : 3;
        c.last_call_ms = 300;
        struct job j = begin_with(&c);
        j.now = 100;
        says(&j, RDZV_JOIN, "a", 2, "");
        j.now = 200;
        says(&j, RDZV_JOIN, "b", 2, "");
        ticks(&j, 4100, first);
        end(&j);
    }
}

static void a_host_that_knows_nothing_is_told_of_a_round_and_lets_its_workers_end(void **state)
{
    static const char first[] = "a: round 3 start, node 0/2 at @a, ranks 0+ of 4, restart 0; "
                                "b: round 3 start, node 1/2 at @a, ranks 2+ of 4, restart 0; ";
    struct rdzv_config c = job_config(1, 2, 0);
    (void)state;
    for (int full = 0; full < 2; full++) {
        c.max_nodes = full ? 2 : 3;
        c.last_call_ms = 300;
        struct job j = begin_with(&c);
        j.now = 100;
        says(&j, RDZV_JOIN, "a", 0, "");
        j.now = 200;
        says(&j, RDZV_JOIN, "b", 2, "");
        j.now = 900; /* again, on a new connection */
        says(&j, RDZV_JOIN, "b", 2, "");
        ticks(&j, 4200, first);
        end(&j);
    }
}

/* Whoever comes first: nodes of the round before, or new ones, for which a last call has begun. */
static void a_job_that_goes_on_elsewhere_waits_for_old_workers_and_for_no_last_call(void **state)
{
    struct rdzv_config c = job_config(2, 4, 0);
    (void)state;
    for (uint64_t known = 0; known <= 5; known += 5) {
        struct job j = begin_with(&c);
        j.now = 100;
        says(&j, RDZV_JOIN, "a", known, "");
        j.now = 200;
        says(&j, RDZV_JOIN, "b", known, "");
        rdzv_hold(j.r, 1000); /* for other workers, which are dead sooner */
        assert_int_equal(rdzv_deadline(j.r), known ? 4200 : 30200);
        j.now = 300;
        says(&j, RDZV_JOIN, "c", 5, "");
        ticks(&j, 4300,
              "a: round 6 start, node 0/3 at @a, ranks 0+ of 6, restart 0; b: round 6 start, node 1/3 at @a, ranks 2+ "
              "of 6, restart 0; c: round 6 start, node 2/3 at @a, ranks 4+ of 6, restart 0; ");
        end(&j);
    }
}

static void a_host_without_memory_waits_unless_all_are_here(void **state)
{
    struct rdzv_config c = job_config(1, 2, 0);
    (void)state;
    c.blank_ms = 4000;
    c.last_call_ms = 300;
    struct job j = begin_with(&c);
    j.now = 100;
    says(&j, RDZV_JOIN, "a", 0, "");
    ticks(&j, 4100, "a: round 1 start, node 0/1 at @a, ranks 0+ of 2, restart 0; ");
    end(&j);
    j = begin_with(&c);
    j.now = 100;
    says(&j, RDZV_JOIN, "a", 0, "");
    j.now = 200;
    says(&j, RDZV_JOIN, "b", 0,
         "a: round 1 start, node 0/2 at @a, ranks 0+ of 4, restart 0; b: round 1 start, node 1/2 at @a, ranks 2+ of "
         "4, restart 0; ");
    end(&j);
}

static void a_late_joiner_waits_for_the_next_round(void **state)
{
    struct job j = begin(1, 2, 0);
    (void)state;
    says(&j, RDZV_JOIN, "a", 0, "");
    ticks(&j, 30000, "a: round 1 start, node 0/1 at @a, ranks 0+ of 2, restart 0; ");
    says(&j, RDZV_JOIN, "b", 0, "a: stop 1 resize; ");
    says(&j, RDZV_JOIN, "a", 1,
         "a: round 2 resize, node 0/2 at @a, ranks 0+ of 4, restart 0; b: round 2 resize, node 1/2 at @a, ranks 2+ of "
         "4, restart 0; ");
    says(&j, RDZV_JOIN, "c", 0, "c: spare of round 2; ");
    says(&j, RDZV_DONE, "a", 2, "");
    says(&j, RDZV_DONE, "b", 2, "a: end 0; b: end 0; c: end 0; ");
    end(&j);
}

static void a_silent_node_that_resumes_costs_nothing(void **state)
{
    struct job j = begin(2, 2, 1);
    (void)state;
    says(&j, RDZV_JOIN, "a", 0, "");
    assert_int_equal(step(&j, RDZV_JOIN, "b", 0, 2), 0);
    j.now = 1000;
    says(&j, RDZV_SILENT, "b", 0, "");
    assert_int_equal(rdzv_deadline(j.r), 5000);
    j.now = 4999;
    says(&j, RDZV_RESUME, "b", 0, "");
    assert_int_equal(rdzv_deadline(j.r), INT64_MAX);
    assert_int_equal(rdzv_state(j.r), RDZV_RUNNING);
    assert_int_equal(rdzv_restarts(j.r), 0);
    end(&j);
}

static int find_silent(void *arg, const struct rdzv_member *m)
{
    *(bool *)arg |= m->silent;
    return 0;
}

/* What is refused changes nothing, for nothing of it is logged. */
static void a_join_that_is_refused_does_not_resume_its_node(void **state)
{
    struct job j = begin(2, 2, 1);
    bool silent = false;
    (void)state;
    says(&j, RDZV_JOIN, "a", 0, "");
    says(&j, RDZV_JOIN, "b", 0,
         "a: round 1 start, node 0/2 at @a, ranks 0+ of 4, restart 0; "
         "b: round 1 start, node 1/2 at @a, ranks 2+ of 4, restart 0; ");
    says(&j, RDZV_DONE, "b", 1, "");
    says(&j, RDZV_SILENT, "b", 0, "");
    assert_int_equal(step(&j, RDZV_JOIN, "b", 1, 1), ERR_REFUSED);
    assert_int_equal(rdzv_members(j.r, find_silent, &silent), 0);
    assert_true(silent);
    end(&j);
}

static void no_round_starts_without_a_silent_node_before_its_workers_are_dead(void **state)
{
    struct job j = begin(1, 2, 3);
    (void)state;
    says(&j, RDZV_JOIN, "a", 0, "");
    assert_int_equal(step(&j, RDZV_JOIN, "b", 0, 2), 0);
    j.now = 1000;
    says(&j, RDZV_SILENT, "b", 0, "");
    j.now = 1500;
    says(&j, RDZV_FAIL, "a", 1, "a: stop 1 failure; b: stop 1 failure; ");
    says(&j, RDZV_JOIN, "a", 1, ""); /* waits for b's fence, not for b */
    ticks(&j, 5000, "a: round 2 failure, node 0/1 at @a, ranks 0+ of 2, restart 1; ");
    assert_int_equal(step(&j, RDZV_DONE, "b", 1, 1), ERR_FENCED);
    assert_int_equal(step(&j, RDZV_RESUME, "b", 0, 1), ERR_REFUSED);
    says(&j, RDZV_JOIN, "b", 1, "a: stop 2 resize; ");
    assert_int_equal(rdzv_restarts(j.r), 1);
    end(&j);
}

static void claims_about_an_older_round_are_fenced_and_change_nothing(void **state)
{
    struct job j = begin(1, 1, 3);
    (void)state;
    says(&j, RDZV_JOIN, "a", 0, "a: round 1 start, node 0/1 at @a, ranks 0+ of 2, restart 0; ");
    says(&j, RDZV_FAIL, "a", 1, "a: stop 1 failure; ");
    says(&j, RDZV_FAIL, "a", 1, ""); /* repeated: harmless */
    assert_int_equal(step(&j, RDZV_JOIN, "a", 0, 2), ERR_FENCED);
    says(&j, RDZV_JOIN, "a", 1, "a: round 2 failure, node 0/1 at @a, ranks 0+ of 2, restart 1; ");
    says(&j, RDZV_JOIN, "a", 1, ""); /* repeated: harmless */
    assert_int_equal(step(&j, RDZV_FAIL, "a", 1, 0), ERR_FENCED);
    assert_int_equal(step(&j, RDZV_DONE, "a", 1, 0), ERR_FENCED);
    assert_int_equal(step(&j, RDZV_DONE, "a", 3, 0), ERR_REFUSED);
    assert_int_equal(step(&j, RDZV_DONE, "b", 2, 0), ERR_REFUSED);
    assert_int_equal(rdzv_state(j.r), RDZV_RUNNING);
    assert_int_equal(rdzv_restarts(j.r), 1);
    end(&j);
}

static void a_leaving_node_shrinks_the_job_while_the_minimum_is_left(void **state)
{
    struct job j = begin(1, 2, 0);
    (void)state;
    says(&j, RDZV_JOIN, "a", 0, "");
    assert_int_equal(step(&j, RDZV_JOIN, "b", 0, 2), 0);
    says(&j, RDZV_LEAVE, "b", 1, "a: stop 1 resize; b: stop 1 resize; ");
    says(&j, RDZV_JOIN, "a", 1, "");
    says(&j, RDZV_JOIN, "b", 1, "b: end 75; a: round 2 resize, node 0/1 at @a, ranks 0+ of 2, restart 0; ");
    says(&j, RDZV_LEAVE, "a", 2, "a: stop 2 drain; ");
    says(&j, RDZV_JOIN, "a", 2, "a: end 75; ");
    end(&j);
}

static void leaves_because_it_can_start_nothing(struct job *j, const char *expected)
{
    struct rdzv_event ev = {.kind = RDZV_LEAVE, .cause = {.exit_code = 127, .rank = -1, .text = "no such script"}};
    strcpy(ev.node, "a");
    says_event(j, &ev, expected);
}

static void a_node_that_can_start_nothing_ends_a_job_that_needs_all_its_nodes(void **state)
{
    struct job all = begin(3, 3, 5), some = begin(2, 3, 5);
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct job *j = i == 0 ? &all : &some;
        says(j, RDZV_JOIN, "a", 0, "");
        says(j, RDZV_JOIN, "b", 0, "");
    }
    leaves_because_it_can_start_nothing(&all, "a: end 75; b: end 127; ");
    assert_int_equal(rdzv_state(all.r), RDZV_FAILED);
    leaves_because_it_can_start_nothing(&some, "a: end 75; "); /* another one may come in its place */
    assert_int_equal(rdzv_state(some.r), RDZV_JOINING);
    end(&all);
    end(&some);
}

static void a_drain_stops_all_and_ends_when_their_workers_are_gone(void **state)
{
    struct job j = begin(2, 2, 0);
    (void)state;
    says(&j, RDZV_JOIN, "a", 0, "");
    assert_int_equal(step(&j, RDZV_JOIN, "b", 0, 2), 0);
    says(&j, RDZV_DRAIN, "", 0, "a: stop 1 drain; b: stop 1 drain; ");
    says(&j, RDZV_JOIN, "a", 1, "");
    says(&j, RDZV_JOIN, "b", 1, "a: end 75; b: end 75; ");
    assert_int_equal(rdzv_state(j.r), RDZV_DRAINED);
    end(&j);
}

static void training_that_completes_during_a_drain_has_succeeded(void **state)
{
    struct job j = begin(1, 1, 0);
    (void)state;
    says(&j, RDZV_JOIN, "a", 0, "a: round 1 start, node 0/1 at @a, ranks 0+ of 2, restart 0; ");
    says(&j, RDZV_DRAIN, "", 0, "a: stop 1 drain; ");
    says(&j, RDZV_DONE, "a", 1, "a: end 0; ");
    assert_int_equal(rdzv_state(j.r), RDZV_SUCCEEDED);
    end(&j);
}

static void too_few_nodes_in_time_fail_the_job(void **state)
{
    struct job j = begin(2, 2, 0);
    (void)state;
    j.now = 7;
    says(&j, RDZV_JOIN, "a", 0, "");
    ticks(&j, 600007, "a: end 69; ");
    assert_string_equal(j.fx.v[0].news.cause.text,
                        "1 of at least 2 nodes were there within 600 s (--rdzv-conf join_timeout)");
    end(&j);
}

static void nonsense_is_refused_with_a_reason(void **state)
{
    struct job j = begin(1, 1, 0);
    struct err e;
    struct rdzv *r = NULL;
    struct rdzv_config c = {.min_nodes = 2, .max_nodes = 1};
    (void)state;
    assert_int_equal(step(&j, RDZV_JOIN, "a", 0, 0), ERR_REFUSED);
    assert_int_equal(step(&j, RDZV_JOIN, "a", 0, RDZV_SLOTS_MAX + 1), ERR_REFUSED);
    assert_int_equal(step(&j, RDZV_JOIN, "a", UINT64_MAX, 1), ERR_REFUSED);
    assert_int_equal(step(&j, RDZV_JOIN, "", 0, 1), ERR_REFUSED);
    assert_int_equal(step(&j, RDZV_SILENT, "a", 0, 1), ERR_REFUSED);
    assert_int_equal(rdzv_nodes(j.r), 0);
    assert_int_equal(rdzv_create(&r, &c, &e), -EINVAL);
    assert_string_equal(e.text, "nodes 2:1: expected 1 <= min <= max <= 100000");
    end(&j);
}

static void settings_beyond_their_bounds_make_no_job(void **state)
{
#define BAD(field, v)                                                                                                  \
    {                                                                                                                  \
        offsetof(struct rdzv_config, field), sizeof((struct rdzv_config *)0)->field, v                                 \
    }
    static const struct {
        size_t at, bytes;
        int64_t v;
    } bad[] = {BAD(min_nodes, 0),     BAD(min_nodes, 3),          BAD(max_nodes, RDZV_NODES_MAX + 1),
               BAD(max_restarts, -1), BAD(max_node_failures, -1), BAD(join_timeout_ms, 0),
               BAD(last_call_ms, -1), BAD(silence_ms, 0),         BAD(kill_ms, -1),
               BAD(hold_ms, -1),      BAD(blank_ms, -1),          BAD(restart_window_ms, -1),
               BAD(backoff_ms, -1),   BAD(backoff_ms, 1 << 30),   BAD(backoff_reset_ms, -1),
               BAD(order, 3),         BAD(first_round, 0),        BAD(first_round, INT64_MIN)};
#undef BAD
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct rdzv_config c = job_config(2, 2, 0);
        struct rdzv *r = NULL;
        struct err e;
        memcpy((char *)&c + bad[i].at, &bad[i].v, bad[i].bytes); /* the low bytes are first here */
        if (rdzv_create(&r, &c, &e) != -EINVAL)
            fail_msg("the field at %zu is taken as %lld", bad[i].at, (long long)bad[i].v);
    }
}

/* Texts that do not end, and ports that are none. Nothing changes. */
static void a_join_out_of_bounds_is_refused(void **state)
{
    const struct rdzv_event good = {.kind = RDZV_JOIN, .node = "a", .slots = 1, .node_rank = -1};
    struct job j = begin(1, 1, 0);
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct rdzv_event ev = good;
        ev.port = i == 0 ? -1 : i == 1 ? 65536 : 0;
        if (i == 2)
            memset(ev.addr, 'x', sizeof ev.addr);
        if (i == 3)
            memset(ev.addrs, 'x', sizeof ev.addrs);
        if (i == 4)
            memset(ev.role, 'x', sizeof ev.role);
        if (i == 5)
            memset(ev.cause.text, 'x', sizeof ev.cause.text);
        if (i == 6)
            ev.kind = (enum rdzv_event_kind)(RDZV_TICK + 1);
        if (i == 7)
            memset(ev.node, 'x', sizeof ev.node);
        assert_int_equal(step_event(&j, &ev), ERR_REFUSED);
        assert_int_equal(rdzv_nodes(j.r), 0);
    }
    struct rdzv_event last = good;
    last.port = 65535;
    assert_int_equal(step_event(&j, &last), 0);
    end(&j);
}

static void only_a_larger_round_grows(void **state)
{
    struct rdzv_news news = {.kind = RDZV_NEWS_STOP, .why = RDZV_WHY_RESIZE, .cause.text = RDZV_GROWS};
    (void)state;
    assert_true(rdzv_news_grows(&news));
    news.why = RDZV_WHY_DRAIN;
    assert_false(rdzv_news_grows(&news));
    news = (struct rdzv_news){.kind = RDZV_NEWS_STOP, .why = RDZV_WHY_RESIZE, .cause.text = "node 'a' leaves"};
    assert_false(rdzv_news_grows(&news));
    news = (struct rdzv_news){.kind = RDZV_NEWS_ROUND, .why = RDZV_WHY_RESIZE, .cause.text = RDZV_GROWS};
    assert_false(rdzv_news_grows(&news));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_node_runs_fails_restarts_and_succeeds),
        cmocka_unit_test(a_used_up_budget_ends_the_job_with_the_culprits_code),
        cmocka_unit_test(nodes_are_ordered_by_number_and_keep_their_order),
        cmocka_unit_test(the_last_call_waits_for_more_than_the_minimum),
        cmocka_unit_test(a_host_in_a_dead_hosts_place_lets_the_last_rounds_workers_end),
        cmocka_unit_test(a_host_that_knows_nothing_is_told_of_a_round_and_lets_its_workers_end),
        cmocka_unit_test(a_job_that_goes_on_elsewhere_waits_for_old_workers_and_for_no_last_call),
        cmocka_unit_test(a_host_without_memory_waits_unless_all_are_here),
        cmocka_unit_test(a_late_joiner_waits_for_the_next_round),
        cmocka_unit_test(a_silent_node_that_resumes_costs_nothing),
        cmocka_unit_test(a_join_that_is_refused_does_not_resume_its_node),
        cmocka_unit_test(no_round_starts_without_a_silent_node_before_its_workers_are_dead),
        cmocka_unit_test(claims_about_an_older_round_are_fenced_and_change_nothing),
        cmocka_unit_test(a_leaving_node_shrinks_the_job_while_the_minimum_is_left),
        cmocka_unit_test(a_node_that_can_start_nothing_ends_a_job_that_needs_all_its_nodes),
        cmocka_unit_test(a_drain_stops_all_and_ends_when_their_workers_are_gone),
        cmocka_unit_test(training_that_completes_during_a_drain_has_succeeded),
        cmocka_unit_test(too_few_nodes_in_time_fail_the_job),
        cmocka_unit_test(nonsense_is_refused_with_a_reason),
        cmocka_unit_test(settings_beyond_their_bounds_make_no_job),
        cmocka_unit_test(a_join_out_of_bounds_is_refused),
        cmocka_unit_test(only_a_larger_round_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
