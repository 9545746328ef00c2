/* Questions to the nodes of a job: who is asked, when, and what becomes of the answers. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "tests/rendezvousd/jobs/jobs_rig.h"

struct asker {
    struct jobs_asking *asking;
    int answered;
    struct err e;
};

static void on_answered(void *arg)
{
    ((struct asker *)arg)->answered++;
}

static int ask(struct jobs *j, struct asker *a, const char *principal)
{
    const struct jobs_ask q = {.what = "stacks", .rank = -1, .ms = 1000, .answered = on_answered, .arg = a};
    *a = (struct asker){0};
    return jobs_ask(&a->asking, j, principal, "j", &q, &a->e);
}

static long long id_of(const struct agent *a)
{
    return rdzv_field_number(a->question, strlen(a->question), "id", -1);
}

static int answer(struct agent *a, long long id, const char *text)
{
    return jobs_answer(a->party, a->run, a->node, (uint64_t)id, text, strlen(text), &a->e);
}

static void expect_end(struct asker *a, const char *json)
{
    struct buf out = {0};
    assert_int_equal(jobs_ask_end(a->asking, &out), 0);
    assert_string_equal(out.data, json);
    buf_free(&out);
}

/* n nodes of alice's job j in round 1, each with a NEXT open; here: the first one is in this process. */
static struct jobs *begin(struct agent *v, int n, bool here)
{
    static char names[80][8];
    struct jobs *j = rig_jobs(NULL);
    const struct rdzv_config c = rig_config(n, n);
    for (int i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "n%02d", i);
        rig_open(j, &v[i], "j", names[i], here && i == 0 ? "" : "10.0.0.9");
        assert_int_equal(rig_join(&v[i], &c, 0), 0);
        assert_int_equal(rig_next(&v[i]), 0);
    }
    for (int i = 0; i < n; i++) {
        assert_int_equal(v[i].news.kind, RDZV_NEWS_ROUND);
        assert_int_equal(rig_next(&v[i]), 0);
    }
    return j;
}

static void finish(struct jobs *j, struct agent *v, int n)
{
    for (int i = 0; i < n; i++)
        rig_close(&v[i], JOBS_SILENT);
    jobs_destroy(j);
}

static void a_question_answers_next_once_and_decides_nothing(void **state)
{
    struct agent v[2];
    struct asker a;
    struct jobs *j = begin(v, 2, false);
    (void)state;
    jobs_next_cancel(v[1].party); /* it asks for nothing just now */
    assert_int_equal(ask(j, &a, "alice"), 0);
    assert_int_equal(v[0].questions, 1);
    assert_int_equal(v[1].questions, 0);
    assert_int_equal(rig_next(&v[0]), 0);
    assert_int_equal(rig_next(&v[1]), 0);
    assert_int_equal(v[0].questions, 1);
    assert_int_equal(v[1].questions, 1);
    /* to a program that knows no questions: news that it has seen */
    struct rdzv_news news;
    assert_int_equal(rdzv_news_decode(v[1].question, strlen(v[1].question), &news, NULL), 0);
    assert_int_equal(news.seq, 0);
    assert_non_null(strstr(v[1].question, "ask=stacks id=1 ms=800 rank=-1"));
    /* its NEXT was answered by that: no news come before it asks again */
    assert_int_equal(rig_say(&v[0], RDZV_FAIL, 1, 7), 0);
    assert_int_equal(v[0].news.kind, RDZV_NEWS_STOP);
    assert_int_equal(v[1].news.kind, RDZV_NEWS_ROUND);
    assert_int_equal(rig_next(&v[1]), 0);
    assert_int_equal(v[1].news.kind, RDZV_NEWS_STOP);
    assert_int_equal(answer(&v[0], id_of(&v[0]), "a \"b\""), 0);
    assert_int_equal(a.answered, 0);
    assert_int_equal(answer(&v[1], id_of(&v[1]), "c"), 0);
    assert_int_equal(a.answered, 1);
    expect_end(
        &a, "{\"run\":\"j\",\"what\":\"stacks\",\"nodes\":[{\"id\":\"n00\",\"text\":\"a \\\"b\\\"\"},{\"id\":\"n01\","
            "\"text\":\"c\"}]}");
    finish(j, v, 2);
}

static void in_this_process_next_stays_open(void **state)
{
    struct agent v[2];
    struct asker a;
    struct jobs *j = begin(v, 2, true);
    (void)state;
    assert_int_equal(ask(j, &a, "alice"), 0);
    assert_int_equal(v[0].questions, 1);
    assert_int_equal(rig_say(&v[1], RDZV_FAIL, 1, 7), 0);
    assert_int_equal(v[0].news.kind, RDZV_NEWS_STOP);
    assert_int_equal(jobs_ask_end(a.asking, NULL), 0);
    finish(j, v, 2);
}

