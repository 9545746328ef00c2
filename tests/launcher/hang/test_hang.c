/* The hang detector with pages written by a virtual clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/include/crun.h"
#include "launcher/hang/hang.h"

#define RANKS 4
#define MS INT64_C(1000000)
#define S (1000 * MS)

static struct hang h;
static struct crun_page pages[RANKS];
static struct hang_worker w[RANKS];
static struct hang_verdict verdict;
static int64_t now;

static void begin(int64_t fixed_ns)
{
    hang_init(&h, &(struct hang_options){.fixed_ns = fixed_ns});
    memset(pages, 0, sizeof pages);
    now = 1000 * S;
    hang_begin_round(&h, now);
    for (int i = 0; i < RANKS; i++) {
        w[i] = (struct hang_worker){.rank = i, .page = &pages[i]};
        pages[i].attached = 1;
    }
}

/* What crun_progress() and crun_phase() do, at a time of our own. */
static void progress(int i)
{
    struct crun_page *p = &pages[i];
    if (p->first_step_ns == 0) {
        p->first_step_ns = now;
        p->phase = CRUN_PHASE_STEP;
    } else if (p->phase == CRUN_PHASE_STEP) {
        const int64_t took = now - (p->phase_ns > p->last_step_ns ? p->phase_ns : p->last_step_ns);
        p->steps[crun_page_bucket(took)]++;
        if (took > p->longest_ns[0])
            p->longest_ns[0] = took;
    }
    p->step++;
    p->last_step_ns = now;
}

static void phase(int i, uint32_t to)
{
    struct crun_page *p = &pages[i];
    if (p->phase != CRUN_PHASE_STEP && now - p->phase_ns > p->longest_ns[p->phase])
        p->longest_ns[p->phase] = now - p->phase_ns;
    p->phase = to;
    p->phase_ns = now;
}

static void all_step(int64_t after)
{
    now += after;
    for (int i = 0; i < RANKS; i++)
        progress(i);
}

static void steps(int n, int64_t each)
{
    for (int i = 0; i < n; i++)
        all_step(each);
}

/* As the launcher does: look when told to, /proc only if one is due. Returns the time of the verdict, 0: none until
 * `until`. */
static int64_t watch_until(int64_t until)
{
    while ((now = hang_next(&h, now, w, RANKS)) <= until)
        if (hang_due(&h, now, w, RANKS) && hang_judge(&h, now, w, RANKS, &verdict))
            return now;
    now = until;
    return 0;
}

static void a_stopped_worker_is_noticed_after_three_times_p99_and_a_second(void **state)
{
    begin(0);
    steps(1000, 100 * MS);
    const int64_t last = now;
    w[2].stopped = true;
    const int64_t at = watch_until(now + 100 * S);
    assert_true(at > last + S && at <= last + 3 * 100 * MS + S);
    assert_int_equal(verdict.rank, 2);
    assert_string_equal(verdict.cause, "rank 2 hung at step 1000");
    assert_string_equal(verdict.text,
                        "rank 2 has stood at step 1000 for 1.3 s, stopped by a signal; all others wait at step 1000");
    print_message("# 100 ms steps, one worker stopped: noticed after %.3f s\n", (double)(at - last) / 1e9);
}

static void the_one_that_is_behind_is_blamed(void **state)
{
    begin(0);
    steps(6000, 100 * MS);
    now += 100 * MS;
    for (int i = 0; i < RANKS; i++)
        if (i != 2)
            progress(i);
    assert_true(watch_until(now + 100 * S) > 0);
    assert_int_equal(verdict.rank, 2);
    assert_string_equal(verdict.text, "rank 2 has stood at step 6000 for 1.3 s; all others wait at step 6001");
}

static void the_others_are_told_by_where_they_stand(void **state)
{
    begin(0);
    steps(6000, 100 * MS);
    progress(3);
    progress(0);
    progress(1);
    progress(1);
    assert_true(watch_until(now + 100 * S) > 0);
    assert_string_equal(
        verdict.text,
        "rank 2 has stood at step 6000 for 1.3 s; ranks 0,3 wait at step 6001; rank 1 waits at step 6002");
}

static void a_hang_of_all_blames_nobody(void **state)
{
    begin(0);
    steps(6000, 100 * MS);
    assert_true(watch_until(now + 100 * S) > 0);
    assert_string_equal(verdict.cause, "all ranks of a node hung at step 6000");
    assert_string_equal(verdict.text, "no rank has progressed for 1.3 s: all 4 stand at step 6000");
    begin(0);
    steps(4000, 100 * MS); /* too few to know how rare a long step is */
    const int64_t from = now;
    assert_int_equal(watch_until(now + 100 * S) - from, HANG_PHASE_NS);
}

