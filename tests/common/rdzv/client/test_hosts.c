/* Which host of a list a node dials. */
#include "common/rdzv/client/hosts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define SILENCE 3000

static struct hosts three(void)
{
    struct hosts h;
    hosts_init(&h, &(struct hosts_options){.count = 3, .min = 2, .silence_ms = SILENCE, .seed = 1});
    return h;
}

static void step(struct hosts *h, struct hosts_event ev, int64_t now)
{
    hosts_step(h, &ev, now);
}

static void hears(struct hosts *h, int host, int seats, uint64_t round, bool working, int64_t now)
{
    step(h,
         (struct hosts_event){.kind = HOSTS_ANSWER,
                              .host = host,
                              .answer = HOSTS_HEARS,
                              .seats = seats,
                              .round = round,
                              .working = working},
         now);
}

static void nothing(struct hosts *h, int host, enum hosts_answer answer, bool working, int64_t now)
{
    step(h, (struct hosts_event){.kind = HOSTS_ANSWER, .host = host, .answer = answer, .working = working}, now);
}

static void assert_asks(const struct hosts *h)
{
    assert_int_equal(h->fx_count, 1);
    assert_int_equal(h->fx[0], HOSTS_ASK);
}

static void assert_dials(const struct hosts *h, int host)
{
    assert_int_equal(h->fx_count, 1);
    assert_int_equal(h->fx[0], HOSTS_DIAL);
    assert_int_equal(h->host, host);
}

/* One that is at host 1, and has been acknowledged there. */
static struct hosts member(int64_t now)
{
    struct hosts h = three();
    step(&h, (struct hosts_event){.kind = HOSTS_BEGIN}, now);
    hears(&h, 0, 0, 0, false, now);
    hears(&h, 1, 2, 3, false, now);
    hears(&h, 2, 0, 0, false, now);
    assert_dials(&h, 1);
    step(&h, (struct hosts_event){.kind = HOSTS_ACKED}, now);
    return h;
}

static void the_best_host_is_dialled_once_all_have_answered(void **state)
{
    static const struct {
        int seats[3];
        uint64_t round[3];
        int best;
    } cases[] = {{{0, 0, 0}, {0, 0, 0}, 0},  /* the first of the list */
                 {{0, 0, 0}, {1, 4, 4}, 1},  /* the highest round */
                 {{0, 1, 2}, {9, 9, 0}, 2},  /* the most seats */
                 {{0, 1, 0}, {9, 0, 0}, 1}}; /* acknowledges, with this node */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hosts h = three();
        step(&h, (struct hosts_event){.kind = HOSTS_BEGIN}, 100);
        assert_asks(&h);
        for (int k = 2; k >= 0; k--) {
            assert_int_equal(h.state, HOSTS_ASKING);
            hears(&h, k, cases[i].seats[k], cases[i].round[k], false, 100);
        }
        assert_dials(&h, cases[i].best);
    }
}

/* It may take that long until the others are there, too. */
static void a_host_that_is_dialled_has_a_silence_at_least(void **state)
{
    struct hosts h = three();
    step(&h, (struct hosts_event){.kind = HOSTS_BEGIN}, 100);
    for (int k = 0; k < 3; k++)
        hears(&h, k, 0, 0, false, 100);
    assert_dials(&h, 0);
    assert_in_range(h.leave_at, 100 + SILENCE, 100 + 3 * SILENCE);
    assert_in_range(h.due, 101, h.leave_at);
}

static void late_answers_are_not_waited_for(void **state)
{
    struct hosts h = three();
    step(&h, (struct hosts_event){.kind = HOSTS_BEGIN}, 100);
    hears(&h, 2, 0, 0, false, 110);
    assert_int_equal(hosts_deadline(&h), 100 + HOSTS_ASK_MS);
    step(&h, (struct hosts_event){.kind = HOSTS_TICK}, 100 + HOSTS_ASK_MS);
    assert_dials(&h, 2);
    h = three();
    step(&h, (struct hosts_event){.kind = HOSTS_BEGIN}, 100);
    step(&h, (struct hosts_event){.kind = HOSTS_TICK}, 100 + HOSTS_ASK_MS); /* nobody: again, after a pause */
    assert_int_equal(h.state, HOSTS_PAUSING);
    step(&h, (struct hosts_event){.kind = HOSTS_TICK}, 100 + HOSTS_ASK_MS + HOSTS_AGAIN_MS);
    assert_asks(&h);
}

