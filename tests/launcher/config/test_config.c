/* The command line of crun, and what follows from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/err.h"
#include "launcher/config/config.h"

/* Stands before that of the C library. */
static bool no_random_numbers;
ssize_t getrandom(void *out, size_t n, unsigned flags)
{
    errno = ENOSYS;
    return no_random_numbers ? -1 : (ssize_t)syscall(SYS_getrandom, out, n, flags);
}

static int read_two(const char *option, const char *value, struct config *c, struct err *e)
{
    static struct arg_result r; /* strings of *c may point into it */
    char *argv[] = {(char *)"crun", (char *)option, (char *)value, (char *)"true", NULL};
    *e = (struct err){0};
    return config_read(c, &r, 4, argv, e);
}

static void the_rendezvous_waits_longer_than_a_stop_may_take(void **state)
{
    static const struct {
        const char *timeout;
        int64_t least_ms;
    } cases[] = {{"0", 600000}, {"30", 600000}, {"600", 630001}, {"700", 730001}, {"5d", 5 * 86400000LL + 30001}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config c;
        struct err e;
        assert_int_equal(read_two("--shutdown-timeout", cases[i].timeout, &c, &e), 0);
        if (config_join_timeout_ms(&c) < cases[i].least_ms)
            fail_msg("%s: %lld ms", cases[i].timeout, (long long)config_join_timeout_ms(&c));
    }
}

/* argv as a shell splits it at blanks. */
static int read_line(const char *line, struct config *c, struct err *e)
{
    static char copy[1024];
    static struct arg_result r; /* strings of *c may point into it */
    char *argv[32] = {(char *)"crun"};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s true", line);
    for (char *p = strtok(copy, " "); p; p = strtok(NULL, " "))
        argv[argc++] = p;
    *e = (struct err){0};
    return config_read(c, &r, argc, argv, e);
}

static void a_multi_node_line_of_torchrun_is_taken(void **state)
{
    struct config c;
    struct err e;
    assert_int_equal(
        read_line("--nnodes 2:4 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint n1:29500 --rdzv_id j "
                  "--rdzv_conf join_timeout=7,last_call_timeout=2 --max_restarts 3 --local_addr 10.0.0.1",
                  &c, &e),
        0);
    assert_int_equal(c.nnodes.min, 2);
    assert_int_equal(c.nnodes.max, 4);
    assert_int_equal(c.home.kind, HOME_TCP);
    assert_string_equal(c.home.endpoint, "n1:29500");
    assert_string_equal(c.run_id, "j");
    assert_string_equal(c.local_addr, "10.0.0.1");
    assert_int_equal(config_join_timeout_ms(&c), 7000);
    struct rdzv_config job;
    config_job(&c, &job);
    assert_int_equal(job.min_nodes, 2);
    assert_int_equal(job.max_nodes, 4);
    assert_int_equal(job.max_restarts, 3);
    assert_int_equal(job.last_call_ms, 2000);
    assert_int_equal(job.silence_ms, 3000);
    assert_int_equal(job.order, RDZV_ORDER_HOST);
}

