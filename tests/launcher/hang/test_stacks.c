/* The stacks of a process, by tools that work and by tools that do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "launcher/hang/gather.h"
#include "launcher/hang/stacks.h"
#include "launcher/hang/stacks_json.h"
#include "launcher/hang/tool.h"

static char folder[] = "/tmp/stacks-XXXXXX", former_path[4096];
static pid_t pid;

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* On PATH, which has nothing else but the shell. */
static void write_script(const char *name, const char *text)
{
    FILE *f = fopen(path_of(name), "we");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", text);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path_of(name), 0755), 0);
}

/* A program of this name that sleeps. */
static void start(const char *name)
{
    char command[512];
    snprintf(command, sizeof command, "/bin/cp /bin/sleep %s", path_of(name));
    assert_int_equal(system(command), 0);
    pid = fork();
    if (pid == 0) {
        execl(path_of(name), name, "600", NULL);
        _exit(127);
    }
    char link[64], exe[128];
    snprintf(link, sizeof link, "/proc/%d/exe", (int)pid);
    for (ssize_t n = 0; n <= 0 || !strstr(exe, name);) { /* until it is that program; the test has a time limit */
        n = readlink(link, exe, sizeof exe - 1);
        exe[n > 0 ? n : 0] = '\0';
    }
}

static int set_up(void **state)
{
    strcpy(folder, "/tmp/stacks-XXXXXX");
    snprintf(former_path, sizeof former_path, "%s", getenv("PATH"));
    return mkdtemp(folder) && setenv("PATH", folder, 1) == 0 ? 0 : -1;
}

