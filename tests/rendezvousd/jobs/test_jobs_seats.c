/* A host of a list: whom it acknowledges, when its job begins, and when it forgets it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/rendezvousd/jobs/jobs_rig.h"

/* A node that gets each answer at once. */
struct sitter {
    struct jobs_party *party;
    char node[16];
    int seat;
    uint64_t got; /* answers to JOIN and NEXT on this connection */
    bool asks, unknown;
    struct rdzv_news news;
    struct jobs_joined joined;
    struct err e;
};

struct host {
    struct rdzv_config config;
    struct jobs *jobs;
    struct sitter n[4];
};

static void on_told(void *arg, const struct rdzv_news *news, const char *members, int more)
{
    struct sitter *s = arg;
    s->asks = false;
    s->got++;
    s->unknown = !news;
    if (news)
        s->news = *news;
}

static void on_again(void *arg)
{
    struct sitter *s = arg;
    jobs_next_cancel(s->party);
    s->asks = false;
    s->got++;
}

static void come(struct host *h, int seat)
{
    struct sitter *s = &h->n[seat];
    const struct jobs_party_options o = {
        .principal = "", .addr = "10.0.0.9", .local = "10.0.0.1", .told = on_told, .again = on_again, .arg = s};
    jobs_party_close(s->party, JOBS_SILENT);
    *s = (struct sitter){.seat = seat};
    snprintf(s->node, sizeof s->node, "node%d", seat);
    assert_int_equal(jobs_party_open(&s->party, h->jobs, &o, NULL), 0);
}

static struct host *open_host(struct host *h)
{
    *h = (struct host){.config = rig_config(2, 3)};
    h->config.max_restarts = 9;
    h->jobs = rig_jobs(&(struct jobs_options){.embedded = true, .listed = &h->config, .listed_run = "j"});
    return h;
}

static void close_host(struct host *h)
{
    for (int i = 0; i < 4; i++)
        jobs_party_close(h->n[i].party, JOBS_SILENT);
    jobs_destroy(h->jobs);
}

static int join_from(struct host *h, int i, int seat, uint64_t round, const char *instance)
{
    struct sitter *s = &h->n[i];
    struct rdzv_event ev = {
        .kind = RDZV_JOIN, .round = round, .slots = 1, .node_rank = seat, .numbered = true, .port = 1};
    memcpy(ev.node, s->node, sizeof s->node);
    snprintf(ev.instance, sizeof ev.instance, "%s", instance);
    jobs_got(s->party, s->got);
    const int rc = jobs_join(s->party, "j", &ev, &h->config, &s->joined, &s->e);
    s->got++;
    s->news = (struct rdzv_news){.seq = rc == 0 ? s->joined.seq : 0};
    return rc;
}

static int join_seat(struct host *h, int i, int seat, uint64_t round)
{
    return join_from(h, i, seat, round, round > 0 ? "of-another-host" : "");
}

static int join(struct host *h, int seat, uint64_t round)
{
    return join_seat(h, seat, seat, round);
}

static int next(struct host *h, int seat)
{
    struct sitter *s = &h->n[seat];
    jobs_got(s->party, s->got);
    s->asks = true;
    const int rc = jobs_next(s->party, "j", s->node, s->news.seq, -1, &s->e);
    if (rc < 0) {
        s->asks = false;
        s->got++;
    }
    return rc;
}

static void come_and_wait(struct host *h, int seat)
{
    come(h, seat);
    assert_int_equal(join(h, seat, 0), 0);
    assert_int_equal(next(h, seat), 0);
}

/* Three nodes in round 1, which ask for what follows. */
static void begin(struct host *h)
{
    open_host(h);
    for (int i = 0; i < 3; i++)
        come_and_wait(h, i);
    for (int i = 0; i < 2; i++)
        assert_int_equal(next(h, i), 0); /* the newest JOIN has answered theirs */
    rig_pass(h->jobs, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(h->n[i].news.kind, RDZV_NEWS_ROUND);
        assert_int_equal(h->n[i].news.round, 1);
        assert_int_equal(next(h, i), 0);
    }
}

