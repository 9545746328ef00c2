/* Jobs, their parties and their news, under a virtual clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/json/json.h"
#include "common/rdzv/homes/rdzv_home.h"
#include "tests/rendezvousd/jobs/jobs_rig.h"
#include "tests/support/today.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Two nodes of run "r" in their first round. */
struct pair {
    struct jobs *j;
    struct rdzv_config c;
    struct agent a, b;
};

static void pair_start_of(struct pair *p, const struct jobs_options *o, int min)
{
    p->j = rig_jobs(o);
    p->c = rig_config(min, 2);
    rig_open(p->j, &p->a, "r", "node1", "10.0.0.2");
    rig_open(p->j, &p->b, "r", "node2", "10.0.0.3");
    assert_int_equal(rig_join(&p->a, &p->c, 0), 0);
    assert_int_equal(rig_next(&p->a), 0);
    assert_int_equal(rig_join(&p->b, &p->c, 0), 0);
    assert_int_equal(rig_next(&p->b), 0);
    assert_int_equal(p->a.news.kind, RDZV_NEWS_ROUND);
    assert_int_equal(p->b.news.kind, RDZV_NEWS_ROUND);
    assert_int_equal(rig_next(&p->a), 0);
    assert_int_equal(rig_next(&p->b), 0);
}

static void pair_start(struct pair *p, const struct jobs_options *o)
{
    pair_start_of(p, o, 2);
}

static void pair_end(struct pair *p)
{
    rig_close(&p->a, JOBS_SILENT);
    rig_close(&p->b, JOBS_SILENT);
    jobs_destroy(p->j);
}

static void keep_hearing(struct pair *p, struct agent *one, int64_t ms)
{
    for (int64_t t = 0; t < ms; t += 1000) {
        rig_pass(p->j, 1000);
        rig_next(one);
    }
}

/* --- the life of a job */

static void a_job_forms_and_ends(void **s)
{
    struct pair p;
    (void)s;
    pair_start(&p, NULL);
    assert_int_equal(p.a.news.round, 1);
    assert_int_equal(p.a.news.group_rank, 0);
    assert_int_equal(p.b.news.group_rank, 1);
    assert_int_equal(p.b.news.rank_base, 2);
    assert_string_equal(p.b.news.leader_addr, "10.0.0.2");
    assert_int_equal(p.b.news.leader_port, 4000);
    assert_string_equal(p.a.members, "10.0.0.2,10.0.0.3");
    assert_string_equal(p.b.members, "");
    assert_string_equal(p.a.joined.instance, p.b.joined.instance);
    assert_int_equal(rig_say(&p.a, RDZV_DONE, 1, 0), 0);
    assert_int_equal(p.a.told, 1);
    assert_false(jobs_all_told(p.j));
    assert_int_equal(rig_say(&p.b, RDZV_DONE, 1, 0), 0);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_END);
    assert_int_equal(p.b.news.kind, RDZV_NEWS_END);
    assert_int_equal(p.a.news.exit_code, 0);
    assert_true(jobs_all_told(p.j));
    pair_end(&p);
}

static void a_failure_stops_all_and_the_next_round_follows(void **s)
{
    struct pair p;
    (void)s;
    pair_start(&p, NULL);
    assert_int_equal(rig_say(&p.b, RDZV_FAIL, 1, 7), 0);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_STOP);
    assert_string_equal(p.a.news.cause.text, "rank 0 broke");
    assert_int_equal(rig_join(&p.a, &p.c, 1), 0);
    assert_int_equal(rig_next(&p.a), 0);
    assert_int_equal(rig_join(&p.b, &p.c, 1), 0);
    assert_int_equal(p.a.news.round, 2);
    assert_int_equal(p.a.news.restart_count, 1);
    assert_int_equal(rig_next(&p.b), 0);
    assert_int_equal(p.b.news.kind, RDZV_NEWS_ROUND);
    assert_int_equal(rig_say(&p.b, RDZV_DONE, 1, 0), ERR_FENCED);
    pair_end(&p);
}

static void news_are_kept_until_acknowledged(void **s)
{
    struct pair p;
    struct agent again;
    (void)s;
    pair_start(&p, NULL);
    rig_say(&p.b, RDZV_FAIL, 1, 7);
    uint64_t seq = p.a.news.seq;
    rig_open(p.j, &again, "r", "node1", "10.0.0.2");
    again.news.seq = seq - 1; /* the answer was lost with the old connection */
    assert_int_equal(rig_next(&again), 0);
    assert_int_equal(again.news.kind, RDZV_NEWS_STOP);
    assert_int_equal(again.news.seq, seq);
    assert_int_equal(rig_next(&again), 0);
    assert_int_equal(again.told, 1);
    rig_close(&again, JOBS_SILENT);
    pair_end(&p);
}

static void the_older_connection_is_void(void **s)
{
    struct pair p;
    struct agent newer;
    (void)s;
    pair_start(&p, NULL);
    rig_open(p.j, &newer, "r", "node1", "10.0.0.2");
    newer.news.seq = p.a.news.seq;
    assert_int_equal(rig_next(&newer), 0);
    assert_true(p.a.is_void);
    assert_int_equal(rig_next(&p.a), ERR_FENCED);
    rig_close(&p.a, JOBS_GONE); /* proves nothing: it does not stand for the node any more */
    assert_int_equal(p.b.told, 1);
    rig_say(&p.b, RDZV_FAIL, 1, 7);
    assert_int_equal(newer.news.kind, RDZV_NEWS_STOP);
    rig_close(&newer, JOBS_SILENT);
    pair_end(&p);
}

static void a_connection_stands_for_one_node(void **s)
{
    struct pair p;
    (void)s;
    pair_start(&p, NULL);
    p.a.node = "node2";
    assert_int_equal(rig_next(&p.a), ERR_REFUSED);
    assert_non_null(strstr(p.a.e.text, "node1"));
    p.a.node = "node1";
    assert_int_equal(rig_next(&p.a), 0);
    pair_end(&p);
}

/* --- losses */

static void a_proved_death_breaks_the_round_at_once(void **s)
{
    struct pair p;
    (void)s;
    pair_start(&p, NULL);
    rig_close(&p.b, JOBS_GONE);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_STOP);
    assert_int_equal(p.a.news.why, RDZV_WHY_FAILURE);
    pair_end(&p);
}

static void a_lost_connection_waits_for_the_fence(void **s)
{
    struct pair p;
    (void)s;
    pair_start(&p, NULL);
    rig_close(&p.b, JOBS_SILENT);
    keep_hearing(&p, &p.a, 3000);
    assert_int_equal(p.a.told, 1);
    keep_hearing(&p, &p.a, 1000);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_STOP);
    pair_end(&p);
}

static void silence_counts_from_the_last_request(void **s)
{
    struct pair p;
    (void)s;
    pair_start(&p, NULL);
    keep_hearing(&p, &p.a, 3000); /* node2 asks nothing: its workers are dead 4 s after its last request */
    assert_int_equal(p.a.told, 1);
    keep_hearing(&p, &p.a, 1000);
    assert_int_equal(p.a.told, 2);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_STOP);
    assert_int_equal(rig_next(&p.b), ERR_REFUSED);
    pair_end(&p);
}

static void a_pause_of_our_own_is_nobodys_silence(void **s)
{
    struct pair p;
    (void)s;
    pair_start(&p, NULL);
    rig_now += 10000; /* we were stopped: no tick, and what broke meanwhile is read first */
    rig_close(&p.b, JOBS_SILENT);
    jobs_tick(p.j);
    assert_int_equal(p.a.told, 1);
    keep_hearing(&p, &p.a, 3000);
    assert_int_equal(p.a.told, 1);
    keep_hearing(&p, &p.a, 1000);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_STOP);
    pair_end(&p);
}

static void signs_of_life_leave_nothing_to_wake_for(void **s)
{
    struct pair p;
    (void)s;
    pair_start(&p, NULL);
    for (int i = 0; i < 10; i++) {
        rig_now += 1000;
        rig_next(&p.a);
        rig_next(&p.b);
        assert_int_equal(jobs_deadline(p.j), rig_now + p.c.silence_ms);
    }
    pair_end(&p);
}