static void a_host_that_acknowledges_nothing_is_left_for_another_and_loses_ties(void **state)
{
    struct hosts h = member(1000);
    const int64_t due = hosts_deadline(&h);
    assert_in_range(due, 1000 + SILENCE, 1000 + 3 * SILENCE);
    step(&h, (struct hosts_event){.kind = HOSTS_TICK}, due);
    assert_asks(&h);
    hears(&h, 0, 0, 0, false, due);
    hears(&h, 1, 0, 0, false, due);
    hears(&h, 2, 0, 0, false, due);
    assert_dials(&h, 0);
    h = member(1000); /* nobody else is there: the connection stays */
    step(&h, (struct hosts_event){.kind = HOSTS_TICK}, due);
    hears(&h, 1, 0, 0, false, due);
    nothing(&h, 0, HOSTS_REFUSED, false, due);
    nothing(&h, 2, HOSTS_NONE, false, due);
    assert_int_equal(h.fx_count, 0);
    assert_int_equal(h.state, HOSTS_AT);
}

static void workers_are_not_given_up_for_a_host_that_does_not_know_them(void **state)
{
    struct hosts h = member(1000);
    step(&h, (struct hosts_event){.kind = HOSTS_AWAY, .working = true}, 2000);
    assert_asks(&h);
    hears(&h, 0, 0, 0, true, 2000);
    hears(&h, 2, 0, 0, true, 2000);
    nothing(&h, 1, HOSTS_NONE, true, 2000);
    assert_int_equal(h.state, HOSTS_PAUSING);
    step(&h, (struct hosts_event){.kind = HOSTS_BEGIN}, 2100); /* they are gone */
    assert_asks(&h);
    hears(&h, 0, 0, 0, false, 2100);
    hears(&h, 2, 0, 0, false, 2100);
    nothing(&h, 1, HOSTS_NONE, false, 2100);
    assert_dials(&h, 0);
}

static void workers_are_given_up_if_their_host_is_dead_or_another_one_leads(void **state)
{
    struct hosts h = member(1000);
    step(&h, (struct hosts_event){.kind = HOSTS_AWAY, .working = true}, 2000);
    hears(&h, 0, 0, 0, true, 2000);
    nothing(&h, 1, HOSTS_REFUSED, true, 2000);
    hears(&h, 2, 0, 0, true, 2000);
    assert_dials(&h, 0);
    h = member(1000);
    step(&h, (struct hosts_event){.kind = HOSTS_AWAY, .working = true}, 2000);
    hears(&h, 0, 0, 0, true, 2000);
    nothing(&h, 1, HOSTS_NONE, true, 2000);
    hears(&h, 2, 1, 4, true, 2000);
    assert_dials(&h, 2);
}

/* They began together: one found nobody but its own host, another one found another. */
static void a_newcomer_whose_host_hears_too_few_looks_again_soon(void **state)
{
    struct hosts h = three();
    (void)state;
    step(&h, (struct hosts_event){.kind = HOSTS_BEGIN}, 100);
    nothing(&h, 0, HOSTS_REFUSED, false, 100);
    nothing(&h, 1, HOSTS_REFUSED, false, 100);
    hears(&h, 2, 0, 0, false, 100);
    assert_dials(&h, 2);
    int64_t now = hosts_deadline(&h);
    assert_in_range(now, 100 + HOSTS_LOOK_MS, 100 + 2 * (HOSTS_LOOK_MS + 2 * HOSTS_LOOK_SEAT_MS));
    step(&h, (struct hosts_event){.kind = HOSTS_TICK}, now);
    assert_asks(&h);
    hears(&h, 0, 1, 0, false, now);
    hears(&h, 1, 0, 0, false, now);
    hears(&h, 2, 0, 0, false, now);
    assert_dials(&h, 0);
    step(&h, (struct hosts_event){.kind = HOSTS_ACKED}, now); /* from then on it stays */
    assert_true(hosts_deadline(&h) >= now + SILENCE);
}

/* However often it looks. */
static void a_host_that_acknowledges_nothing_is_left_in_time_by_one_that_looks_again(void **state)
{
    struct hosts h = three();
    int64_t now = 100;
    (void)state;
    step(&h, (struct hosts_event){.kind = HOSTS_BEGIN}, now);
    while (now < 100 + 4 * SILENCE && !(h.fx_count == 1 && h.fx[0] == HOSTS_DIAL && h.host != 0)) {
        hears(&h, 0, 0, 0, false, now);
        hears(&h, 1, 0, 0, false, now);
        hears(&h, 2, 0, 0, false, now);
        if (h.state != HOSTS_AT || h.host != 0)
            continue;
        now = hosts_deadline(&h);
        step(&h, (struct hosts_event){.kind = HOSTS_TICK}, now);
        assert_asks(&h);
    }
    assert_int_equal(h.host, 1);
    assert_in_range(now, 100 + SILENCE, 100 + 3 * SILENCE + 600);
}

