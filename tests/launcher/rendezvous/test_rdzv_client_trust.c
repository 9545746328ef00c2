/* The client and the real server: proofs, certificates, two nodes of one job; one loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/rendezvous/rdzv_client.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/net/gate.h"
#include "rendezvousd/net/server.h"
#include "tests/launcher/turn.h"

#define PATIENCE_MS 30000

struct node {
    struct rdzv_client *c;
    struct rdzv_news round;
    int rounds, ends, failures, code, fences;
    char why[1024];
};

static struct rig {
    uv_loop_t loop;
    struct server *s;
    struct gate *g;
    struct jobs *jobs;
    bool closed;
    char dir[64], tokens[96], others[96], cert[96], key[96], endpoint[32];
    struct node n[2];
} * rig;

static void on_news(void *arg, const struct rdzv_news *news)
{
    struct node *n = arg;
    n->rounds += news->kind == RDZV_NEWS_ROUND;
    n->ends += news->kind == RDZV_NEWS_END;
    if (news->kind == RDZV_NEWS_ROUND)
        n->round = *news;
}

static void on_fence(void *arg, const char *why)
{
    (void)why;
    ((struct node *)arg)->fences++;
}

static void on_failed(void *arg, int code, const char *why)
{
    struct node *n = arg;
    n->failures++;
    n->code = code;
    snprintf(n->why, sizeof n->why, "%s", why);
}

static int store_port(void *arg)
{
    (void)arg;
    return 4711;
}

static void write_file(char *path, size_t cap, const char *name, const char *text)
{
    snprintf(path, cap, "%s/%s", rig->dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    chmod(path, 0600);
}

static bool make_certificate(void)
{
    char command[1024];
    snprintf(rig->cert, sizeof rig->cert, "%s/cert", rig->dir);
    snprintf(rig->key, sizeof rig->key, "%s/key", rig->dir);
    snprintf(command, sizeof command,
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout %s -out %s -days 2 "
             "-subj /CN=here -addext subjectAltName=IP:127.0.0.1 2>/dev/null",
             rig->key, rig->cert);
    return system(command) == 0;
}

static int set_up(void **state)
{
    (void)state;
    rig = calloc(1, sizeof *rig);
    uv_loop_init(&rig->loop);
    strcpy(rig->dir, "/tmp/crun-trust-XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
    write_file(rig->tokens, sizeof rig->tokens, "tokens", "team a-secret-of-enough-bytes\n");
    write_file(rig->others, sizeof rig->others, "others", "team another-secret-of-enough-bytes\n");
    return 0;
}

static void serve(struct gate_options o)
{
    struct err e = {0};
    int port;
    if (gate_create(&rig->g, &o, &e) < 0)
        fail_msg("%s", e.text);
    const struct server_options so = {.gate = rig->g};
    assert_int_equal(server_create(&rig->s, &rig->loop, &so, &e), 0);
    assert_int_equal(server_listen(rig->s, "127.0.0.1", 0, &port, &e), 0);
    assert_int_equal(jobs_create(&rig->jobs, &(struct jobs_options){.loop = &rig->loop, .epoch = 1}, &e), 0);
    assert_int_equal(server_set_jobs(rig->s, rig->jobs, &e), 0);
    snprintf(rig->endpoint, sizeof rig->endpoint, "127.0.0.1:%d", port);
}

static void on_server_closed(void *arg)
{
    ((struct rig *)arg)->closed = true;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    for (int i = 0; i < 2; i++)
        rdzv_client_tcp_ops.close(rig->n[i].c);
    if (rig->s)
        server_close(rig->s, on_server_closed, rig);
    while (rig->s && !rig->closed)
        uv_run(&rig->loop, UV_RUN_ONCE);
    jobs_destroy(rig->jobs);
    gate_destroy(rig->g);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    int rc = uv_loop_close(&rig->loop);
    snprintf(command, sizeof command, "rm -r %s", rig->dir);
    rc = system(command) || rc;
    free(rig);
    return rc;
}

#define AWAIT(condition)                                                                                               \
    do {                                                                                                               \
        TURN_UNTIL(&rig->loop, PATIENCE_MS, condition);                                                                \
        if (!(condition))                                                                                              \
            fail_msg("%s: not within %d ms (%s)", #condition, PATIENCE_MS, rig->n[0].why);                             \
    } while (0)

static void start(int i, struct rdzv_client_options o)
{
    struct err e = {0};
    static const char *const names[] = {"host-1", "host-2"};
    rdzv_config_defaults(&o.job);
    o.job.min_nodes = o.job.max_nodes = 2;
    o.heartbeat_ms = 300;
    o.connect_ms = 20000;
    o.run_id = "job";
    o.endpoint = rig->endpoint;
    o.node = names[i];
    o.slots = i + 1;
    o.node_rank = -1;
    o.store_port = store_port;
    o.on_news = on_news;
    o.on_fence = on_fence;
    o.on_failed = on_failed;
    o.arg = &rig->n[i];
    if (rdzv_client_tcp_ops.open(&rig->n[i].c, &rig->loop, &o, &e) < 0)
        fail_msg("%s", e.text);
    rig->n[i].c->ops->join(rig->n[i].c, &e);
}

static void run_to_the_end(void)
{
    AWAIT(rig->n[0].rounds == 1 && rig->n[1].rounds == 1);
    assert_int_equal(rig->n[0].round.group_rank, 0);
    assert_int_equal(rig->n[1].round.rank_base, 1);
    assert_int_equal(rig->n[1].round.world_size, 3);
    assert_string_equal(rig->n[1].round.leader_addr, "127.0.0.1");
    for (int i = 0; i < 2; i++)
        rig->n[i].c->ops->done(rig->n[i].c, NULL);
    AWAIT(rig->n[0].ends == 1 && rig->n[1].ends == 1);
    assert_int_equal(rig->n[0].fences + rig->n[1].fences, 0);
}

static void two_nodes_that_prove_who_they_are(void **state)
{
    (void)state;
    serve((struct gate_options){.token_file = rig->tokens});
    for (int i = 0; i < 2; i++)
        start(i, (struct rdzv_client_options){.token_file = rig->tokens});
    run_to_the_end();
}

static void another_secret_is_refused(void **state)
{
    (void)state;
    serve((struct gate_options){.token_file = rig->tokens});
    start(0, (struct rdzv_client_options){.token_file = rig->others});
    AWAIT(rig->n[0].failures == 1);
    assert_int_equal(rig->n[0].code, EXIT_USAGE_ERROR);
    assert_null(strstr(rig->n[0].why, "secret-of"));
}

static void two_nodes_over_tls(void **state)
{
    (void)state;
    if (!make_certificate())
        skip();
    serve(
        (struct gate_options){.token_file = rig->tokens, .tls_cert = rig->cert, .tls_key = rig->key, .tls_only = true});
    for (int i = 0; i < 2; i++)
        start(i, (struct rdzv_client_options){.token_file = rig->tokens, .tls = true, .tls_ca = rig->cert});
    run_to_the_end();
}

static void a_certificate_that_nobody_vouches_for_is_refused(void **state)
{
    (void)state;
    if (!make_certificate())
        skip();
    serve((struct gate_options){.token_file = rig->tokens, .tls_cert = rig->cert, .tls_key = rig->key});
    start(0, (struct rdzv_client_options){.token_file = rig->tokens, .tls = true});
    AWAIT(rig->n[0].failures == 1);
    assert_int_equal(rig->n[0].code, EXIT_USAGE_ERROR);
    assert_non_null(strstr(rig->n[0].why, "certificate"));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(two_nodes_that_prove_who_they_are),
        CASE(another_secret_is_refused),
        CASE(two_nodes_over_tls),
        CASE(a_certificate_that_nobody_vouches_for_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