static void a_silent_node_that_resumes_has_lost_nothing(void **s)
{
    struct pair p;
    struct agent again;
    (void)s;
    pair_start(&p, NULL);
    rig_close(&p.b, JOBS_SILENT);
    keep_hearing(&p, &p.a, 3000);
    rig_open(p.j, &again, "r", "node2", "10.0.0.3");
    again.news.seq = p.b.news.seq;
    assert_int_equal(rig_next(&again), 0);
    for (int i = 0; i < 10; i++) {
        rig_pass(p.j, 1000);
        rig_next(&p.a);
        rig_next(&again);
    }
    assert_int_equal(p.a.told, 1);
    assert_int_equal(again.told, 0);
    rig_close(&again, JOBS_SILENT);
    pair_end(&p);
}

/* Its lease counts from when it asked. */
static void a_failure_told_on_a_new_connection_is_a_sign_of_life(void **s)
{
    struct pair p;
    struct agent again;
    (void)s;
    pair_start_of(&p, NULL, 1);
    rig_close(&p.b, JOBS_SILENT);
    keep_hearing(&p, &p.a, 3000);
    rig_open(p.j, &again, "r", "node2", "10.0.0.3");
    assert_int_equal(rig_say(&again, RDZV_FAIL, 1, 7), 0);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_STOP);
    assert_int_equal(rig_join(&p.a, &p.c, 1), 0);
    keep_hearing(&p, &p.a, 3000);
    rig_pass(p.j, 900);
    assert_int_equal(p.a.told, 2);
    rig_pass(p.j, 200);
    assert_int_equal(p.a.news.round, 2);
    rig_close(&again, JOBS_SILENT);
    pair_end(&p);
}

static void news_of_a_forgotten_node_are_void(void **s)
{
    struct pair p;
    struct agent healed;
    (void)s;
    pair_start(&p, NULL);
    rig_say(&p.a, RDZV_FAIL, 1, 7); /* STOP waits for node2 ... */
    rig_close(&p.b, JOBS_SILENT);
    keep_hearing(&p, &p.a, 5000); /* ... until it is given up */
    rig_open(p.j, &healed, "r", "node2", "10.0.0.3");
    assert_int_equal(rig_next(&healed), ERR_REFUSED);
    assert_int_equal(rig_join(&healed, &p.c, 1), 0);
    assert_int_equal(rig_next(&healed), 0);
    assert_int_equal(rig_join(&p.a, &p.c, 1), 0);
    assert_int_equal(healed.news.round, 2);
    rig_close(&healed, JOBS_SILENT);
    pair_end(&p);
}

/* --- run ids */

static void a_shared_rendezvous_needs_a_run_id(void **s)
{
    static const char *const bad[] = {"", "none", "default"};
    struct rdzv_config c = rig_config(1, 1);
    (void)s;
    for (int embedded = 0; embedded < 2; embedded++) {
        struct jobs *j = rig_jobs(&(struct jobs_options){.embedded = embedded});
        for (size_t i = 0; i < 3; i++) {
            struct agent a;
            rig_open(j, &a, bad[i], "node1", "10.0.0.2");
            assert_int_equal(rig_join(&a, &c, 0), embedded ? 0 : ERR_REFUSED);
            rig_close(&a, JOBS_GONE);
        }
        jobs_destroy(j);
    }
}

static void a_job_belongs_to_its_principal(void **s)
{
    struct pair p;
    struct agent m;
    struct buf out = {0};
    (void)s;
    pair_start(&p, NULL);
    rig_open_as(p.j, &m, "r", "node1", "10.0.0.9", "mallory");
    assert_int_equal(rig_next(&m), -ENOENT);
    assert_int_equal(rig_say(&m, RDZV_DONE, 1, 0), -ENOENT);
    assert_int_equal(jobs_drain(p.j, "mallory", "r", &m.e), -ENOENT);
    assert_int_equal(jobs_status_from(p.j, "mallory", "r", 0, &out, &m.e), -ENOENT);
    assert_int_equal(jobs_status_from(p.j, "mallory", NULL, 0, &out, &m.e), 0);
    assert_null(strstr(out.data, "node1"));
    assert_string_equal(jobs_owner(p.j, "alice", "r"), "alice");
    assert_null(jobs_owner(p.j, "mallory", "r"));
    assert_null(jobs_owner(p.j, "alice", "q"));
    buf_free(&out);
    rig_close(&m, JOBS_GONE);
    pair_end(&p);
}

/* In a round, between rounds, before the first; its members hear why. */
static void an_operator_ends_a_job_in_any_state(void **s)
{
    static const char why[] = "an operator of the rendezvous (ops) evicted the job";
    struct pair p;
    struct agent *const both[] = {&p.a, &p.b};
    (void)s;
    for (int state = 0; state < 3; state++) {
        pair_start(&p, NULL);
        if (state > 0)
            assert_int_equal(rig_say(&p.a, RDZV_FAIL, 1, 1), 0);
        if (state > 1)
            assert_int_equal(rig_join(&p.a, &p.c, 1), 0);
        assert_int_equal(jobs_evict(p.j, "bob", "r", "ops", &p.a.e), -ENOENT);
        assert_int_equal(jobs_evict(p.j, NULL, "r", "ops", &p.a.e), 0);
        for (int i = 0; i < 2; i++) {
            rig_next(both[i]);
            assert_int_equal(both[i]->news.kind, RDZV_NEWS_END);
            assert_int_equal(both[i]->news.exit_code, 69);
            assert_string_equal(both[i]->news.cause.text, why);
        }
        assert_int_equal(jobs_evict(p.j, NULL, "r", "ops", &p.a.e), 0); /* it is over: nothing changes */
        rig_pass(p.j, LEADER_LINGER_MS);
        assert_null(jobs_owner(p.j, "alice", "r"));
        pair_end(&p);
    }
    struct jobs *j = rig_jobs(NULL);
    struct rdzv_config c = rig_config(2, 2);
    struct agent lone;
    rig_open(j, &lone, "q", "node1", "10.0.0.2");
    assert_int_equal(rig_join(&lone, &c, 0), 0);
    rig_close(&lone, JOBS_SILENT);
    assert_int_equal(jobs_evict(j, "alice", "q", "ops", &lone.e), 0);
    rig_pass(j, LEADER_LINGER_MS);
    assert_null(jobs_owner(j, "alice", "q"));
    jobs_destroy(j);
}

static char forgotten[2][64];

static void note_forgotten(void *arg, const char *principal, const char *run)
{
    (void)arg;
    snprintf(forgotten[forgotten[0][0] != 0], sizeof *forgotten, "%s/%s", principal, run);
}

/* Whoever comes first takes no name from another. */
static void principals_have_names_of_their_own(void **s)
{
    struct pair p;
    struct agent m;
    struct buf out = {0};
    struct rdzv_config other = rig_config(1, 1);
    (void)s;
    memset(forgotten, 0, sizeof forgotten);
    pair_start(&p, NULL);
    jobs_on_forgotten(p.j, note_forgotten, NULL);
    rig_open_as(p.j, &m, "r", "node1", "10.0.0.9", "mallory");
    assert_int_equal(rig_join(&m, &other, 0), 0);
    assert_int_equal(rig_next(&m), 0);
    assert_int_equal(m.news.kind, RDZV_NEWS_ROUND);
    assert_int_equal(p.a.told, 1); /* it has heard nothing of that */
    assert_int_equal(jobs_status_from(p.j, NULL, "r", 0, &out, &m.e), -EINVAL);
    assert_non_null(strstr(m.e.text, "several principals have a run 'r', 'mallory' and 'alice'"));
    assert_int_equal(jobs_drain(p.j, "mallory", "r", &m.e), 0);
    rig_join(&m, &other, 1);
    assert_int_equal(p.a.told, 1);
    assert_int_equal(jobs_drain(p.j, "alice", "r", &m.e), 0);
    assert_int_equal(p.a.told, 2);
    rig_pass(p.j, LEADER_LINGER_MS); /* mallory's was over; alice's nodes have been silent for too long */
    assert_string_equal(forgotten[0], "mallory/r");
    assert_string_equal(forgotten[1], "");
    rig_pass(p.j, LEADER_LINGER_MS);
    assert_string_equal(forgotten[1], "alice/r");
    buf_free(&out);
    rig_close(&m, JOBS_GONE);
    pair_end(&p);
}