static void numbered_nodes_are_ordered_by_their_number(void **state)
{
    static const struct {
        const char *line;
        enum rdzv_order order;
        int rank;
    } cases[] = {{"--nnodes 2 --rdzv-endpoint n", RDZV_ORDER_HOST, -1},
                 {"--nnodes 2 --rdzv-endpoint n --node-rank 1", RDZV_ORDER_NODE_RANK, 1},
                 {"--nnodes 2 --rdzv-endpoint n --node-rank 1 --rank-order host", RDZV_ORDER_HOST, 1},
                 {"--nnodes 2 --rdzv-endpoint n --rank-order join", RDZV_ORDER_JOIN, -1},
                 {"--nnodes 2 --rdzv-endpoint n --rdzv-conf rank=3", RDZV_ORDER_NODE_RANK, 3},
                 {"--nnodes 2 --master_addr n", RDZV_ORDER_NODE_RANK, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config c;
        struct err e;
        struct rdzv_config job;
        if (read_line(cases[i].line, &c, &e) < 0)
            fail_msg("%s: %s", cases[i].line, e.text);
        config_job(&c, &job);
        assert_int_equal(job.order, cases[i].order);
        assert_int_equal(c.home.node_rank, cases[i].rank);
    }
}

static void what_contradicts_itself_is_refused(void **state)
{
    static const struct {
        const char *line, *part;
    } cases[] = {
        {"--nnodes 3:2", "--nnodes: '3:2': expected N or MIN:MAX with 1 <= MIN <= MAX"},
        {"--nnodes 0", "expected N or MIN:MAX"},
        {"--nnodes 2:", "expected N or MIN:MAX"},
        {"--nnodes 2 --rdzv-endpoint n --rdzv-conf rank=1 --node-rank 2", "--node-rank 2 and rank=1 of --rdzv-conf"},
        {"--nnodes 2 --rdzv-endpoint n --local-addr 1.1.1.1 --iface lo", "--local-addr and --iface both"},
        {"--nnodes 2 --rdzv-endpoint n --insecure --token-file f", "--insecure and --token-file contradict"},
        {"--nnodes 2 --rdzv-endpoint n:x", "--rdzv-endpoint: 'n:x': port: 'x' is not a whole number"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config c;
        struct err e;
        int rc = read_line(cases[i].line, &c, &e);
        if (rc != ERR_USAGE || !strstr(e.text, cases[i].part))
            fail_msg("%s: %d '%s'", cases[i].line, rc, e.text);
    }
}

/* Run with HOME set to a folder that holds .config/crun/crun.conf with this text. */
static int with_settings(const char *text, const char *line, struct config *c, struct err *e)
{
    char home[] = "/tmp/crun-test-XXXXXX", path[256];
    assert_non_null(mkdtemp(home));
    snprintf(path, sizeof path, "%s/.config", home);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/.config/crun", home);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/.config/crun/crun.conf", home);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    setenv("HOME", home, 1);
    int rc = read_line(line, c, e);
    unlink(path);
    snprintf(path, sizeof path, "%s/.config/crun", home);
    rmdir(path);
    snprintf(path, sizeof path, "%s/.config", home);
    rmdir(path);
    rmdir(home);
    return rc;
}

static void a_cluster_is_set_up_once(void **state)
{
    struct config c;
    struct err e;
    const char *text = "# the cluster\n rdzv_endpoint = rdzv.cluster:29500 # port\n\ntoken_file=/etc/crun/token\n";
    assert_int_equal(with_settings(text, "--nnodes 2 --rdzv-id j", &c, &e), 0);
    assert_string_equal(c.home.endpoint, "rdzv.cluster:29500");
    assert_string_equal(c.home.from, "crun.conf");
    assert_string_equal(c.token_file, "/etc/crun/token");
    assert_int_equal(with_settings(text, "--nnodes 2", &c, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "expected --rdzv-id"));
    assert_int_equal(with_settings("rdzv_endpoit = x\n", "--nnodes 2 --rdzv-id j", &c, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "crun.conf: line 1: no setting 'rdzv_endpoit'"));
    assert_int_equal(with_settings("\nrdzv_endpoint\n", "--nnodes 2 --rdzv-id j", &c, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "line 2: expected name = value"));
    assert_int_equal(with_settings(text, "--nnodes 1", &c, &e), 0); /* one node needs no rendezvous, and no token */
    assert_int_equal(c.home.kind, HOME_LOCAL);
    assert_null(c.token_file);
    assert_int_equal(with_settings(text, "--nnodes 2 --rdzv-id j --insecure", &c, &e), 0);
    assert_null(c.token_file);
}

static void control_characters_are_refused_and_not_printed(void **state)
{
    static const char *const options[] = {"--rdzv-id", "--role"};
    for (size_t i = 0; i < 2; i++) {
        struct config c;
        struct err e;
        char expected[128];
        assert_int_equal(read_two(options[i], "a\033[2J", &c, &e), ERR_USAGE);
        snprintf(expected, sizeof expected, "%s: expected no control characters, got one of code 27 at position 2",
                 options[i]);
        assert_string_equal(e.text, expected);
        assert_int_equal(read_two(options[i], "\xc3\xbc 1", &c, &e), 0);
    }
}

static void a_run_id_is_random_or_an_error(void **state)
{
    struct config a, b;
    struct err e;
    assert_int_equal(read_two("--nnodes", "1", &a, &e), 0);
    assert_int_equal(read_two("--nnodes", "1", &b, &e), 0);
    assert_int_equal(strlen(a.run_id), 32);
    assert_string_not_equal(a.run_id, b.run_id);
    no_random_numbers = true;
    int rc = read_two("--nnodes", "1", &a, &e);
    no_random_numbers = false;
    assert_int_equal(rc, ERR_USAGE);
    assert_non_null(strstr(e.text, "expected --rdzv-id"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rendezvous_waits_longer_than_a_stop_may_take),
        cmocka_unit_test(a_multi_node_line_of_torchrun_is_taken),
        cmocka_unit_test(numbered_nodes_are_ordered_by_their_number),
        cmocka_unit_test(what_contradicts_itself_is_refused),
        cmocka_unit_test(a_cluster_is_set_up_once),
        cmocka_unit_test(control_characters_are_refused_and_not_printed),
        cmocka_unit_test(a_run_id_is_random_or_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
