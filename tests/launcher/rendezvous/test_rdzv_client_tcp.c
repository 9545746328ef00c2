/* The client of a rendezvous behind a connection, against a peer that does everything wrong in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <assert.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/rendezvous/rdzv_client.h"
#include "launcher/rendezvous/rdzv_dial.h"
#include "tests/launcher/rendezvous/fake_rdzv.h"
#include "tests/launcher/turn.h"

#define HEARTBEAT_MS 100
#define SILENCE_MS 2000
#define PATIENCE_MS 20000
#define LATE_MS (1000 + turn_stood_ms) /* a loaded machine; the bound itself is measured where it is claimed */

/* An agent that only writes down what it is told, and a peer. */
static struct rig {
    uv_loop_t loop;
    struct fake f, store;
    struct rdzv_client *c;
    struct rdzv_client_options o;
    char endpoint[64];
    char log[4096]; /* "round(1) stop(1) fence failed(69)" */
    char why[1024];
    int64_t fenced_at, lease, lease_before;
    int rounds, stops, ends, fences, failures, sockets, majority, last_code;
    struct rdzv_progress progress;
    int progresses;
} * rig;

static void note(struct rig *g, const char *word, long long n)
{
    size_t len = strlen(g->log);
    snprintf(g->log + len, sizeof g->log - len, "%s%s(%lld)", len ? " " : "", word, n);
}

static void on_news(void *arg, const struct rdzv_news *news)
{
    struct rig *g = arg;
    static const char *const words[] = {"", "round", "stop", "end"};
    note(g, words[news->kind], news->kind == RDZV_NEWS_END ? news->exit_code : (long long)news->round);
    g->rounds += news->kind == RDZV_NEWS_ROUND;
    g->stops += news->kind == RDZV_NEWS_STOP;
    g->ends += news->kind == RDZV_NEWS_END;
}

static void on_fence(void *arg, const char *why)
{
    struct rig *g = arg;
    g->fences++;
    g->fenced_at = clock_ms();
    g->lease = g->lease_before; /* the fence itself ended it */
    snprintf(g->why, sizeof g->why, "%s", why);
    note(g, "fence", 0);
}

static void on_failed(void *arg, int code, const char *why)
{
    struct rig *g = arg;
    g->failures++;
    g->last_code = code;
    snprintf(g->why, sizeof g->why, "%s", why);
    note(g, "failed", code);
}

static void on_socket(void *arg, int fd)
{
    struct rig *g = arg;
    g->sockets += fd >= 0 ? 1 : -1;
}

static void on_lease(void *arg, int64_t until)
{
    struct rig *g = arg;
    g->lease_before = g->lease;
    g->lease = until;
}

static void on_progress(void *arg, const struct rdzv_progress *p)
{
    struct rig *g = arg;
    g->progress = *p;
    g->progresses++;
}

static int majority(void *arg)
{
    return ((struct rig *)arg)->majority;
}

static int store_port(void *arg)
{
    (void)arg;
    return 4711;
}

static int set_up(void **state)
{
    (void)state;
    struct rig *g = rig = calloc(1, sizeof *g);
    turn_stood_ms = 0;
    uv_loop_init(&g->loop);
    fake_open(&g->f, &g->loop, "127.0.0.1");
    fake_open(&g->store, &g->loop, "127.0.0.1");
    snprintf(g->endpoint, sizeof g->endpoint, "127.0.0.1:%d", g->f.port);
    g->o = (struct rdzv_client_options){
        .job = {.min_nodes = 1,
                .max_nodes = 2,
                .max_restarts = 3,
                .join_timeout_ms = 60000,
                .last_call_ms = 100,
                .silence_ms = 60000,
                .kill_ms = 500,
                .first_round = 1},
        .heartbeat_ms = HEARTBEAT_MS,
        .connect_ms = 30000,
        .daemon_grace_ms = 0,
        .run_id = "job",
        .endpoint = g->endpoint,
        .insecure = true,
        .node = "host-1",
        .slots = 2,
        .node_rank = -1,
        .store_port = store_port,
        .on_news = on_news,
        .on_fence = on_fence,
        .on_failed = on_failed,
        .on_socket = on_socket,
        .on_lease = on_lease,
        .on_progress = on_progress,
        .majority = majority,
        .arg = g,
    };
    return 0;
}

