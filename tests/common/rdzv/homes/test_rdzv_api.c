/* What an etcd, or with KUBE a Kubernetes, promises as the home of a rendezvous: over a model of one (tests/sim/api.h);
 * with REAL over the one that CRUN_TEST_HOME names, a URL, without the tests that lose answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/http/http_client.h"
#include "common/rdzv/homes/rdzv_home.h"
#include "tests/sim/api.h"

static const struct rdzv_claim none;
static int jobs;

#ifdef KUBE
/* One Lease for each job. */
static const char *where(void)
{
    static char url[80];
    snprintf(url, sizeof url, "k8s://space/job-%d-%d", (int)getpid(), jobs);
    return url;
}
#else
static const char *where(void)
{
    const char *url = getenv("CRUN_TEST_HOME");
    return url ? url : "etcd://one,two:2380/pre";
}
#endif

static struct rdzv_home *open_at(const char *url, const char *run)
{
#ifdef REAL
    enum { TIMEOUT_MS = 30000 }; /* a disk that others use, too */
#else
    enum { TIMEOUT_MS = 3000 };
#endif
    const struct rdzv_home_options o = {.run_id = run, .io_timeout_ms = TIMEOUT_MS, .keep_ms = 3600000};
    struct rdzv_home *h;
    struct err e;
    if (rdzv_home_open(&h, url, &o, &e) < 0)
        fail_msg("%s", e.text);
    return h;
}

static struct rdzv_home *open_job(void)
{
    char run[40];
    snprintf(run, sizeof run, "job/%d {%d}", (int)getpid(), jobs);
    return open_at(where(), run);
}

static struct buf text(const char *p)
{
    struct buf b = {0};
    buf_addstr(&b, p);
    return b;
}

static struct rdzv_claim claim_of(const char *epoch)
{
    struct rdzv_claim c = {.port = 4711, .addrs = "10.0.0.1,fd00::1", .node = "node one"};
    snprintf(c.epoch, sizeof c.epoch, "%s", epoch);
    return c;
}

/* Replace `seen` by a claim of that epoch, with a record of it. */
static int claim(struct rdzv_home *h, const struct rdzv_claim *seen, const char *epoch, struct err *e)
{
    const struct rdzv_claim own = claim_of(epoch);
    char identity[RDZV_IDENTITY_MAX + 1];
    struct buf record = text("@reign epoch=");
    buf_printf(&record, "%s\n", epoch);
    int rc = h->ops->identity(h, identity, e);
    rc = rc < 0 ? rc : h->ops->claim(h, seen, &own, &record, e);
    buf_free(&record);
    return rc;
}

static int append_as(struct rdzv_home *h, const char *epoch, const char *words, bool whole, struct err *e)
{
    struct buf d = text(words);
    const int rc = h->ops->append(h, &(struct rdzv_write){.decision = &d, .epoch = epoch, .whole = whole}, e);
    buf_free(&d);
    return rc;
}

static int append(struct rdzv_home *h, const char *epoch, const char *words, struct err *e)
{
    return append_as(h, epoch, words, false, e);
}

static void check_log(struct rdzv_home *h, const char *expected)
{
    struct buf log = {0};
    struct err e;
    if (h->ops->load(h, &log, &e) < 0)
        fail_msg("%s", e.text);
    assert_string_equal(log.data ? log.data : "", expected);
    buf_free(&log);
}

/* Look until the claim is that: what was written may not have been seen yet. */
static void see(struct rdzv_home *h, struct rdzv_claim *ret, const char *epoch, uint64_t n, bool released)
{
    const int64_t end = clock_deadline(20000);
    struct err e;
    do {
        if (h->ops->look(h, ret, &e) < 0)
            fail_msg("%s", e.text);
    } while ((strcmp(ret->epoch, epoch) != 0 || ret->n != n || ret->released != released) && clock_left(end) > 0);
    assert_string_equal(ret->epoch, epoch);
    assert_true(ret->n == n && ret->released == released);
}

static void the_claim_says_who_leads_and_how_often_it_was_renewed(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim own = claim_of("1-x"), seen;
    struct err e;
    (void)state;
    assert_int_equal(b->ops->look(b, &seen, &e), 0);
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    see(b, &seen, "1-x", 0, false);
    assert_string_equal(seen.addrs, "10.0.0.1,fd00::1");
    assert_string_equal(seen.node, "node one");
    assert_int_equal(seen.port, 4711);
    assert_int_equal(a->ops->renew(a, &own, &e), 1);
    assert_int_equal(own.n, 1);
    see(b, &seen, "1-x", 1, false);
    own.released = own.held = true;
    own.hold_ms = 1234;
    assert_int_equal(a->ops->renew(a, &own, &e), 1);
    see(b, &seen, "1-x", 2, true);
    assert_true(rdzv_claim_is(&seen, &own) && seen.held);
    assert_int_equal(seen.hold_ms, 1234);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    assert_int_equal(a->ops->look(a, &seen, &e), 1);
    assert_string_equal(seen.epoch, "2-y");
    a->ops->close(a);
    b->ops->close(b);
}