static void who_does_not_answer_is_named_and_late_answers_are_dropped(void **state)
{
    struct agent v[3];
    struct asker a, b;
    struct jobs *j = begin(v, 3, false);
    (void)state;
    rig_close(&v[2], JOBS_SILENT);
    jobs_next_cancel(v[1].party);
    assert_int_equal(ask(j, &a, "alice"), 0);
    assert_int_equal(ask(j, &b, "alice"), -EDQUOT);
    assert_string_equal(b.e.text, "run 'j' is being asked for its stacks: ask again in a moment");
    const long long id = id_of(&v[0]);
    assert_int_equal(answer(&v[0], id + 1, "of another question"), 0);
    assert_int_equal(jobs_answer(v[0].party, "j", "n01", (uint64_t)id, "x", 1, NULL), 0); /* not its own */
    expect_end(&a,
               "{\"run\":\"j\",\"what\":\"stacks\",\"nodes\":[{\"id\":\"n00\",\"why\":\"it did not answer within 1000 "
               "ms (a crun that knows no questions never does)\"},{\"id\":\"n01\",\"why\":\"it was not heard of in "
               "that time\"},{\"id\":\"n02\",\"why\":\"it has no connection just now\"}]}");
    assert_int_equal(answer(&v[0], id, "late"), 0);
    assert_int_equal(a.answered, 0);
    assert_int_equal(ask(j, &b, "alice"), 0);
    assert_int_equal(jobs_ask_end(b.asking, NULL), 0);
    finish(j, v, 3);
}

static void nobody_is_asked_but_members_of_a_round_of_ones_own_job(void **state)
{
    struct agent v[1], early;
    struct asker a;
    struct jobs *j = begin(v, 1, false);
    const struct rdzv_config two = rig_config(2, 2);
    (void)state;
    assert_int_equal(ask(j, &a, "bob"), -ENOENT);
    rig_open_as(j, &early, "j", "n1", "10.0.0.9", "bob");
    assert_int_equal(rig_join(&early, &two, 0), 0);
    assert_int_equal(ask(j, &a, "bob"), ERR_REFUSED);
    assert_string_equal(a.e.text, "run 'j' has no round just now: no workers run");
    rig_close(&early, JOBS_SILENT);
    assert_int_equal(rig_say(&v[0], RDZV_DONE, 1, 0), 0);
    assert_int_equal(ask(j, &a, "alice"), ERR_REFUSED);
    assert_string_equal(a.e.text, "run 'j' is over: nobody is left to ask");
    finish(j, v, 1);
}

static void a_job_that_goes_ends_its_question(void **state)
{
    struct agent v[1];
    struct asker a;
    struct jobs *j = begin(v, 1, false);
    (void)state;
    assert_int_equal(ask(j, &a, "alice"), 0);
    assert_int_equal(jobs_stop(j, "alice", "j", "alice", NULL), 0);
    assert_int_equal(rig_next(&v[0]), 0);
    assert_int_equal(v[0].news.exit_code, 143);
    assert_string_equal(v[0].news.cause.text, "principal 'alice' stopped the job (crun stop)");
    rig_close(&v[0], JOBS_GONE);
    rig_pass(j, LEADER_LINGER_MS + 1000);
    assert_int_equal(a.answered, 1);
    expect_end(&a,
               "{\"run\":\"j\",\"what\":\"stacks\",\"nodes\":[{\"id\":\"n00\",\"why\":\"it did not answer within 1000 "
               "ms (a crun that knows no questions never does)\"}]}");
    jobs_destroy(j);
}

static void answers_have_a_bound_of_memory_together(void **state)
{
    enum { NODES = 70 };
    static struct agent v[NODES];
    struct asker a;
    struct buf out = {0};
    char *big = malloc(RDZV_ANSWER_MAX + 2);
    struct jobs *j = begin(v, NODES, false);
    (void)state;
    assert_int_equal(ask(j, &a, "alice"), 0);
    memset(big, 'x', RDZV_ANSWER_MAX + 1);
    big[RDZV_ANSWER_MAX + 1] = '\0';
    assert_int_equal(answer(&v[0], id_of(&v[0]), big), -EINVAL);
    big[RDZV_ANSWER_MAX] = '\0';
    for (int i = 0; i < NODES; i++)
        assert_int_equal(answer(&v[i], id_of(&v[i]), big), 0);
    assert_int_equal(a.answered, 1);
    assert_int_equal(jobs_ask_end(a.asking, &out), 0);
    assert_in_range(out.len, JOBS_ASK_BYTES / 2, JOBS_ASK_BYTES + 70 * 1024);
    int full = 0;
    for (const char *p = out.data; (p = strstr(p, "there is no room for its own")); p++)
        full++;
    assert_int_equal(full, NODES - 63); /* each takes its bytes, and some more */
    buf_free(&out);
    free(big);
    finish(j, v, NODES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_answers_next_once_and_decides_nothing),
        cmocka_unit_test(in_this_process_next_stays_open),
        cmocka_unit_test(who_does_not_answer_is_named_and_late_answers_are_dropped),
        cmocka_unit_test(nobody_is_asked_but_members_of_a_round_of_ones_own_job),
        cmocka_unit_test(a_job_that_goes_ends_its_question),
        cmocka_unit_test(answers_have_a_bound_of_memory_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