static void nobody_is_acknowledged_before_min_seats_have_shown_that_they_hear(void **state)
{
    struct host h;
    struct err e;
    open_host(&h);
    come_and_wait(&h, 0);
    assert_true(h.n[0].joined.few);
    assert_int_equal(jobs_may_answer(h.jobs, &e), -EBUSY);
    assert_string_equal(e.text, "1 of the 2 seats that a round needs are heard here");
    come(&h, 2);
    assert_int_equal(join(&h, 2, 0), 0);
    assert_true(h.n[2].joined.few); /* it has come, and got nothing yet */
    assert_int_equal(next(&h, 2), 0);
    assert_int_equal(jobs_may_answer(h.jobs, &e), 0);
    struct jobs_seats seats;
    assert_int_equal(jobs_seats(h.jobs, "j", "node0", &seats, &e), 0);
    assert_int_equal(seats.heard, 1);
    assert_int_equal(jobs_seats(h.jobs, "k", "node0", &seats, &e), -ENOENT);
    close_host(&h);
}

static void an_answer_counts_from_when_it_was_sent_and_questions_count_nothing(void **state)
{
    struct host h;
    struct err e;
    struct jobs_seats seats;
    open_host(&h);
    for (int i = 0; i < 2; i++) {
        come(&h, i);
        assert_int_equal(join(&h, i, 0), 0);
    }
    rig_now += 2900; /* their next requests were held up */
    for (int i = 0; i < 2; i++)
        assert_int_equal(next(&h, i), 0);
    assert_int_equal(jobs_may_answer(h.jobs, &e), 0);
    rig_now += 100;
    for (int i = 0; i < 2; i++)
        assert_int_equal(jobs_seats(h.jobs, "j", h.n[i].node, &seats, &e), 0);
    assert_int_equal(jobs_may_answer(h.jobs, &e), -EBUSY);
    close_host(&h);
}

static void a_job_of_fewer_than_max_nodes_waits_for_another_host_to_be_out(void **state)
{
    struct host h;
    open_host(&h);
    come_and_wait(&h, 0);
    come_and_wait(&h, 1);
    for (int ms = 0; ms < 7069; ms += 500) {
        rig_pass(h.jobs, ms + 500 < 7069 ? 500 : 7069 - ms);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(h.n[i].news.kind, 0);
            on_again(&h.n[i]);
            assert_int_equal(next(&h, i), 0);
        }
    }
    rig_pass(h.jobs, 1);
    assert_int_equal(h.n[0].news.kind, RDZV_NEWS_ROUND);
    assert_int_equal(h.n[1].news.group_world, 2);
    close_host(&h);
}

static void a_full_job_begins_at_once(void **state)
{
    struct host h;
    begin(&h);
    close_host(&h);
}

/* Two nodes were between two questions when the last node came: nobody could be asked again. */
static void who_asks_after_the_last_has_come_is_answered_at_once(void **state)
{
    struct host h;
    open_host(&h);
    for (int i = 0; i < 2; i++) {
        come_and_wait(&h, i);
        assert_false(jobs_next_hurries(h.n[i].party));
        on_again(&h.n[i]);
    }
    come_and_wait(&h, 2);
    assert_false(jobs_next_hurries(h.n[2].party)); /* the answer to its JOIN is as new */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(next(&h, i), 0);
        assert_true(jobs_next_hurries(h.n[i].party));
        on_again(&h.n[i]);
        assert_int_equal(next(&h, i), 0);
        assert_false(jobs_next_hurries(h.n[i].party));
    }
    rig_pass(h.jobs, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(h.n[i].news.kind, RDZV_NEWS_ROUND);
        assert_false(jobs_next_hurries(h.n[i].party));
    }
    close_host(&h);
}

static void a_host_that_hears_too_few_forgets_its_round(void **state)
{
    struct host h;
    struct err e;
    begin(&h);
    rig_now += 3000;
    assert_int_equal(jobs_may_answer(h.jobs, &e), -EBUSY);
    for (int i = 0; i < 3; i++)
        assert_true(h.n[i].unknown);
    assert_int_equal(next(&h, 0), -ENOENT);
    assert_int_equal(join(&h, 0, 1), 0);
    assert_int_equal(join(&h, 1, 1), 0);
    assert_int_equal(next(&h, 0), 0);
    assert_int_equal(next(&h, 1), 0);
    rig_pass(h.jobs, 2500); /* its last call is over; it waits for other hosts */
    assert_int_equal(h.n[0].news.kind, 0);
    close_host(&h);
}

/* What its node sent before, on another connection, is read late. */
static void a_seat_is_taken_back_from_a_late_connection(void **state)
{
    struct host h;
    struct err e;
    begin(&h);
    rig_now += 3000;
    assert_int_equal(jobs_may_answer(h.jobs, &e), -EBUSY); /* it knows nothing any more */
    struct sitter now_there = h.n[0];
    h.n[0].party = NULL;
    come(&h, 0);
    assert_int_equal(join(&h, 0, 1), 0);
    jobs_party_close(h.n[0].party, JOBS_SILENT);
    h.n[0] = now_there;
    assert_int_equal(join(&h, 0, 1), 0);
    assert_int_equal(next(&h, 0), 0);
    close_host(&h);
}