static void each_principal_has_its_share_of_jobs(void **s)
{
    struct jobs *j = rig_jobs(&(struct jobs_options){.max_jobs = 3, .max_jobs_per_principal = 2});
    struct rdzv_config c = rig_config(2, 2);
    static const char *const runs[] = {"r0", "r1", "r2"};
    struct agent a[3], b, over;
    (void)s;
    for (int i = 0; i < 2; i++) {
        rig_open_as(j, &a[i], runs[i], "node1", "10.0.0.2", "alice");
        assert_int_equal(rig_join(&a[i], &c, 0), 0);
    }
    rig_open_as(j, &over, "r2", "node1", "10.0.0.2", "alice");
    assert_int_equal(rig_join(&over, &c, 0), -EDQUOT);
    assert_string_equal(over.e.text, "run 'r2' is one job too many: this principal has 2, the most it may have");
    rig_open_as(j, &b, "r0", "node1", "10.0.0.3", "bob");
    assert_int_equal(rig_join(&b, &c, 0), 0);
    rig_close(&a[0], JOBS_GONE); /* the job goes, and makes room */
    assert_int_equal(rig_join(&over, &c, 0), 0);
    rig_close(&a[1], JOBS_GONE);
    rig_close(&b, JOBS_GONE);
    rig_close(&over, JOBS_GONE);
    assert_null(jobs_owner(j, "bob", "r0"));
    jobs_destroy(j);
}

/* 300 jobs whose members are heard at different times: each falls silent, and ends, at its own date. */
static void each_of_many_jobs_keeps_its_dates(void **s)
{
    enum { JOBS = 300 };
    struct jobs *j = rig_jobs(&(struct jobs_options){.max_jobs_per_principal = JOBS});
    struct rdzv_config c = rig_config(1, 1);
    static struct agent a[JOBS];
    static char runs[JOBS][8];
    struct jobs_stats st;
    (void)s;
    c.max_restarts = 0;
    for (int i = 0; i < JOBS; i++) {
        snprintf(runs[i], sizeof runs[i], "r%d", i);
        rig_open(j, &a[i], runs[i], "node1", "10.0.0.2");
        assert_int_equal(rig_join(&a[i], &c, 0), 0);
        assert_int_equal(rig_next(&a[i]), 0);
        rig_pass(j, 7);
    }
    for (int i = 0; i < JOBS; i += 2)
        assert_int_equal(rig_next(&a[i]), 0); /* the others were heard up to 2.1 s ago */
    const int64_t heard = rig_now;
    for (int i = 1; i < JOBS; i += 2) { /* silence and kill after it was heard, no earlier */
        rig_pass(j, heard - (JOBS - i) * 7 + 4000 - 1 - rig_now);
        jobs_stats(j, &st);
        assert_int_equal(st.jobs, JOBS - i / 2);
        rig_pass(j, 1);
        jobs_stats(j, &st);
        assert_int_equal(st.jobs, JOBS - i / 2 - 1);
    }
    rig_pass(j, 4000);
    jobs_stats(j, &st);
    assert_int_equal(st.jobs, 0);
    for (int i = 0; i < JOBS; i++)
        rig_close(&a[i], JOBS_SILENT);
    jobs_destroy(j);
}

static void agents_that_disagree_are_refused(void **s)
{
    struct pair p;
    struct agent c;
    struct rdzv_config other = rig_config(2, 3);
    (void)s;
    pair_start(&p, NULL);
    rig_open(p.j, &c, "r", "node3", "10.0.0.4");
    assert_int_equal(rig_join(&c, &other, 0), ERR_MISMATCH);
    assert_non_null(strstr(c.e.text, "2:3"));
    rig_close(&c, JOBS_GONE);
    pair_end(&p);
}

static void nobody_is_left_to_disagree_with(void **s)
{
    struct jobs *j = rig_jobs(NULL);
    struct rdzv_config typo = rig_config(3, 3), right = rig_config(1, 1);
    struct agent a, b;
    (void)s;
    rig_open(j, &a, "r", "node1", "10.0.0.2");
    assert_int_equal(rig_join(&a, &typo, 0), 0);
    rig_close(&a, JOBS_GONE);
    assert_null(jobs_owner(j, "alice", "r"));
    rig_open(j, &b, "r", "node1", "10.0.0.2");
    assert_int_equal(rig_join(&b, &right, 0), 0);
    rig_close(&b, JOBS_GONE);
    jobs_destroy(j);
}

static void a_finished_id_is_a_new_instance(void **s)
{
    struct pair p;
    struct agent late, fresh, other;
    struct rdzv_config one = rig_config(1, 1);
    (void)s;
    pair_start(&p, NULL);
    rig_close(&p.b, JOBS_SILENT);
    rig_open(p.j, &other, "r", "node2", "10.0.0.3");
    assert_int_equal(rig_say(&other, RDZV_DONE, 1, 0), 0); /* its END is not told */
    assert_int_equal(rig_say(&p.a, RDZV_DONE, 1, 0), 0);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_END);
    rig_open(p.j, &fresh, "r", "node1", "10.0.0.2");
    assert_int_equal(rig_join(&fresh, &one, 0), 0);
    assert_string_not_equal(fresh.joined.instance, p.a.joined.instance);
    rig_open(p.j, &late, "r", "node2", "10.0.0.3");
    assert_int_equal(rig_join(&late, &p.c, 1), 0);
    assert_string_equal(late.joined.instance, p.a.joined.instance);
    assert_int_equal(rig_next(&late), 0);
    assert_int_equal(late.news.kind, RDZV_NEWS_END);
    rig_close(&late, JOBS_GONE);
    rig_pass(p.j, LEADER_LINGER_MS);
    rig_open(p.j, &late, "r", "node2", "10.0.0.3");
    assert_int_equal(rig_next(&late), ERR_REFUSED); /* of the new instance it is no member */
    rig_close(&late, JOBS_GONE);
    rig_close(&fresh, JOBS_GONE);
    rig_close(&other, JOBS_GONE);
    pair_end(&p);
}

/* --- what a node brings of a rendezvous that lost its memory */

static int rejoin(struct agent *a, const struct rdzv_config *c, uint64_t round, const char *instance, int restarts)
{
    struct rdzv_event ev = {.kind = RDZV_JOIN, .round = round, .slots = 2, .node_rank = -1, .restarts = restarts};
    snprintf(ev.node, sizeof ev.node, "%s", a->node);
    snprintf(ev.instance, sizeof ev.instance, "%s", instance);
    int rc = jobs_join(a->party, a->run, &ev, c, &a->joined, &a->e);
    if (rc == 0)
        a->news = (struct rdzv_news){.seq = a->joined.seq};
    return rc == 0 ? rig_next(a) : rc;
}

static void a_new_host_goes_on_above_what_a_survivor_brings(void **s)
{
    struct jobs *j = rig_jobs(&(struct jobs_options){.embedded = true});
    struct rdzv_config c = rig_config(2, 2);
    struct agent host, survivor, spent;
    (void)s;
    rig_open(j, &host, "r", "node1", "");
    rig_open(j, &survivor, "r", "node2", "10.0.0.3");
    rig_open(j, &spent, "r", "node3", "10.0.0.4");
    assert_int_equal(rejoin(&host, &c, 0, "", 0), 0);
    assert_int_equal(rejoin(&spent, &c, 7, "00112233445566aa", 4), ERR_REFUSED);
    assert_non_null(strstr(spent.e.text, "no restart is left (--max-restarts 3)"));
    assert_int_equal(rejoin(&survivor, &c, 7, "00112233445566aa", 2), 0);
    assert_int_equal(survivor.joined.first_round, 8); /* for peers that know no other sign */
    rig_pass(j, 2000);
    assert_int_equal(rig_next(&survivor), 0);
    rig_pass(j, 1999);
    assert_int_equal(host.told, 0);
    rig_pass(j, 1);
    assert_int_equal(host.news.round, 8);
    assert_int_equal(survivor.news.round, 8);
    assert_int_equal(survivor.news.restart_count, 2);
    rig_close(&host, JOBS_GONE);
    rig_close(&survivor, JOBS_GONE);
    rig_close(&spent, JOBS_GONE);
    jobs_destroy(j);
}

static void a_survivor_of_another_job_is_new_and_the_larger_count_stands(void **s)
{
    struct jobs *j = rig_jobs(NULL);
    struct rdzv_config c = rig_config(1, 2);
    struct agent a, survivor;
    (void)s;
    rig_open(j, &a, "r", "node1", "10.0.0.2");
    rig_open(j, &survivor, "r", "node2", "10.0.0.3");
    assert_int_equal(rejoin(&a, &c, 0, "", 0), 0);
    rig_pass(j, 1000);
    assert_int_equal(a.news.round, 1);
    assert_int_equal(rejoin(&survivor, &c, 7, "00112233445566aa", 2), 0);
    assert_string_equal(survivor.joined.instance, a.joined.instance);
    assert_int_equal(rig_next(&a), 0);
    assert_int_equal(a.news.kind, RDZV_NEWS_STOP);
    assert_int_equal(a.news.why, RDZV_WHY_RESIZE);
    assert_int_equal(rejoin(&a, &c, 1, a.joined.instance, 0), 0);
    assert_int_equal(a.news.round, 8);
    assert_int_equal(a.news.restart_count, 2);
    rig_close(&a, JOBS_GONE);
    rig_close(&survivor, JOBS_GONE);
    jobs_destroy(j);
}

