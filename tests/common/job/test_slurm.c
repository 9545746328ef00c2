/* Where a job's processes meet. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "common/job/slurm.h"

static void the_first_host_of_a_list_is_found(void **state)
{
    static const struct {
        const char *list, *first; /* NULL: refused */
    } cases[] = {
        {"x1", "x1"},
        {"a-1,b", "a-1"},
        {"node-a.site,node-b.site", "node-a.site"},
        {"gpu[007-012,020],spare", "gpu007"},
        {"node[7]", "node7"},
        {"n_1[3,5]", "n_13"},
        {"", NULL},
        {",b", NULL},
        {"[1-2]", NULL},
        {"node[", NULL},
        {"node[1", NULL},
        {"node[1x]", NULL},
        {"node[x]", NULL},
        {"node[,", NULL},
        {"node 1", NULL},
        {"a/b", NULL},
        {"b[5,2]n3", NULL}, /* no name of the list begins with b5 alone */
        {"n[1-2].site", NULL},
        {"r[0-1]n[0-3]", NULL},
        {"n[1", NULL},
        {"node[1-2],gpu[3", NULL},
        {"node[1-2],gpu3]", NULL},
        {"a,b[1[2]]", NULL},
        {"n[2-1]", NULL},
        {"n[1-]", NULL},
        {"1234567890123456", NULL}, /* too long for the room */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char host[16] = "";
        const bool found = slurm_first_host(cases[i].list, host, sizeof host);
        if (found != (cases[i].first != NULL) || (found && strcmp(host, cases[i].first) != 0))
            fail_msg("\"%s\": %s", cases[i].list, found ? host : "refused");
    }
}

static void a_jobs_port_is_the_same_on_every_node(void **state)
{
    (void)state;
    assert_int_equal(slurm_port("77.0"), 29901); /* of another build, too */
    assert_int_not_equal(slurm_port("77.0"), slurm_port("77.1"));
    for (int job = 0; job < 1000; job++) {
        char id[16];
        snprintf(id, sizeof id, "%d.0", job);
        assert_in_range(slurm_port(id), RDZV_PORT, RDZV_PORT + 2999);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_host_of_a_list_is_found),
        cmocka_unit_test(a_jobs_port_is_the_same_on_every_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
