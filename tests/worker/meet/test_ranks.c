/* Options to ranks and the environment they get. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/env_contract.h"
#include "worker/config/config.h"
#include "worker/meet/ranks.h"

static int forget(void **state)
{
    static const char *const names[] = {"RANK",       "WORLD_SIZE",         "LOCAL_RANK",       "LOCAL_WORLD_SIZE",
                                        "GROUP_RANK", "MASTER_ADDR",        "GROUP_WORLD_SIZE", "MASTER_PORT",
                                        "CRUN_STORE", "TORCHELASTIC_RUN_ID"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    return 0;
}

static struct ranks found(const struct train_config *c)
{
    struct ranks r;
    struct err e = {0};
    if (ranks_find(&r, c, &e) < 0)
        fail_msg("%s", e.text);
    return r;
}

static void expect_refused(const struct train_config *c, const char *says)
{
    struct ranks r;
    struct err e = {0};
    assert_int_equal(ERR_USAGE, ranks_find(&r, c, &e));
    if (!strstr(e.text, says))
        fail_msg("'%s' instead of '%s'", e.text, says);
}

static void where_rank_0_hosts_is_read_from_the_url(void **state)
{
    (void)state;
    struct train_config c = {.nodes = 2, .dist_url = "tcp://node0:29500"};
    struct ranks r = found(&c);
    assert_string_equal("node0", r.host);
    assert_int_equal(29500, r.port);
    c.dist_url = "tcp://[2001:db8::1]:80";
    r = found(&c);
    assert_string_equal("2001:db8::1", r.host);
    assert_int_equal(80, r.port);
    c.dist_url = "tcp://node0:0";
    expect_refused(&c, "the port of --dist-url");
    c.dist_url = "tcp://:80";
    expect_refused(&c, "expected tcp://HOST:PORT");
    c.dist_url = "tcp://239.1.2.3:80";
    expect_refused(&c, "multicast");
}

static void machines_by_environment_count_as_machines(void **state)
{
    (void)state;
    struct train_config c = {.procs = 2, .dist_url = "env://"};
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "node0", 1);
    expect_refused(&c, "a launcher has started this as rank 1 of 2");
    forget(NULL);
    c.nodes = 2, c.node_rank = 1;
    expect_refused(&c, "MASTER_ADDR and MASTER_PORT are not both set");
    setenv("MASTER_ADDR", "node0", 1);
    setenv("MASTER_PORT", "29500", 1);
    struct ranks r = found(&c);
    assert_string_equal("node0", r.host);
    ranks_enter(&r, 1);
    struct env_contract env;
    assert_int_equal(0, env_contract_read(&env, NULL));
    assert_int_equal(3, env.rank);
    assert_int_equal(4, env.world_size);
    assert_int_equal(1, env.local_rank);
    assert_int_equal(2, env.group_world_size);
    assert_string_equal("node0", env.master_addr);
}

static void devices_are_counted_from_their_list(void **state)
{
    (void)state;
    struct train_config c = {.gpus = "0,1,5"};
    assert_int_equal(3, found(&c).procs);
    c.procs = 2;
    expect_refused(&c, "names 3 devices, --procs asks for 2 processes");
    c.procs = 0, c.gpus = "0,";
    expect_refused(&c, "--gpus");
    c.gpus = "1,2,1";
    expect_refused(&c, "device 1 is named twice");
}

static void a_shared_store_needs_the_run_s_name(void **state)
{
    (void)state;
    struct train_config c = {.nodes = 2, .dist_url = "file:///nfs/run"};
    expect_refused(&c, "give --run-id");
    c.run_id = "r";
    struct ranks r = found(&c);
    ranks_enter(&r, 0);
    assert_string_equal("file:///nfs/run", getenv("CRUN_STORE"));
    assert_string_equal("r", getenv("TORCHELASTIC_RUN_ID"));
    static const char *const urls[] = {"redis://h", "rediss://h", "redis+sentinel://h/m", "rediss+sentinel://h/m"};
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        c.dist_url = urls[i];
        forget(NULL);
        assert_string_equal(urls[i], found(&c).store);
    }
    c.dist_url = "redis+sentinelx://h/m";
    expect_refused(&c, "rediss+sentinel://");
    c.dist_url = "file:///nfs/run";
    c.data_parallel = true;
    forget(NULL);
    expect_refused(&c, "for the devices of one machine");
}

static void without_options_the_environment_stays(void **state)
{
    (void)state;
    const struct train_config c = {0};
    assert_false(found(&c).asked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(where_rank_0_hosts_is_read_from_the_url, forget),
        cmocka_unit_test_setup(machines_by_environment_count_as_machines, forget),
        cmocka_unit_test_setup(devices_are_counted_from_their_list, forget),
        cmocka_unit_test_setup(a_shared_store_needs_the_run_s_name, forget),
        cmocka_unit_test_setup(without_options_the_environment_stays, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