static void close_all(struct rig *g)
{
    if (g->c)
        g->c->ops->close(g->c);
    g->c = NULL;
    fake_close(&g->f);
    fake_close(&g->store);
}

static int tear_down(void **state)
{
    (void)state;
    close_all(rig);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    int rc = uv_loop_close(&rig->loop);
    free(rig);
    return rc;
}

#define AWAIT(condition)                                                                                               \
    do {                                                                                                               \
        TURN_UNTIL(&rig->loop, PATIENCE_MS, condition);                                                                \
        if (!(condition))                                                                                              \
            fail_msg("%s: not within %d ms; told: %s; asked: %s", #condition, PATIENCE_MS, rig->log, rig->f.log);      \
    } while (0)

static void turn_for(int64_t ms)
{
    int64_t end = clock_deadline(ms);
    AWAIT(clock_left(end) == 0);
}

/* For what counts connections: a loaded machine that answers late is no reason to dial again. */
static void be_patient(void)
{
    rig->o.heartbeat_ms = 15 * HEARTBEAT_MS;
}

/* For what is about silence: elsewhere a loaded machine's is not to be taken for it. */
static void fear_silence(void)
{
    rig->o.job.silence_ms = SILENCE_MS;
}

/* Fenced when the lease was over, which began about `before` and was to last `ms`. */
static void expect_fenced_after(int64_t before, int64_t ms)
{
    const int64_t took = rig->fenced_at - before;
    print_message("# fenced %lld ms after the last answer, %lld were granted\n", (long long)took, (long long)ms);
    assert_true(rig->fenced_at >= rig->lease);
    assert_true(took >= ms - 4 * HEARTBEAT_MS - LATE_MS);
    assert_true(took <= ms + LATE_MS);
}

/* A machine that stands still is a reason to dial again. */
static void expect_connections(int n)
{
    assert_true(rig->f.connections == n || (rig->f.connections > n && turn_stood_ms >= rig->o.heartbeat_ms));
}

/* Nothing has fenced it, or the silence was the machine's: then there is no more to be seen. */
static bool machine_was_silent(void)
{
    const bool silent = rig->fences && turn_stood_ms > SILENCE_MS / 2;
    assert_true(silent || rig->fences == 0);
    return silent;
}

static void open_client(void)
{
    struct err e = {0};
    if (rdzv_client_tcp_ops.open(&rig->c, &rig->loop, &rig->o, &e) < 0)
        fail_msg("%s", e.text);
}

static void join(void)
{
    assert_int_equal(rig->c->ops->join(rig->c, NULL), 0);
}

static void tell_round(int round, int group_rank, int group_world)
{
    char text[256];
    snprintf(
        text, sizeof text,
        "kind=round round=%d why=start group_rank=%d group_world=%d rank_base=0 world_size=4 leader_addr=127.0.0.1 "
        "leader_port=%d",
        round, group_rank, group_world, rig->store.port);
    fake_tell(&rig->f, text);
}

/* Joined, told of round 1, running. */
static void run_a_round(void)
{
    open_client();
    join();
    AWAIT(rig->f.nexts > 0);
    tell_round(1, 1, 3);
    AWAIT(rig->rounds == 1);
}

/* --- the happy path */

static void a_node_joins_runs_and_is_done(void **state)
{
    (void)state;
    be_patient();
    run_a_round();
    assert_ptr_equal(strstr(rig->f.log, "JOIN() NEXT(0)"), rig->f.log); /* round 0 goes without saying */
    assert_true(rig->lease > clock_ms());
    assert_int_equal(rig->sockets, 1);
    int before = rig->f.nexts;
    AWAIT(rig->f.nexts > before + 3); /* heartbeats */
    rig->c->ops->done(rig->c, NULL);
    assert_int_equal(rig->lease, 0);
    AWAIT(strstr(rig->f.log, "DONE(1)"));
    fake_tell(&rig->f, "kind=end round=1 exit_code=0");
    AWAIT(rig->ends == 1);
    assert_string_equal(rig->log, "round(1) end(0)");
    expect_connections(1);
}

static void a_stopped_round_is_followed_by_the_next(void **state)
{
    (void)state;
    run_a_round();
    struct rdzv_cause cause = {.exit_code = 9, .rank = 3, .text = "a worker fell"};
    (rig->c->ops->fail)(rig->c, &cause, NULL);
    AWAIT(strstr(rig->f.log, "FAIL(1)"));
    fake_tell(&rig->f, "kind=stop round=1 why=failure");
    AWAIT(rig->stops == 1);
    join();
    AWAIT(strstr(rig->f.log, "JOIN(round=1)"));
    tell_round(2, 0, 3);
    AWAIT(rig->rounds == 2);
    assert_string_equal(rig->log, "round(1) stop(1) round(2)");
}

static void progress_is_told_while_joining(void **state)
{
    (void)state;
    open_client();
    join();
    AWAIT(rig->progresses > 0);
    assert_int_equal(rig->progress.now.joined, 5);
    assert_int_equal(rig->progress.now.max_nodes, 8);
    assert_string_equal(rig->progress.now.missing, "2,5");
}

static void a_spare_waits_for_its_round(void **state)
{
    (void)state;
    open_client();
    join();
    AWAIT(rig->f.nexts > 0);
    fake_tell(&rig->f, "kind=round round=1 why=start spare=1 group_world=2 world_size=4 leader_addr=10.0.0.1");
    AWAIT(rig->rounds == 1);
    assert_int_equal(rig->lease, 0);
    tell_round(2, 1, 2);
    AWAIT(rig->rounds == 2);
    assert_int_equal(rig->f.joins, 1);
}

/* --- a connection that fails */

static void a_lost_connection_is_resumed_where_it_was(void **state)
{
    (void)state;
    be_patient();
    run_a_round();
    for (int i = 0; i < 5; i++) {
        int before = rig->f.connections;
        fake_reset(&rig->f);
        AWAIT(rig->f.connections > before);
        before = rig->f.nexts;
        AWAIT(rig->f.nexts > before);
    }
    assert_int_equal(rig->fences, 0);
    assert_int_equal(rig->f.joins, 1); /* NEXT with the newest seq says it all */
    assert_int_equal(rig->sockets, 1); /* each one void before the next */
    assert_non_null(strstr(rig->f.log, "NEXT(1)"));
}

/* Dialling again would put it at the end of the server's queue. */
static void its_turn_to_prove_who_it_is_is_waited_for(void **state)
{
    char path[] = "/tmp/test-token-XXXXXX";
    const int fd = mkstemp(path);
    (void)state;
    assert_int_equal(write(fd, "team a-secret-of-enough-bytes\n", 30), 30);
    close(fd);
    rig->o.token_file = path;
    run_a_round();
    unlink(path);
    const int before = rig->f.connections, nexts = rig->f.nexts;
    rig->f.queue = true;
    fake_reset(&rig->f);
    AWAIT(rig->f.queued);
    turn_for(5 * HEARTBEAT_MS);
    assert_int_equal(rig->f.connections, before + 1);
    fake_admit(&rig->f);
    AWAIT(rig->f.nexts > nexts);
    assert_int_equal(rig->f.connections, before + 1);
}

static void a_join_whose_answer_is_lost_is_said_again(void **state)
{
    (void)state;
    be_patient();
    rig->f.reset_on = "JOIN";
    open_client();
    join();
    AWAIT(rig->f.nexts > 0);
    expect_connections(2);
}

static void claims_are_repeated_on_a_new_connection(void **state)
{
    (void)state;
    run_a_round();
    rig->f.reset_on = "DONE";
    rig->c->ops->done(rig->c, NULL);
    AWAIT(strstr(rig->f.log, "DONE(1)"));
    fake_reset(&rig->f);
    AWAIT(strstr(strstr(rig->f.log, "DONE(1)") + 1, "DONE(1)")); /* acknowledged, but perhaps not on disk */
    assert_int_equal(rig->fences, 0);
}

static void answers_in_pieces_are_answers(void **state)
{
    (void)state;
    be_patient();
    rig->f.split = true;
    run_a_round();
    expect_connections(1);
}

static void garbage_and_halves_are_lost_connections(void **state)
{
    (void)state;
    static const char *const garbage[] = {"!\r\n",         "+OK\r\n",     ":1\r\n",       "$5\r\nhello\r\n",
                                          "*99999999\r\n", "$-5\r\n",     "*2\r\n$1\r\n", "$99999999999\r\n",
                                          "-\r\n",         "\r\n\r\n\r\n"};
    run_a_round();
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        int before = rig->f.nexts;
        rig->f.garbage = garbage[i];
        AWAIT(!rig->f.garbage && rig->f.nexts > before + 2);
    }
    rig->f.half = true;
    int before = rig->f.connections;
    AWAIT(rig->f.mute);
    rig->f.half = rig->f.mute = false;
    AWAIT(rig->f.connections > before);
    before = rig->f.nexts;
    AWAIT(rig->f.nexts > before + 2);
    assert_int_equal(rig->rounds, 1);
    assert_int_equal(rig->failures, 0);
}