/* What a node asked while this host had another job of that name is read when a node of the new one was just to be told
 * that its round stops. */
static void a_late_question_acknowledges_no_news_that_were_never_sent(void **state)
{
    struct host h;
    begin(&h);
    struct sitter now_there = h.n[1];
    const struct rdzv_event fail = {.kind = RDZV_FAIL, .node = "node0", .round = 1, .cause = {.exit_code = 1}};
    jobs_next_cancel(now_there.party);
    assert_int_equal(jobs_claim(h.n[0].party, "j", &fail, &h.n[0].e), 0);
    h.n[1].party = NULL;
    come(&h, 1);
    h.n[1].news.seq = 99;
    assert_int_equal(next(&h, 1), -ENOENT);
    jobs_party_close(h.n[1].party, JOBS_SILENT);
    h.n[1] = now_there;
    assert_int_equal(next(&h, 1), 0);
    assert_int_equal(h.n[1].news.kind, RDZV_NEWS_STOP);
    close_host(&h);
}

/* A node's NEXT is read after its host has given that job up and has begun another one with that node. */
static void a_late_question_acknowledges_no_news_of_the_job_after(void **state)
{
    struct host h;
    struct err e;
    begin(&h);
    const uint64_t seen = h.n[1].news.seq;
    rig_now += 3000;
    assert_int_equal(jobs_may_answer(h.jobs, &e), -EBUSY); /* it knows nothing any more */
    for (int i = 0; i < 3; i++) {
        come(&h, i);
        assert_int_equal(join(&h, i, 1), 0);
        assert_int_equal(next(&h, i), 0);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(next(&h, i), 0);
    rig_pass(h.jobs, 1);
    assert_int_equal(h.n[1].news.kind, RDZV_NEWS_ROUND);
    assert_int_equal(h.n[1].news.round, 2);
    char instance[sizeof h.n[1].joined.instance];
    memcpy(instance, h.n[1].joined.instance, sizeof instance);
    come(&h, 1); /* the news were lost with its connection */
    h.n[1].news.seq = seen;
    assert_int_equal(next(&h, 1), 0);
    come(&h, 1);
    assert_int_equal(join_from(&h, 1, 1, 1, instance), 0);
    assert_int_equal(next(&h, 1), 0);
    assert_int_equal(h.n[1].news.kind, RDZV_NEWS_ROUND);
    assert_int_equal(h.n[1].news.round, 2);
    close_host(&h);
}

/* All seats were at two hosts in turn, each began a round, and a node missed both beginnings: whoever works at the
 * other host does so beside what is begun here. */
static void a_node_that_was_at_another_host_is_not_told_that_a_round_has_begun(void **state)
{
    struct host h;
    char instance[sizeof h.n[2].joined.instance];
    begin(&h);
    memcpy(instance, h.n[2].joined.instance, sizeof instance);
    come(&h, 2);
    assert_int_equal(join_from(&h, 2, 2, 0, instance), 0); /* it has been nowhere else */
    assert_false(h.n[0].unknown);
    come(&h, 2);
    assert_int_equal(join_from(&h, 2, 2, 0, "of-another-host"), 0);
    assert_int_equal(next(&h, 2), 0);
    assert_int_equal(h.n[2].news.kind, 0);
    for (int i = 0; i < 2; i++)
        assert_true(h.n[i].unknown);
    close_host(&h);
}

static void workers_of_a_round_that_a_host_does_not_know_are_not_acknowledged(void **state)
{
    struct host h;
    open_host(&h);
    come_and_wait(&h, 0);
    come_and_wait(&h, 1);
    come(&h, 1); /* it was elsewhere meanwhile */
    assert_int_equal(next(&h, 1), -ENOENT);
    assert_int_equal(join(&h, 1, 4), 0);
    assert_int_equal(next(&h, 1), 0);
    close_host(&h);
}

static void a_node_whose_seat_was_taken_until_the_job_had_succeeded_begins_it_no_second_time(void **state)
{
    struct host h;
    begin(&h);
    come(&h, 3);
    assert_int_equal(join_seat(&h, 3, 0, 0), -EAGAIN);
    for (int i = 0; i < 3; i++) {
        const struct rdzv_event done = {.kind = RDZV_DONE, .node = {'n', 'o', 'd', 'e', (char)('0' + i)}, .round = 1};
        jobs_next_cancel(h.n[i].party);
        assert_int_equal(jobs_claim(h.n[i].party, "j", &done, &h.n[i].e), 0);
    }
    assert_int_equal(join_seat(&h, 3, 0, 0), ERR_REFUSED);
    assert_string_equal(h.n[3].e.text, "job 'j' has succeeded without it: another node had node rank 0");
    jobs_party_close(h.n[0].party, JOBS_GONE); /* nobody has its seat any more */
    h.n[0].party = NULL;
    assert_int_equal(join_seat(&h, 3, 0, 0), ERR_REFUSED);
    close_host(&h);
}

/* Node 0 waits at a host, of a list or alone, for node 1, which has other settings. */
static void meet_with_other_settings(bool listed, uint64_t round, bool ends)
{
    struct host h;
    open_host(&h);
    jobs_destroy(h.jobs);
    h.config.min_nodes = 3;
    h.jobs = rig_jobs(&(struct jobs_options){
        .embedded = true, .listed = listed ? &h.config : NULL, .listed_run = listed ? "j" : NULL});
    come(&h, 0);
    assert_int_equal(join(&h, 0, round), 0);
    assert_int_equal(next(&h, 0), 0);
    come(&h, 1);
    h.config.max_restarts = 3;
    assert_int_equal(join(&h, 1, 0), ERR_MISMATCH);
    assert_int_equal(h.n[0].asks, !ends);
    if (ends) {
        assert_int_equal(h.n[0].news.kind, RDZV_NEWS_END);
        assert_int_equal(h.n[0].news.exit_code, 78);
        assert_string_equal(h.n[0].news.cause.text,
                            "node 'node1' left: the job was started with --max-restarts 9, not 3");
    }
    close_host(&h);
}

static void one_of_other_settings_ends_who_waits_for_all_to_begin(void **state)
{
    for (int listed = 0; listed < 2; listed++)
        meet_with_other_settings(listed, 0, true);
}

static void one_of_other_settings_ends_no_job_that_goes_on(void **state)
{
    for (int listed = 0; listed < 2; listed++)
        meet_with_other_settings(listed, 4, false);
}

static void a_node_that_heard_of_a_higher_round_ends_a_lower_one(void **state)
{
    struct host h;
    begin(&h);
    jobs_party_close(h.n[2].party, JOBS_GONE);
    h.n[2].party = NULL;
    for (int i = 0; i < 2; i++)
        assert_int_equal(next(&h, i), 0); /* they were told that their round stops */
    come(&h, 3);                          /* it is of no round here */
    assert_int_equal(join_seat(&h, 3, 2, 7), 0);
    assert_true(h.n[0].unknown && h.n[1].unknown);
    assert_int_equal(next(&h, 0), ERR_REFUSED); /* it has not joined the job that goes on from there */
    assert_int_equal(h.n[3].joined.first_round, 8);
    close_host(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_acknowledged_before_min_seats_have_shown_that_they_hear),
        cmocka_unit_test(an_answer_counts_from_when_it_was_sent_and_questions_count_nothing),
        cmocka_unit_test(a_job_of_fewer_than_max_nodes_waits_for_another_host_to_be_out),
        cmocka_unit_test(a_full_job_begins_at_once),
        cmocka_unit_test(who_asks_after_the_last_has_come_is_answered_at_once),
        cmocka_unit_test(a_host_that_hears_too_few_forgets_its_round),
        cmocka_unit_test(a_seat_is_taken_back_from_a_late_connection),
        cmocka_unit_test(a_late_question_acknowledges_no_news_that_were_never_sent),
        cmocka_unit_test(a_late_question_acknowledges_no_news_of_the_job_after),
        cmocka_unit_test(a_node_that_was_at_another_host_is_not_told_that_a_round_has_begun),
        cmocka_unit_test(workers_of_a_round_that_a_host_does_not_know_are_not_acknowledged),
        cmocka_unit_test(a_node_whose_seat_was_taken_until_the_job_had_succeeded_begins_it_no_second_time),
        cmocka_unit_test(one_of_other_settings_ends_who_waits_for_all_to_begin),
        cmocka_unit_test(one_of_other_settings_ends_no_job_that_goes_on),
        cmocka_unit_test(a_node_that_heard_of_a_higher_round_ends_a_lower_one),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
