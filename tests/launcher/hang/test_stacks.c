/* Saving the stacks of a process that changes meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/err.h"
#include "launcher/hang/stacks.h"

static void wait_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static bool stalls; /* the machine does, for longer than a process is given to stop */

long ptrace(enum __ptrace_request request, ...)
{
    va_list ap;
    va_start(ap, request);
    const pid_t pid = va_arg(ap, pid_t);
    void *addr = va_arg(ap, void *), *data = va_arg(ap, void *);
    va_end(ap);
    long (*real)(enum __ptrace_request, ...);
    *(void **)&real = dlsym(RTLD_NEXT, "ptrace");
    const long rc = real(request, pid, addr, data);
    if (stalls && request == PTRACE_INTERRUPT)
        wait_ms(700);
    return rc;
}

/* It waits in the kernel for its own child, as vfork(2) makes it: ptrace cannot stop it there, SIGKILL ends it. */
static pid_t start_unstoppable(void)
{
    int ready[2];
    char word;
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0 && vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* it would outlive the test */
        ssize_t ignored = write(ready[1], "x", 1);
        (void)ignored;
        pause();
        _exit(0);
    }
    if (pid == 0)
        _exit(0);
    assert_true(pid > 0);
    assert_int_equal(read(ready[0], &word, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return pid;
}

static pid_t tracer_of(pid_t pid)
{
    char path[64], line[128];
    int tracer = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "TracerPid: %d", &tracer) == 1)
            break;
    if (f)
        fclose(f);
    return tracer;
}

static pid_t child_of(pid_t pid)
{
    char path[64];
    int child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "re");
    assert_true(f && fscanf(f, "%d", &child) == 1);
    fclose(f);
    return child;
}

static void *kill_when_traced(void *arg)
{
    const pid_t pid = *(pid_t *)arg;
    for (int i = 0; i < 10000 && tracer_of(pid) == 0; i++)
        wait_ms(1);
    wait_ms(20); /* nobody stops it meanwhile: any moment of the half second will do */
    kill(pid, SIGKILL);
    return NULL;
}

static void how_a_process_ended_is_left_to_its_parent(void **state)
{
    char path[] = "/tmp/stacks-XXXXXX";
    atomic_bool cancel = false;
    pthread_t killer;
    struct err e = {0};
    siginfo_t info = {0};
    close(mkstemp(path));
    pid_t pid = start_unstoppable();
    assert_int_equal(pthread_create(&killer, NULL, kill_when_traced, &pid), 0);
    const struct stacks_request r = {.path = path, .head = "rank 0", .pid = pid, .cancel = &cancel};
    assert_int_equal(stacks_save(&r, &e), 0);
    pthread_join(killer, NULL);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED), 0);
    assert_int_equal(info.si_code, CLD_KILLED);
    assert_int_equal(info.si_status, SIGKILL);
    unlink(path);
}

static void a_process_goes_on_after_its_stacks_were_saved(void **state)
{
    char path[] = "/tmp/stacks-XXXXXX";
    atomic_bool cancel = false;
    struct err e = {0};
    siginfo_t info = {0};
    int ready[2];
    char word;
    close(mkstemp(path));
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        ssize_t ignored = write(ready[1], "x", 1);
        (void)ignored;
        pause();
        _exit(1);
    }
    assert_int_equal(read(ready[0], &word, 1), 1); /* it runs: half a second is enough to stop it */
    close(ready[0]);
    close(ready[1]);
    const struct stacks_request r = {.path = path, .head = "rank 0", .pid = pid, .cancel = &cancel};
    assert_int_equal(stacks_save(&r, &e), 0);
    assert_int_equal(tracer_of(pid), 0);
    kill(pid, SIGTERM);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED), 0);
    assert_int_equal(info.si_status, SIGTERM);
    unlink(path);
}

static void a_process_that_stopped_while_nobody_could_look_is_held(void **state)
{
    char path[] = "/tmp/stacks-XXXXXX", text[4096];
    atomic_bool cancel = false;
    struct err e = {0};
    close(mkstemp(path));
    const pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    const struct stacks_request r = {.path = path, .head = "rank 0", .pid = pid, .cancel = &cancel};
    stalls = true;
    assert_int_equal(stacks_save(&r, &e), 0);
    stalls = false;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    assert_null(strstr(text, "it does not stop"));
    unlink(path);
}

static void *save(void *arg)
{
    struct err e = {0};
    return (void *)(intptr_t)stacks_save(arg, &e);
}

static void one_that_stops_late_goes_on_when_the_thread_that_saves_ends(void **state)
{
    char path[] = "/tmp/stacks-XXXXXX";
    atomic_bool cancel = false;
    pthread_t thread;
    void *rc;
    siginfo_t info = {0};
    close(mkstemp(path));
    const pid_t pid = start_unstoppable();
    const struct stacks_request r = {.path = path, .head = "rank 0", .pid = pid, .cancel = &cancel};
    assert_int_equal(pthread_create(&thread, NULL, save, (void *)&r), 0);
    pthread_join(thread, &rc);
    assert_int_equal((intptr_t)rc, 0);
    for (int i = 0; i < 10000 && tracer_of(pid); i++)
        wait_ms(1); /* the kernel lets go of it after the join */
    assert_int_equal(tracer_of(pid), 0);
    kill(pid, SIGTERM);
    kill(child_of(pid), SIGKILL); /* it comes out of the kernel, where it would have stopped */
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED), 0);
    assert_int_equal(info.si_status, SIGTERM);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(how_a_process_ended_is_left_to_its_parent),
        cmocka_unit_test(a_process_goes_on_after_its_stacks_were_saved),
        cmocka_unit_test(a_process_that_stopped_while_nobody_could_look_is_held),
        cmocka_unit_test(one_that_stops_late_goes_on_when_the_thread_that_saves_ends),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("stacks", tests, NULL, NULL);
}
