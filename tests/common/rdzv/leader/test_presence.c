/* Who is there while a job waits for its nodes. */
#include "common/rdzv/leader/presence.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/rdzv/wire/rdzv_wire.h"

struct rig {
    struct rdzv *machine;
    struct rdzv_config config;
    struct rdzv_effects effects;
};

static void begin(struct rig *r, int min, int max)
{
    *r = (struct rig){0};
    rdzv_config_defaults(&r->config);
    r->config.min_nodes = min;
    r->config.max_nodes = max;
    r->config.join_timeout_ms = 600000;
    assert_int_equal(rdzv_create(&r->machine, &r->config, NULL), 0);
}

static void join(struct rig *r, const char *node, int rank, int64_t now)
{
    struct rdzv_event ev = {.kind = RDZV_JOIN, .slots = 1, .node_rank = rank};
    snprintf(ev.node, sizeof ev.node, "%s", node);
    assert_int_equal(rdzv_step(r->machine, &ev, now, &r->effects, NULL), 0);
}

static void end(struct rig *r)
{
    rdzv_effects_free(&r->effects);
    rdzv_destroy(r->machine);
}

static const char *text_of(struct rig *r, int64_t now)
{
    static char out[640];
    struct presence p;
    presence_look(r->machine, &r->config, now, &p);
    return presence_text(&p, out, sizeof out);
}

static void a_job_that_waits_says_for_whom_since_when_and_how_long(void **state)
{
    struct rig r;
    begin(&r, 3, 4);
    join(&r, "node1", 1, 1000);
    assert_string_equal(text_of(&r, 13500),
                        "1 of 3 nodes, missing node ranks 0,2; here: node1; for 12 s, given up in 588 s");
    join(&r, "node2+4711-f86896343a787dc9", 2, 14000); /* it does not begin anew */
    assert_string_equal(text_of(&r, 600999),
                        "2 of 3 nodes, missing node ranks 0; here: node1,node2; for 599 s, given up in 1 s");
    join(&r, "node0", 0, 601000 - 1);
    assert_null(strstr(text_of(&r, 601000), "given up")); /* the last call: the job can begin */
    end(&r);
}

static void the_first_node_rank_is_one_that_is_here(void **state)
{
    struct rig r;
    begin(&r, 2, 2);
    join(&r, "node0", 0, 1000);
    assert_string_equal(text_of(&r, 2000),
                        "1 of 2 nodes, missing node ranks 1; here: node0; for 1 s, given up in 599 s");
    end(&r);
}

static void a_node_that_went_silent_is_named(void **state)
{
    struct rig r;
    begin(&r, 2, 2);
    join(&r, "a", -1, 0);
    assert_string_equal(text_of(&r, 2000), "1 of 2 nodes; here: a; for 2 s, given up in 598 s");
    const struct rdzv_event silent = {.kind = RDZV_SILENT, .node = "a"};
    assert_int_equal(rdzv_step(r.machine, &silent, 3000, &r.effects, NULL), 0);
    join(&r, "b", -1, 3000);
    assert_string_equal(text_of(&r, 4000), "1 of 2 nodes; nothing is heard of a; here: b; for 4 s, given up in 596 s");
    end(&r);
}

static void very_many_names_are_cut(void **state)
{
    struct rig r;
    struct presence p;
    char name[40];
    begin(&r, 500, 500);
    for (int i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "node-of-the-cluster-%03d", i);
        join(&r, name, i, 0);
    }
    presence_look(r.machine, &r.config, 0, &p);
    assert_int_equal(p.joined, 400);
    assert_true(strlen(p.here) < sizeof p.here);
    assert_string_equal(p.here + strlen(p.here) - 4, ",...");
    assert_memory_equal(p.here, "node-of-the-cluster-000,node-of-the-cluster-001,", 48);
    assert_memory_equal(p.missing, "400,401,", 8);
    end(&r);
}

static void a_record_reads_back(void **state)
{
    struct rig r;
    struct presence p, back;
    struct buf out = {0};
    begin(&r, 3, 4);
    join(&r, "a node=1", 1, 1000);
    presence_look(r.machine, &r.config, 2000, &p);
    assert_int_equal(presence_record(&p, &out), 0);
    presence_read(out.data, out.len, &back);
    assert_memory_equal(&p, &back, sizeof p);
    presence_read("", 0, &back);
    assert_int_equal(back.waiting_ms, -1);
    assert_string_equal(back.here, "");
    buf_free(&out);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_that_waits_says_for_whom_since_when_and_how_long),
        cmocka_unit_test(the_first_node_rank_is_one_that_is_here),
        cmocka_unit_test(a_node_that_went_silent_is_named),
        cmocka_unit_test(very_many_names_are_cut),
        cmocka_unit_test(a_record_reads_back),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