/* Answers of three hosts: 'd' a denial, 'r' nobody listens, '0' or '1' seats heard, 'o' our own, which hears nobody. */
static void answers(struct hosts *h, const char *of, int64_t now)
{
    for (int i = 0; i < 3; i++) {
        const enum hosts_answer a = of[i] == 'd' ? HOSTS_DENIED : of[i] == 'r' ? HOSTS_REFUSED : HOSTS_HEARS;
        step(h,
             (struct hosts_event){
                 .kind = HOSTS_ANSWER, .host = i, .answer = a, .own = of[i] == 'o', .seats = of[i] == '1'},
             now);
    }
}

static void whoever_is_denied_by_most_gives_up_at_the_second_time(void **state)
{
    static const char *const cases[] = {"ddd", "drd", "odd"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hosts h = three();
        step(&h, (struct hosts_event){.kind = HOSTS_BEGIN}, 0);
        answers(&h, cases[i], 10);
        assert_int_equal(h.fx_count, 0);
        assert_int_equal(hosts_deadline(&h), 10 + HOSTS_AGAIN_MS);
        step(&h, (struct hosts_event){.kind = HOSTS_TICK}, 10 + HOSTS_AGAIN_MS);
        assert_asks(&h);
        answers(&h, cases[i], 400);
        assert_int_equal(h.fx_count, 1);
        assert_int_equal(h.fx[0], HOSTS_DENY);
        assert_int_equal(hosts_deadline(&h), INT64_MAX);
    }
}

/* They deny each other, and the first to give up is gone when the next one asks again. */
static void a_host_that_denied_us_and_is_gone_still_counts_as_one_that_does(void **state)
{
    struct hosts h = three();
    (void)state;
    step(&h, (struct hosts_event){.kind = HOSTS_BEGIN}, 0);
    answers(&h, "odd", 10);
    step(&h, (struct hosts_event){.kind = HOSTS_TICK}, 10 + HOSTS_AGAIN_MS);
    answers(&h, "odr", 400);
    assert_int_equal(h.fx_count, 1);
    assert_int_equal(h.fx[0], HOSTS_DENY);
}

static void one_stranger_does_not_end_a_node_that_others_take_or_may_come_to(void **state)
{
    static const struct {
        const char *answers;
        int dialled;
    } cases[] = {{"d0r", 1}, {"odr", 0}, {"o1d", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hosts h = three();
        step(&h, (struct hosts_event){.kind = HOSTS_BEGIN}, 0);
        answers(&h, cases[i].answers, 10);
        assert_dials(&h, cases[i].dialled);
    }
}

static void one_stranger_does_not_end_a_node_whose_hosts_are_not_up_yet(void **state)
{
    struct hosts h = three();
    (void)state;
    step(&h, (struct hosts_event){.kind = HOSTS_BEGIN}, 0);
    for (int i = 0; i < 4; i++) {
        answers(&h, "drr", 10 + 1000 * i);
        assert_int_equal(h.fx_count, 0);
        step(&h, (struct hosts_event){.kind = HOSTS_TICK}, 900 + 1000 * i);
        assert_asks(&h);
    }
}

static void a_node_that_was_acknowledged_once_is_not_ended_by_denials(void **state)
{
    struct hosts h = member(0);
    (void)state;
    step(&h, (struct hosts_event){.kind = HOSTS_AWAY}, 100);
    for (int i = 0; i < 4; i++) {
        answers(&h, "ddd", 110 + 1000 * i);
        assert_int_equal(h.fx_count, 0);
        step(&h, (struct hosts_event){.kind = HOSTS_TICK}, 900 + 1000 * i);
        assert_asks(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_host_is_dialled_once_all_have_answered),
        cmocka_unit_test(a_host_that_is_dialled_has_a_silence_at_least),
        cmocka_unit_test(late_answers_are_not_waited_for),
        cmocka_unit_test(a_host_that_acknowledges_nothing_is_left_for_another_and_loses_ties),
        cmocka_unit_test(a_newcomer_whose_host_hears_too_few_looks_again_soon),
        cmocka_unit_test(a_host_that_acknowledges_nothing_is_left_in_time_by_one_that_looks_again),
        cmocka_unit_test(workers_are_not_given_up_for_a_host_that_does_not_know_them),
        cmocka_unit_test(workers_are_given_up_if_their_host_is_dead_or_another_one_leads),
        cmocka_unit_test(whoever_is_denied_by_most_gives_up_at_the_second_time),
        cmocka_unit_test(a_host_that_denied_us_and_is_gone_still_counts_as_one_that_does),
        cmocka_unit_test(one_stranger_does_not_end_a_node_that_others_take_or_may_come_to),
        cmocka_unit_test(one_stranger_does_not_end_a_node_whose_hosts_are_not_up_yet),
        cmocka_unit_test(a_node_that_was_acknowledged_once_is_not_ended_by_denials),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