static void a_closed_door_is_knocked_at_until_the_time_is_over(void **state)
{
    (void)state;
    rig->o.connect_ms = 4000; /* on a busy machine a knock may take a second */
    fake_shut(&rig->f);
    open_client();
    int64_t begun = clock_ms();
    join();
    AWAIT(rig->failures == 1);
    assert_true(clock_ms() - begun >= 3900);
    assert_int_equal(rig->last_code, EXIT_UNAVAILABLE);
    if (!strstr(rig->why, "Connection refused"))
        fail_msg("it says: %s", rig->why);
}

/* The job's end is waited for as long as a rendezvous at the start, and as loudly. */
static void who_is_done_says_that_the_rendezvous_is_gone(void **state)
{
    (void)state;
    be_patient();
    run_a_round();
    rig->c->ops->done(rig->c, NULL);
    AWAIT(strstr(rig->f.log, "DONE(1)"));
    fake_shut(&rig->f);
    fake_reset(&rig->f);
    rig->progresses = 0;
    AWAIT(rig->progresses > 0 || rig->failures > 0);
    assert_int_equal(rig->failures, 0);
    assert_non_null(strstr(rig->progress.text, "cannot reach 127.0.0.1"));
    assert_in_range(rig->progress.left_ms, 1, rig->o.connect_ms);
}

