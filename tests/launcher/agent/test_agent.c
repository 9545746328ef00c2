/* The agent's machine: events in, effects out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/include/crun.h"
#include "common/job/exitcode.h"
#include "launcher/agent/machine/agent.h"
#include "launcher/config/stops.h"

#define SLOTS 3

/* What a step asked for, as words: "fail(5) stop(failure)". */
static char trace[256];

static void describe(const struct agent_effects *fx)
{
    size_t n = 0;
    trace[0] = '\0';
    for (int i = 0; i < fx->n; i++) {
        const struct agent_effect *f = &fx->v[i];
        n += (size_t)snprintf(trace + n, sizeof trace - n, "%s%s", i ? " " : "", agent_effect_name(f->kind));
        if (f->kind == AGENT_DO_FAIL || (f->kind == AGENT_DO_LEAVE && f->cause.exit_code))
            n += (size_t)snprintf(trace + n, sizeof trace - n, "(%d)", f->cause.exit_code);
        else if (f->kind == AGENT_DO_STOP)
            n += (size_t)snprintf(trace + n, sizeof trace - n, "(%s%s%s%s)",
                                  crun_stop_reason_name((enum crun_stop_reason)f->reason),
                                  f->signo == SIGTERM ? "" : " ",
                                  f->signo == SIGTERM ? "" : stops_signal_name(f->signo), f->typed ? " typed" : "");
        else if (f->kind == AGENT_DO_LEAVE && f->cause.text[0] && strcmp(f->cause.text, "SIGTERM") != 0)
            n += (size_t)snprintf(trace + n, sizeof trace - n, "(%s)", f->cause.text);
        else if (f->kind == AGENT_DO_CLEAR && f->keep)
            n += (size_t)snprintf(trace + n, sizeof trace - n, "(keep)");
        else if (f->kind == AGENT_DO_EXIT)
            n += (size_t)snprintf(trace + n, sizeof trace - n, "(%d)", f->code);
    }
}

static const char *step(struct agent *a, struct agent_event ev)
{
    struct agent_effects fx;
    agent_step(a, &ev, &fx);
    describe(&fx);
    return trace;
}

static const char *news(struct agent *a, enum rdzv_news_kind kind, enum rdzv_reason why, int exit_code)
{
    return step(a,
                (struct agent_event){.kind = AGENT_NEWS, .news = {.kind = kind, .why = why, .exit_code = exit_code}});
}

static const char *round_begins(struct agent *a)
{
    return news(a, RDZV_NEWS_ROUND, RDZV_WHY_START, 0);
}

static const char *ends(struct agent *a, int code)
{
    return step(a, (struct agent_event){.kind = AGENT_WORKER_ENDED, .cause = {.exit_code = code}});
}

static const char *ends_where_some_stay(struct agent *a, int code)
{
    return step(a, (struct agent_event){.kind = AGENT_WORKER_ENDED, .cause = {.exit_code = code}, .holds = true});
}

static const char *simple(struct agent *a, enum agent_event_kind kind)
{
    return step(a, (struct agent_event){.kind = kind});
}

static const char *signals_at(struct agent *a, int signo, int64_t now_ms)
{
    return step(a, (struct agent_event){.kind = AGENT_SIGNAL, .signo = signo, .now_ms = now_ms});
}

static const char *signals(struct agent *a, int signo)
{
    return signals_at(a, signo, 1);
}

static const char *fenced(struct agent *a)
{
    return simple(a, AGENT_FENCED);
}

static const char *failed(struct agent *a, int code)
{
    return step(a, (struct agent_event){.kind = AGENT_FAILED, .cause = {.exit_code = code}});
}

/* Nobody is left: the node says so, and goes when the rendezvous agrees. */
static const char *parts(struct agent *a)
{
    assert_string_equal(simple(a, AGENT_GONE), "join await");
    assert_int_equal(a->state, AGENT_PARTING);
    return news(a, RDZV_NEWS_END, RDZV_WHY_START, EXIT_REQUEUE);
}

static struct agent running(void)
{
    struct agent a;
    agent_init(&a, SLOTS, EXIT_SPARE);
    assert_string_equal(simple(&a, AGENT_START), "join");
    assert_string_equal(round_begins(&a), "spawn");
    assert_int_equal(a.state, AGENT_RUNNING);
    return a;
}

static void a_job_whose_workers_all_exit_zero_is_done_and_then_ends(void **state)
{
    struct agent a = running();
    assert_string_equal(ends(&a, 0), "");
    assert_string_equal(ends(&a, 0), "");
    assert_string_equal(ends(&a, 0), "dismiss");
    assert_string_equal(simple(&a, AGENT_GONE), "done");
    assert_string_equal(news(&a, RDZV_NEWS_END, RDZV_WHY_START, 0), "exit(0)");
}

static void a_failure_is_told_and_stops_the_others_without_waiting_for_an_answer(void **state)
{
    struct agent a = running();
    assert_string_equal(ends(&a, 137), "fail(137) stop(failure)");
    assert_string_equal(news(&a, RDZV_NEWS_STOP, RDZV_WHY_FAILURE, 0), "");
    assert_string_equal(ends(&a, 143), "");
    assert_string_equal(ends(&a, 143), "clear");
    assert_string_equal(simple(&a, AGENT_GONE), "join");
    assert_string_equal(round_begins(&a), "spawn");
    assert_int_equal(a.live, SLOTS);
}

static void a_failure_without_restarts_left_ends_with_the_culprits_code(void **state)
{
    struct agent a = running();
    ends(&a, 9);
    assert_string_equal(news(&a, RDZV_NEWS_END, RDZV_WHY_FAILURE, 9), "");
    ends(&a, 143);
    ends(&a, 1);
    assert_string_equal(simple(&a, AGENT_GONE), "exit(9)");
}

