/* Cores for workers, on machines that hwloc makes up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "launcher/place/binding.h"
#include "launcher/place/placement.h"
#include "launcher/place/topology.h"

#define WORKERS_MAX 64

/* "0-3,8" */
static struct cpus cpus_of(const char *text)
{
    struct cpus c = {0};
    while (*text) {
        char *end;
        long first = strtol(text, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        for (; first <= last; first++)
            cpus_add(&c, (int)first);
        text = *end == ',' ? end + 1 : end;
    }
    return c;
}

#define TWO_NODES "pack:2 node:1 core:4 pu:2"       /* node 0: CPUs 0-7, node 1: 8-15; threads 0 and 1 are core 0 */
#define FOUR_NODES "pack:2 node:2 l3:2 core:2 pu:1" /* socket 0: 0-7, node 0: 0-3, complexes 0-1, 2-3 */

struct test_case {
    const char *machine;
    const char *allowed; /* NULL: all */
    enum binding_mode mode;
    int workers;
    const char *near;     /* a digit for each worker, '-': not known; NULL: none */
    const char *expected; /* "MASK:NODE ..."; NULL: refused */
};

static const struct test_case cases[] = {
    /* without GPUs the cores are dealt out evenly */
    {TWO_NODES, NULL, BINDING_NODE, 1, NULL, "0-7:0"},
    {TWO_NODES, NULL, BINDING_NODE, 2, NULL, "0-7:0 8-15:1"},
    {TWO_NODES, NULL, BINDING_NODE, 3, NULL, "0-7:0 0-7:0 8-15:1"},
    {TWO_NODES, NULL, BINDING_NODE, 4, NULL, "0-7:0 0-7:0 8-15:1 8-15:1"},
    {TWO_NODES, NULL, BINDING_EXCLUSIVE, 2, NULL, "0-7:0 8-15:1"},
    {TWO_NODES, NULL, BINDING_EXCLUSIVE, 4, NULL, "0-3:0 4-7:0 8-11:1 12-15:1"},
    {TWO_NODES, NULL, BINDING_EXCLUSIVE, 3, NULL, "0-3:0 4-7:0 8-15:1"},
    {TWO_NODES, NULL, BINDING_EXCLUSIVE, 5, NULL, "0-3:0 4-5:0 6-7:0 8-11:1 12-15:1"},
    {TWO_NODES, NULL, BINDING_EXCLUSIVE, 8, NULL, "0-1:0 2-3:0 4-5:0 6-7:0 8-9:1 10-11:1 12-13:1 14-15:1"},
    {TWO_NODES, NULL, BINDING_EXCLUSIVE, 9, NULL, NULL},
    {FOUR_NODES, NULL, BINDING_NODE, 2, NULL, "0-3:0 8-11:2"},
    {FOUR_NODES, NULL, BINDING_SOCKET, 2, NULL, "0-7:- 8-15:-"},
    {FOUR_NODES, NULL, BINDING_SOCKET, 3, NULL, "0-7:- 0-7:- 8-15:-"},
    {TWO_NODES, NULL, BINDING_SOCKET, 2, NULL, "0-7:0 8-15:1"},
    {FOUR_NODES, NULL, BINDING_CORE_COMPLEX, 4, NULL, "0-1:0 4-5:1 8-9:2 12-13:3"},
    {FOUR_NODES, NULL, BINDING_CORE_COMPLEX, 8, NULL, "0-1:0 2-3:0 4-5:1 6-7:1 8-9:2 10-11:2 12-13:3 14-15:3"},
    {"node:1 l3:2 core:2 pu:1", NULL, BINDING_CORE_COMPLEX, 3, NULL, "0-1:0 2-3:0 0-1:0"},
    {"node:1 core:4 pu:2", NULL, BINDING_CORE_COMPLEX, 2, NULL, "0-7:0 0-7:0"}, /* no shared cache is known */
    {"node:1 l2:4 core:1 pu:2", NULL, BINDING_CORE_COMPLEX, 1, NULL, "0-7:0"},  /* nor is a core's own one */
    /* one core, and more workers than cores */
    {"node:1 core:1 pu:1", NULL, BINDING_EXCLUSIVE, 1, NULL, "0:0"},
    {"node:1 core:1 pu:1", NULL, BINDING_EXCLUSIVE, 2, NULL, NULL},
    {"node:1 core:1 pu:1", NULL, BINDING_NODE, 3, NULL, "0:0 0:0 0:0"},
    {"node:1 core:2 pu:1", NULL, BINDING_SOCKET, 3, NULL, "0-1:0 0-1:0 0-1:0"},
    {"core:2 pu:2", NULL, BINDING_EXCLUSIVE, 2, NULL, "0-1:0 2-3:0"},
    {"pu:3", NULL, BINDING_EXCLUSIVE, 2, NULL, "0-1:0 2:0"}, /* no cores are named */
    /* a cpuset, or CPUs that are off */
    {TWO_NODES, "2-7", BINDING_EXCLUSIVE, 2, NULL, "2-5:0 6-7:0"},
    {TWO_NODES, "1,3,5,8,10-11", BINDING_EXCLUSIVE, 2, NULL, "1,3,5:0 8,10-11:1"},
    {TWO_NODES, "1,3,5,8,10-11", BINDING_EXCLUSIVE, 5, NULL, "1:0 3:0 5:0 8:1 10-11:1"},
    {TWO_NODES, "0-1,14-15", BINDING_NODE, 2, NULL, "0-1:0 14-15:1"},
    {TWO_NODES, "0-1,14-15", BINDING_EXCLUSIVE, 3, NULL, NULL},
    {"node:1 l3:2 core:2 pu:1", "1,2,3", BINDING_CORE_COMPLEX, 2, NULL, "2-3:0 1:0"}, /* the widest first */
    {TWO_NODES, "12", BINDING_SOCKET, 2, NULL, "12:1 12:1"},
    /* near the GPUs */
    {TWO_NODES, NULL, BINDING_NODE, 2, "11", "8-15:1 8-15:1"},
    {TWO_NODES, NULL, BINDING_EXCLUSIVE, 4, "1010", "8-11:1 0-3:0 12-15:1 4-7:0"},
    {TWO_NODES, NULL, BINDING_EXCLUSIVE, 3, "111", "8-11:1 12-13:1 14-15:1"},
    {TWO_NODES, NULL, BINDING_EXCLUSIVE, 5, "00000", NULL},
    {TWO_NODES, NULL, BINDING_NODE, 2, "1-", "8-15:1 8-15:1"},
    {TWO_NODES, "0-7", BINDING_NODE, 2, "11", "0-7:0 0-7:0"}, /* none of the GPUs' node may be used */
    {FOUR_NODES, NULL, BINDING_SOCKET, 2, "31", "8-15:- 0-7:-"},
    {FOUR_NODES, NULL, BINDING_CORE_COMPLEX, 3, "222", "8-9:2 10-11:2 8-9:2"},
};

static void describe(const struct binding *b, int n, char *out, size_t cap)
{
    size_t len = 0;
    char cpus[128], node[16];
    out[0] = '\0';
    for (int i = 0; i < n; i++) {
        snprintf(node, sizeof node, "%d", b[i].node);
        len += (size_t)snprintf(out + len, cap - len, "%s%s:%s", i ? " " : "", cpus_text(&b[i].cpus, cpus, sizeof cpus),
                                b[i].node < 0 ? "-" : node);
    }
}

static void check(size_t number, const struct test_case *c)
{
    static struct binding got[WORKERS_MAX];
    struct topology t;
    struct err e = {0};
    int near[WORKERS_MAX];
    char text[1024];
    const struct cpus allowed = cpus_of(c->allowed ? c->allowed : "");
    assert_int_equal(topology_read(&t, c->machine, c->allowed ? &allowed : NULL, &e), 0);
    for (int i = 0; c->near && i < c->workers; i++)
        near[i] = c->near[i] == '-' ? -1 : c->near[i] - '0';
    int rc = binding_assign(&t, c->mode, c->workers, c->near ? near : NULL, got, &e);
    topology_free(&t);
    if (!c->expected) {
        assert_int_equal(rc, ERR_USAGE);
        assert_non_null(strstr(e.text, "expected at most one worker for each"));
        return;
    }
    assert_int_equal(rc, 0);
    describe(got, c->workers, text, sizeof text);
    if (strcmp(text, c->expected) != 0)
        fail_msg("case %zu (%s): %s, expected %s", number, c->machine, text, c->expected);
}

static int need_hwloc(void **state)
{
    struct topology t;
    int rc = topology_read(&t, "pu:1", NULL, NULL);
    if (rc == 0)
        topology_free(&t);
    *state = rc == 0 ? (void *)"hwloc" : NULL;
    return 0;
}

static void every_mode_on_every_machine(void **state)
{
    if (!*state)
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(i, &cases[i]);
}

static void no_core_left_is_an_error(void **state)
{
    struct topology t;
    struct err e = {0};
    const struct cpus elsewhere = cpus_of("99");
    if (!*state)
        skip();
    assert_true(topology_read(&t, "core:2 pu:1", &elsewhere, &e) < 0);
    assert_true(topology_read(&t, "nonsense", NULL, &e) < 0);
    assert_non_null(strstr(e.text, "nonsense"));
}

static void threads_are_an_even_share_and_never_none(void **state)
{
    struct placement p = {.workers = 8, .cores = 64};
    assert_int_equal(placement_threads(&p, 0), 8);
    p = (struct placement){.workers = 2, .cores = 7};
    assert_int_equal(placement_threads(&p, 1), 3);
    p = (struct placement){.workers = 8, .cores = 2};
    assert_int_equal(placement_threads(&p, 7), 1);
}

static void threads_of_a_bound_worker_are_those_of_its_mask(void **state)
{
    struct binding b[3] = {{.cpus = cpus_of("0-7")}, {.cpus = cpus_of("0-7")}, {.cpus = cpus_of("8-13")}};
    struct placement p = {.workers = 3, .cores = 16, .bindings = b};
    char text[64];
    assert_int_equal(placement_threads(&p, 0), 4);
    assert_int_equal(placement_threads(&p, 2), 6);
    p.limited = true; /* a quota of 9 CPUs for all of them */
    p.cores = 9;
    assert_int_equal(placement_threads(&p, 0), 3);
    assert_int_equal(placement_threads(&p, 2), 3);
    b[0].node = -1;
    b[2].node = 1;
    assert_string_equal(placement_text(&p, 0, text, sizeof text), "CPUs 0-7");
    assert_string_equal(placement_text(&p, 2, text, sizeof text), "CPUs 8-13, memory of NUMA node 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_on_every_machine),
        cmocka_unit_test(no_core_left_is_an_error),
        cmocka_unit_test(threads_are_an_even_share_and_never_none),
        cmocka_unit_test(threads_of_a_bound_worker_are_those_of_its_mask),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("binding", tests, need_hwloc, NULL);
}