static void a_crun_that_hosts_waits_for_workers_that_it_does_not_know_of(void **s)
{
    struct rdzv_config c = rig_config(1, 2);
    (void)s;
    for (int embedded = 0; embedded < 2; embedded++) {
        struct jobs *j = rig_jobs(&(struct jobs_options){.embedded = embedded});
        struct agent a;
        rig_open(j, &a, "r", "node1", "");
        rig_pass(j, 500);
        assert_int_equal(rejoin(&a, &c, 0, "", 0), 0);
        rig_pass(j, embedded ? 3499 : 999);
        assert_int_equal(a.told, 0);
        rig_pass(j, 1);
        assert_int_equal(a.news.round, 1);
        rig_close(&a, JOBS_GONE);
        jobs_destroy(j);
    }
}

/* --- the lease of the workers beside a host */

/* A hosting crun and two nodes, of which one other is needed, in their first round. */
static struct jobs *host_and_two(struct agent *host, struct agent *b, struct agent *d, const struct rdzv_config *c)
{
    struct jobs *j = rig_jobs(&(struct jobs_options){.embedded = true});
    rig_open(j, host, "r", "node1", "");
    rig_open(j, b, "r", "node2", "10.0.0.3");
    rig_open(j, d, "r", "node3", "10.0.0.4");
    assert_int_equal(jobs_lease(host->party), INT64_MAX); /* no job */
    assert_int_equal(rejoin(host, c, 0, "", 0), 0);
    assert_int_equal(rejoin(b, c, 0, "", 0), 0);
    assert_int_equal(rejoin(d, c, 0, "", 0), 0);
    assert_int_equal(host->news.round, 1);
    return j;
}

/* It answers nothing and is asked again: that proves nothing; the answer that it had before does. */
static void ask_again(struct agent *a)
{
    jobs_next_cancel(a->party);
    assert_int_equal(rig_next(a), 0);
}

static void the_workers_beside_a_host_need_answers_that_min_nodes_have_got(void **s)
{
    struct rdzv_config c = rig_config(2, 3);
    struct agent host, b, d;
    struct jobs *j = host_and_two(&host, &b, &d, &c);
    const int64_t start = rig_now;
    (void)s;
    assert_int_equal(jobs_lease(host.party), start + c.silence_ms);
    rig_pass(j, 1000);
    assert_int_equal(rig_next(&b), 0); /* asked now, for what was answered at the start */
    assert_int_equal(jobs_lease(host.party), start + c.silence_ms);
    rig_pass(j, 500);
    ask_again(&b); /* the one before is answered with nothing; this one shows that it arrived */
    assert_int_equal(jobs_lease(host.party), start + 1500 + c.silence_ms);
    rig_pass(j, 1000);
    ask_again(&d); /* the newest of the others counts */
    ask_again(&d);
    assert_int_equal(jobs_lease(host.party), start + 2500 + c.silence_ms);
    rig_close(&host, JOBS_GONE);
    rig_close(&b, JOBS_GONE);
    rig_close(&d, JOBS_GONE);
    jobs_destroy(j);
}

static void who_left_in_good_order_is_missed_by_no_lease_and_who_died_is(void **s)
{
    struct rdzv_config c = rig_config(2, 3);
    (void)s;
    for (int leaves = 0; leaves < 2; leaves++) {
        struct agent host, b, d;
        struct jobs *j = host_and_two(&host, &b, &d, &c);
        const int64_t start = rig_now;
        if (leaves) {
            assert_int_equal(rig_say(&d, RDZV_LEAVE, 1, 0), 0);
            assert_int_equal(rejoin(&d, &c, 1, "", 0), 0); /* its workers are gone; this is its END */
            assert_int_equal(d.news.kind, RDZV_NEWS_END);
        }
        rig_close(&d, JOBS_GONE);
        assert_int_equal(jobs_lease(host.party), leaves ? INT64_MAX : start + c.silence_ms);
        rig_close(&b, JOBS_SILENT);
        assert_int_equal(jobs_lease(host.party), leaves ? INT64_MAX : start + c.silence_ms);
        rig_close(&host, JOBS_GONE);
        jobs_destroy(j);
    }
}

/* Of three nodes one goes on answering; another one falls silent, or is proved dead. */
static void a_host_knows_whom_it_still_reaches(void **s)
{
    struct rdzv_config c = rig_config(3, 3);
    c.max_restarts = 0;
    (void)s;
    for (int dies = 0; dies < 2; dies++) {
        struct agent host, b, d;
        struct jobs_reach r;
        struct jobs *j = host_and_two(&host, &b, &d, &c);
        const int64_t start = rig_now;
        jobs_reach(j, "r", "node1", &r);
        assert_int_equal(r.reached, 2);
        assert_string_equal(r.lost, "");
        assert_int_equal(r.until_ms, INT64_MAX);
        assert_int_equal(rig_next(&b), 0);
        rig_pass(j, c.silence_ms - 1);
        ask_again(&b);
        ask_again(&b);
        if (dies) { /* that fails the job: the other one is told, and only its end would be waited for */
            rig_close(&d, JOBS_GONE);
        } else {
            rig_pass(j, 1);
            jobs_reach(j, "r", "node1", &r);
            assert_string_equal(r.lost, "node3");
            assert_int_equal(rig_say(&host, RDZV_FAIL, 1, 69), 0);
        }
        jobs_reach(j, "r", "node1", &r);
        assert_int_equal(r.reached, 1);
        assert_string_equal(r.lost, dies ? "" : "node3");
        assert_int_equal(r.until_ms, dies ? 0 : start + c.silence_ms + c.kill_ms);
        if (!dies)
            rig_close(&d, JOBS_SILENT);
        rig_close(&b, JOBS_GONE);
        rig_close(&host, JOBS_GONE);
        jobs_destroy(j);
    }
}

static void a_host_that_needs_nobody_has_no_lease(void **s)
{
    struct rdzv_config c = rig_config(1, 3);
    struct agent host, b, d;
    struct jobs *j = host_and_two(&host, &b, &d, &c);
    (void)s;
    assert_int_equal(jobs_lease(host.party), INT64_MAX);
    rig_close(&host, JOBS_GONE);
    rig_close(&b, JOBS_GONE);
    rig_close(&d, JOBS_GONE);
    jobs_destroy(j);
}

static void a_job_that_is_over_is_not_begun_again_by_a_late_node(void **s)
{
    struct pair p;
    struct agent late;
    char instance[sizeof p.a.joined.instance];
    (void)s;
    pair_start(&p, NULL);
    memcpy(instance, p.a.joined.instance, sizeof instance);
    assert_int_equal(rig_say(&p.a, RDZV_DONE, 1, 0), 0);
    assert_int_equal(rig_say(&p.b, RDZV_DONE, 1, 0), 0);
    rig_close(&p.a, JOBS_GONE);
    rig_close(&p.b, JOBS_GONE);
    rig_pass(p.j, LEADER_LINGER_MS);
    assert_null(jobs_owner(p.j, "alice", "r"));
    rig_open(p.j, &late, "r", "node2", "10.0.0.3");
    assert_int_equal(rejoin(&late, &p.c, 1, instance, 0), ERR_REFUSED);
    assert_non_null(strstr(late.e.text, "is over"));
    rig_close(&late, JOBS_GONE);
    jobs_destroy(p.j);
}

/* Both nodes were killed, which proves nothing, and the job is run again with other settings. */
static void a_job_whose_nodes_are_not_heard_of_is_not_joined(void **s)
{
    struct pair p;
    struct agent again;
    struct rdzv_config other = rig_config(1, 2);
    (void)s;
    pair_start(&p, NULL);
    rig_close(&p.a, JOBS_SILENT);
    rig_close(&p.b, JOBS_SILENT);
    rig_open(p.j, &again, "r", "node1-again", "10.0.0.2");
    assert_int_equal(rig_join(&again, &other, 0), -EAGAIN);
    rig_pass(p.j, 3900);
    assert_int_equal(rig_join(&again, &other, 0), -EAGAIN);
    rig_pass(p.j, 200);
    assert_int_equal(rig_join(&again, &other, 0), 0);
    assert_string_not_equal(again.joined.instance, p.a.joined.instance);
    rig_close(&again, JOBS_GONE);
    jobs_destroy(p.j);
}

