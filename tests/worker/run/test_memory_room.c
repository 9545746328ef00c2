/* What a host has for a rank, read from made-up /proc and /sys, and what is refused before it is taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/err.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/session/memory_room.h"

#define GIB (INT64_C(1) << 30)

static void put(void **state, const char *path, const char *text)
{
    char folder[4096], *at;
    snprintf(folder, sizeof folder, "%s", scratch(state, "%s", path));
    for (at = folder + strlen(*state) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = '\0';
        mkdir(folder, 0777);
    }
    scratch_write(folder, text, strlen(text));
}

static void put_machine(void **state, const char *groups)
{
    put(state, "proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\nSwapTotal:       1048576 kB\n");
    put(state, "proc/self/cgroup", groups);
}

static void limit_is(void **state, int64_t bytes, const char *name)
{
    struct memory_limit l;
    memory_limit_read(*state, &l);
    if (l.bytes != bytes || strcmp(l.name, name) != 0)
        fail_msg("%lld bytes by %s, expected %lld by %s", (long long)l.bytes, l.name, (long long)bytes, name);
    assert_true(l.available == 8 * GIB);
}

static void the_least_limit_of_the_groups_above_counts(void **state)
{
    put_machine(state, "0::/a/b\n");
    limit_is(state, 17 * GIB, "the memory of this machine");
    put(state, "sys/fs/cgroup/a/b/memory.max", "max\n");
    put(state, "sys/fs/cgroup/a/memory.max", "4294967296\n");
    limit_is(state, 5 * GIB, "memory.max of its cgroup /a"); /* a GiB of it on disk */
    put(state, "sys/fs/cgroup/a/memory.swap.max", "0\n");
    limit_is(state, 4 * GIB, "memory.max of its cgroup /a");
    put(state, "sys/fs/cgroup/a/b/memory.max", "2147483648\n");
    put(state, "sys/fs/cgroup/a/b/memory.swap.max", "0\n");
    limit_is(state, 2 * GIB, "memory.max of its cgroup /a/b");
}

/* Its own tree is mounted, while the path may be the host's. */
static void a_container_has_its_limit_at_the_root(void **state)
{
    put_machine(state, "0::/../../kubepods/x\n");
    put(state, "sys/fs/cgroup/memory.max", "1073741824\n");
    put(state, "sys/fs/cgroup/memory.swap.max", "0\n");
    limit_is(state, GIB, "memory.max of its cgroup /");
}

static void the_first_version_of_cgroups_counts_too(void **state)
{
    put_machine(state, "12:cpu,cpuacct:/c\n4:memory:/job\n1:name=systemd:/x\n0::/\n");
    put(state, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "3221225472\n");
    limit_is(state, 4 * GIB, "memory.limit_in_bytes of its cgroup /job");
    put(state, "sys/fs/cgroup/memory/job/memory.memsw.limit_in_bytes", "3221225472\n");
    limit_is(state, 3 * GIB, "memory.limit_in_bytes of its cgroup /job");
}

static const struct memory_limit small = {
    .bytes = 3 * GIB / 2, .available = 8 * GIB, .name = "memory.max of its cgroup /x"};

static void refused(const struct memory_need *n, const struct memory_limit *l, int64_t space, const char *text)
{
    struct err e = {0};
    bool near = false;
    assert_int_equal(memory_room_judge(n, l, space, &near, &e), ERR_USAGE);
    if (strcmp(e.text, text) != 0)
        fail_msg("got '%s', expected '%s'", e.text, text);
}

static void what_cannot_fit_is_refused_with_what_would(void **state)
{
    struct memory_need n = {.held = GIB / 4,
                            .held_space = GIB,
                            .more = 10 * GIB,
                            .ranks = 1,
                            .parts = 1,
                            .samples = 32,
                            .what = "the plan of training"};
    refused(
        &n, &small, INT64_MAX,
        "the plan of training needs 10.2 GiB, 1.5 GiB are allowed here (memory.max of its cgroup /x): --accumulate 16, "
        "a smaller --batch-size or --image-size");
    n.samples = 2; /* half of it is too much, too */
    refused(&n, &small, INT64_MAX,
            "the plan of training needs 10.2 GiB, 1.5 GiB are allowed here (memory.max of its cgroup /x): a smaller "
            "--batch-size or --image-size");
    refused(&n, &(struct memory_limit){.bytes = INT64_MAX, .available = INT64_MAX}, 4 * GIB,
            "the plan of training needs 11.0 GiB, 4.0 GiB are allowed here (its address space: ulimit -v): a smaller "
            "--batch-size or --image-size");
}

/* Its memory is still to be taken, its addresses are not. */
static void what_a_plan_has_and_has_not_used_counts_once(void **state)
{
    struct memory_need n = {.held = GIB / 4,
                            .held_space = 2 * GIB,
                            .unused = GIB,
                            .more = GIB / 2,
                            .ranks = 1,
                            .what = "the plan of training"};
    struct err e = {0};
    bool near = false;
    refused(&n, &small, INT64_MAX,
            "the plan of training needs 1.8 GiB, 1.5 GiB are allowed here (memory.max of its cgroup /x): a smaller "
            "--batch-size or --image-size");
    const struct memory_limit large = {.bytes = 64 * GIB, .available = 64 * GIB, .name = "the memory of this machine"};
    assert_int_equal(memory_room_judge(&n, &large, 3 * GIB, &near, &e), 0);
    refused(&n, &large, 2 * GIB,
            "the plan of training needs 2.5 GiB, 2.0 GiB are allowed here (its address space: ulimit -v): a smaller "
            "--batch-size or --image-size");
}

static void ranks_of_a_host_share_what_is_there(void **state)
{
    struct memory_need n = {
        .held = GIB / 4, .more = GIB / 2, .ranks = 2, .parts = 1, .samples = 8, .what = "the plan of training"};
    struct err e = {0};
    bool near = false;
    assert_int_equal(memory_room_judge(&n, &small, INT64_MAX, &near, &e), 0); /* just so */
    assert_true(near);
    n.ranks = 3;
    refused(
        &n, &small, INT64_MAX,
        "the plan of training needs 2.2 GiB (3 ranks of 0.8 GiB), 1.5 GiB are allowed here (memory.max of its cgroup "
        "/x): --accumulate 4, a smaller --batch-size or --image-size");
    n.ranks = 1;
    assert_int_equal(memory_room_judge(&n, &small, INT64_MAX, &near, &e), 0);
    assert_false(near);
    const struct memory_limit busy = {.bytes = 64 * GIB, .available = GIB / 4, .name = "the memory of this machine"};
    assert_int_equal(memory_room_judge(&n, &busy, INT64_MAX, &near, &e), 0); /* others may go */
    assert_true(near);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_least_limit_of_the_groups_above_counts, scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(a_container_has_its_limit_at_the_root, scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(the_first_version_of_cgroups_counts_too, scratch_make, scratch_drop),
        cmocka_unit_test(what_cannot_fit_is_refused_with_what_would),
        cmocka_unit_test(what_a_plan_has_and_has_not_used_counts_once),
        cmocka_unit_test(ranks_of_a_host_share_what_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
