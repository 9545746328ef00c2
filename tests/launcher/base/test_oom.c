/* Whether the kernel ends crun together with a worker that is out of memory, and whether it ended one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "launcher/base/cgroup_path.h"
#include "launcher/base/oom.h"

static char root[64];

static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int make_root(void **state)
{
    static const char *const folders[] = {"", "/proc", "/tree", "/tree/pod", "/tree/pod/container", "/tree/other"};
    char path[256], text[256];
    (void)state;
    strcpy(root, "/tmp/test-oom-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    for (size_t i = 1; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s%s", root, folders[i]);
        mkdir(path, 0755);
    }
    snprintf(text, sizeof text, "22 1 0:20 / / rw - ext4 /dev/sda rw\n30 22 0:30 / %s/tree rw - cgroup2 cgroup2 rw\n",
             root);
    put("proc/mountinfo", text);
    put("proc/cgroup", "0::/pod/container\n");
    return 0;
}

static int remove_root(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static bool look(char *out)
{
    struct cgroup_tables t;
    char proc[96];
    snprintf(proc, sizeof proc, "%s/proc", root);
    cgroup_tables_read(&t, proc);
    const bool is_set = oom_group_is_set(&t, out, 256);
    cgroup_tables_free(&t);
    return is_set;
}

static void a_group_set_here_or_above_is_found(void **state)
{
    char out[256], expected[256];
    (void)state;
    assert_false(look(out));
    put("tree/other/memory.oom.group", "1\n");
    put("tree/pod/container/memory.oom.group", "0\n");
    assert_false(look(out));
    put("tree/pod/memory.oom.group", "1\n");
    assert_true(look(out));
    snprintf(expected, sizeof expected, "%s/tree/pod", root);
    assert_string_equal(out, expected);
    put("tree/pod/container/memory.oom.group", "1\n");
    assert_true(look(out));
    snprintf(expected, sizeof expected, "%s/tree/pod/container", root);
    assert_string_equal(out, expected);
}

static struct oom_kills open_kills(void)
{
    struct cgroup_tables t;
    struct oom_kills k;
    char proc[96];
    snprintf(proc, sizeof proc, "%s/proc", root);
    cgroup_tables_read(&t, proc);
    oom_kills_open(&k, &t);
    cgroup_tables_free(&t);
    return k;
}

static void kills_are_counted_by_the_first_group_that_tells(void **state)
{
    char text[512];
    (void)state;
    put("tree/pod/memory.events", "low 0\nhigh 3\nmax 9\noom 4\noom_kill 4\noom_group_kill 0\n");
    put("tree/pod/memory.max", "1048576\n");
    struct oom_kills k = open_kills();
    assert_int_equal(oom_kills_since(&k), 0);
    put("tree/pod/memory.events", "low 0\nhigh 3\nmax 9\noom 5\noom_kill 6\noom_group_kill 0\n");
    assert_int_equal(oom_kills_since(&k), 2);
    assert_non_null(
        strstr(oom_kills_text(&k, text, sizeof text), "2 processes killed since the round began, of cgroup /"));
    assert_non_null(strstr(text, "/tree/pod (memory.max 1048576)"));
    oom_kills_begin(&k);
    assert_int_equal(oom_kills_since(&k), 0);
    oom_kills_close(&k);
}

static void kills_are_counted_by_a_group_of_version_1(void **state)
{
    char text[512];
    (void)state;
    snprintf(text, sizeof text, "30 22 0:30 / %s/tree rw - cgroup memory rw,memory\n", root);
    put("proc/mountinfo", text);
    put("proc/cgroup", "4:memory:/pod/container\n0::/\n");
    put("tree/pod/container/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
    struct oom_kills k = open_kills();
    put("tree/pod/container/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    assert_int_equal(oom_kills_since(&k), 1);
    oom_kills_close(&k);
}

static void without_a_group_nothing_is_counted(void **state)
{
    (void)state;
    put("proc/cgroup", "");
    struct oom_kills k = open_kills();
    assert_int_equal(k.fd, -1);
    assert_int_equal(oom_kills_since(&k), 0);
    oom_kills_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_group_set_here_or_above_is_found),
                                       cmocka_unit_test(kills_are_counted_by_the_first_group_that_tells),
                                       cmocka_unit_test(kills_are_counted_by_a_group_of_version_1),
                                       cmocka_unit_test(without_a_group_nothing_is_counted)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