static int tear_down(void **state)
{
    char command[128];
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    pid = 0;
    setenv("PATH", former_path, 1);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static char text[1 << 16], top[512];

static void save(void)
{
    struct buf out;
    atomic_bool cancel = false;
    struct err e = {0};
    const struct stacks_request r = {
        .head = "rank 0", .pid = pid, .top = top, .top_cap = sizeof top, .cancel = &cancel};
    top[0] = '\0';
    if (stacks_collect(&r, &out, &e) < 0)
        fail_msg("%s", e.text);
    snprintf(text, sizeof text, "%s", out.data);
    buf_free(&out);
    assert_memory_equal(text, "rank 0\ntime ", 12);
}

static void has(const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in:\n%s", part, text);
}

static void what_the_kernel_knows_is_there_without_any_tool(void **state)
{
    char line[64];
    start("worker");
    save();
    snprintf(line, sizeof line, "\nthread %d (worker): state ", (int)pid);
    has(line);
    has(", waits in ");
    has("\n(no call stacks: eu-stack (Debian: elfutils) is not on PATH)\n");
    assert_string_equal(top, "");
}

static void python_programs_are_shown_by_py_spy(void **state)
{
    write_script("py-spy", "[ \"$1 $2\" = 'dump --pid' ] || exit 1\n"
                           "printf 'Process %s: python train.py\\n\\n' $3\n"
                           "printf 'Thread 1 (idle): \"Loader\"\\n    get (queue.py:171)\\n'\n"
                           "printf 'Thread %s (active): \"MainThread\"\\n    step (train.py:7)\\n' $3\n"
                           "printf '    main (train.py:99)\\n\\n'");
    write_script("eu-stack", "printf 'TID 1:\\n#0  0x1 main\\n'");
    start("python3.99");
    save();
    has("\npy-spy:\nProcess ");
    has("get (queue.py:171)");
    assert_null(strstr(text, "eu-stack"));
    assert_string_equal(top, "    step (train.py:7)\n    main (train.py:99)\n");
}

static void others_are_shown_by_eu_stack(void **state)
{
    write_script("py-spy", "printf 'Thread 1 (idle)\\n    python\\n'");
    write_script("eu-stack",
                 "printf 'PID %s - process\\nTID %s:\\n#0  0x1 read\\n#1  0x2 main\\nTID 7:\\n#0  0x3 x\\n' $3 $3");
    start("worker");
    save();
    has("\neu-stack:\nPID ");
    assert_null(strstr(text, "py-spy"));
    assert_string_equal(top, "  #0  0x1 read\n  #1  0x2 main\n");
}

static void a_tool_that_fails_is_told_of_and_the_next_one_tried(void **state)
{
    write_script("py-spy", "echo 'Error: Permission Denied' >&2\necho 'Try again as root'\nexit 1");
    start("python3");
    save();
    has("\n(no call stacks of py-spy: Error: Permission Denied)\n");
    write_script("eu-stack", "printf 'TID 1:\\n#0  0x1 read\\n'");
    save();
    has("Permission Denied)\n\neu-stack:\nTID 1:\n#0  0x1 read\n");
    assert_string_equal(top, "  #0  0x1 read\n");
}

static void a_stopped_process_is_not_stopped_again(void **state)
{
    char line[64];
    write_script("py-spy", "echo 'thread main panicked'\necho \"Error: $*\"\nexit 1");
    start("python3");
    save();
    snprintf(line, sizeof line, "py-spy: Error: dump --pid %d)\n", (int)pid);
    has(line);
    kill(pid, SIGSTOP);
    assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
    save();
    snprintf(line, sizeof line, "py-spy: Error: dump --pid %d --nonblocking)\n", (int)pid);
    has(line);
}

static void a_tool_has_limits(void **state)
{
    char *endless[] = {(char *)"endless", NULL}, *stuck[] = {(char *)"stuck", NULL}, *none[] = {(char *)"none", NULL};
    struct err e = {0};
    struct buf out;
    atomic_bool cancel = false;
    write_script("endless", "while :; do echo yes; done");
    write_script("stuck", "echo begun; trap '' TERM INT; while :; do :; done");
    buf_init(&out, 10000);
    assert_int_equal(tool_run(endless, 60000, &cancel, &out, &e), -E2BIG);
    assert_string_equal(e.text, "endless prints more than 10000 bytes");
    assert_true(out.len > 5000);
    buf_clear(&out);
    assert_int_equal(tool_run(stuck, 100, &cancel, &out, &e), -ETIMEDOUT);
    assert_string_equal(e.text, "stuck did not end within 100 ms");
    atomic_store(&cancel, true);
    assert_int_equal(tool_run(stuck, 60000, &cancel, &out, &e), -ECANCELED);
    assert_int_equal(tool_run(none, 60000, &cancel, &out, &e), -ENOENT);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nobody is left */
    buf_free(&out);
}

static void a_tool_has_no_signal_blocked_or_ignored(void **state)
{
    char *show[] = {(char *)"show", NULL};
    struct err e = {0};
    struct buf out;
    sigset_t all, before;
    atomic_bool cancel = false;
    write_script("show", "while read line; do case $line in Sig[BI]*) echo $line;; esac; done </proc/self/status\n"
                         "read line && echo 'standard input is not empty'");
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    signal(SIGPIPE, SIG_IGN);
    buf_init(&out, 10000);
    assert_int_equal(tool_run(show, 60000, &cancel, &out, &e), 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
    signal(SIGPIPE, SIG_DFL);
    assert_memory_equal(out.data, "SigBlk: 0000000000000000\nSigIgn: ", 33);
    assert_int_equal(strtoull(out.data + 33, NULL, 16) >> (SIGPIPE - 1) & 1, 0);
    buf_free(&out);
}

static void a_process_goes_on_after_eu_stack_looked_at_it(void **state)
{
    siginfo_t info = {0};
    setenv("PATH", former_path, 1);
    if (system("eu-stack --version >/dev/null 2>&1") != 0) {
        print_message("# SKIP eu-stack is not installed\n");
        skip();
    }
    start("worker");
    save();
    if (strstr(text, "(no call stacks of eu-stack")) {
        print_message("# SKIP ptrace is refused\n");
        skip();
    }
    has("\neu-stack:\n");
    assert_memory_equal(top, "  #0 ", 5);
    kill(pid, SIGTERM);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(info.si_status, SIGTERM);
}

static void on_gathered(void *arg)
{
    *(bool *)arg = true;
}

static void gather_all(uv_loop_t *loop, struct gather *g, bool *done)
{
    const struct gather_options o = {.loop = loop, .threads = 3, .done = on_gathered, .arg = done};
    struct err e;
    *done = false;
    if (gather_start(g, &o, &e) < 0)
        fail_msg("%s", e.text);
}

/* Frames of one place are alike wherever the program is loaded. */
static void several_processes_are_told_of_as_json(void **state)
{
    struct gather *g = gather_new(3);
    struct buf out = {0};
    uv_loop_t loop;
    bool done;
    char expected[512];
    write_script("eu-stack", "[ $3 != 1 ] || exit 1\n"
                             "printf 'TID %s:\\n#0  0x00007f33d58c7aec pselect - /usr/lib/libc.so.6\\n' $3\n"
                             "printf '#1  0x0000562085572 - /usr/bin/bash\\n#2  0x7 [vdso]\\n'");
    start("worker");
    const pid_t pids[] = {pid, 1, 999999999};
    for (int i = 0; i < 3; i++) {
        gather_at(g, i)->rank = 10 + i;
        gather_at(g, i)->pid = pids[i];
    }
    uv_loop_init(&loop);
    gather_all(&loop, g, &done);
    while (!done)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(stacks_json(g, 100000, &out), 0);
    snprintf(expected, sizeof expected, "{\"ranks\":[{\"rank\":10,\"pid\":%d,\"state\":\"S\",\"wait\":", (int)pid);
    assert_memory_equal(out.data, expected, strlen(expected));
    assert_non_null(
        strstr(out.data, "\"frames\":[\"pselect (libc.so.6)\",\"? (bash)\",\"[vdso] (?)\"]},{\"rank\":11,"));
    assert_non_null(strstr(out.data, "\"frames\":[],\"why\":\"no call stacks of eu-stack: it says nothing\"}"));
    assert_non_null(strstr(out.data, "\"why\":\"threads of process 999999999: No such file or directory\"}],"));
    assert_non_null(strstr(out.data, "\"left_out\":0}"));
    buf_clear(&out);
    assert_int_equal(stacks_json(g, 256, &out), 0); /* room for one of them */
    assert_true(out.len <= 256);
    assert_non_null(strstr(out.data, "\"left_out\":2}"));
    gather_drop(g);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    buf_free(&out);
}

static void whoever_does_not_wait_any_more_leaves_nothing_behind(void **state)
{
    struct gather *g = gather_new(2), *unstarted = gather_new(1);
    struct buf out = {0};
    uv_loop_t loop;
    bool done;
    write_script("eu-stack", "/bin/sleep 600");
    start("worker");
    for (int i = 0; i < 2; i++)
        gather_at(g, i)->pid = pid;
    uv_loop_init(&loop);
    gather_all(&loop, g, &done);
    assert_int_equal(gather_threads(), 2);
    assert_int_equal(stacks_json(g, 100000, &out), 0);
    assert_non_null(strstr(out.data, "\"why\":\"no time was left\""));
    gather_drop(g);
    gather_drop(unstarted);
    gather_drop(NULL);
    gather_wait();
    assert_int_equal(gather_threads(), 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_false(done);
    buf_free(&out);
}

int main(void)
{
#define STACKS_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        STACKS_TEST(what_the_kernel_knows_is_there_without_any_tool),
        STACKS_TEST(python_programs_are_shown_by_py_spy),
        STACKS_TEST(others_are_shown_by_eu_stack),
        STACKS_TEST(a_tool_that_fails_is_told_of_and_the_next_one_tried),
        STACKS_TEST(a_stopped_process_is_not_stopped_again),
        STACKS_TEST(a_tool_has_limits),
        STACKS_TEST(a_tool_has_no_signal_blocked_or_ignored),
        STACKS_TEST(a_process_goes_on_after_eu_stack_looked_at_it),
        STACKS_TEST(several_processes_are_told_of_as_json),
        STACKS_TEST(whoever_does_not_wait_any_more_leaves_nothing_behind),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("stacks", tests, NULL, NULL);
}