static void a_claim_that_was_renewed_meanwhile_is_not_replaced(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim own = claim_of("1-x"), seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    assert_int_equal(claim(b, &none, "1-z", &e), 0);
    see(b, &seen, "1-x", 0, false);
    for (int i = 0; i < 3; i++)
        assert_int_equal(a->ops->renew(a, &own, &e), 1);
    assert_int_equal(claim(b, &seen, "2-y", &e), 0);
    assert_int_equal(append(a, "1-x", "d", &e), 1);
    see(b, &seen, "1-x", 3, false);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    assert_int_equal(a->ops->renew(a, &own, &e), 0); /* it stood still, and wakes up */
    own.released = true;
    assert_int_equal(a->ops->renew(a, &own, &e), 0);
    a->ops->close(a);
    b->ops->close(b);
}

static void an_older_leader_can_append_nothing(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim own = claim_of("9-x"), seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "9-x", &e), 1);
    assert_int_equal(append(a, "9-x", "one\n", &e), 1);
    assert_int_equal(a->ops->renew(a, &own, &e), 1);
    assert_int_equal(append(a, "9-x", "two\n", &e), 1); /* a renewal is no other claim */
    see(b, &seen, "9-x", 1, false);
    assert_int_equal(claim(b, &seen, "10-y", &e), 1);
    check_log(b, "@reign epoch=9-x\none\ntwo\n@reign epoch=10-y\n");
    assert_int_equal(append(a, "9-x", "late\n", &e), 0);
    assert_int_equal(append(b, "10-y", "three\n", &e), 1);
    check_log(b, "@reign epoch=9-x\none\ntwo\n@reign epoch=10-y\nthree\n");
    a->ops->close(a);
    b->ops->close(b);
}

static void a_whole_decision_takes_the_place_of_those_before(void **state)
{
    struct rdzv_home *h = open_job();
    struct err e;
    (void)state;
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    assert_int_equal(append(h, "1-x", "one\n", &e), 1);
    assert_int_equal(append_as(h, "1-x", "all\n", true, &e), 1);
    check_log(h, "all\n");
    assert_int_equal(append(h, "1-x", "two\n", &e), 1);
    check_log(h, "all\ntwo\n");
    h->ops->close(h);
}

static struct buf large(char c, size_t n)
{
    struct buf b = {0};
    buf_reserve(&b, n);
    memset(b.data, c, n);
    b.data[n] = 0;
    b.len = n;
    return b;
}

static void a_large_decision_goes_in_parts(void **state)
{
    struct rdzv_home *h = open_job(), *other = open_job();
    struct buf big = large('b', 5000000), log = {0};
    struct err e;
    (void)state;
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    check_log(h, "@reign epoch=1-x\n"); /* as every leader does */
    assert_int_equal(append(h, "1-x", "one\n", &e), 1);
    assert_int_equal(h->ops->append(h, &(struct rdzv_write){.decision = &big, .epoch = "1-x"}, &e), 1);
    assert_int_equal(append(h, "1-x", "\ntwo\n", &e), 1);
    assert_int_equal(other->ops->load(other, &log, &e), 0);
    assert_int_equal(log.len, 17 + 4 + big.len + 5);
    assert_memory_equal(log.data + 17, "one\nbbb", 7);
    assert_string_equal(log.data + log.len - 6, "b\ntwo\n");
    assert_int_equal(h->ops->append(h, &(struct rdzv_write){.decision = &big, .epoch = "1-x", .whole = true}, &e), 1);
    buf_clear(&log);
    assert_int_equal(other->ops->load(other, &log, &e), 0);
    assert_int_equal(log.len, big.len);
    h->ops->close(h);
    other->ops->close(other);
    buf_free(&big);
    buf_free(&log);
}

static void the_end_of_a_job_clears_its_keys(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim own = claim_of("1-x"), seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    assert_int_equal(append(a, "1-x", "one\n", &e), 1);
    own.released = true;
    assert_int_equal(a->ops->renew(a, &own, &e), 1);
    see(b, &seen, "1-x", 1, true);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    a->ops->forget(a); /* somebody else leads */
    assert_int_equal(append(b, "2-y", "two\n", &e), 1);
    check_log(b, "@reign epoch=1-x\none\n@reign epoch=2-y\ntwo\n");
    b->ops->forget(b);
    check_log(b, "");
    see(a, &seen, "", 0, false);
    assert_int_equal(claim(a, &none, "1-z", &e), 1);
    check_log(a, "@reign epoch=1-z\n");
    a->ops->forget(a);
    a->ops->close(a);
    b->ops->close(b);
}

#ifdef KUBE
/* Whoever leads deletes what a Lease names no more, and what a leader before has written and never named. */
static void what_nobody_names_goes(void **state)
{
    struct rdzv_home *a = open_at("k8s://space/tidy", "j"), *b = open_at("k8s://space/tidy", "j");
    struct buf big = large('b', 9000), log = {0};
    const struct rdzv_write w = {.decision = &big, .epoch = "1-x"};
    struct rdzv_claim seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    check_log(a, "@reign epoch=1-x\n");
    assert_int_equal(a->ops->append(a, &w, &e), 1);
    assert_int_equal(a->ops->append(a, &w, &e), 1);
    see(b, &seen, "1-x", 0, false);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    assert_int_equal(a->ops->append(a, &w, &e), 0); /* it has written before it knew */
    assert_int_equal(b->ops->load(b, &log, &e), 0);
    assert_int_equal(log.len, 17 + 9000 + 9000 + 17);
    b->ops->forget(b);
    a->ops->close(a);
    b->ops->close(b);
    buf_free(&big);
    buf_free(&log);
}
#else
static void another_job_is_no_part_of_it(void **state)
{
    char run[64];
    snprintf(run, sizeof run, "job/%d {%d}0", (int)getpid(), jobs);
    struct rdzv_home *a = open_job(), *b = open_at(where(), run);
    struct rdzv_claim seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    assert_int_equal(b->ops->look(b, &seen, &e), 0);
    assert_int_equal(claim(b, &none, "1-y", &e), 1);
    a->ops->forget(a);
    check_log(b, "@reign epoch=1-y\n");
    b->ops->forget(b);
    a->ops->close(a);
    b->ops->close(b);
}

