/* The log of all jobs in a state that daemons share: what one has written another one loads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "rendezvousd/state/state_shared.h"
#include "tests/rendezvousd/jobs/jobs_rig.h"

static struct buf text; /* of the home */
static size_t wholes;
static uint64_t newest;
static int unable, refuses, landings;
static struct state_shared *log_of_jobs;

static int on_write(void *arg, const struct buf *b, bool whole, uint64_t number)
{
    (void)arg;
    if (refuses)
        return refuses;
    assert_true(number > newest);
    newest = number;
    if (whole)
        buf_clear(&text);
    wholes += whole;
    return buf_add(&text, b->data, b->len);
}

static void on_unable(void *arg)
{
    (void)arg;
    unable++;
}

static int begin(void **state)
{
    struct err e;
    (void)state;
    newest = 0;
    wholes = 0;
    unable = refuses = landings = 0;
    return state_shared_create(&log_of_jobs, &(struct state_shared_options){.write = on_write, .unable = on_unable},
                               &e);
}

static int end(void **state)
{
    (void)state;
    state_shared_destroy(log_of_jobs);
    buf_free(&text);
    return 0;
}

static void on_landed(void *arg)
{
    (void)arg;
    landings++;
}

static int put(struct rdzv_home *h, const char *decision, bool whole)
{
    struct buf b = {0};
    assert_int_equal(buf_addstr(&b, decision), 0);
    const int rc = rdzv_home_append(h, &(struct rdzv_write){.decision = &b, .whole = whole}, NULL);
    buf_free(&b);
    return rc;
}

static void on_rewrite(void *arg)
{
    put(arg, "all of it\n", true);
}

static struct rdzv_home *make(const char *id)
{
    struct rdzv_home *h;
    struct err e;
    assert_int_equal(state_shared_home(log_of_jobs, id, &h, &e), 0);
    h->rewrite = on_rewrite;
    h->landed = on_landed;
    h->arg = h;
    return h;
}

/* --- what was taken over */

static char taken[1000];
static struct rdzv_home *homes[4];
static int count;

static int take(void *arg, struct rdzv_home *h, struct err *e)
{
    struct buf log = {0};
    (void)arg;
    assert_int_equal(h->ops->load(h, &log, e), 0);
    snprintf(taken + strlen(taken), sizeof taken - strlen(taken), "[%s]", log.data ? log.data : "");
    const bool bad = log.data && strstr(log.data, "nonsense");
    buf_free(&log);
    if (bad)
        return err_set(e, ERR_CORRUPT, "nonsense");
    h->rewrite = on_rewrite;
    h->arg = h;
    homes[count++] = h;
    on_rewrite(h);
    return 0;
}

static int take_over(const char *log, size_t n, struct err *e)
{
    taken[0] = 0;
    count = 0;
    return state_shared_take_over(log_of_jobs, "here", log, n, take, NULL, e);
}

static void close_all(void)
{
    for (int i = 0; i < count; i++)
        homes[i]->ops->close(homes[i]);
}

static void what_one_writes_another_one_loads(void **state)
{
    struct rdzv_home *a = make("a"), *b = make("b"), *gone = make("c");
    char identity[RDZV_IDENTITY_MAX + 1];
    struct err e;
    assert_int_equal(put(a, "one\n", false), RDZV_UNDER_WAY);
    put(b, "old\n", false);
    put(gone, "short\n", false);
    put(a, "two\n", false);
    put(b, "@job b 4 whole\n", true); /* as if it were ours: lengths tell */
    gone->ops->forget(gone);
    gone->ops->close(gone);
    buf_addstr(&text, "@reign epoch=2-1 holder=x home=y claim=1\n");
    a->ops->close(a);
    b->ops->close(b);
    struct buf before = text;
    text = (struct buf){0};
    state_shared_destroy(log_of_jobs);
    begin(state);
    assert_int_equal(take_over(before.data, before.len, &e), 0);
    assert_string_equal(taken, "[one\ntwo\n][@job b 4 whole\n]");
    assert_int_equal(wholes, 1); /* each gave a whole decision */
    assert_string_equal(text.data, "@job a 10 whole\nall of it\n@job b 10 whole\nall of it\n");
    homes[0]->ops->identity(homes[0], identity, &e);
    assert_string_equal(identity, "here");
    close_all();
    buf_free(&before);
}