static void the_last_worker_failing_clears_at_once(void **state)
{
    struct agent a = running();
    ends(&a, 0);
    ends(&a, 0);
    assert_string_equal(ends(&a, 3), "fail(3) stop(failure) clear");
}

static void the_grace_over_clears_once(void **state)
{
    struct agent a = running();
    ends(&a, 1);
    assert_string_equal(simple(&a, AGENT_GRACE_OVER), "clear");
    assert_string_equal(simple(&a, AGENT_GRACE_OVER), "");
    assert_string_equal(ends(&a, 137), "");
    assert_string_equal(ends(&a, 137), "");
    assert_string_equal(simple(&a, AGENT_GONE), "join");
}

static void a_grace_that_ends_late_means_nothing_to_the_next_round(void **state)
{
    struct agent a = running();
    assert_string_equal(simple(&a, AGENT_GRACE_OVER), "");
    assert_int_equal(a.state, AGENT_RUNNING);
}

static void a_stop_from_the_rendezvous_stops_for_its_reason(void **state)
{
    struct agent a = running();
    assert_string_equal(news(&a, RDZV_NEWS_STOP, RDZV_WHY_RESIZE, 0), "stop(resize)");
    for (int i = 0; i < SLOTS; i++)
        ends(&a, EXIT_REQUEUE);
    assert_string_equal(simple(&a, AGENT_GONE), "join");
}

static void a_node_that_is_done_joins_again_when_the_others_failed(void **state)
{
    struct agent a = running();
    for (int i = 0; i < SLOTS; i++)
        ends(&a, 0);
    simple(&a, AGENT_GONE);
    assert_string_equal(news(&a, RDZV_NEWS_STOP, RDZV_WHY_FAILURE, 0), "join");
}

static void a_spare_waits(void **state)
{
    struct agent a;
    agent_init(&a, SLOTS, EXIT_SPARE);
    simple(&a, AGENT_START);
    struct agent_event ev = {.kind = AGENT_NEWS, .news = {.kind = RDZV_NEWS_ROUND, .spare = true}};
    assert_string_equal(step(&a, ev), "");
    assert_string_equal(round_begins(&a), "spawn");
}

static void a_drain_that_all_workers_obey_ends_with_75(void **state)
{
    struct agent a = running();
    assert_string_equal(signals(&a, SIGTERM), "leave stop(drain)");
    assert_string_equal(news(&a, RDZV_NEWS_STOP, RDZV_WHY_DRAIN, 0), "");
    ends(&a, EXIT_REQUEUE);
    ends(&a, 0);
    assert_string_equal(ends(&a, EXIT_REQUEUE), "clear");
    assert_string_equal(parts(&a), "exit(75)");
}

static void a_drain_passes_the_signal_on_to_the_workers_of_every_node(void **state)
{
    struct agent a = running(), b = a;
    assert_string_equal(signals(&a, SIGINT), "leave(SIGINT) stop(drain SIGINT)");
    for (int i = 0; i < SLOTS; i++)
        ends(&a, 130); /* KeyboardInterrupt */
    assert_string_equal(parts(&a), "exit(130)");

    struct agent_event ev = {.kind = AGENT_NEWS, .news = {.kind = RDZV_NEWS_STOP, .why = RDZV_WHY_DRAIN}};
    strcpy(ev.news.cause.text, "SIGINT on node 'a'");
    assert_string_equal(step(&b, ev), "stop(drain SIGINT)");
    ev = (struct agent_event){.kind = AGENT_NEWS, .news = {.kind = RDZV_NEWS_END, .exit_code = EXIT_REQUEUE}};
    assert_string_equal(step(&b, ev), "");
    ev.news.exit_code = 130; /* the host's user would wait no longer */
    assert_string_equal(step(&b, ev), "clear");
    for (int i = 0; i < SLOTS; i++)
        ends(&b, 130);
    assert_int_equal(b.bad_code, 0);
}

static void what_a_drain_does_not_ask_for_is_no_obedience(void **state)
{
    struct agent a = running();
    news(&a, RDZV_NEWS_STOP, RDZV_WHY_DRAIN, 0);
    ends(&a, 143);
    assert_int_equal(a.bad_code, 0);
    ends(&a, 130);
    assert_int_equal(a.bad_code, 130);
}

static void a_drain_with_one_worker_killed_ends_with_the_signal(void **state)
{
    struct agent a = running();
    signals(&a, SIGHUP);
    ends(&a, EXIT_REQUEUE);
    ends(&a, 143);
    ends(&a, EXIT_REQUEUE);
    assert_string_equal(parts(&a), "exit(129)");
}

static void a_drain_after_a_failure_starts_no_further_round(void **state)
{
    struct agent a = running();
    ends(&a, 1);
    assert_string_equal(signals(&a, SIGTERM), "leave");
    ends(&a, EXIT_REQUEUE);
    ends(&a, EXIT_REQUEUE);
    assert_string_equal(parts(&a), "exit(143)");
}

static void a_second_sigint_ends_the_grace_and_a_second_sigterm_does_not(void **state)
{
    struct agent a = running();
    signals_at(&a, SIGINT, 5000);
    assert_string_equal(signals_at(&a, SIGTERM, 7000), "");
    assert_string_equal(signals_at(&a, SIGINT, 6000), "stop(abort) leave(130) clear");
    assert_string_equal(signals_at(&a, SIGINT, 8000), "");
    for (int i = 0; i < SLOTS; i++)
        ends(&a, 137);
    assert_string_equal(parts(&a), "exit(130)");
}

static void two_sigints_within_a_second_are_one(void **state)
{
    struct agent a = running();
    assert_string_equal(signals_at(&a, SIGINT, 5000), "leave(SIGINT) stop(drain SIGINT)");
    assert_string_equal(signals_at(&a, SIGINT, 5000), "");
    assert_string_equal(signals_at(&a, SIGINT, 5999), "");
    assert_string_equal(signals_at(&a, SIGINT, 6000), "stop(abort) leave(130) clear");
}