#endif

static int another(void **state)
{
    (void)state;
    jobs++;
    return 0;
}

#ifndef REAL

/* --- what becomes of requests */

/* GIVEN_UP: the caller is gone, and what it asked for comes late, has happened (DONE), or (END) never does */
enum fate { ARRIVES, LOST, ANSWER_LOST, LATE, TWICE, AND_LATE, GIVEN_UP, DONE, END }; /* AND_LATE: a second time */
static enum fate fates[8];
static int fate_n, fate_at;
static struct {
    char *method, *url, *body;
} late[8];
static int late_n;
static int64_t lag;

static int serve(const struct http_ask *a, struct buf *ret)
{
    buf_clear(ret);
#ifdef KUBE
    return api_kube_serve(a, ret);
#else
    return api_etcd_serve(a, ret);
#endif
}

static bool is_write(const struct http_ask *a) /* which draws its fate */
{
    return strstr(a->url, "txn") || (strstr(a->url, "leases") && a->method[0] == 'P');
}

static void (*at_list)(void); /* done once, before the next list */

static int carry(const struct http_ask *a, int64_t deadline, struct buf *ret)
{
    if (at_list && strstr(a->url, "labelSelector")) {
        void (*const now)(void) = at_list;
        at_list = NULL;
        now();
    }
    const bool drawn = is_write(a) && fate_at < fate_n;
    const enum fate f = drawn ? fates[fate_at++] : ARRIVES;
    (void)deadline;
    if (f == LOST)
        return -ETIMEDOUT;
    if (f == END)
        return -ECANCELED;
    if (f == LATE || f == AND_LATE || f == GIVEN_UP) {
        late[late_n].method = strdup(a->method);
        late[late_n].url = strdup(a->url);
        late[late_n++].body = strdup(a->body);
    }
    if (f == LATE || f == GIVEN_UP)
        return f == LATE ? -ETIMEDOUT : -ECANCELED;
    const int status = serve(a, ret);
    if (f == TWICE)
        return serve(a, ret);
    return f == ANSWER_LOST ? -ETIMEDOUT : f == DONE ? -ECANCELED : status;
}

static void let_the_late_arrive(void)
{
    struct buf b = {0};
    for (int i = 0; i < late_n; i++) {
        serve(
            &(struct http_ask){
                .method = late[i].method, .url = late[i].url, .body = late[i].body, .body_n = strlen(late[i].body)},
            &b);
        free(late[i].method);
        free(late[i].url);
        free(late[i].body);
    }
    late_n = 0;
    buf_free(&b);
}

static int no_pause(int64_t ms)
{
    (void)ms;
    return 0;
}

static int64_t lag_of_news(void)
{
    return lag;
}

static const struct api_carrier carrier = {
    .ask = carry,
    .pause = no_pause,
    .lag = lag_of_news,
    .clock = clock_ms,
#ifdef KUBE
    .kube = true,
#endif
};

static void draw(int n, const enum fate *f)
{
    memcpy(fates, f, (size_t)n * sizeof *f);
    fate_n = n;
    fate_at = 0;
}
#define DRAW(...) draw(sizeof((enum fate[]){__VA_ARGS__}) / sizeof(enum fate), (enum fate[]){__VA_ARGS__})

static void a_renewal_whose_answer_was_lost_has_a_number_of_its_own(void **state)
{
    struct rdzv_home *h = open_job(), *b = open_job();
    struct rdzv_claim own = claim_of("1-x"), seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    DRAW(ANSWER_LOST); /* asked again within the call */
    assert_int_equal(h->ops->renew(h, &own, &e), 1);
    assert_int_equal(own.n, 2);
    DRAW(LOST, TWICE); /* which the network brings twice: the second does nothing */
    assert_int_equal(h->ops->renew(h, &own, &e), 1);
    see(b, &seen, "1-x", own.n, false);
    h->ops->close(h);
    b->ops->close(b);
}

/* It would show a number that was seen before: whoever looks would take the claim for one that stands still. */
static void a_renewal_that_comes_late_does_nothing(void **state)
{
    struct rdzv_home *h = open_job(), *b = open_job();
    struct rdzv_claim own = claim_of("1-x"), seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    DRAW(LATE);
    assert_int_equal(h->ops->renew(h, &own, &e), 1);
    const uint64_t n = own.n;
    let_the_late_arrive();
    see(b, &seen, "1-x", n, false);
    assert_int_equal(h->ops->renew(h, &own, &e), 1);
    assert_true(own.n > n);
    h->ops->close(h);
    b->ops->close(b);
}