static void a_late_rendezvous_is_found(void **state)
{
    (void)state;
    fake_shut(&rig->f);
    open_client();
    join();
    AWAIT(rig->progresses > 0);
    assert_non_null(strstr(rig->progress.text, "cannot reach 127.0.0.1"));
    assert_in_range(rig->progress.left_ms, 1, rig->o.connect_ms);
    fake_listen(&rig->f);
    AWAIT(rig->f.nexts > 0);
}

/* --- silence */

static void workers_are_fenced_when_nothing_is_heard(void **state)
{
    (void)state;
    fear_silence();
    run_a_round();
    AWAIT(rig->f.nexts > 3);
    rig->f.mute = true;
    int64_t muted = clock_ms(); /* what was acknowledged was sent before, and about a heartbeat before */
    AWAIT(rig->fences == 1);
    expect_fenced_after(muted, SILENCE_MS);
    assert_true(rig->lease <= muted + SILENCE_MS);
    rig->f.mute = false;
    turn_for(300);
    assert_int_equal(rig->f.joins, 1); /* not a word until the workers are gone */
    join();
    AWAIT(strstr(rig->f.log, "JOIN(round=1)"));
    tell_round(2, 0, 3);
    AWAIT(rig->rounds == 2);
}

static void a_peer_that_accepts_and_is_deaf_is_silence(void **state)
{
    (void)state;
    fear_silence();
    run_a_round();
    rig->f.deaf = true;
    fake_reset(&rig->f);
    AWAIT(rig->fences == 1);
    rig->f.deaf = false;
    join();
    AWAIT(rig->f.joins == 2);
}

static void a_stopped_process_fences_before_it_hears_anything(void **state)
{
    (void)state;
    fear_silence();
    run_a_round();
    fake_tell(&rig->f, "kind=stop round=1 why=resize"); /* on its way when we fall asleep */
    usleep((SILENCE_MS + 200) * 1000);
    AWAIT(rig->fences == 1);
    assert_memory_equal(rig->log, "round(1) fence(0)", 17);
}

static void a_round_that_is_old_when_it_is_heard_is_not_taken(void **state)
{
    (void)state;
    fear_silence();
    open_client();
    join();
    AWAIT(rig->f.nexts > 0);
    int before = rig->f.nexts;
    AWAIT(rig->f.nexts > before);
    tell_round(1, 0, 3);
    usleep((SILENCE_MS + 10) * 1000); /* the rendezvous may have given us up meanwhile */
    AWAIT(rig->f.joins == 2);
    assert_int_equal(rig->rounds, 0);
    tell_round(2, 0, 3);
    AWAIT(rig->rounds == 1);
}