static void one_that_is_heard_again_goes_on_with_who_waited(void **s)
{
    struct pair p;
    struct agent back, more;
    (void)s;
    pair_start(&p, NULL);
    rig_close(&p.a, JOBS_SILENT);
    rig_close(&p.b, JOBS_SILENT);
    rig_open(p.j, &more, "r", "node3", "10.0.0.4");
    assert_int_equal(rig_join(&more, &p.c, 0), -EAGAIN);
    rig_open(p.j, &back, "r", "node1", "10.0.0.2");
    back.news.seq = p.a.news.seq;
    assert_int_equal(rig_next(&back), 0);
    assert_int_equal(rig_join(&more, &p.c, 0), 0);
    assert_string_equal(more.joined.instance, p.a.joined.instance);
    rig_close(&more, JOBS_GONE);
    rig_close(&back, JOBS_GONE);
    jobs_destroy(p.j);
}

/* A job has failed; one of its nodes has workers that take their time to stop. */
static void a_new_instance_waits_for_workers_in_their_grace(void **s)
{
    struct pair p;
    struct agent fresh;
    struct rdzv_config one = rig_config(1, 1);
    (void)s;
    pair_start(&p, NULL);
    rig_say(&p.b, RDZV_FAIL, 1, 7);
    while (p.a.news.kind != RDZV_NEWS_END) {
        uint64_t round = p.a.news.round;
        rig_join(&p.a, &p.c, round);
        rig_next(&p.a);
        rig_join(&p.b, &p.c, round);
        rig_next(&p.b);
        rig_say(&p.b, RDZV_FAIL, p.b.news.round, 7);
    }
    rig_close(&p.b, JOBS_GONE);
    rig_open(p.j, &fresh, "r", "node9", "10.0.0.9");
    assert_int_equal(rig_join(&fresh, &one, 0), 0);
    assert_string_not_equal(fresh.joined.instance, p.a.joined.instance);
    assert_int_equal(rig_next(&fresh), 0);
    rig_pass(p.j, 1000);
    rig_next(&fresh);
    rig_pass(p.j, 2500);
    rig_next(&fresh);
    rig_pass(p.j, 2500);
    assert_int_equal(fresh.told, 0); /* node1 is there, and may still work */
    rig_next(&fresh);
    rig_close(&p.a, JOBS_GONE);
    rig_pass(p.j, 1);
    assert_int_equal(fresh.told, 1);
    assert_int_equal(fresh.news.kind, RDZV_NEWS_ROUND);
    assert_int_equal(fresh.news.restart_count, 0);
    rig_close(&fresh, JOBS_GONE);
    pair_end(&p);
}

static const char *forgotten_run;

static void on_forgotten(void *arg, const char *principal, const char *run)
{
    (void)arg;
    assert_string_equal(principal, "alice");
    assert_string_equal(run, "r");
    forgotten_run = "r";
}

static void a_job_that_is_over_is_forgotten(void **s)
{
    struct pair p;
    struct agent late;
    (void)s;
    pair_start(&p, NULL);
    jobs_on_forgotten(p.j, on_forgotten, NULL);
    forgotten_run = NULL;
    assert_int_equal(jobs_drain(p.j, "alice", "r", &p.a.e), 0);
    assert_int_equal(p.a.news.why, RDZV_WHY_DRAIN);
    rig_join(&p.a, &p.c, 1);
    rig_join(&p.b, &p.c, 1);
    rig_next(&p.a);
    assert_int_equal(p.a.news.kind, RDZV_NEWS_END);
    assert_int_equal(p.a.news.exit_code, 75);
    rig_pass(p.j, LEADER_LINGER_MS - 1);
    assert_null(forgotten_run);
    rig_pass(p.j, 1);
    assert_non_null(forgotten_run);
    rig_open(p.j, &late, "r", "node1", "10.0.0.2");
    assert_int_equal(rig_next(&late), -ENOENT);
    rig_close(&late, JOBS_GONE);
    pair_end(&p);
}

/* --- limits */

static void limits_are_kept(void **s)
{
    struct jobs *j = rig_jobs(&(struct jobs_options){.max_jobs = 3, .max_jobs_per_principal = 2, .max_nodes = 2});
    struct rdzv_config c = rig_config(4, 4);
    struct agent a[6];
    static const char *const runs[] = {"r0", "r1", "r2", "r3", "r4"};
    (void)s;
    for (int i = 0; i < 5; i++) {
        rig_open_as(j, &a[i], runs[i], "node1", "10.0.0.2", i < 3 ? "alice" : i < 4 ? "bob" : "carol");
        assert_int_equal(rig_join(&a[i], &c, 0), i == 2 || i == 4 ? -EDQUOT : 0);
    }
    assert_non_null(strstr(a[2].e.text, "2, the most it may have"));
    assert_non_null(strstr(a[4].e.text, "3, the most there can be"));
    for (int i = 0; i < 5; i++)
        rig_close(&a[i], JOBS_GONE);
    for (int i = 0; i < 3; i++) {
        rig_open(j, &a[i], "r0", i == 0 ? "n1" : i == 1 ? "n2" : "n3", "10.0.0.2");
        assert_int_equal(rig_join(&a[i], &c, 0), i == 2 ? -EDQUOT : 0);
    }
    for (int i = 0; i < 3; i++)
        rig_close(&a[i], JOBS_GONE);
    jobs_destroy(j);
}

static void joins_are_counted(void **s)
{
    struct jobs *j = rig_jobs(&(struct jobs_options){.max_joins = 5});
    struct rdzv_config c = rig_config(2, 2);
    struct agent a;
    (void)s;
    rig_open(j, &a, "r", "node1", "10.0.0.2");
    for (int i = 0; i < 5; i++)
        assert_int_equal(rig_join(&a, &c, 0), 0);
    assert_int_equal(rig_join(&a, &c, 0), -EDQUOT);
    rig_now += 10000;
    assert_int_equal(rig_join(&a, &c, 0), 0);
    rig_close(&a, JOBS_GONE);
    jobs_destroy(j);
}

static void restarts_are_no_flood_of_joins(void **s)
{
    struct jobs *j = rig_jobs(&(struct jobs_options){.max_joins = 3});
    struct rdzv_config c = rig_config(2, 2);
    struct agent a[2];
    (void)s;
    c.max_restarts = 50;
    c.backoff_ms = 0;
    rig_open(j, &a[0], "r", "node1", "10.0.0.2");
    rig_open(j, &a[1], "r", "node2", "10.0.0.3");
    for (uint64_t round = 0; round < 20; round++) {
        for (int i = 0; i < 2; i++) {
            assert_int_equal(rig_join(&a[i], &c, round), 0);
            assert_int_equal(rig_next(&a[i]), 0);
        }
        assert_int_equal(rig_say(&a[0], RDZV_FAIL, round + 1, 7), 0);
    }
    assert_int_equal(rig_join(&a[0], &c, 20), 0);
    for (int i = 0; i < 2; i++) /* nothing has happened since: those are counted */
        assert_int_equal(rig_join(&a[0], &c, 20), 0);
    assert_int_equal(rig_join(&a[0], &c, 20), -EDQUOT);
    rig_close(&a[0], JOBS_GONE);
    rig_close(&a[1], JOBS_GONE);
    jobs_destroy(j);
}

/* --- addresses */

static void a_leader_on_loopback_is_named_as_others_see_it(void **s)
{
    struct jobs *j = rig_jobs(NULL);
    struct rdzv_config c = rig_config(2, 2);
    struct agent host, other;
    (void)s;
    rig_open(j, &host, "r", "node1", "");
    rig_open(j, &other, "r", "node2", "10.0.0.3");
    assert_int_equal(rig_join(&host, &c, 0), 0);
    assert_int_equal(rig_next(&host), 0);
    assert_int_equal(rig_join(&other, &c, 0), 0);
    assert_int_equal(rig_next(&other), 0);
    assert_string_equal(other.news.leader_addr, "10.0.0.1");
    assert_string_equal(host.news.leader_addr, "10.0.0.1");
    assert_string_equal(host.members, "127.0.0.1,10.0.0.3");
    rig_close(&host, JOBS_GONE);
    rig_close(&other, JOBS_GONE);
    jobs_destroy(j);
}