static void a_claim_whose_answer_was_lost_is_ours(void **state)
{
    struct rdzv_home *h = open_job();
    struct rdzv_claim own = claim_of("1-x");
    struct err e;
    (void)state;
#ifdef KUBE
    DRAW(ANSWER_LOST);
#else
    DRAW(ARRIVES, ANSWER_LOST); /* the first clears what vanished claims left */
#endif
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    assert_int_equal(append(h, "1-x", "one\n", &e), 1);
    assert_int_equal(h->ops->renew(h, &own, &e), 1);
    check_log(h, "@reign epoch=1-x\none\n");
    h->ops->close(h);
}

static void a_lost_append_is_told_from_a_lost_answer(void **state)
{
    struct rdzv_home *h = open_job();
    struct rdzv_claim own = claim_of("1-x");
    struct err e;
    (void)state;
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    DRAW(ANSWER_LOST);
    assert_int_equal(append(h, "1-x", "one\n", &e), 1);
    DRAW(LOST, TWICE);
    assert_int_equal(append(h, "1-x", "two\n", &e), 1);
    DRAW(LATE);
    assert_int_equal(append(h, "1-x", "three\n", &e), 1);
    let_the_late_arrive();
    check_log(h, "@reign epoch=1-x\none\ntwo\nthree\n");
    DRAW(DONE); /* a renewal, which the next append does not know of */
    assert_int_equal(h->ops->renew(h, &own, &e), -ECANCELED);
    assert_int_equal(append(h, "1-x", "four\n", &e), 1);
    check_log(h, "@reign epoch=1-x\none\ntwo\nthree\nfour\n");
    h->ops->close(h);
}

/* A request that arrives a second time, when a whole decision has removed what it wrote. */
static void a_decision_that_comes_back_is_passed_over(void **state)
{
    struct rdzv_home *h = open_job();
    struct err e;
    (void)state;
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    DRAW(AND_LATE);
    assert_int_equal(append(h, "1-x", "one\n", &e), 1);
    assert_int_equal(append_as(h, "1-x", "all\n", true, &e), 1);
    let_the_late_arrive();
    assert_int_equal(append(h, "1-x", "two\n", &e), 1);
    check_log(h, "all\ntwo\n");
#ifndef KUBE
    struct buf big = large('b', 2500000);
    DRAW(ARRIVES, ARRIVES, AND_LATE); /* the last of its parts alone comes back */
    assert_int_equal(h->ops->append(h, &(struct rdzv_write){.decision = &big, .epoch = "1-x"}, &e), 1);
    assert_int_equal(append_as(h, "1-x", "all\n", true, &e), 1);
    let_the_late_arrive();
    check_log(h, "all\n");
    buf_free(&big);
#endif
    h->ops->close(h);
}

static void an_append_that_comes_after_the_next_claim_does_nothing(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    see(b, &seen, "1-x", 0, false);
    DRAW(GIVEN_UP);
    assert_int_equal(append(a, "1-x", "one\n", &e), -ECANCELED);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    let_the_late_arrive();
    check_log(b, "@reign epoch=1-x\n@reign epoch=2-y\n");
    a->ops->close(a);
    b->ops->close(b);
}

#ifndef KUBE

/* --- an etcd alone */

/* A leader is gone between the parts and the last of them, which makes them stand. */
static void parts_without_the_last_are_not_believed(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct buf big = large('b', 2500000);
    struct rdzv_claim seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    assert_int_equal(append(a, "1-x", "one\n", &e), 1);
    DRAW(ARRIVES, ARRIVES, END);
    assert_int_equal(a->ops->append(a, &(struct rdzv_write){.decision = &big, .epoch = "1-x"}, &e), -ECANCELED);
    check_log(b, "@reign epoch=1-x\none\n");
    see(b, &seen, "1-x", 0, false);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    assert_int_equal(b->ops->append(b, &(struct rdzv_write){.decision = &big, .epoch = "2-y"}, &e), 1);
    struct buf log = {0};
    assert_int_equal(b->ops->load(b, &log, &e), 0);
    assert_int_equal(log.len, 17 + 4 + 17 + big.len);
    a->ops->close(a);
    b->ops->close(b);
    buf_free(&big);
    buf_free(&log);
}

static void a_claim_is_watched_and_read_anew_when_the_watch_ends(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim own = claim_of("1-x"), seen;
    struct err e;
    const int streams = api_streams;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    see(b, &seen, "1-x", 0, false);
    assert_int_equal(api_streams, streams); /* mostly its leader is dialled then */
    assert_int_equal(a->ops->renew(a, &own, &e), 1);
    see(b, &seen, "1-x", 1, false); /* it is read once more */
    assert_int_equal(api_streams, streams + 1);
    const uint64_t before = api_etcd.requests;
    for (uint64_t i = 2; i <= 4; i++) {
        assert_int_equal(a->ops->renew(a, &own, &e), 1);
        see(b, &seen, "1-x", i, false);
    }
    assert_int_equal(api_etcd.requests - before, 3); /* those of the renewals */
    assert_int_equal(a->ops->renew(a, &own, &e), 1);
    api_etcd_compact();
    see(b, &seen, "1-x", 5, false);
    assert_int_equal(api_etcd.requests - before, 5);
    b->ops->rest(b);
    see(b, &seen, "1-x", 5, false); /* it has been read */
    assert_int_equal(api_etcd.requests - before, 6);
    a->ops->close(a);
    b->ops->close(b);
}