static void who_tells_nothing_is_not_judged(void **state)
{
    begin(0);
    assert_int_equal(watch_until(now + 10000 * S), 0); /* attached, but never a step */
    progress(0);                                       /* only rank 0 reports, as many scripts do */
    for (int i = 0; i < 1000; i++) {
        now += 100 * MS;
        progress(0);
    }
    for (int i = 1; i < RANKS; i++)
        w[i].stopped = true;
    const int64_t last = now;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(watch_until(now + 100 * MS), 0);
        progress(0);
    }
    assert_true(now > last + 9 * S);
    pages[0].attached = 0; /* crun_finish() */
    assert_int_equal(watch_until(now + 10000 * S), 0);
}

static void start_up_has_a_time_of_its_own(void **state)
{
    begin(0);
    for (int i = 0; i < RANKS; i++)
        phase(i, CRUN_PHASE_STARTING);
    const int64_t from = now;
    int64_t at = watch_until(now + 10000 * S);
    assert_int_equal(at - from, HANG_UNKNOWN_NS);
    assert_string_equal(verdict.cause, "all ranks of a node hung before its first step");
    begin(0);
    steps(1, 30 * S);
    hang_end_round(&h, w, RANKS);
    struct hang learned = h;
    begin(0);
    h = learned;
    hang_begin_round(&h, now);
    for (int i = 0; i < RANKS; i++)
        phase(i, CRUN_PHASE_STARTING);
    at = watch_until(now + 10000 * S);
    assert_int_equal(at - h.round_ns, 91 * S);
}

static void a_checkpoint_holds_those_that_wait_for_it(void **state)
{
    begin(0);
    steps(1000, 100 * MS);
    phase(0, CRUN_PHASE_CHECKPOINT);
    assert_int_equal(watch_until(now + 20 * S), 0);
    phase(0, CRUN_PHASE_STEP);
    const int64_t left = now;
    int64_t at = watch_until(now + 59 * S); /* the others' clocks begin when it is over */
    assert_int_equal(at, 0);
    all_step(0);
    steps(100, 100 * MS);
    phase(0, CRUN_PHASE_CHECKPOINT);
    const int64_t from = now;
    at = watch_until(now + 1000 * S);
    assert_int_equal(at - from, 61 * S); /* three times 20 s, and one */
    assert_string_equal(verdict.text,
                        "rank 0 has stood in checkpoint after step 1101 for 61.0 s; all others wait at step 1101");
    assert_true(left > 0);
}

static void nobody_is_judged_while_one_is_paused_or_debugged(void **state)
{
    begin(0);
    steps(1000, 100 * MS);
    phase(3, CRUN_PHASE_PAUSED);
    assert_int_equal(watch_until(now + 10000 * S), 0);
    phase(3, CRUN_PHASE_STEP);
    w[1].traced = true;
    assert_int_equal(watch_until(now + 10000 * S), 0);
    w[1].traced = false;
    hang_excuse(&h, now);
    const int64_t from = now;
    assert_true(watch_until(now + 100 * S) - from == HANG_PHASE_NS);
}

static void an_excuse_gives_all_a_fresh_time(void **state)
{
    begin(0);
    steps(1000, 100 * MS);
    now += 3600 * S; /* crun was stopped with its workers */
    hang_excuse(&h, now);
    w[0].stopped = true;
    assert_false(hang_due(&h, now, w, RANKS));
    assert_int_equal(watch_until(now + S), 0);
    assert_true(watch_until(now + S) > 0);
}

static void a_fixed_time_is_a_steps(void **state)
{
    begin(5 * S);
    steps(3, 100 * MS);
    const int64_t from = now;
    assert_int_equal(watch_until(now + 100 * S) - from, 5 * S);
    begin(5 * S);
    phase(0, CRUN_PHASE_CHECKPOINT);
    assert_int_equal(watch_until(now + 500 * S), 0);
}

static void until_enough_is_known_nothing_is_trusted(void **state)
{
    begin(0);
    steps(20, 10 * MS);
    w[2].stopped = true;
    assert_int_equal(watch_until(now + 500 * S), 0);
    w[2].stopped = false;
    steps(300, 10 * MS);
    hang_end_round(&h, w, RANKS);
    memset(pages, 0, sizeof pages);
    for (int i = 0; i < RANKS; i++)
        pages[i].attached = 1;
    hang_begin_round(&h, now);
    steps(3, 10 * MS); /* the first of a round take longer than they ever will again */
    w[2].stopped = true;
    assert_int_equal(watch_until(now + 100 * S), 0);
    w[2].stopped = false;
    steps(10, 10 * MS);
    w[2].stopped = true;
    assert_true(watch_until(now + 100 * S) > 0);
}