static void an_idle_client_is_not_fenced(void **state)
{
    (void)state;
    fear_silence();
    run_a_round();
    turn_for(2 * SILENCE_MS);
    machine_was_silent();
}

/* --- refusals */

static void a_node_that_is_not_known_kills_and_joins_again(void **state)
{
    (void)state;
    static const char *const errors[] = {"-FENCED a newer connection stands for this node", "-REFUSED node is unknown"};
    run_a_round();
    for (int i = 0; i < 2; i++) {
        rig->f.next_error = errors[i];
        AWAIT(rig->fences == i + 1);
        assert_string_equal(rig->why, rdzv_refusal(errors[i] + 1)); /* for people */
        rig->f.next_error = NULL;
        int joins = rig->f.joins, rounds = rig->rounds;
        join();
        AWAIT(rig->f.joins > joins && rig->f.nexts > 0);
        tell_round(i + 2, 0, 3);
        AWAIT(rig->rounds == rounds + 1);
    }
    assert_int_equal(rig->failures, 0);
}

static void a_claim_of_an_older_round_fences(void **state)
{
    (void)state;
    run_a_round();
    rig->f.claim_error = "-FENCED the current round is 2";
    rig->c->ops->done(rig->c, NULL);
    AWAIT(rig->fences == 1);
}