/* News that come late show what was read long before. */
static void old_news_change_nothing(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim own = claim_of("1-x"), seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    see(b, &seen, "1-x", 0, false);
    lag = 100000;
    assert_int_equal(a->ops->renew(a, &own, &e), 1);
    see(b, &seen, "1-x", 1, false); /* after a second it is read */
    const int64_t then = clock_ms();
    assert_int_equal(a->ops->renew(a, &own, &e), 1);
    see(b, &seen, "1-x", 2, false);
    lag = clock_ms() - then + 1; /* now the watch tells of the first renewal */
    assert_int_equal(b->ops->look(b, &seen, &e), 1);
    assert_int_equal(seen.n, 2);
    lag = 0;
    a->ops->close(a);
    b->ops->close(b);
}

static void the_lease_is_handed_on(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    assert_int_equal(append(a, "1-x", "one\n", &e), 1);
    see(b, &seen, "1-x", 0, false);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    assert_int_equal(api_etcd.leases, 1);
    api_etcd_expire();
    assert_int_equal(append(b, "2-y", "two\n", &e), 0); /* the claim has gone with all else */
    assert_int_equal(claim(a, &none, "1-z", &e), 1);
    check_log(a, "@reign epoch=1-z\n");
    assert_int_equal(api_etcd.leases, 2);
    a->ops->close(a);
    b->ops->close(b);
}

static void another_etcd_is_none_of_the_leaders(void **state)
{
    struct rdzv_home *h = open_job();
    struct rdzv_claim own = claim_of("1-x");
    struct err e;
    (void)state;
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    assert_int_equal(append(h, "1-x", "one\n", &e), 1);
    api_etcd.cluster = 4712; /* restored from a copy, say */
    assert_int_equal(append(h, "1-x", "two\n", &e), 0);
    assert_int_equal(h->ops->renew(h, &own, &e), 0);
    h->ops->close(h);
}

/* --- who may */

static char user_file[64];

static void write_user(const char *line)
{
    FILE *f = fopen(user_file, "w");
    fputs(line, f);
    fclose(f);
}

static void a_user_gets_a_token_and_another_when_it_has_ended(void **state)
{
    struct rdzv_claim own = claim_of("1-x");
    struct err e;
    (void)state;
    snprintf(user_file, sizeof user_file, "/tmp/rdzv-etcd-%d", (int)getpid());
    write_user("root:s:3cret\n");
    api_etcd.login = "{\"name\":\"root\",\"password\":\"s:3cret\"}";
    struct rdzv_home *stranger = open_job();
    struct rdzv_claim seen;
    assert_int_equal(stranger->ops->look(stranger, &seen, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "user name is empty"));
    assert_non_null(strstr(e.text, "CRUN_ETCD_USER_FILE"));
    setenv("CRUN_ETCD_USER_FILE", user_file, 1);
    struct rdzv_home *h = open_job();
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    api_etcd.tokens++;
    assert_int_equal(h->ops->renew(h, &own, &e), 1);
    write_user("root:wrong\n");
    struct rdzv_home *wrong = open_job();
    assert_int_equal(wrong->ops->look(wrong, &seen, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "invalid user ID or password"));
    assert_null(strstr(e.text, "wrong"));
    write_user("root\n");
    struct rdzv_home *none_opened;
    assert_int_equal(rdzv_home_open(&none_opened, where(), &(struct rdzv_home_options){.run_id = "j"}, &e), -EINVAL);
    assert_non_null(strstr(e.text, "expected USER:PASSWORD"));
    unsetenv("CRUN_ETCD_USER_FILE");
    unlink(user_file);
    stranger->ops->close(stranger);
    wrong->ops->close(wrong);
    h->ops->close(h);
}

static void an_etcd_without_its_gateway_is_named(void **state)
{
    struct rdzv_home *h = open_job();
    struct rdzv_claim seen;
    struct err e;
    (void)state;
    api_etcd.gateway = false;
    assert_int_equal(h->ops->look(h, &seen, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "http://one:2379 knows no /v3: its JSON gateway is off"));
    h->ops->close(h);
}

static void a_bad_url_is_refused(void **state)
{
    static const char *const bad[][2] = {{"etcd://", "expected HOST"},    {"etcd://h:0", "expected HOST"},
                                         {"etcd://h:x", "expected HOST"}, {"etcds://a,,b", "expected HOST"},
                                         {"etcd://a/b/c", "one word"},    {"etcd://me:secret@h", "CRUN_ETCD_USER_FILE"},
                                         {"etcd://::1", "expected HOST"}};
    struct rdzv_home *h;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(rdzv_home_open(&h, bad[i][0], &(struct rdzv_home_options){.run_id = "j"}, &e), -EINVAL);
        if (!strstr(e.text, bad[i][1]) || strstr(e.text, "secret"))
            fail_msg("%s: %s", bad[i][0], e.text);
    }
    h = open_at("etcds://[fd00::1]:1,b/", "j");
    h->ops->close(h);
}

#else

/* --- a Kubernetes alone */

static void a_claim_is_watched_and_read_anew_when_the_watch_ends(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim own = claim_of("1-x"), seen;
    struct err e;
    const int streams = api_streams;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    see(b, &seen, "1-x", 0, false);
    assert_int_equal(api_streams, streams); /* mostly its leader is dialled then */
    assert_int_equal(a->ops->renew(a, &own, &e), 1);
    see(b, &seen, "1-x", 1, false); /* it is read once more */
    assert_int_equal(api_streams, streams + 1);
    const uint64_t before = api_kube.requests;
    for (uint64_t i = 2; i <= 4; i++) {
        assert_int_equal(a->ops->renew(a, &own, &e), 1);
        see(b, &seen, "1-x", i, false);
    }
    assert_int_equal(api_kube.requests - before, 3); /* those of the renewals */
    assert_int_equal(a->ops->renew(a, &own, &e), 1);
    api_kube_compact(); /* an ERROR of code 410 in the midst of the stream */
    see(b, &seen, "1-x", 5, false);
    assert_int_equal(api_kube.requests - before, 5);
    a->ops->close(a);
    b->ops->close(b);
}