static void several_nodes_get_more_patience(void **state)
{
    begin(0);
    steps(5010, 100 * MS); /* so many tell a node that is alone how rare a long step is */
    const int64_t from = now;
    assert_in_range(watch_until(now + 1000 * S) - from, S, 2 * S);
    now = from;
    h.o.several_nodes = true;
    assert_int_equal(watch_until(now + 1000 * S) - from, HANG_PHASE_NS);
    w[1].stopped = true;
    now = from;
    assert_true(watch_until(now + 1000 * S) - from < 2 * S);
}

/* A round whose ranks 1 and 2 are new: with what they have learned of a round before, and the others' state. */
static void begin_again(bool new_ones_tell)
{
    begin(0);
    steps(100, 100 * MS);
    hang_end_round(&h, w, RANKS);
    memset(pages, 0, sizeof pages);
    hang_begin_round(&h, now);
    for (int i = 0; i < RANKS; i++) {
        const bool is_new = i == 1 || i == 2;
        pages[i].attached = !is_new || new_ones_tell;
        if (!is_new || new_ones_tell)
            phase(i, CRUN_PHASE_STARTING);
        if (!is_new)
            pages[i].keeps = 101 + 1;
    }
}

static void those_without_state_are_blamed_where_all_stand_before_the_first_step(void **state)
{
    begin_again(true);
    pages[1].phase_ns = pages[2].phase_ns = now + S; /* the others are over their time first */
    assert_true(watch_until(now + 1000 * S) > 0);
    assert_true(verdict.all && verdict.spares && verdict.rank == 1);
    assert_string_equal(verdict.cause, "all ranks without state hung before its first step");
    assert_non_null(
        strstr(verdict.text, "all 4 stand before its first step; those that have the state of step 101 are kept"));
    hang_end_round(&h, w, RANKS);
    hang_begin_round(&h, now);
    for (int i = 0; i < RANKS; i++)
        phase(i, CRUN_PHASE_STARTING);
    assert_true(watch_until(now + 1000 * S) > 0); /* it did not help */
    assert_true(verdict.all && !verdict.spares);
    assert_string_equal(verdict.cause, "all ranks of a node hung before its first step");
}

static void one_that_has_not_told_anything_yet_is_blamed_before_those_with_state(void **state)
{
    begin_again(false);
    assert_true(watch_until(now + 1000 * S) > 0);
    assert_true(verdict.rank == 1 && verdict.spares);
}

static void on_several_nodes_those_with_state_have_twice_the_time(void **state)
{
    begin_again(true);
    for (int i = 0; i < RANKS; i++)
        pages[i].keeps = 0;
    const int64_t from = now, plain = watch_until(now + 1000 * S) - from;
    now = from;
    h.o.several_nodes = true;
    for (int i = 0; i < RANKS; i++)
        pages[i].keeps = 102;
    assert_int_equal(watch_until(now + 1000 * S) - from, 2 * plain);
}

static void it_wakes_at_most_once_a_second(void **state)
{
    begin(0);
    int wakes = 0;
    for (int64_t t = 0; t < 600 * S;) {
        all_step(10 * MS);
        t += 10 * MS;
        static int64_t next;
        if (t == 10 * MS)
            next = now;
        if (now < next)
            continue;
        assert_false(hang_due(&h, now, w, RANKS) && hang_judge(&h, now, w, RANKS, &verdict));
        next = hang_next(&h, now, w, RANKS);
        wakes++;
    }
    print_message("# 10 ms steps: %d looks in 600 s\n", wakes);
    assert_true(wakes <= 601);
}

/* --- an hour of jitter */

static uint64_t seed;

