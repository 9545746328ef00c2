/* Counting what a node has: cores under affinity and quotas, GPUs under CUDA_VISIBLE_DEVICES. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "launcher/base/cgroup_path.h"
#include "launcher/place/cores.h"
#include "launcher/place/cpus.h"
#include "launcher/place/gpus.h"

static char root[64];

static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(path, 0755);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int make_root(void **state)
{
    strcpy(root, "/tmp/test-cores-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static int quota_of(const char *proc)
{
    struct cgroup_tables t;
    cgroup_tables_read(&t, proc);
    const int n = cores_quota(&t);
    cgroup_tables_free(&t);
    return n;
}

static int quota(void)
{
    char proc[96];
    snprintf(proc, sizeof proc, "%s/proc", root);
    return quota_of(proc);
}

/* v2 at ROOT/two, v1 cpu at ROOT/one with a blank in its name. */
static void lay_out(const char *group2, const char *root1, const char *group1)
{
    char text[512];
    snprintf(text, sizeof text,
             "22 1 0:20 / / rw - ext4 /dev/sda rw\n"
             "30 22 0:30 / %s/two rw shared:5 - cgroup2 cgroup2 rw\n"
             "31 22 0:31 %s %s/the\\040one rw - cgroup cgroup rw,cpu,cpuacct\n",
             root, root1, root);
    put("proc/mountinfo", text);
    snprintf(text, sizeof text, "3:cpu,cpuacct:%s\n1:name=systemd:/x\n0::%s\n", group1, group2);
    put("proc/cgroup", text);
}

static void the_tightest_quota_of_all_above_counts(void **state)
{
    lay_out("/pod/container", "/", "/");
    assert_int_equal(quota(), 0);
    put("two/pod/cpu.max", "max 100000\n");
    put("two/pod/container/cpu.max", "850000 100000\n");
    assert_int_equal(quota(), 8);
    put("two/pod/cpu.max", "350000 100000\n");
    assert_int_equal(quota(), 3);
    put("two/cpu.max", "200000 100000\n");
    assert_int_equal(quota(), 2);
    put("two/pod/cpu.max", "50000 100000\n");
    assert_int_equal(quota(), 1);
}

static void version_one_counts_too_also_as_a_container_sees_it(void **state)
{
    lay_out("/", "/docker/7", "/docker/7/sub");
    put("the one/cpu.cfs_quota_us", "500000\n");
    put("the one/cpu.cfs_period_us", "100000\n");
    put("the one/sub/cpu.cfs_quota_us", "-1\n");
    put("the one/sub/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(), 5);
    put("the one/sub/cpu.cfs_quota_us", "400000\n");
    assert_int_equal(quota(), 4);
    lay_out("/", "/docker/7", "/elsewhere"); /* not below what is mounted: the mount itself is all we see */
    assert_int_equal(quota(), 5);
}

static void without_any_tree_there_is_no_quota(void **state)
{
    put("proc/mountinfo", "22 1 0:20 / / rw - ext4 /dev/sda rw\nnonsense\n - \n");
    put("proc/cgroup", "nonsense\n0:\n0::/\n");
    assert_int_equal(quota(), 0);
    assert_int_equal(quota_of("/nowhere"), 0);
}

static void sets_are_written_as_the_kernel_writes_them(void **state)
{
    struct cpus c = {0};
    char text[64];
    assert_string_equal(cpus_text(&c, text, sizeof text), "");
    static const int some[] = {0, 1, 2, 7, 1023, 1024, 4095};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        cpus_add(&c, some[i]);
    assert_string_equal(cpus_text(&c, text, sizeof text), "0-2,7,1023-1024,4095");
    assert_int_equal(cpus_count(&c), 7);
}

static void affinity_bounds_the_cores(void **state)
{
    struct cpus before;
    cpu_set_t one;
    assert_int_equal(cpus_allowed(&before), 0);
    int first = 0;
    while (!cpus_has(&before, first))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cores_usable(&(struct cgroup_tables){0}), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before.part, before.part), 0);
}

/* "aabb" for the UUIDs of the GPUs left, by their last letter. */
static const char *visible(const char *variable)
{
    static char left[GPUS_MAX + 1];
    struct gpu gpus[GPUS_MAX] = {
        {.uuid = "GPU-11aa-a"}, {.uuid = "GPU-11bb-b"}, {.uuid = "GPU-22cc-c"}, {.uuid = "GPU-33dd-d"}};
    int n = gpus_visible(gpus, 4, variable);
    for (int i = 0; i < n; i++)
        left[i] = gpus[i].uuid[strlen(gpus[i].uuid) - 1];
    left[n] = '\0';
    return left;
}

static void visible_devices_are_read_as_cuda_reads_them(void **state)
{
    static const struct {
        const char *variable, *left;
    } cases[] = {{NULL, "abcd"},
                 {"", ""},
                 {"-1", ""},
                 {"2", "c"},
                 {"3,1", "db"},
                 {"0,9,1", "a"},
                 {"1, 2 ,3", "bcd"},
                 {"GPU-22", "c"},
                 {"gpu-22", ""},
                 {"GPU-11", ""},
                 {"0,0,1", "a"},
                 {"GPU-33dd,0", "da"},
                 {"GPU-11BB-b", "b"},
                 {"NoDevFiles", ""},
                 {"1,", "b"},
                 {"1x", ""},
                 {"MIG-x,MIG-y", "x"},
                 {"0,MIG-x", "a"},
                 {"99999999999999999999", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(visible(cases[i].variable), cases[i].left) != 0)
            fail_msg("'%s': left '%s', expected '%s'", cases[i].variable, visible(cases[i].variable), cases[i].left);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_tightest_quota_of_all_above_counts, make_root, remove_root),
        cmocka_unit_test_setup_teardown(version_one_counts_too_also_as_a_container_sees_it, make_root, remove_root),
        cmocka_unit_test_setup_teardown(without_any_tree_there_is_no_quota, make_root, remove_root),
        cmocka_unit_test(sets_are_written_as_the_kernel_writes_them),
        cmocka_unit_test(affinity_bounds_the_cores),
        cmocka_unit_test(visible_devices_are_read_as_cuda_reads_them),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("cores", tests, NULL, NULL);
}