static void decisions_that_have_no_room_go_into_maps_and_what_nobody_names_goes(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim seen;
    struct buf big = large('b', 9000), log = {0};
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    check_log(a, "@reign epoch=1-x\n");
    assert_int_equal(append(a, "1-x", "one\n", &e), 1);
    assert_int_equal(api_kube_maps(), 0);
    assert_int_equal(a->ops->append(a, &(struct rdzv_write){.decision = &big, .epoch = "1-x"}, &e), 1);
    assert_int_equal(append(a, "1-x", "\ntwo\n", &e), 1);
    assert_int_equal(api_kube_maps(), 1);
    assert_int_equal(a->ops->append(a, &(struct rdzv_write){.decision = &big, .epoch = "1-x"}, &e), 1);
    assert_int_equal(api_kube_maps(), 1);
    DRAW(END); /* a leader is gone before it names what it has written */
    assert_int_equal(a->ops->append(a, &(struct rdzv_write){.decision = &big, .epoch = "1-x"}, &e), -ECANCELED);
    assert_int_equal(api_kube_maps(), 2);
    see(b, &seen, "1-x", 0, false);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    assert_int_equal(b->ops->load(b, &log, &e), 0);
    assert_int_equal(log.len, 17 + 4 + 9000 + 5 + 9000 + 17);
    assert_int_equal(api_kube_maps(), 1);
    assert_int_equal(append_as(b, "2-y", "all\n", true, &e), 1);
    assert_int_equal(api_kube_maps(), 0);
    check_log(b, "all\n");
    b->ops->forget(b);
    a->ops->close(a);
    b->ops->close(b);
    buf_free(&big);
    buf_free(&log);
}

/* It leads, and its log has outgrown the Lease. */
static void lead_with_a_map(struct rdzv_home *a)
{
    struct buf big = large('b', 9000);
    struct err e;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    check_log(a, "@reign epoch=1-x\n");
    assert_int_equal(a->ops->append(a, &(struct rdzv_write){.decision = &big, .epoch = "1-x"}, &e), 1);
    buf_free(&big);
}

/* A log without its beginning would keep every node from leading. */
static void a_job_whose_map_was_deleted_begins_anew(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim seen;
    struct buf log = {0};
    struct err e = {0};
    (void)state;
    lead_with_a_map(a);
    assert_int_equal(append(a, "1-x", "two\n", &e), 1);
    api_kube_lose();
    see(b, &seen, "1-x", 0, false);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    DRAW(ANSWER_LOST);
    assert_int_equal(b->ops->load(b, &log, &e), 0);
    assert_string_equal(log.data, "@reign epoch=2-y\n");
    assert_int_equal(e.code, -ESTALE);
    assert_non_null(strstr(e.text, "is gone (did somebody delete it?): the job begins anew"));
    assert_int_equal(append(b, "2-y", "three\n", &e), 1);
    check_log(b, "@reign epoch=2-y\nthree\n");
    a->ops->close(a);
    b->ops->close(b);
    buf_free(&log);
}

/* Who stands still while it reads must not take the next leader's log away. */
static void who_lacks_a_map_of_a_lease_that_is_another_ones_changes_nothing(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim seen;
    struct buf log = {0};
    struct err e = {0};
    (void)state;
    lead_with_a_map(a);
    see(b, &seen, "1-x", 0, false);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    api_kube_lose();
    assert_int_equal(a->ops->load(a, &log, &e), -EAGAIN);
    see(b, &seen, "2-y", 0, false);
    a->ops->close(a);
    b->ops->close(b);
    buf_free(&log);
}

static struct rdzv_home *next_leader;

static void another_leads_and_writes_a_map(void)
{
    struct buf big = large('c', 9000);
    struct rdzv_claim seen;
    struct err e;
    see(next_leader, &seen, "2-y", 0, false);
    assert_int_equal(claim(next_leader, &seen, "3-z", &e), 1);
    assert_int_equal(next_leader->ops->append(next_leader, &(struct rdzv_write){.decision = &big, .epoch = "3-z"}, &e),
                     1);
    assert_int_equal(api_kube_maps(), 1);
    buf_free(&big);
}

/* It has claimed, stands still while it reads, and does not know yet that another node leads. */
static void who_sweeps_late_takes_nothing_from_the_next_leader(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_job();
    struct rdzv_claim seen;
    struct buf log = {0};
    struct err e;
    (void)state;
    next_leader = open_job();
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    see(b, &seen, "1-x", 0, false);
    assert_int_equal(claim(b, &seen, "2-y", &e), 1);
    at_list = another_leads_and_writes_a_map;
    assert_int_equal(b->ops->load(b, &log, &e), 0);
    assert_null(at_list);
    assert_int_equal(api_kube_maps(), 1);
    a->ops->close(a);
    b->ops->close(b);
    next_leader->ops->close(next_leader);
    buf_free(&log);
}