static double uniform(void) /* in (0, 1) */
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return ((double)(seed >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static double steady(double t)
{
    return 1 + 0.05 * normal();
}

static double lognormal(double t)
{
    return exp(0.5 * normal());
}

static double wild(double t)
{
    return exp(1.0 * normal());
}

static double exponential(double t)
{
    return 0.3 - log(uniform());
}

static double pareto3(double t) /* infinite skewness */
{
    return 0.67 * pow(uniform(), -1.0 / 3);
}

static double pareto25(double t)
{
    return 0.6 * pow(uniform(), -1.0 / 2.5);
}

static double spikes(double t) /* one step in 50 takes ten times as long (garbage collection, a slow disk) */
{
    return uniform() < 0.02 ? 10 + normal() : 1 + 0.1 * normal();
}

static double rare_spikes(double t) /* one in 5,000 takes a hundred times as long, from the tenth minute on */
{
    return t > 600 && uniform() < 0.0002 ? 15 : 1 + 0.1 * normal();
}

static double drift(double t) /* three times slower at the end of the hour */
{
    return (1 + t / 1800) * (1 + 0.1 * normal());
}

static double bursts(double t) /* every ten minutes a minute in which all is four times slower */
{
    return fmod(t, 600) > 540 ? 4 + 0.5 * normal() : 1 + 0.1 * normal();
}

/* One hour; every five minutes a checkpoint of rank 0 of 3 to 12 s, said or not. Returns how many alarms there were. */
static int hour(double (*jitter)(double t), int64_t step_ns, double *ret_p99)
{
    begin(0);
    const int64_t start = now;
    int64_t look = now, saved = now;
    int alarms = 0;
    while (now - start < 3600 * S) {
        double slowest = 0;
        for (int i = 0; i < RANKS; i++)
            slowest = fmax(slowest, fmax(jitter((double)(now - start) / 1e9), 0.1));
        int64_t end = now + (int64_t)(slowest * (double)step_ns);
        const bool save = now - saved > 300 * S;
        const int64_t saving = save ? (int64_t)((3 + 9 * uniform()) * (double)S) : 0;
        if (save) {
            phase(0, CRUN_PHASE_CHECKPOINT);
            end += saving;
            saved = now;
        }
        const int64_t from = now;
        while (look < end) {
            now = look;
            if (save && now >= from + saving && pages[0].phase == CRUN_PHASE_CHECKPOINT) {
                now = from + saving;
                phase(0, CRUN_PHASE_STEP);
                now = look;
            }
            if (hang_due(&h, now, w, RANKS) && hang_judge(&h, now, w, RANKS, &verdict)) {
                alarms++;
                hang_excuse(&h, now);
            }
            look = hang_next(&h, now, w, RANKS);
        }
        if (pages[0].phase == CRUN_PHASE_CHECKPOINT) {
            now = from + saving;
            phase(0, CRUN_PHASE_STEP);
        }
        now = end;
        for (int i = 0; i < RANKS; i++)
            progress(i);
    }
    const struct hang_budget b = hang_budget(&h, w, RANKS, CRUN_PHASE_STEP);
    *ret_p99 = (double)(b.eager_ns - HANG_FLOOR_NS) / HANG_FACTOR / 1e9;
    return alarms;
}

static void an_hour_of_jitter_raises_no_alarm(void **state)
{
    static const struct {
        const char *name;
        double (*jitter)(double t);
    } jitters[] = {{"normal 5 %", steady},      {"lognormal 0.5", lognormal},
                   {"lognormal 1", wild},       {"exponential", exponential},
                   {"Pareto 3", pareto3},       {"Pareto 2.5", pareto25},
                   {"spikes 2 % x 10", spikes}, {"spikes 0.02 % x 15", rare_spikes},
                   {"drift x 3", drift},        {"slow minutes x 4", bursts}};
    static const int64_t step[] = {10 * MS, 100 * MS, 2 * S};
    int total = 0, hours = 0;
    seed = 88172645463325252u;
    for (size_t j = 0; j < sizeof jitters / sizeof *jitters; j++)
        for (size_t k = 0; k < sizeof step / sizeof *step; k++) {
            double p99 = 0;
            int alarms = 0;
            for (int again = 0; again < 5; again++, hours++)
                alarms += hour(jitters[j].jitter, step[k], &p99);
            const struct hang_budget b = hang_budget(&h, w, RANKS, CRUN_PHASE_STEP);
            print_message("# %-18s step %6.3f s, p99 %6.3f s: stopped %7.3f s, patient %8.3f s, alarms in 5 h: %d\n",
                          jitters[j].name, (double)step[k] / 1e9, p99, (double)b.eager_ns / 1e9,
                          (double)b.patient_ns / 1e9, alarms);
            total += alarms;
        }
    print_message("# %d hours, %d false alarms\n", hours, total);
    assert_int_equal(total, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_worker_is_noticed_after_three_times_p99_and_a_second),
        cmocka_unit_test(the_one_that_is_behind_is_blamed),
        cmocka_unit_test(the_others_are_told_by_where_they_stand),
        cmocka_unit_test(a_hang_of_all_blames_nobody),
        cmocka_unit_test(who_tells_nothing_is_not_judged),
        cmocka_unit_test(start_up_has_a_time_of_its_own),
        cmocka_unit_test(a_checkpoint_holds_those_that_wait_for_it),
        cmocka_unit_test(nobody_is_judged_while_one_is_paused_or_debugged),
        cmocka_unit_test(an_excuse_gives_all_a_fresh_time),
        cmocka_unit_test(a_fixed_time_is_a_steps),
        cmocka_unit_test(until_enough_is_known_nothing_is_trusted),
        cmocka_unit_test(several_nodes_get_more_patience),
        cmocka_unit_test(those_without_state_are_blamed_where_all_stand_before_the_first_step),
        cmocka_unit_test(one_that_has_not_told_anything_yet_is_blamed_before_those_with_state),
        cmocka_unit_test(on_several_nodes_those_with_state_have_twice_the_time),
        cmocka_unit_test(it_wakes_at_most_once_a_second),
        cmocka_unit_test(an_hour_of_jitter_raises_no_alarm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