static void check_all_on_loopback(const char *addr)
{
    struct jobs *j = rig_jobs(NULL);
    struct rdzv_config c = rig_config(2, 2);
    struct agent host, other;
    rig_open(j, &host, "r", "node1", "");
    rig_open(j, &other, "r", "node2", addr);
    assert_int_equal(rig_join(&host, &c, 0), 0);
    assert_int_equal(rig_join(&other, &c, 0), 0);
    assert_int_equal(rig_next(&other), 0);
    assert_string_equal(other.news.leader_addr, "127.0.0.1");
    rig_pass(j, 100000); /* a member in this process is never silent */
    rig_next(&host);
    assert_int_equal(host.news.kind, RDZV_NEWS_STOP); /* but the other one was */
    rig_close(&host, JOBS_GONE);
    rig_close(&other, JOBS_GONE);
    jobs_destroy(j);
}

static void where_all_are_on_loopback_so_is_the_leader(void **s)
{
    (void)s;
    check_all_on_loopback("127.0.0.1");
    check_all_on_loopback("::ffff:127.0.0.1");
}

static void on_members(void *arg, const struct rdzv_news *news, const char *members, int more)
{
    if (news && members)
        snprintf(arg, 256, "%s", members);
}

static void check_members(const char *peer, const char *addrs, const char *members)
{
    struct jobs *j = rig_jobs(NULL);
    struct rdzv_config c = rig_config(1, 1);
    struct rdzv_event ev = {.kind = RDZV_JOIN, .slots = 1, .node_rank = -1, .port = 4000, .node = "node1"};
    struct jobs_joined joined;
    struct jobs_party *p;
    struct err e;
    char told[256] = "";
    const struct jobs_party_options o = {
        .principal = "alice", .addr = peer, .local = "10.0.0.9", .told = on_members, .arg = told};
    snprintf(ev.addrs, sizeof ev.addrs, "%s", addrs);
    assert_int_equal(jobs_party_open(&p, j, &o, &e), 0);
    assert_int_equal(jobs_join(p, "r", &ev, &c, &joined, &e), 0);
    assert_int_equal(jobs_next(p, "r", "node1", joined.seq, -1, &e), 0);
    assert_string_equal(told, members);
    jobs_party_close(p, JOBS_GONE);
    jobs_destroy(j);
}

static void the_address_of_the_connection_is_one_of_the_nodes_once(void **s)
{
    (void)s;
    check_members("10.0.0.1", "10.0.0.2", "10.0.0.2,10.0.0.1");
    check_members("10.0.0.1", "10.0.0.1,10.0.0.2", "10.0.0.1,10.0.0.2");
    check_members("10.0.0.1", "10.0.0.11,110.0.0.1", "10.0.0.11,110.0.0.1,10.0.0.1");
    check_members("", "10.0.0.1,10.0.0.2", "10.0.0.1,10.0.0.2"); /* it was gone before it was accepted */
}

struct pages {
    struct buf list;
    size_t largest;
    int more, told;
};

static void on_page(void *arg, const struct rdzv_news *news, const char *members, int more)
{
    struct pages *p = arg;
    if (!news || !members)
        return;
    const size_t n = strlen(members);
    p->largest = n > p->largest ? n : p->largest;
    p->more = more;
    p->told++;
    assert_int_equal(buf_printf(&p->list, "%s%s", p->list.len ? "," : "", members), 0);
}

/* As many bytes of addresses as a node may have, of which the first says which one it is. */
static void fill_addrs(char ret[RDZV_ADDRS_MAX + 1], int node)
{
    const size_t n = (size_t)snprintf(ret, RDZV_ADDRS_MAX + 1, "fd00::%x", node);
    for (size_t i = n; i < RDZV_ADDRS_MAX; i++)
        ret[i] = ",fd01::1234:abcd"[(i - n) % 16];
    ret[RDZV_ADDRS_MAX] = 0;
}

static void check_list(const struct buf *list, int nodes)
{
    char *seen = calloc((size_t)nodes, 1);
    int n = 0;
    for (const char *at = list->data; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        const long node = strncmp(at, "fd00::", 6) == 0 ? strtol(at + 6, NULL, 16) : -1;
        if (node < 0)
            continue;
        assert_in_range(node, 0, nodes - 1);
        assert_int_equal(seen[node]++, 0);
        n++;
    }
    assert_int_equal(n, nodes);
    free(seen);
}

/* As the client of a connection asks for them: the same news again and again. */
static void addresses_of_so_many_members_come_in_pages(void **s)
{
    enum { MOST = RDZV_NODES_MAX, DAILY = 2 * JOBS_PAGE + 203 };
    const int nodes = are_all_points_taken() ? MOST : DAILY;
    struct jobs *j = rig_jobs(&(struct jobs_options){.max_nodes = MOST, .max_job_bytes = (size_t)1 << 30});
    struct rdzv_config c = rig_config(nodes, nodes);
    struct rdzv_event ev = {.kind = RDZV_JOIN, .slots = 1, .node_rank = -1, .port = 4000};
    struct jobs_party **p = calloc((size_t)nodes, sizeof *p);
    struct pages pages = {0}, whole = {0};
    struct jobs_joined joined, first = {0};
    struct err e;
    (void)s;
    c.order = RDZV_ORDER_JOIN;
    for (int i = 0; i < nodes; i++) {
        const struct jobs_party_options o = {.principal = "alice", .addr = "10.0.0.2", .told = on_page, .arg = &pages};
        snprintf(ev.node, sizeof ev.node, "node%d", i);
        fill_addrs(ev.addrs, i);
        assert_int_equal(jobs_party_open(&p[i], j, &o, &e), 0);
        if (jobs_join(p[i], "r", &ev, &c, i ? &joined : &first, &e) < 0)
            fail_msg("node %d: %s", i, e.text);
    }
    do {
        assert_int_equal(jobs_next(p[0], "r", "node0", first.seq, pages.more, &e), 0);
    } while (pages.more);
    assert_int_equal(pages.told, (nodes + JOBS_PAGE - 1) / JOBS_PAGE);
    assert_in_range(pages.largest, JOBS_PAGE * RDZV_ADDRS_MAX, (1 << 20) - 1024);
    check_list(&pages.list, nodes);
    whole.list = pages.list;
    pages = (struct pages){0};
    assert_int_equal(jobs_next(p[0], "r", "node0", first.seq, -1, &e), 0);
    assert_int_equal(pages.told, 1);
    assert_int_equal(pages.more, 0);
    check_list(&pages.list, nodes);
    for (int i = 0; i < nodes; i++)
        jobs_party_close(p[i], JOBS_GONE);
    free(p);
    buf_free(&pages.list);
    buf_free(&whole.list);
    jobs_destroy(j);
}

/* --- calls from inside callbacks */

static void fail_and_ask(struct agent *a)
{
    if (a->news.kind == RDZV_NEWS_ROUND && a->news.round == 1)
        assert_int_equal(rig_say(a, RDZV_FAIL, 1, 3), 0);
    a->then = NULL;
    assert_int_equal(rig_next(a), 0);
}

static void a_callback_may_ask_and_claim(void **s)
{
    struct jobs *j = rig_jobs(NULL);
    struct rdzv_config c = rig_config(2, 2);
    struct agent a, b;
    (void)s;
    rig_open(j, &a, "r", "node1", "");
    rig_open(j, &b, "r", "node2", "10.0.0.3");
    a.then = fail_and_ask;
    rig_join(&a, &c, 0);
    rig_next(&a);
    rig_join(&b, &c, 0);
    assert_int_equal(a.news.kind, RDZV_NEWS_STOP);
    assert_int_equal(a.told, 2);
    rig_next(&b);
    assert_int_equal(b.news.kind, RDZV_NEWS_STOP);
    rig_close(&a, JOBS_GONE);
    rig_close(&b, JOBS_GONE);
    jobs_destroy(j);
}

/* --- status */