static void a_missing_rule_is_named_and_asked_for_again(void **state)
{
    struct rdzv_home *h = open_job();
    struct rdzv_claim seen;
    struct err e;
    (void)state;
    api_kube.refuse = 1;
    api_kube.status = 403;
    assert_int_equal(h->ops->look(h, &seen, &e), -EPERM);
    assert_non_null(strstr(e.text, "cannot update resource"));
    assert_non_null(strstr(e.text, "add that rule to the Role"));
    assert_int_equal(h->ops->look(h, &seen, &e), 0);
    api_kube.refuse = 2;
    api_kube.status = 429;
    assert_int_equal(claim(h, &none, "1-x", &e), 1); /* after two pauses */
    h->ops->close(h);
}

static void write_token(const char *token)
{
    char path[120];
    snprintf(path, sizeof path, "%s/token", getenv("CRUN_K8S_FILES"));
    FILE *f = fopen(path, "w");
    fprintf(f, "%s\n", token);
    fclose(f);
}

static int64_t later_ms;

static int64_t later(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return later_ms + t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void a_token_is_read_again_each_minute_and_when_it_is_refused(void **state)
{
    struct rdzv_claim own = claim_of("1-x");
    struct rdzv_home *h = open_job();
    struct err e;
    (void)state;
    api_clock = later;
    api_kube.token = "secret";
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    write_token("another");
    assert_int_equal(h->ops->renew(h, &own, &e), 1); /* the first is still good */
    api_kube.token = "another";
    const uint64_t before = api_kube.requests;
    assert_int_equal(h->ops->renew(h, &own, &e), 1);
    assert_int_equal(api_kube.requests - before, 2);
    write_token("third");
    later_ms += 61000;
    api_kube.token = "third";
    assert_int_equal(h->ops->renew(h, &own, &e), 1);
    assert_int_equal(api_kube.requests - before, 3);
    api_clock = NULL;
    h->ops->close(h);
}

/* A Lease as a job has left it. */
static void leave(const char *name, const char *owner, const char *renewed)
{
    struct buf body = {0}, answer = {0};
    buf_printf(&body,
               "{\"metadata\":{\"name\":\"%s\",\"labels\":{\"app.kubernetes.io/managed-by\":\"crun\"}%s},"
               "\"spec\":{\"renewTime\":\"%s\"}}",
               name, owner, renewed);
    assert_int_equal(serve(&(struct http_ask){.method = "POST",
                                              .url = "https://api/namespaces/space/leases",
                                              .body = body.data,
                                              .body_n = body.len},
                           &answer),
                     201);
    buf_clear(&body);
    buf_printf(&body, "{\"metadata\":{\"name\":\"%s-1-a-2-0\",\"labels\":{\"crun/lease\":\"%s\"}}}", name, name);
    assert_int_equal(serve(&(struct http_ask){.method = "POST",
                                              .url = "https://api/namespaces/space/configmaps",
                                              .body = body.data,
                                              .body_n = body.len},
                           &answer),
                     201);
    buf_free(&body);
    buf_free(&answer);
}

static bool is_left(const char *name)
{
    char url[200];
    struct buf answer = {0};
    snprintf(url, sizeof url, "https://api/namespaces/space/leases/%s", name);
    const int status = serve(&(struct http_ask){.method = "GET", .url = url}, &answer);
    buf_free(&answer);
    return status == 200;
}

/* One that is renewed is not, whatever its clock says: it changes while the leader waits. */
static void what_is_an_hour_old_and_has_no_owner_goes_with_the_next_job_that_has_none(void **state)
{
    struct rdzv_claim own = claim_of("1-x");
    struct err e;
    (void)state;
    leave("killed", "", "2020-01-01T00:00:00.000000Z");
    leave("owned", ",\"ownerReferences\":[{\"uid\":\"1\"}]", "2020-01-01T00:00:00.000000Z");
    leave("new", "", "2999-01-01T00:00:00.000000Z");
    leave("late", "", "2020-01-01T00:00:00.000000Z");
    api_clock = later;
    struct rdzv_home *h = open_job();
    assert_int_equal(claim(h, &none, "1-x", &e), 1);
    check_log(h, "@reign epoch=1-x\n");
    struct buf put = {0}, answer = {0};
    buf_addstr(&put, "{\"metadata\":{\"name\":\"late\",\"labels\":{\"app.kubernetes.io/managed-by\":\"crun\"}}}");
    serve(
        &(struct http_ask){
            .method = "PUT", .url = "https://api/namespaces/space/leases/late", .body = put.data, .body_n = put.len},
        &answer);
    buf_free(&put);
    buf_free(&answer);
    assert_int_equal(h->ops->renew(h, &own, &e), 1);
    assert_true(is_left("killed"));
    later_ms += 10000;
    for (int i = 0; i < 3; i++)
        assert_int_equal(h->ops->renew(h, &own, &e), 1);
    assert_true(!is_left("killed") && is_left("owned") && is_left("new") && is_left("late"));
    assert_int_equal(api_kube_maps(), 3);
    api_clock = NULL;
    h->ops->close(h);
    setenv("CRUN_K8S_OWNER", "batch/v1,Job,train,8a7c", 1);
    leave("killed", "", "2020-01-01T00:00:00.000000Z");
    h = open_job();
    struct rdzv_claim seen;
    see(h, &seen, "1-x", 4, false);
    const uint64_t before = api_kube.requests;
    assert_int_equal(claim(h, &seen, "2-y", &e), 1);
    check_log(h, "@reign epoch=1-x\n@reign epoch=2-y\n");
    assert_int_equal(api_kube.requests - before, 3); /* no list of Leases */
    unsetenv("CRUN_K8S_OWNER");
    h->ops->close(h);
}

static void an_owner_has_four_words(void **state)
{
    static const char *const bad[] = {"Job", "batch/v1,Job,train", "batch/v1,Job,train,", "batch/v1,,train,8a7c",
                                      "a,b,c,d,e"};
    struct rdzv_home *h;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("CRUN_K8S_OWNER", bad[i], 1);
        assert_int_equal(rdzv_home_open(&h, where(), &(struct rdzv_home_options){.run_id = "j"}, &e), -EINVAL);
        assert_non_null(strstr(e.text, "expected APIVERSION,KIND,NAME,UID"));
    }
    unsetenv("CRUN_K8S_OWNER");
}