static void what_stands_is_told_to_those_that_wait(void **state)
{
    struct rdzv_home *a = make("a"), *b = make("b");
    (void)state;
    put(a, "one\n", true);
    put(b, "two\n", true);
    const uint64_t first = a->asked, second = b->asked;
    assert_true(second > first);
    state_shared_stands(log_of_jobs, first);
    assert_true(landings > 0 && a->stands >= first && b->stands < second);
    landings = 0;
    state_shared_stands(log_of_jobs, second);
    assert_true(landings == 1 && b->stands >= second);
    state_shared_stands(log_of_jobs, second);
    assert_int_equal(landings, 1);
    a->ops->close(a);
    b->ops->close(b);
}

static void a_long_log_is_written_anew(void **state)
{
    struct rdzv_home *a = make("a"), *b = make("b");
    char *long_one = malloc(300001);
    (void)state;
    memset(long_one, 'x', 300000);
    strcpy(long_one + 299999, "\n");
    put(b, "small\n", true);
    for (int i = 0; i < 5 && wholes == 0; i++)
        put(a, long_one, false);
    assert_int_equal(wholes, 1);
    assert_string_equal(text.data, "@job a 10 whole\nall of it\n@job b 10 whole\nall of it\n");
    a->ops->close(a);
    b->ops->close(b);
    free(long_one);
}

static void a_damaged_job_costs_no_other_one(void **state)
{
    static const char log[] = "@job a 9 whole\nnonsense\n@job b 4 whole\ntwo\n";
    struct err e;
    (void)state;
    assert_int_equal(take_over(log, strlen(log), &e), 0);
    assert_int_equal(count, 1);
    assert_int_equal(wholes, 0); /* what was not understood stays */
    close_all();
}

static void a_text_that_makes_no_sense_is_refused(void **state)
{
    static const char *const bad[] = {"@job a 9 whole\nshort", "@job a 3 half\nabc", "something\n", "@job a\n", "@gone",
                                      "@job a -1 whole\n"};
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (take_over(bad[i], strlen(bad[i]), &e) != ERR_CORRUPT || !strstr(e.text, "is malformed at byte"))
            fail_msg("'%s' was taken", bad[i]);
}

static void what_cannot_be_written_ends_the_term(void **state)
{
    struct rdzv_home *a = make("a");
    (void)state;
    refuses = -ENOMEM;
    put(a, "one\n", true);
    assert_int_equal(unable, 1);
    a->ops->close(a);
}

/* --- the jobs of a daemon */

static struct jobs *begin_jobs(int64_t until_ms)
{
    struct jobs *j = rig_jobs(&(struct jobs_options){.shared = log_of_jobs});
    struct err e;
    assert_int_equal(jobs_may_answer(j, &e), -EREMOTE);
    assert_int_equal(
        jobs_take_over(j, &(struct jobs_taken){.epoch = 7, .identity = "here", .text = "", .valid_ms = 1500}, &e), 0);
    assert_int_equal(jobs_may_answer(j, &e), -EREMOTE);
    jobs_lead_until(j, until_ms);
    return j;
}

static void who_hands_over_or_lost_its_claim_acknowledges_nobody(void **state)
{
    struct jobs *j = begin_jobs(rig_now + 1500);
    const struct rdzv_config c = rig_config(1, 1);
    struct agent a = {0};
    (void)state;
    rig_open(j, &a, "run", "n1", "10.0.0.1");
    assert_int_equal(rig_join(&a, &c, 0), 0);
    assert_int_equal(a.joined.epoch, 7);
    assert_int_equal(rig_next(&a), 0);
    assert_int_equal(a.told, 0); /* nothing stands */
    rig_now += 1500;
    state_shared_stands(log_of_jobs, newest);
    assert_int_equal(a.told, 0); /* nor does it lead */
    assert_int_equal(rig_next(&a), -EREMOTE);
    jobs_lead_until(j, rig_now + 1500);
    assert_int_equal(rig_next(&a), 0);
    assert_int_equal(a.told, 1);
    assert_int_equal(a.news.kind, RDZV_NEWS_ROUND);
    assert_int_equal(rig_next(&a), 0);
    jobs_stand_down(j);
    assert_int_equal(rig_next(&a), -EREMOTE);
    rig_close(&a, JOBS_SILENT);
    jobs_destroy(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_one_writes_another_one_loads, begin, end),
        cmocka_unit_test_setup_teardown(what_stands_is_told_to_those_that_wait, begin, end),
        cmocka_unit_test_setup_teardown(a_long_log_is_written_anew, begin, end),
        cmocka_unit_test_setup_teardown(a_damaged_job_costs_no_other_one, begin, end),
        cmocka_unit_test_setup_teardown(a_text_that_makes_no_sense_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(what_cannot_be_written_ends_the_term, begin, end),
        cmocka_unit_test_setup_teardown(who_hands_over_or_lost_its_claim_acknowledges_nobody, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