static void status_names_what_people_ask(void **s)
{
    struct pair p;
    struct buf out = {0};
    const char *text;
    int64_t v;
    (void)s;
    pair_start(&p, NULL);
    const char report[] = "step=12 images_per_s=310.5 loss=2.25 secret=x metrics=tokens:3e5:tokens/s,lr:0.1:";
    assert_int_equal(jobs_report(p.b.party, "r", "node2", report, strlen(report), &p.b.e), 0);
    static const char *const bad[] = {"step=abc",
                                      "step=0x10",
                                      "loss=nan",
                                      "images_per_s=-inf",
                                      "loss=1e999",
                                      "step=",
                                      "metrics=a",
                                      "metrics=a:1",
                                      "metrics=a:b:",
                                      "metrics=a:nan:",
                                      "metrics=%1b[1m:1:",
                                      "metrics=a:1:%22",
                                      "metrics=a:1:,b:1:,c:1:,d:1:,e:1:,f:1:,g:1:,h:1:,i:1:",
                                      "metrics=abcdefghijklmnopqrstuvwxyzabcdefghijklm:1:"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(jobs_report(p.b.party, "r", "node2", bad[i], strlen(bad[i]), &p.b.e), -EINVAL);
    rig_say(&p.b, RDZV_FAIL, 1, 7);
    assert_int_equal(jobs_status_from(p.j, "alice", "r", 0, &out, &p.a.e), 0);
    cJSON *o = cJSON_Parse(out.data);
    assert_non_null(o);
    assert_int_equal(json_str(o, "run", &text, NULL), 0);
    assert_string_equal(text, "r");
    json_str(o, "state", &text, NULL);
    assert_string_equal(text, "stopping");
    json_i64(o, "restart_count", &v, NULL);
    assert_int_equal(v, 1);
    cJSON *nodes = cJSON_GetObjectItem(o, "nodes"), *two = cJSON_GetArrayItem(nodes, 1);
    assert_int_equal(cJSON_GetArraySize(nodes), 2);
    json_str(two, "id", &text, NULL);
    assert_string_equal(text, "node2");
    json_i64(two, "rank_base", &v, NULL);
    assert_int_equal(v, 2);
    json_i64(cJSON_GetObjectItem(two, "report"), "step", &v, NULL);
    assert_int_equal(v, 12);
    assert_null(strstr(out.data, "secret"));
    assert_non_null(strstr(out.data, "\"metrics\":[{\"name\":\"tokens\",\"value\":300000,\"unit\":\"tokens/s\"},"
                                     "{\"name\":\"lr\",\"value\":0.1,\"unit\":\"\"}]"));
    cJSON *restart = cJSON_GetArrayItem(cJSON_GetObjectItem(o, "restarts"), 0);
    json_str(restart, "cause", &text, NULL);
    assert_string_equal(text, "rank 0 broke");
    json_i64(restart, "exit_code", &v, NULL);
    assert_int_equal(v, 7);
    cJSON_Delete(o);
    buf_free(&out);
    pair_end(&p);
}

static void events_are_a_ring(void **s)
{
    struct pair p;
    struct buf out = {0};
    (void)s;
    pair_start(&p, NULL);
    for (int i = 0; i < 200; i++) {
        rig_close(&p.b, JOBS_SILENT);
        rig_open(p.j, &p.b, "r", "node2", "10.0.0.3");
        p.b.news.seq = 1;
        assert_int_equal(rig_next(&p.b), 0);
    }
    assert_int_equal(jobs_status_from(p.j, NULL, "r", 0, &out, NULL), 0);
    cJSON *o = cJSON_Parse(out.data), *events = cJSON_GetObjectItem(o, "events");
    assert_int_equal(cJSON_GetArraySize(events), LEADER_EVENTS);
    const char *text;
    json_str(cJSON_GetArrayItem(events, LEADER_EVENTS - 1), "text", &text, NULL);
    assert_string_equal(text, "node node2 is back");
    cJSON_Delete(o);
    buf_free(&out);
    pair_end(&p);
}

/* Nodes listed of run "r" from the first on, and how many it says there are. */
static int listed(struct jobs *j, size_t first, int64_t *ret_count)
{
    struct buf out = {0};
    assert_int_equal(jobs_status_from(j, NULL, "r", first, &out, NULL), 0);
    cJSON *o = cJSON_ParseWithLength(out.data, out.len);
    assert_non_null(o);
    int n = cJSON_GetArraySize(cJSON_GetObjectItem(o, "nodes"));
    json_i64(o, "node_count", ret_count, NULL);
    int64_t ranks;
    assert_int_equal(json_i64(o, "world_size", &ranks, NULL), 0);
    assert_int_equal(ranks, 2 * *ret_count);
    cJSON_Delete(o);
    buf_free(&out);
    return n;
}

static void a_status_lists_so_many_nodes_and_counts_all(void **s)
{
    enum { MOST = 12000, DAILY = 5000 };
    static char names[MOST][16];
    const int nodes = are_all_points_taken() ? MOST : DAILY;
    struct jobs *j = rig_jobs(NULL);
    struct rdzv_config c = rig_config(nodes, nodes);
    struct agent *a = calloc((size_t)nodes, sizeof *a);
    struct buf out = {0};
    int64_t count;
    (void)s;
    for (int i = 0; i < nodes; i++) {
        snprintf(names[i], sizeof names[i], "node%d", i);
        rig_open(j, &a[i], "r", names[i], "10.0.0.2");
        assert_int_equal(rig_join(&a[i], &c, 0), 0);
    }
    assert_int_equal(listed(j, 0, &count), 2000);
    assert_int_equal(count, nodes);
    assert_int_equal(listed(j, (size_t)nodes - 1000, &count), 1000);
    assert_int_equal(listed(j, (size_t)nodes, &count), 0);
    clock_t began = clock();
    assert_int_equal(jobs_status_from(j, NULL, NULL, 0, &out, NULL), 0);
    printf("# the first of %d nodes in %.1f ms, %zu bytes\n", nodes, 1e3 * (double)(clock() - began) / CLOCKS_PER_SEC,
           out.len);
    for (int i = 0; i < nodes; i++)
        rig_close(&a[i], JOBS_GONE);
    free(a);
    buf_free(&out);
    jobs_destroy(j);
}

static void the_progress_line_names_who_is_missing(void **s)
{
    struct jobs *j = rig_jobs(NULL);
    struct rdzv_config c = rig_config(4, 4);
    struct rdzv_event ev = {.kind = RDZV_JOIN, .node = "node3", .slots = 1, .node_rank = 2};
    struct agent a;
    struct buf out = {0};
    (void)s;
    rig_open(j, &a, "r", "node3", "10.0.0.2");
    assert_int_equal(jobs_join(a.party, "r", &ev, &c, &a.joined, &a.e), 0);
    assert_int_equal(jobs_status_brief(j, "alice", "r", &out, NULL), 0);
    assert_string_equal(
        out.data, "state=joining joined=1 min_nodes=4 max_nodes=4 round=0 restarts=0 missing=0,1,3 silent= here=node3 "
                  "waiting_ms=0 left_ms=600000");
    buf_free(&out);
    rig_close(&a, JOBS_GONE);
    jobs_destroy(j);
}

/* A node that has found the claim may come before the leader has read the decisions so far. A job of its own, in
 * memory, would be led beside the one of the home. */
static void nobody_joins_before_an_elected_leader_leads(void **state)
{
    struct jobs *j = rig_jobs(&(struct jobs_options){.embedded = true, .elected = true});
    const struct rdzv_config c = rig_config(1, 2);
    struct agent a;
    struct err e;
    (void)state;
    rig_open(j, &a, "j", "node0", "");
    assert_int_equal(jobs_term(a.party, "j", "1-0000000000000001", "", 0, &e), -ESTALE);
    assert_int_equal(rig_join(&a, &c, 0), -ESTALE);
    assert_int_equal(jobs_heard(j), 0);
    rig_close(&a, JOBS_SILENT);
    jobs_destroy(j);
}

static void count_higher(void *arg, const char *epoch)
{
    (void)epoch;
    ++*(int *)arg;
}

/* The first words to an elected leader: a lower epoch, a higher one, a round that its log has not; then it says whose
 * job that is. */
static void who_dials_an_elected_leader_names_its_epoch_and_hears_its_instance(void **state)
{
    struct jobs *j = rig_jobs(&(struct jobs_options){.embedded = true, .elected = true});
    const struct rdzv_config c = rig_config(1, 2);
    static const char own[] = "2-0000000000000002";
    struct rdzv_home home;
    struct jobs_led led;
    struct agent a;
    struct err e;
    int higher = 0;
    (void)state;
    rdzv_memory_init(&home);
    const struct jobs_lead lead = {.home = &home,
                                   .run = "j",
                                   .node = "node0",
                                   .epoch = own,
                                   .identity = "home",
                                   .full_until = rig_now,
                                   .higher = count_higher,
                                   .arg = &higher};
    assert_int_equal(jobs_lead(j, &lead, &led, &e), 0);
    jobs_lead_until(j, rig_now + 1000);
    rig_open(j, &a, "j", "node0", "");
    assert_int_equal(jobs_term(a.party, "j", "1-0000000000000001", "", 0, &e), -ESTALE);
    assert_int_equal(jobs_term(a.party, "j", own, "", 5, &e), ERR_FENCED);
    assert_int_equal(rig_join(&a, &c, 0), -ESTALE);
    assert_int_equal(jobs_term(a.party, "j", own, "", 0, &e), 0);
    assert_string_equal(jobs_term_instance(a.party), "");
    assert_int_equal(rig_join(&a, &c, 0), 0);
    assert_string_equal(jobs_term_instance(a.party), a.joined.instance);
    assert_int_equal(higher, 0);
    assert_int_equal(jobs_term(a.party, "j", own, "2-0000000000000009", 0, &e), -ESTALE);
    assert_int_equal(higher, 1);
    assert_int_equal(jobs_may_answer(j, &e), -ESTALE); /* until it has claimed above */
    rig_close(&a, JOBS_SILENT);
    jobs_yield(j);
    jobs_destroy(j);
}

/* --- without the home */

enum { D_MS = 3000, AWAY_MS = 20000, LATELY_MS = 12000 };

struct apart {
    struct jobs *j;
    struct rdzv_home home;
    struct agent a, b;
};

static void renewed(struct apart *x)
{
    jobs_lead_until(x->j, rig_now + D_MS);
    jobs_lead_away(x->j, rig_now, AWAY_MS);
}

static void joins(struct apart *x, struct agent *a, const char *node)
{
    static const char epoch[] = "2-0000000000000002";
    const struct rdzv_config c = rig_config(1, 2);
    struct err e;
    rig_open(x->j, a, "j", node, "10.0.0.2");
    assert_int_equal(jobs_term(a->party, "j", epoch, "", 0, &e), 0);
    assert_int_equal(rig_join(a, &c, 0), 0);
    assert_int_equal(rig_next(a), 0);
}

static void lead_two(struct apart *x)
{
    struct jobs_led led;
    struct err e;
    *x = (struct apart){.j = rig_jobs(&(struct jobs_options){.embedded = true, .elected = true})};
    rdzv_memory_init(&x->home);
    const struct jobs_lead lead = {.home = &x->home,
                                   .run = "j",
                                   .node = "node0",
                                   .epoch = "2-0000000000000002",
                                   .identity = "home",
                                   .valid_ms = D_MS,
                                   .lately_ms = LATELY_MS,
                                   .full_until = rig_now};
    assert_int_equal(jobs_lead(x->j, &lead, &led, &e), 0);
    renewed(x);
    joins(x, &x->a, "node0");
    joins(x, &x->b, "node1");
}

/* Who is named asks each second. For how long are they answered? */
static int64_t answers_for(struct apart *x, struct agent *a, struct agent *b)
{
    const int64_t t = rig_now;
    struct err e;
    for (; rig_now - t < 60000 && jobs_may_answer(x->j, &e) == 0; rig_pass(x->j, 1000))
        for (int i = 0; i < 2; i++) {
            struct agent *one = i ? b : a;
            if (!one)
                continue;
            jobs_next_cancel(one->party);
            assert_int_equal(rig_next(one), 0);
        }
    return rig_now - t;
}

static void end_apart(struct apart *x)
{
    struct agent *both[] = {&x->a, &x->b};
    for (int i = 0; i < 2; i++)
        if (both[i]->party)
            rig_close(both[i], JOBS_SILENT);
    jobs_yield(x->j);
    jobs_destroy(x->j);
}

static void without_its_home_a_leader_goes_on_while_all_that_it_acknowledged_ask_it(void **state)
{
    struct apart x;
    (void)state;
    lead_two(&x);
    assert_int_equal(answers_for(&x, &x.a, &x.b), AWAY_MS);
    renewed(&x);
    assert_int_equal(answers_for(&x, &x.a, &x.b), AWAY_MS); /* anew */
    end_apart(&x);
    lead_two(&x);
    rig_pass(x.j, 1000);
    assert_int_equal(answers_for(&x, &x.a, NULL), 2000); /* the other may claim */
    end_apart(&x);
}

static void a_node_that_was_lost_ends_that_and_one_that_was_seen_to_die_does_not(void **state)
{
    struct apart x;
    (void)state;
    lead_two(&x);
    rig_close(&x.b, JOBS_GONE);
    assert_int_equal(answers_for(&x, &x.a, NULL), AWAY_MS);
    end_apart(&x);
    lead_two(&x);
    rig_close(&x.b, JOBS_SILENT);
    assert_int_equal(answers_for(&x, &x.a, NULL), D_MS);
    for (int i = 0; i < 3; i++) { /* it may have looked, and its claim is on the way */
        renewed(&x);
        assert_int_equal(answers_for(&x, &x.a, NULL), D_MS);
    }
    rig_pass(x.j, 120); /* clocks differ */
    renewed(&x);
    assert_int_equal(answers_for(&x, &x.a, NULL), AWAY_MS); /* that would fail now */
    end_apart(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_dials_an_elected_leader_names_its_epoch_and_hears_its_instance),
        cmocka_unit_test(a_job_forms_and_ends),
        cmocka_unit_test(a_failure_stops_all_and_the_next_round_follows),
        cmocka_unit_test(news_are_kept_until_acknowledged),
        cmocka_unit_test(the_older_connection_is_void),
        cmocka_unit_test(a_connection_stands_for_one_node),
        cmocka_unit_test(a_proved_death_breaks_the_round_at_once),
        cmocka_unit_test(a_lost_connection_waits_for_the_fence),
        cmocka_unit_test(silence_counts_from_the_last_request),
        cmocka_unit_test(a_pause_of_our_own_is_nobodys_silence),
        cmocka_unit_test(signs_of_life_leave_nothing_to_wake_for),
        cmocka_unit_test(a_silent_node_that_resumes_has_lost_nothing),
        cmocka_unit_test(a_failure_told_on_a_new_connection_is_a_sign_of_life),
        cmocka_unit_test(news_of_a_forgotten_node_are_void),
        cmocka_unit_test(a_shared_rendezvous_needs_a_run_id),
        cmocka_unit_test(a_job_belongs_to_its_principal),
        cmocka_unit_test(principals_have_names_of_their_own),
        cmocka_unit_test(an_operator_ends_a_job_in_any_state),
        cmocka_unit_test(each_principal_has_its_share_of_jobs),
        cmocka_unit_test(each_of_many_jobs_keeps_its_dates),
        cmocka_unit_test(agents_that_disagree_are_refused),
        cmocka_unit_test(nobody_is_left_to_disagree_with),
        cmocka_unit_test(a_finished_id_is_a_new_instance),
        cmocka_unit_test(a_new_host_goes_on_above_what_a_survivor_brings),
        cmocka_unit_test(a_survivor_of_another_job_is_new_and_the_larger_count_stands),
        cmocka_unit_test(a_crun_that_hosts_waits_for_workers_that_it_does_not_know_of),
        cmocka_unit_test(the_workers_beside_a_host_need_answers_that_min_nodes_have_got),
        cmocka_unit_test(who_left_in_good_order_is_missed_by_no_lease_and_who_died_is),
        cmocka_unit_test(a_host_that_needs_nobody_has_no_lease),
        cmocka_unit_test(a_host_knows_whom_it_still_reaches),
        cmocka_unit_test(a_job_that_is_over_is_not_begun_again_by_a_late_node),
        cmocka_unit_test(a_job_whose_nodes_are_not_heard_of_is_not_joined),
        cmocka_unit_test(one_that_is_heard_again_goes_on_with_who_waited),
        cmocka_unit_test(a_new_instance_waits_for_workers_in_their_grace),
        cmocka_unit_test(a_job_that_is_over_is_forgotten),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(joins_are_counted),
        cmocka_unit_test(restarts_are_no_flood_of_joins),
        cmocka_unit_test(a_leader_on_loopback_is_named_as_others_see_it),
        cmocka_unit_test(where_all_are_on_loopback_so_is_the_leader),
        cmocka_unit_test(the_address_of_the_connection_is_one_of_the_nodes_once),
        cmocka_unit_test(addresses_of_so_many_members_come_in_pages),
        cmocka_unit_test(a_callback_may_ask_and_claim),
        cmocka_unit_test(status_names_what_people_ask),
        cmocka_unit_test(events_are_a_ring),
        cmocka_unit_test(a_status_lists_so_many_nodes_and_counts_all),
        cmocka_unit_test(the_progress_line_names_who_is_missing),
        cmocka_unit_test(nobody_joins_before_an_elected_leader_leads),
        cmocka_unit_test(without_its_home_a_leader_goes_on_while_all_that_it_acknowledged_ask_it),
        cmocka_unit_test(a_node_that_was_lost_ends_that_and_one_that_was_seen_to_die_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