static void the_lease_of_another_job_is_refused(void **state)
{
    struct rdzv_home *a = open_job(), *b = open_at(where(), "another");
    struct rdzv_claim seen;
    struct err e;
    (void)state;
    assert_int_equal(claim(a, &none, "1-x", &e), 1);
    assert_int_equal(b->ops->look(b, &seen, &e), ERR_REFUSED);
    assert_non_null(strstr(e.text, "not of 'another'"));
    a->ops->close(a);
    b->ops->close(b);
}

static void a_bad_url_is_refused(void **state)
{
    static const char *const bad[] = {"k8s://",   "k8s:///x", "k8s://A",  "k8s://a/b/c",
                                      "k8s://-a", "k8s://a/", "k8s://a.b"};
    struct rdzv_home *h;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(rdzv_home_open(&h, bad[i], &(struct rdzv_home_options){.run_id = "j"}, &e), -EINVAL);
        if (!strstr(e.text, "expected k8s://[NAMESPACE/]NAME"))
            fail_msg("%s: %s", bad[i], e.text);
    }
    unsetenv("KUBERNETES_SERVICE_HOST");
    assert_int_equal(rdzv_home_open(&h, "k8s://a/b", &(struct rdzv_home_options){.run_id = "j"}, &e), -EINVAL);
    assert_non_null(strstr(e.text, "this is no pod"));
}

#endif

static int an_empty_home(void **state)
{
    api_carrier = &carrier;
#ifdef KUBE
    static char files[64], command[160];
    snprintf(files, sizeof files, "/tmp/rdzv-kube-%d", (int)getpid());
    snprintf(command, sizeof command, "mkdir -p %s; echo secret > %s/token", files, files);
    if (system(command) != 0)
        return -1;
    setenv("CRUN_K8S_FILES", files, 1);
    setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1);
    setenv("KUBERNETES_SERVICE_PORT", "443", 1);
    api_kube_begin();
#else
    api_etcd_begin(4711);
#endif
    fate_n = fate_at = 0;
    lag = 0;
    return another(state);
}

#define TEST(test) cmocka_unit_test_setup(test, an_empty_home)
#else
#define TEST(test) cmocka_unit_test_setup(test, another)
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_claim_says_who_leads_and_how_often_it_was_renewed),
        TEST(a_claim_that_was_renewed_meanwhile_is_not_replaced),
        TEST(an_older_leader_can_append_nothing),
        TEST(a_whole_decision_takes_the_place_of_those_before),
        TEST(a_large_decision_goes_in_parts),
        TEST(the_end_of_a_job_clears_its_keys),
#ifdef KUBE
        TEST(what_nobody_names_goes),
#else
        TEST(another_job_is_no_part_of_it),
#endif
#ifndef REAL
        TEST(a_renewal_whose_answer_was_lost_has_a_number_of_its_own),
        TEST(a_renewal_that_comes_late_does_nothing),
        TEST(a_claim_whose_answer_was_lost_is_ours),
        TEST(a_lost_append_is_told_from_a_lost_answer),
        TEST(a_decision_that_comes_back_is_passed_over),
        TEST(an_append_that_comes_after_the_next_claim_does_nothing),
        TEST(a_claim_is_watched_and_read_anew_when_the_watch_ends),
        TEST(a_bad_url_is_refused),
#ifdef KUBE
        TEST(decisions_that_have_no_room_go_into_maps_and_what_nobody_names_goes),
        TEST(a_job_whose_map_was_deleted_begins_anew),
        TEST(who_lacks_a_map_of_a_lease_that_is_another_ones_changes_nothing),
        TEST(who_sweeps_late_takes_nothing_from_the_next_leader),
        TEST(a_missing_rule_is_named_and_asked_for_again),
        TEST(the_lease_of_another_job_is_refused),
        TEST(a_token_is_read_again_each_minute_and_when_it_is_refused),
        TEST(what_is_an_hour_old_and_has_no_owner_goes_with_the_next_job_that_has_none),
        TEST(an_owner_has_four_words),
#else
        TEST(parts_without_the_last_are_not_believed),
        TEST(old_news_change_nothing),
        TEST(the_lease_is_handed_on),
        TEST(another_etcd_is_none_of_the_leaders),
        TEST(a_user_gets_a_token_and_another_when_it_has_ended),
        TEST(an_etcd_without_its_gateway_is_named),
#endif
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