/* A daemon that was restarted and kept nothing, and a host in place of one that died. */
static void a_rendezvous_without_memory_is_told_what_it_has_lost(void **state)
{
    (void)state;
    static const char *const errors[] = {"-NOJOB run 'job' is unknown here", "-REFUSED node is unknown"};
    static const char *const instances[] = {"aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "bbbbbbbbbbbbbbbb"};
    char brings[80];
    run_a_round();
    for (int i = 0; i < 2; i++) {
        rig->f.next_error = errors[i];
        AWAIT(rig->fences == i + 1);
        assert_true(i > 0 || strstr(rig->why, "has lost its memory of job 'job'"));
        rig->f.next_error = NULL;
        rig->f.instance = instances[i + 1];
        rig->f.seq = 0; /* it counts anew, also under the same name */
        const int joins = rig->f.joins;
        join();
        AWAIT(rig->f.joins > joins);
        snprintf(brings, sizeof brings, " instance=%s restarts=%d ", instances[i], i + 1);
        assert_non_null(strstr(rig->f.join, brings));
        snprintf(brings, sizeof brings, " round=%d ", i + 1);
        assert_non_null(strstr(rig->f.join, brings));
        snprintf(brings, sizeof brings, "kind=round round=%d group_world=3 restart_count=%d", i + 2, i + 1);
        fake_tell(&rig->f, brings);
        AWAIT(rig->rounds == i + 2);
    }
    assert_int_equal(rig->failures, 0);
}

/* What its rendezvous says of the round that broke is the truth. */
static void a_restart_that_the_rendezvous_counts_is_counted_once(void **state)
{
    (void)state;
    run_a_round();
    fake_tell(&rig->f, "kind=stop round=1 why=failure restart_count=1");
    AWAIT(rig->stops == 1);
    join();
    AWAIT(strstr(rig->f.join, " restarts=1 "));
}

static void a_daemon_restarted_while_nodes_gather_is_joined(void **state)
{
    (void)state;
    open_client();
    join();
    AWAIT(rig->f.nexts > 0);
    rig->f.instance = "bbbbbbbbbbbbbbbb";
    fake_reset(&rig->f);
    AWAIT(rig->f.joins == 2);
    tell_round(1, 0, 3);
    AWAIT(rig->rounds == 1);
}

static void refusals_of_a_join_have_their_exit_codes(void **state)
{
    (void)state;
    static const struct {
        const char *error;
        int code;
    } cases[] = {
        {"-DIFFERS --nnodes 2:4, not 2:3", EXIT_MISMATCH},
        {"-NOAUTH authentication required", EXIT_USAGE_ERROR},
        {"-NOPERM run 'job' belongs to another principal", EXIT_USAGE_ERROR},
        {"-REFUSED the job is over", EXIT_UNAVAILABLE},
        {"-ERR unknown command 'RDZV.JOIN'", EXIT_UNAVAILABLE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig->f.join_error = cases[i].error;
        open_client();
        join();
        AWAIT(rig->failures == (int)i + 1);
        assert_int_equal(rig->last_code, cases[i].code);
        assert_non_null(strstr(rig->why, rdzv_refusal(cases[i].error + 1)));
        assert_null(strstr(rig->why, cases[i].error + 1)); /* the protocol's word is not for people */
        rig->c->ops->close(rig->c);
    }
    rig->c = NULL;
}

static void a_limit_is_waited_out(void **state)
{
    (void)state;
    rig->f.join_error = "-LIMIT too many jobs";
    open_client();
    join();
    AWAIT(rig->f.joins == 2);
    rig->f.join_error = NULL;
    AWAIT(rig->f.nexts > 0);
    assert_int_equal(rig->failures, 0);
}

static void a_job_whose_nodes_are_not_heard_of_is_waited_out_on_one_connection(void **state)
{
    (void)state;
    be_patient();
    rig->f.join_error = "-BUSY nothing is heard of the 2 nodes of the job before";
    open_client();
    join();
    AWAIT(rig->f.joins == 3);
    AWAIT(strcmp(rig->progress.text, "waiting: nothing is heard of the 2 nodes of the job before") == 0);
    rig->f.join_error = NULL;
    AWAIT(rig->f.nexts > 0);
    expect_connections(1);
    assert_int_equal(rig->failures, 0);
}

static void it_is_not_waited_out_beyond_the_join_timeout(void **state)
{
    (void)state;
    rig->o.connect_ms = 300;
    rig->f.join_error = "-BUSY nothing is heard of the 2 nodes of the job before";
    open_client();
    join();
    AWAIT(rig->failures == 1);
    assert_int_equal(rig->last_code, EXIT_UNAVAILABLE);
    assert_true(rig->f.joins > 1 || turn_stood_ms >= rig->o.connect_ms / 2);
}

/* A round closed with us, but its news was lost with the connection; now it is stopped. */
static void a_round_never_heard_of_is_named_once_it_is_stopped(void **state)
{
    (void)state;
    open_client();
    join();
    AWAIT(rig->f.nexts > 0);
    rig->f.join_error = "-FENCED JOIN names round 0, but it is a member of round 5";
    fake_reset(&rig->f);
    snprintf(rig->f.news, sizeof rig->f.news, "kind=stop round=5 why=failure seq=%llu", ++rig->f.seq);
    AWAIT(strstr(rig->f.log, "JOIN(round=5)"));
    rig->f.join_error = NULL;
    int joins = rig->f.joins;
    AWAIT(rig->f.joins > joins);
    tell_round(6, 0, 3);
    AWAIT(rig->rounds == 1);
    assert_int_equal(rig->stops, 0);
}

/* --- leaving */

static void who_never_joined_may_go_at_once(void **state)
{
    (void)state;
    open_client();
    rig->c->ops->leave(rig->c, NULL, NULL);
    assert_string_equal(rig->log, "end(75)");
}

static void a_member_that_leaves_joins_once_its_workers_are_gone(void **state)
{
    (void)state;
    run_a_round();
    rig->c->ops->leave(rig->c, NULL, NULL);
    AWAIT(strstr(rig->f.log, "LEAVE()"));
    fake_tell(&rig->f, "kind=stop round=1 why=resize");
    AWAIT(rig->stops == 1);
    join();
    AWAIT(strstr(rig->f.log, "JOIN(round=1)"));
    fake_tell(&rig->f, "kind=end round=1 exit_code=75");
    AWAIT(rig->ends == 1);
}

static void a_spare_that_leaves_does_not_join_again(void **state)
{
    (void)state;
    open_client();
    join();
    AWAIT(rig->f.nexts > 0);
    rig->c->ops->leave(rig->c, NULL, NULL);
    AWAIT(strstr(rig->f.log, "LEAVE()"));
    fake_reset(&rig->f);
    AWAIT(strstr(strstr(rig->f.log, "LEAVE()") + 1, "LEAVE()"));
    rig->f.claim_error = "-REFUSED it is unknown";
    fake_reset(&rig->f);
    AWAIT(rig->ends == 1);
    assert_int_equal(rig->f.joins, 1);
}

static void one_that_cannot_start_says_why_on_every_connection(void **state)
{
    (void)state;
    run_a_round();
    rig->c->ops->leave(rig->c, &(struct rdzv_cause){.exit_code = 126, .rank = -1, .text = "no"}, NULL);
    AWAIT(strstr(rig->f.log, "LEAVE(kind=leave"));
    assert_non_null(strstr(rig->f.log, " code=126 "));
    fake_reset(&rig->f);
    AWAIT(strstr(strstr(rig->f.log, " code=126 ") + 1, " code=126 "));
}

/* --- a daemon that is gone */

static void a_round_outlives_its_daemon_while_the_majority_is_there(void **state)
{
    (void)state;
    fear_silence();
    rig->o.job.silence_ms = 2 * SILENCE_MS;
    rig->o.heartbeat_ms = SILENCE_MS; /* a late answer is no reason to ask the others */
    rig->o.daemon_grace_ms = 60000;
    run_a_round();
    fake_shut(&rig->f);
    fake_reset(&rig->f);
    turn_for(5 * SILENCE_MS / 2);
    if (machine_was_silent())
        return;
    assert_non_null(strstr(rig->store.log, "ALIVE(1)"));
    fake_listen(&rig->f);
    int before = rig->f.nexts;
    AWAIT(rig->f.nexts > before + 2);
    turn_for(200);
    size_t asked = strlen(rig->store.log);
    turn_for(500);
    if (machine_was_silent())
        return;
    assert_int_equal(strlen(rig->store.log), asked); /* no need of it any more */
    assert_int_equal(rig->f.joins, 1);
}

static void without_its_majority_it_does_not(void **state)
{
    (void)state;
    fear_silence();
    rig->o.daemon_grace_ms = 60000;
    rig->store.alive = "+ALIVE";
    run_a_round();
    fake_shut(&rig->f);
    fake_reset(&rig->f);
    int64_t cut = clock_ms();
    AWAIT(rig->fences == 1);
    expect_fenced_after(cut, SILENCE_MS);
}

static void a_majority_that_is_lost_later_counts_from_then(void **state)
{
    (void)state;
    fear_silence();
    rig->o.heartbeat_ms = 5 * HEARTBEAT_MS; /* a dial takes no longer */
    rig->o.daemon_grace_ms = 60000;
    run_a_round();
    fake_shut(&rig->f);
    fake_reset(&rig->f);
    turn_for(2 * SILENCE_MS);
    if (machine_was_silent())
        return;
    fake_close(&rig->store);
    int64_t cut = clock_ms();
    AWAIT(rig->fences == 1);
    expect_fenced_after(cut, SILENCE_MS);
}

static void a_daemon_that_does_not_answer_is_not_proved_gone(void **state)
{
    (void)state;
    fear_silence();
    rig->o.daemon_grace_ms = 60000;
    run_a_round();
    rig->f.mute = true; /* its address still accepts */
    int64_t cut = clock_ms();
    AWAIT(rig->fences == 1);
    expect_fenced_after(cut, SILENCE_MS);
}

static void the_grace_for_a_daemon_ends(void **state)
{
    (void)state;
    fear_silence();
    rig->o.daemon_grace_ms = 2 * SILENCE_MS;
    run_a_round();
    fake_shut(&rig->f);
    fake_reset(&rig->f);
    int64_t cut = clock_ms();
    AWAIT(rig->fences == 1);
    expect_fenced_after(cut, 2 * SILENCE_MS);
    assert_true(rig->fenced_at - cut >= 2 * SILENCE_MS - HEARTBEAT_MS);
}

static void group_rank_0_counts_for_itself(void **state)
{
    (void)state;
    fear_silence();
    rig->o.heartbeat_ms = 5 * HEARTBEAT_MS;
    rig->o.daemon_grace_ms = 60000;
    open_client();
    join();
    AWAIT(rig->f.nexts > 0);
    tell_round(1, 0, 3);
    AWAIT(rig->rounds == 1);
    rig->majority = 1; /* and itself */
    fake_shut(&rig->f);
    fake_reset(&rig->f);
    turn_for(2 * SILENCE_MS);
    if (machine_was_silent())
        return;
    rig->majority = 0;
    AWAIT(rig->fences == 1);
}

/* --- addresses */

static void a_name_with_two_families_is_tried_in_both(void **state)
{
    (void)state;
    snprintf(rig->endpoint, sizeof rig->endpoint, "localhost:%d", rig->f.port); /* nobody at ::1 */
    open_client();
    join();
    AWAIT(rig->f.nexts > 0);
}

static void ipv6_works(void **state)
{
    (void)state;
    struct fake six;
    uv_tcp_t probe;
    struct sockaddr_in6 sa;
    uv_tcp_init(&rig->loop, &probe);
    uv_ip6_addr("::1", 0, &sa);
    int rc = uv_tcp_bind(&probe, (struct sockaddr *)&sa, 0);
    uv_close((uv_handle_t *)&probe, NULL);
    if (rc < 0) {
        print_message("# SKIP no IPv6 here\n");
        skip();
    }
    fake_open(&six, &rig->loop, "::1");
    snprintf(rig->endpoint, sizeof rig->endpoint, "[::1]:%d", six.port);
    open_client();
    join();
    AWAIT(six.nexts > 0);
    rig->c->ops->close(rig->c);
    rig->c = NULL;
    fake_close(&six);
    uv_run(&rig->loop, UV_RUN_NOWAIT);
    uv_run(&rig->loop, UV_RUN_NOWAIT);
}

static void a_name_that_nobody_knows_is_said(void **state)
{
    (void)state;
    rig->o.connect_ms = 300;
    snprintf(rig->endpoint, sizeof rig->endpoint, "no-such-host.invalid:1");
    open_client();
    join();
    AWAIT(rig->failures == 1);
    assert_non_null(strstr(rig->why, "no-such-host.invalid"));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

/* Arguments: PART OF. Every OF-th case, beginning with the PART-th: all of them wait, and need not wait for one
 * another. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(a_node_joins_runs_and_is_done),
        CASE(a_stopped_round_is_followed_by_the_next),
        CASE(progress_is_told_while_joining),
        CASE(a_spare_waits_for_its_round),
        CASE(a_lost_connection_is_resumed_where_it_was),
        CASE(its_turn_to_prove_who_it_is_is_waited_for),
        CASE(a_join_whose_answer_is_lost_is_said_again),
        CASE(claims_are_repeated_on_a_new_connection),
        CASE(answers_in_pieces_are_answers),
        CASE(garbage_and_halves_are_lost_connections),
        CASE(a_closed_door_is_knocked_at_until_the_time_is_over),
        CASE(who_is_done_says_that_the_rendezvous_is_gone),
        CASE(a_late_rendezvous_is_found),
        CASE(workers_are_fenced_when_nothing_is_heard),
        CASE(a_peer_that_accepts_and_is_deaf_is_silence),
        CASE(a_stopped_process_fences_before_it_hears_anything),
        CASE(a_round_that_is_old_when_it_is_heard_is_not_taken),
        CASE(an_idle_client_is_not_fenced),
        CASE(a_node_that_is_not_known_kills_and_joins_again),
        CASE(a_claim_of_an_older_round_fences),
        CASE(a_rendezvous_without_memory_is_told_what_it_has_lost),
        CASE(a_restart_that_the_rendezvous_counts_is_counted_once),
        CASE(a_daemon_restarted_while_nodes_gather_is_joined),
        CASE(refusals_of_a_join_have_their_exit_codes),
        CASE(a_limit_is_waited_out),
        CASE(a_job_whose_nodes_are_not_heard_of_is_waited_out_on_one_connection),
        CASE(it_is_not_waited_out_beyond_the_join_timeout),
        CASE(a_round_never_heard_of_is_named_once_it_is_stopped),
        CASE(who_never_joined_may_go_at_once),
        CASE(a_member_that_leaves_joins_once_its_workers_are_gone),
        CASE(a_spare_that_leaves_does_not_join_again),
        CASE(one_that_cannot_start_says_why_on_every_connection),
        CASE(a_round_outlives_its_daemon_while_the_majority_is_there),
        CASE(without_its_majority_it_does_not),
        CASE(a_majority_that_is_lost_later_counts_from_then),
        CASE(a_daemon_that_does_not_answer_is_not_proved_gone),
        CASE(the_grace_for_a_daemon_ends),
        CASE(group_rank_0_counts_for_itself),
        CASE(a_name_with_two_families_is_tried_in_both),
        CASE(ipv6_works),
        CASE(a_name_that_nobody_knows_is_said),
    };
    enum { ALL = sizeof tests / sizeof *tests };
    struct CMUnitTest mine[ALL];
    int of = argc > 2 ? atoi(argv[2]) : 1;
    size_t n = 0;
    assert(of > 0);
    for (int i = argc > 1 ? atoi(argv[1]) - 1 : 0; i < ALL; i += of)
        mine[n++] = tests[i];
    return _cmocka_run_group_tests("rdzv_client_tcp", mine, n, NULL, NULL);
}