static void the_first_sigint_after_a_sigterm_does_not_abort(void **state)
{
    struct agent a = running();
    assert_string_equal(signals_at(&a, SIGTERM, 5000), "leave stop(drain)");
    assert_string_equal(signals_at(&a, SIGINT, 9000), "");
    assert_string_equal(signals_at(&a, SIGINT, 9500), "");
    assert_string_equal(signals_at(&a, SIGINT, 10000), "stop(abort) leave(130) clear");
    for (int i = 0; i < SLOTS; i++)
        ends(&a, 137);
    assert_string_equal(parts(&a), "exit(143)");
}

static void a_requeue_that_another_worker_does_not_obey_ends_with_its_code(void **state)
{
    static const struct {
        int second, third;
        const char *exit;
    } cases[] = {{0, 143, "exit(75)"}, {143, 3, "exit(3)"}, {139, 3, "exit(139)"}, {75, 137, "exit(137)"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct agent a = running();
        ends(&a, EXIT_REQUEUE);
        news(&a, RDZV_NEWS_END, RDZV_WHY_START, EXIT_REQUEUE);
        ends(&a, cases[i].second);
        assert_string_equal(ends(&a, cases[i].third), "clear");
        assert_string_equal(simple(&a, AGENT_GONE), cases[i].exit);
    }
}

static void a_worker_that_requeues_by_itself_drains_the_others(void **state)
{
    (void)state;
    struct agent a = running();
    assert_string_equal(ends(&a, EXIT_REQUEUE), "leave stop(drain)");
    assert_string_equal(news(&a, RDZV_NEWS_END, RDZV_WHY_START, EXIT_REQUEUE), "");
    assert_string_equal(ends(&a, 0), "");
    assert_string_equal(ends(&a, EXIT_REQUEUE), "clear");
    assert_string_equal(simple(&a, AGENT_GONE), "exit(75)");
}

static void a_program_that_cannot_be_executed_is_not_tried_again(void **state)
{
    struct agent a = running();
    struct agent_event ev = {.kind = AGENT_SPAWN_FAILED, .cause = {.exit_code = EXIT_NOT_FOUND}};
    assert_string_equal(step(&a, ev), "leave(127) clear");
    assert_string_equal(step(&a, ev), "leave(127)"); /* of the next worker; no second clear */
    news(&a, RDZV_NEWS_STOP, RDZV_WHY_DRAIN, 0);
    for (int i = 0; i < SLOTS; i++)
        ends(&a, 127);
    assert_string_equal(parts(&a), "exit(127)");
}

static const struct agent_event no_job_without_us = {.kind = AGENT_SPAWN_FAILED,
                                                     .cause = {.exit_code = EXIT_NOT_FOUND, .fatal = true}};

static void a_node_that_the_job_needs_and_that_cannot_start_fails_it_for_good(void **state)
{
    struct agent a = running();
    struct agent_effects fx;
    agent_step(&a, &no_job_without_us, &fx);
    describe(&fx);
    assert_string_equal(trace, "fail(127) clear");
    assert_true(fx.v[0].cause.fatal);
    assert_string_equal(step(&a, no_job_without_us), ""); /* of the next worker */
    for (int i = 0; i < SLOTS; i++)
        ends(&a, 127);
    assert_string_equal(simple(&a, AGENT_GONE), "join");
    assert_string_equal(news(&a, RDZV_NEWS_END, RDZV_WHY_FAILURE, 127), "exit(127)");
}

/* As when its log folder cannot be made: no worker is there that could end. */
static void a_node_whose_workers_were_never_started_waits_for_none(void **state)
{
    struct agent a = running();
    assert_string_equal(step(&a, no_job_without_us), "fail(127) clear");
    assert_string_equal(simple(&a, AGENT_GONE), "join");
    assert_string_equal(news(&a, RDZV_NEWS_END, RDZV_WHY_FAILURE, 127), "exit(127)");
}

static void a_node_that_cannot_start_ends_with_the_code_of_a_culprit_before_it(void **state)
{
    struct agent a = running();
    assert_string_equal(news(&a, RDZV_NEWS_END, RDZV_WHY_FAILURE, 9), "stop(failure)");
    assert_string_equal(step(&a, no_job_without_us), "clear");
    assert_string_equal(simple(&a, AGENT_GONE), "exit(9)");
}

static void a_node_that_cannot_start_in_a_round_that_is_broken_tells_of_it_in_the_next(void **state)
{
    struct agent a = running();
    assert_string_equal(news(&a, RDZV_NEWS_STOP, RDZV_WHY_FAILURE, 0), "stop(failure)");
    assert_string_equal(step(&a, no_job_without_us), "clear");
    assert_string_equal(simple(&a, AGENT_GONE), "join");
    assert_string_equal(round_begins(&a), "spawn");
    assert_string_equal(step(&a, no_job_without_us), "fail(127) clear");
}

static void a_fence_kills_at_once_and_joins_again(void **state)
{
    struct agent a = running();
    assert_string_equal(fenced(&a), "clear");
    assert_string_equal(fenced(&a), "");
    for (int i = 0; i < SLOTS; i++)
        assert_string_equal(ends(&a, 137), "");
    assert_string_equal(simple(&a, AGENT_GONE), "join");
    assert_string_equal(round_begins(&a), "spawn");
}

static void a_fence_ends_the_grace_of_a_stop(void **state)
{
    struct agent a = running();
    news(&a, RDZV_NEWS_STOP, RDZV_WHY_RESIZE, 0);
    assert_string_equal(fenced(&a), "clear");
    assert_string_equal(simple(&a, AGENT_GRACE_OVER), "");
    assert_string_equal(simple(&a, AGENT_GONE), "join");
}

static void a_node_fenced_before_it_could_say_done_joins_again(void **state)
{
    struct agent a = running();
    for (int i = 0; i < SLOTS; i++)
        ends(&a, 0);
    assert_int_equal(a.state, AGENT_CLEARING);
    assert_string_equal(fenced(&a), "clear"); /* what they left behind has no time any more */
    assert_string_equal(fenced(&a), "");
    assert_string_equal(simple(&a, AGENT_GONE), "join");
}

static void a_failed_rendezvous_kills_and_ends_with_its_code(void **state)
{
    struct agent a = running();
    assert_string_equal(fenced(&a), "clear");
    assert_string_equal(failed(&a, EXIT_UNAVAILABLE), "");
    assert_string_equal(simple(&a, AGENT_GONE), "exit(69)");
}

static void a_node_that_leaves_while_the_others_go_on_ends_with_75(void **state)
{
    struct agent a = running();
    assert_string_equal(signals(&a, SIGTERM), "leave stop(drain)");
    assert_string_equal(news(&a, RDZV_NEWS_STOP, RDZV_WHY_RESIZE, 0), "");
    for (int i = 0; i < SLOTS; i++)
        ends(&a, EXIT_REQUEUE);
    assert_string_equal(parts(&a), "exit(75)");
}

static void a_node_that_is_drained_by_others_ends_with_75(void **state)
{
    struct agent a = running();
    assert_string_equal(news(&a, RDZV_NEWS_STOP, RDZV_WHY_DRAIN, 0), "stop(drain)");
    ends(&a, EXIT_REQUEUE);
    ends(&a, 143);
    ends(&a, 0);
    assert_string_equal(simple(&a, AGENT_GONE), "join");
    assert_string_equal(news(&a, RDZV_NEWS_END, RDZV_WHY_DRAIN, EXIT_REQUEUE), "exit(75)");
}

static void nobody_waits_for_a_rendezvous_that_does_not_let_go(void **state)
{
    struct agent a = running();
    signals_at(&a, SIGINT, 1000);
    for (int i = 0; i < SLOTS; i++)
        ends(&a, 0);
    assert_string_equal(simple(&a, AGENT_GONE), "join await");
    assert_string_equal(signals_at(&a, SIGTERM, 1500), "");
    assert_string_equal(simple(&a, AGENT_GRACE_OVER), "exit(75)");

    struct agent b = running();
    signals_at(&b, SIGINT, 1000);
    simple(&b, AGENT_GONE);
    assert_string_equal(signals_at(&b, SIGINT, 2000), "exit(75)");
}

static void a_stopped_spare_ends_with_75_and_a_node_without_a_round_with_the_signal(void **state)
{
    struct agent a;
    agent_init(&a, SLOTS, EXIT_SPARE);
    simple(&a, AGENT_START);
    struct agent b = a;
    step(&a, (struct agent_event){.kind = AGENT_NEWS, .news = {.kind = RDZV_NEWS_ROUND, .spare = true}});
    assert_string_equal(signals(&a, SIGTERM), "leave await");
    assert_string_equal(news(&a, RDZV_NEWS_END, RDZV_WHY_START, EXIT_REQUEUE), "exit(75)");
    assert_string_equal(signals(&b, SIGTERM), "leave await");
    assert_string_equal(news(&b, RDZV_NEWS_END, RDZV_WHY_START, EXIT_REQUEUE), "exit(143)");
}

static void a_preemption_notice_is_a_wish_to_be_started_again(void **state)
{
    static const struct {
        int ends[SLOTS];
        const char *exit;
    } cases[] = {{{75, 75, 0}, "exit(75)"}, {{143, 143, 143}, "exit(75)"}, {{75, 139, 143}, "exit(139)"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct agent a = running();
        assert_string_equal(simple(&a, AGENT_PREEMPTED), "leave stop(drain)");
        assert_string_equal(simple(&a, AGENT_PREEMPTED), "");
        assert_string_equal(signals(&a, SIGTERM), ""); /* the scheduler's, when the time is up */
        for (int k = 0; k < SLOTS; k++)
            ends(&a, cases[i].ends[k]);
        assert_string_equal(parts(&a), cases[i].exit);
    }
}

static void a_preempted_node_whose_workers_are_complete_says_so_before_it_leaves(void **state)
{
    struct agent a = running();
    for (int i = 0; i < SLOTS; i++)
        ends(&a, 0);
    assert_string_equal(simple(&a, AGENT_PREEMPTED), "");
    assert_string_equal(simple(&a, AGENT_GONE), "done leave await");
}

static void a_preemption_notice_after_a_failure_starts_no_further_round(void **state)
{
    struct agent a = running();
    ends(&a, 1);
    assert_string_equal(simple(&a, AGENT_PREEMPTED), "leave");
    ends(&a, 143);
    ends(&a, 143);
    assert_string_equal(parts(&a), "exit(75)");
}

static const char *types(struct agent *a, int signo, bool shared, int64_t now_ms)
{
    return step(a, (struct agent_event){
                       .kind = AGENT_SIGNAL, .signo = signo, .typed = true, .shared = shared, .now_ms = now_ms});
}

static void a_typed_second_sigint_kills_at_once(void **state)
{
    struct agent a = running();
    assert_string_equal(types(&a, SIGINT, false, 5000), "leave(SIGINT) stop(drain SIGINT typed)");
    assert_string_equal(types(&a, SIGINT, false, 5100), ""); /* the key is held down */
    assert_string_equal(types(&a, SIGINT, false, 5200), "stop(abort) leave(130) clear");
}

static void what_is_typed_to_a_worker_with_the_terminal_is_its_own_matter(void **state)
{
    struct agent a = running(), b = a, c = a;
    assert_string_equal(types(&a, SIGINT, true, 5000), "");
    assert_string_equal(types(&a, SIGINT, true, 9000), "");
    assert_string_equal(
        step(&a, (struct agent_event){.kind = AGENT_WORKER_ENDED, .cause = {.exit_code = 130}, .signo = SIGINT}),
        "leave(SIGINT) stop(drain SIGINT typed)");
    ends(&a, 0);
    ends(&a, 0);
    assert_string_equal(parts(&a), "exit(130)");

    types(&b, SIGINT, true, 5000);
    assert_string_equal(ends(&b, 1), "fail(1) stop(failure)");

    signals(&c, SIGTERM);
    assert_string_equal(types(&c, SIGINT, true, 5000), "");
    assert_string_equal(types(&c, SIGINT, true, 6000),
                        "stop(abort) leave(130) clear"); /* it does not obey: both ways are open */
}

static void an_unkillable_process_ends_the_node_without_a_word(void **state)
{
    struct agent a = running();
    ends(&a, 9);
    simple(&a, AGENT_GRACE_OVER);
    assert_string_equal(simple(&a, AGENT_UNKILLABLE), "exit(71)");
}

static void a_node_whose_workers_are_complete_says_so_before_it_leaves(void **state)
{
    struct agent a = running();
    for (int i = 0; i < SLOTS; i++)
        ends(&a, 0);
    assert_string_equal(signals(&a, SIGTERM), "");
    assert_string_equal(simple(&a, AGENT_GONE), "done leave await");
    assert_string_equal(news(&a, RDZV_NEWS_END, RDZV_WHY_START, 0), "exit(0)");
}

/* Every event in every state; the words are the effects, "-> state" where it changes. */
#define CELLS 17
static const char *const cell_names[CELLS] = {
    "start",      "round",  "spare",      "stop",    "end(9)",    "ended(0)",   "ended(3)",  "unspawned", "gone",
    "grace-over", "fenced", "failed(69)", "SIGTERM", "hung(124)", "unkillable", "preempted", "held"};

static struct agent_event cell_event(int i)
{
    static const struct agent_event v[CELLS] = {
        {.kind = AGENT_START},
        {.kind = AGENT_NEWS, .news = {.kind = RDZV_NEWS_ROUND}},
        {.kind = AGENT_NEWS, .news = {.kind = RDZV_NEWS_ROUND, .spare = true}},
        {.kind = AGENT_NEWS, .news = {.kind = RDZV_NEWS_STOP, .why = RDZV_WHY_RESIZE}},
        {.kind = AGENT_NEWS, .news = {.kind = RDZV_NEWS_END, .exit_code = 9}},
        {.kind = AGENT_WORKER_ENDED},
        {.kind = AGENT_WORKER_ENDED, .cause = {.exit_code = 3}},
        {.kind = AGENT_SPAWN_FAILED, .cause = {.exit_code = EXIT_NOT_FOUND}},
        {.kind = AGENT_GONE},
        {.kind = AGENT_GRACE_OVER},
        {.kind = AGENT_FENCED},
        {.kind = AGENT_FAILED, .cause = {.exit_code = EXIT_UNAVAILABLE}},
        {.kind = AGENT_SIGNAL, .signo = SIGTERM, .now_ms = 1},
        {.kind = AGENT_HUNG, .cause = {.exit_code = EXIT_HUNG}},
        {.kind = AGENT_UNKILLABLE},
        {.kind = AGENT_PREEMPTED},
        {.kind = AGENT_HELD},
    };
    return v[i];
}

/* An agent of SLOTS workers as it is in this state on the straight way there; parting: after SIGTERM, all workers
 * having obeyed. */
static struct agent in_state(enum agent_state s)
{
    struct agent a;
    agent_init(&a, SLOTS, EXIT_SPARE);
    if (s == AGENT_IDLE)
        return a;
    simple(&a, AGENT_START);
    if (s == AGENT_JOINING)
        return a;
    a = running();
    if (s == AGENT_HOLDING)
        ends_where_some_stay(&a, 137);
    if (s == AGENT_STOPPING)
        news(&a, RDZV_NEWS_STOP, RDZV_WHY_RESIZE, 0);
    else if (s == AGENT_PARTING)
        signals(&a, SIGTERM);
    for (int i = 0; i < SLOTS && s != AGENT_RUNNING && s != AGENT_HOLDING && s != AGENT_STOPPING; i++)
        ends(&a, 0);
    if (s == AGENT_FINISHING || s == AGENT_PARTING || s == AGENT_OVER)
        simple(&a, AGENT_GONE);
    if (s == AGENT_OVER)
        news(&a, RDZV_NEWS_END, RDZV_WHY_START, 0);
    return a;
}

static void every_event_in_every_state_does_what_the_table_says(void **state)
{
    (void)state;
    /* clang-format off */
    static const char *const table[][CELLS] = {
        /*                    start              round                spare  stop                        end(9) */
        [AGENT_IDLE]      = {"join -> joining", "",                  "",    "",                         "",
        /*                    ended(0)           ended(3)             unspawned */
                             "",                "",                  "",
        /* gone, grace-over; fenced, failed(69), SIGTERM, hung(124), unkillable, preempted, held */
                             "",                "",                  "",    "exit(69) -> over", "exit(143) -> over", "", "", "exit(75) -> over", ""},
        [AGENT_JOINING]   = {"",                "spawn -> running",  "",    "",                         "exit(9) -> over",
                             "",                "",                  "leave(127) await -> parting",
                             "",                "",                  "join", "exit(69) -> over", "leave await -> parting", "", "", "leave await -> parting", ""},
        [AGENT_RUNNING]   = {"",                "",                  "",    "stop(resize) -> stopping", "stop(failure) -> stopping",
                             "",                "fail(3) stop(failure) -> stopping", "leave(127) clear -> stopping",
                             "",                "",                  "clear -> stopping", "clear -> stopping", "leave stop(drain) -> stopping",
                             "fail(124) stop(failure) -> stopping", "", "leave stop(drain) -> stopping", ""},
        [AGENT_HOLDING]   = {"",                "",                  "",    "",                         "stop(failure) -> stopping",
                             "",                "",                  "leave(127) clear -> stopping",
                             "join -> joining", "clear(keep)",       "clear -> stopping", "clear -> stopping", "leave stop(drain) -> stopping",
                             "", "exit(71) -> over", "leave stop(drain) -> stopping", ""},
        [AGENT_STOPPING]  = {"",                "",                  "",    "",                         "",
                             "",                "",                  "leave(127) clear",
                             "join -> joining", "clear",             "clear", "clear", "leave", "", "exit(71) -> over", "leave", ""},
        [AGENT_CLEARING]  = {"",                "",                  "",    "",                         "",
                             "",                "",                  "",
                             "done -> finishing", "",                "clear -> stopping", "clear -> stopping", "", "", "exit(71) -> over", "", ""},
        [AGENT_FINISHING] = {"",                "",                  "",    "join -> joining",          "exit(9) -> over",
                             "",                "",                  "",
                             "",                "",                  "join -> joining", "exit(69) -> over", "leave await -> parting", "", "", "leave await -> parting", ""},
        [AGENT_PARTING]   = {"",                "",                  "",    "",                         "exit(75) -> over",
                             "",                "",                  "",
                             "",                "exit(75) -> over",  "exit(75) -> over", "exit(75) -> over", "", "", "", "", ""},
        [AGENT_OVER]      = {"", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", ""},
    };
    /* clang-format on */
    for (int s = AGENT_IDLE; s <= AGENT_OVER; s++)
        for (int i = 0; i < CELLS; i++) {
            struct agent a = in_state((enum agent_state)s);
            char got[sizeof trace + 32];
            assert_int_equal(a.state, s);
            const char *words = step(&a, cell_event(i));
            snprintf(got, sizeof got, "%s%s%s", words, (int)a.state != s ? " -> " : "",
                     (int)a.state != s ? agent_state_name(a.state) : "");
            if (strcmp(got, table[s][i]) != 0)
                fail_msg("%s in %s: '%s', expected '%s'", cell_names[i], agent_state_name((enum agent_state)s), got,
                         table[s][i]);
        }
}

static void after_the_end_nothing_matters(void **state)
{
    struct agent a = running();
    for (int i = 0; i < SLOTS; i++)
        ends(&a, 0);
    simple(&a, AGENT_GONE);
    news(&a, RDZV_NEWS_END, RDZV_WHY_START, 0);
    assert_string_equal(signals(&a, SIGINT), "");
    assert_string_equal(round_begins(&a), "");
    assert_string_equal(ends(&a, 1), "");
    assert_string_equal(simple(&a, AGENT_GONE), "");
}

/* --- workers that outlive the round */

static const char *held_one_ends(struct agent *a)
{
    return step(a, (struct agent_event){.kind = AGENT_WORKER_ENDED, .cause = {.exit_code = 137}, .was_held = true});
}

/* One of three was killed, the other two have let go, and wait for a round. */
static struct agent waiting(void)
{
    struct agent a = running();
    assert_string_equal(ends_where_some_stay(&a, 137), "fail(137) hold");
    assert_int_equal(a.state, AGENT_HOLDING);
    assert_string_equal(simple(&a, AGENT_HELD), "");
    assert_string_equal(simple(&a, AGENT_HELD), "clear(keep)");
    assert_string_equal(simple(&a, AGENT_GONE), "join");
    assert_int_equal(a.state, AGENT_JOINING);
    assert_int_equal(a.live, 2);
    return a;
}

static void workers_that_outlive_the_round_go_on_in_the_next(void **state)
{
    struct agent a = waiting();
    assert_string_equal(round_begins(&a), "spawn");
    assert_int_equal(a.live, SLOTS);
    assert_int_equal(a.held, 0);
    assert_string_equal(ends(&a, 0), "");
    assert_string_equal(ends(&a, 0), "");
    assert_string_equal(ends(&a, 0), "dismiss");
}

static void a_failure_elsewhere_holds_them_too_but_a_resize_does_not(void **state)
{
    struct agent a = running(), b = running();
    const struct agent_event stop = {
        .kind = AGENT_NEWS, .news = {.kind = RDZV_NEWS_STOP, .why = RDZV_WHY_FAILURE}, .holds = true};
    struct agent_event resize = stop;
    resize.news.why = RDZV_WHY_RESIZE;
    assert_string_equal(step(&a, stop), "hold");
    assert_string_equal(step(&b, resize), "stop(resize)");
}

static void a_node_that_comes_holds_those_that_can_go_on_in_a_larger_world(void **state)
{
    struct agent a = running(), b = running(), c = running();
    struct agent_event comes = {.kind = AGENT_NEWS,
                                .news = {.kind = RDZV_NEWS_STOP, .why = RDZV_WHY_RESIZE, .cause = {.text = RDZV_GROWS}},
                                .grows = true};
    struct agent_event leaves = comes;
    assert_string_equal(step(&a, comes), "hold");
    for (int i = 0; i < SLOTS - 1; i++)
        assert_string_equal(simple(&a, AGENT_HELD), "");
    assert_string_equal(simple(&a, AGENT_HELD), "clear(keep)");
    assert_string_equal(simple(&a, AGENT_GONE), "join");
    assert_string_equal(news(&a, RDZV_NEWS_ROUND, RDZV_WHY_RESIZE, 0), "spawn");
    assert_int_equal(a.live, SLOTS);
    comes.grows = false;
    comes.holds = true; /* some would outlive a failure */
    assert_string_equal(step(&b, comes), "stop(resize)");
    leaves.news.cause.text[0] = '\0';
    assert_string_equal(step(&c, leaves), "stop(resize)");
}

static void one_that_hangs_is_told_and_the_others_are_held(void **state)
{
    struct agent a = running();
    assert_string_equal(step(&a, (struct agent_event){.kind = AGENT_HUNG, .cause = {.exit_code = 99}, .holds = true}),
                        "fail(99) hold");
    assert_string_equal(ends(&a, 137), ""); /* it was killed */
    simple(&a, AGENT_HELD);
    assert_string_equal(simple(&a, AGENT_HELD), "clear(keep)");
}

/* Another node failed while this one's workers were being started beside those that it kept. */
static void what_cannot_be_started_while_others_let_go_is_not_waited_for(void **state)
{
    const struct agent_event stop = {
        .kind = AGENT_NEWS, .news = {.kind = RDZV_NEWS_STOP, .why = RDZV_WHY_FAILURE}, .holds = true};
    struct agent a = running(), b = running();
    assert_string_equal(step(&a, stop), "hold");
    assert_string_equal(step(&a, no_job_without_us), "clear"); /* nobody is kept */
    assert_string_equal(simple(&a, AGENT_GONE), "join");
    assert_string_equal(round_begins(&a), "spawn");
    assert_string_equal(step(&a, no_job_without_us), "fail(127) clear");
    assert_string_equal(step(&b, stop), "hold");
    assert_string_equal(
        step(&b, (struct agent_event){.kind = AGENT_SPAWN_FAILED, .cause = {.exit_code = EXIT_NOT_FOUND}}),
        "leave(127) clear");
    assert_string_equal(parts(&b), "exit(127)");
}

static void who_does_not_let_go_in_time_is_killed_and_replaced(void **state)
{
    struct agent a = running();
    ends_where_some_stay(&a, 137);
    simple(&a, AGENT_HELD);
    assert_string_equal(simple(&a, AGENT_GRACE_OVER), "clear(keep)");
    assert_string_equal(simple(&a, AGENT_HELD), ""); /* too late: it was killed */
    assert_string_equal(ends(&a, 137), "");
    assert_string_equal(simple(&a, AGENT_GONE), "join");
    assert_int_equal(a.live, 1);
}

static void the_death_of_all_that_stay_leaves_an_ordinary_restart(void **state)
{
    struct agent a = waiting();
    assert_string_equal(held_one_ends(&a), "");
    assert_string_equal(held_one_ends(&a), "");
    assert_int_equal(a.live, 0);
    assert_string_equal(round_begins(&a), "spawn");
    struct agent b = running();
    ends_where_some_stay(&b, 137);
    simple(&b, AGENT_HELD);
    assert_string_equal(held_one_ends(&b), "");
    assert_string_equal(ends(&b, 1), "clear(keep)"); /* nobody is left */
}

static void the_end_of_the_job_stops_those_that_wait(void **state)
{
    struct agent a = waiting(), b = running();
    assert_string_equal(news(&a, RDZV_NEWS_END, RDZV_WHY_FAILURE, 9), "stop(failure)");
    ends(&a, 75);
    assert_string_equal(ends(&a, 75), "clear");
    assert_string_equal(simple(&a, AGENT_GONE), "exit(9)");
    ends_where_some_stay(&b, 9);
    assert_string_equal(news(&b, RDZV_NEWS_END, RDZV_WHY_FAILURE, 9), "stop(failure)");
}

static void silence_ends_those_that_wait_at_once(void **state)
{
    struct agent a = waiting(), b = running();
    assert_string_equal(fenced(&a), "clear");
    ends(&a, 137);
    ends(&a, 137);
    assert_string_equal(simple(&a, AGENT_GONE), "join");
    ends_where_some_stay(&b, 137);
    assert_string_equal(fenced(&b), "clear");
    struct agent c = waiting();
    assert_string_equal(failed(&c, 69), "clear");
    assert_string_equal(simple(&c, AGENT_GONE), "exit(69)");
}

static void a_fence_while_the_rest_is_cleared_clears_all(void **state)
{
    struct agent a = running();
    ends_where_some_stay(&a, 137);
    simple(&a, AGENT_HELD);
    assert_string_equal(simple(&a, AGENT_HELD), "clear(keep)");
    assert_string_equal(fenced(&a), "clear");
    assert_string_equal(fenced(&a), "");
}

static void a_stop_signal_drains_those_that_wait(void **state)
{
    struct agent a = waiting();
    assert_string_equal(signals(&a, SIGTERM), "leave stop(drain)");
    ends(&a, 75);
    assert_string_equal(ends(&a, 75), "clear");
    assert_string_equal(parts(&a), "exit(75)");
    struct agent b = waiting();
    assert_string_equal(simple(&b, AGENT_PREEMPTED), "leave stop(drain)");
}

/* --- any order of events */

static uint32_t drawn = 1;

static uint32_t draw(uint32_t below)
{
    drawn = drawn * 1664525u + 1013904223u;
    return (drawn >> 8) % below;
}

/* Of any kind, with any content that a worker, a user or a rendezvous can give it. */
static struct agent_event any_event(void)
{
    static const int codes[] = {0, 1, EXIT_REQUEUE, 127, 128 + SIGTERM, 128 + SIGKILL},
                     signals[] = {SIGTERM, SIGINT, SIGHUP};
    struct agent_event ev = {.kind = (enum agent_event_kind)draw(AGENT_FAILED + 1),
                             .news = {.kind = (enum rdzv_news_kind)(RDZV_NEWS_ROUND + draw(3)),
                                      .why = (enum rdzv_reason)draw(4),
                                      .exit_code = codes[draw(6)],
                                      .spare = draw(4) == 0},
                             .cause = {.exit_code = codes[draw(6)], .fatal = draw(4) == 0},
                             .holds = draw(2) == 0,
                             .grows = draw(2) == 0,
                             .was_held = draw(2) == 0,
                             .signo = draw(8) == 0 ? signals[draw(3)] : 0,
                             .now_ms = 1 + draw(4000),
                             .typed = draw(2) == 0,
                             .shared = draw(4) == 0};
    if (ev.kind == AGENT_NEWS && ev.news.why == RDZV_WHY_RESIZE && draw(2))
        strcpy(ev.news.cause.text, RDZV_GROWS);
    if (ev.kind == AGENT_SIGNAL)
        ev.signo = signals[draw(3)];
    if (ev.kind == AGENT_WORKER_ENDED && ev.cause.exit_code == 0)
        ev.signo = 0;
    return ev;
}

/* agent_check() aborts if not. */
static void no_order_of_events_breaks_a_rule(void **state)
{
    bool been[AGENT_OVER + 1] = {false};
    for (int life = 0; life < 20000; life++) {
        struct agent a;
        struct agent_effects fx;
        agent_init(&a, 1 + (int)draw(SLOTS), EXIT_SPARE);
        if (draw(8))
            simple(&a, AGENT_START);
        if (draw(2) && a.state == AGENT_JOINING)
            round_begins(&a);
        for (int i = 0; i < 60 && a.state != AGENT_OVER; i++) {
            const struct agent_event ev = any_event();
            agent_step(&a, &ev, &fx);
            been[a.state] = true;
        }
    }
    for (int s = AGENT_JOINING; s <= AGENT_OVER; s++)
        assert_true(been[s]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_whose_workers_all_exit_zero_is_done_and_then_ends),
        cmocka_unit_test(a_failure_is_told_and_stops_the_others_without_waiting_for_an_answer),
        cmocka_unit_test(a_failure_without_restarts_left_ends_with_the_culprits_code),
        cmocka_unit_test(the_last_worker_failing_clears_at_once),
        cmocka_unit_test(the_grace_over_clears_once),
        cmocka_unit_test(a_grace_that_ends_late_means_nothing_to_the_next_round),
        cmocka_unit_test(a_stop_from_the_rendezvous_stops_for_its_reason),
        cmocka_unit_test(a_node_that_is_done_joins_again_when_the_others_failed),
        cmocka_unit_test(a_spare_waits),
        cmocka_unit_test(a_drain_that_all_workers_obey_ends_with_75),
        cmocka_unit_test(a_drain_passes_the_signal_on_to_the_workers_of_every_node),
        cmocka_unit_test(what_a_drain_does_not_ask_for_is_no_obedience),
        cmocka_unit_test(what_a_drain_does_not_ask_for_is_no_obedience),
        cmocka_unit_test(a_drain_with_one_worker_killed_ends_with_the_signal),
        cmocka_unit_test(a_drain_after_a_failure_starts_no_further_round),
        cmocka_unit_test(a_second_sigint_ends_the_grace_and_a_second_sigterm_does_not),
        cmocka_unit_test(two_sigints_within_a_second_are_one),
        cmocka_unit_test(the_first_sigint_after_a_sigterm_does_not_abort),
        cmocka_unit_test(a_requeue_that_another_worker_does_not_obey_ends_with_its_code),
        cmocka_unit_test(a_worker_that_requeues_by_itself_drains_the_others),
        cmocka_unit_test(a_program_that_cannot_be_executed_is_not_tried_again),
        cmocka_unit_test(a_node_that_the_job_needs_and_that_cannot_start_fails_it_for_good),
        cmocka_unit_test(a_node_whose_workers_were_never_started_waits_for_none),
        cmocka_unit_test(a_node_that_cannot_start_ends_with_the_code_of_a_culprit_before_it),
        cmocka_unit_test(a_node_that_cannot_start_in_a_round_that_is_broken_tells_of_it_in_the_next),
        cmocka_unit_test(a_fence_kills_at_once_and_joins_again),
        cmocka_unit_test(a_fence_ends_the_grace_of_a_stop),
        cmocka_unit_test(a_node_fenced_before_it_could_say_done_joins_again),
        cmocka_unit_test(a_failed_rendezvous_kills_and_ends_with_its_code),
        cmocka_unit_test(a_node_that_leaves_while_the_others_go_on_ends_with_75),
        cmocka_unit_test(a_node_that_is_drained_by_others_ends_with_75),
        cmocka_unit_test(nobody_waits_for_a_rendezvous_that_does_not_let_go),
        cmocka_unit_test(a_stopped_spare_ends_with_75_and_a_node_without_a_round_with_the_signal),
        cmocka_unit_test(a_node_whose_workers_are_complete_says_so_before_it_leaves),
        cmocka_unit_test(a_preemption_notice_is_a_wish_to_be_started_again),
        cmocka_unit_test(a_preempted_node_whose_workers_are_complete_says_so_before_it_leaves),
        cmocka_unit_test(a_preemption_notice_after_a_failure_starts_no_further_round),
        cmocka_unit_test(a_typed_second_sigint_kills_at_once),
        cmocka_unit_test(what_is_typed_to_a_worker_with_the_terminal_is_its_own_matter),
        cmocka_unit_test(an_unkillable_process_ends_the_node_without_a_word),
        cmocka_unit_test(every_event_in_every_state_does_what_the_table_says),
        cmocka_unit_test(after_the_end_nothing_matters),
        cmocka_unit_test(workers_that_outlive_the_round_go_on_in_the_next),
        cmocka_unit_test(a_failure_elsewhere_holds_them_too_but_a_resize_does_not),
        cmocka_unit_test(a_node_that_comes_holds_those_that_can_go_on_in_a_larger_world),
        cmocka_unit_test(one_that_hangs_is_told_and_the_others_are_held),
        cmocka_unit_test(what_cannot_be_started_while_others_let_go_is_not_waited_for),
        cmocka_unit_test(who_does_not_let_go_in_time_is_killed_and_replaced),
        cmocka_unit_test(the_death_of_all_that_stay_leaves_an_ordinary_restart),
        cmocka_unit_test(the_end_of_the_job_stops_those_that_wait),
        cmocka_unit_test(silence_ends_those_that_wait_at_once),
        cmocka_unit_test(a_fence_while_the_rest_is_cleared_clears_all),
        cmocka_unit_test(a_stop_signal_drains_those_that_wait),
        cmocka_unit_test(no_order_of_events_breaks_a_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
