/* Finding and ending what is below this process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/crun/crun_page.h"
#include "launcher/guard/procs.h"
#include "launcher/guard/tree.h"

#define PATIENCE_MS 20000

static void *sleep_on(void *arg)
{
    for (;;)
        pause();
    return arg;
}

static _Noreturn void leave_a_thread(void)
{
    pthread_t t;
    pthread_create(&t, NULL, sleep_on, NULL);
    pthread_exit(NULL);
}

static bool find(pid_t pid, struct proc *ret)
{
    struct procs ps;
    bool found = false;
    assert_true(procs_below(&ps, getpid()));
    for (size_t i = 0; i < ps.n; i++)
        if (ps.v[i].pid == pid) {
            *ret = ps.v[i];
            found = true;
        }
    procs_free(&ps);
    return found;
}

static void a_process_whose_first_thread_has_ended_is_alive(void **state)
{
    struct proc p = {0};
    const int64_t end = clock_deadline(PATIENCE_MS);
    const pid_t pid = fork();
    (void)state;
    if (pid == 0)
        leave_a_thread();
    while (p.state != 'Z' && clock_left(end)) {
        usleep(1000);
        assert_true(find(pid, &p));
    }
    assert_int_equal(p.state, 'Z');
    assert_false(proc_is_dead(&p));
    assert_true(tree_kill_all(PATIENCE_MS / 4));
}

static void a_process_that_nobody_has_reaped_is_dead(void **state)
{
    struct proc p;
    siginfo_t info;
    const pid_t pid = fork();
    (void)state;
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_true(find(pid, &p));
    assert_true(proc_is_dead(&p));
    assert_int_equal(tree_kill(), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static atomic_bool caught;

static void catch (int signo)
{
    (void)signo;
    atomic_store(&caught, true);
}

/* In a child of as many groups as a directory service may give a user: exit code 0 if the signal came. */
static _Noreturn void await_signal(int ready_fd)
{
    gid_t groups[500];
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        groups[i] = 1700000000u + (gid_t)i;
    if (setgroups(sizeof groups / sizeof *groups, groups) < 0)
        _exit(2);
    signal(SIGUSR1, catch);
    if (write(ready_fd, "", 1) != 1)
        _exit(3);
    for (int i = 0; i < PATIENCE_MS && !atomic_load(&caught); i++)
        usleep(1000);
    _exit(!atomic_load(&caught));
}

static void a_signal_reaches_a_user_of_many_groups(void **state)
{
    int ready[2], status = -1;
    char byte, mask[PROC_FIELD_MAX];
    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can join groups */
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0)
        await_signal(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_true(proc_field(pid, "SigCgt", mask));
    assert_false(proc_field(pid, "NoSuchField", mask));
    tree_signal(pid, false, SIGUSR2); /* it would die of this one */
    tree_signal(pid, false, SIGUSR1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    close(ready[0]);
    close(ready[1]);
}

static void a_signal_that_is_not_taken_is_pending(void **state)
{
    (void)state;
    sigset_t usr1, before;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, &before);
    assert_false(tree_has_pending(getpid(), SIGUSR1));
    kill(getpid(), SIGUSR1);
    assert_true(tree_has_pending(getpid(), SIGUSR1));
    sigwait(&usr1, &(int){0});
    sigprocmask(SIG_SETMASK, &before, NULL);
}

static void *fork_one(void *arg)
{
    const pid_t pid = fork();
    if (pid == 0)
        sleep_on(NULL);
    *(_Atomic pid_t *)arg = pid;
    while (pid > 0)
        pause();
    return NULL;
}

static void the_children_of_every_thread_are_found(void **state)
{
    struct proc p;
    pthread_t t;
    _Atomic pid_t pid = 0;
    (void)state;
    pthread_create(&t, NULL, fork_one, &pid);
    while (pid == 0)
        usleep(1000);
    assert_true(find(pid, &p));
    assert_int_equal(p.parent, getpid());
    assert_true(tree_kill_all(PATIENCE_MS / 4));
    pthread_cancel(t);
    pthread_join(t, NULL);
}

static void whoever_left_its_parents_is_found(void **state)
{
    int ends[2];
    pid_t pid = 0;
    struct proc p;
    (void)state;
    assert_int_equal(pipe(ends), 0);
    if (fork() == 0) {
        setsid();
        pid = fork();
        if (pid == 0)
            sleep_on(NULL);
        ssize_t ignored = write(ends[1], &pid, sizeof pid);
        (void)ignored;
        _exit(0);
    }
    assert_int_equal(read(ends[0], &pid, sizeof pid), sizeof pid);
    close(ends[0]);
    close(ends[1]);
    const int64_t end = clock_deadline(PATIENCE_MS);
    while ((!find(pid, &p) || p.parent != getpid()) && clock_left(end))
        usleep(1000);
    assert_int_equal(p.parent, getpid());
    assert_true(tree_kill() >= 1);
    assert_true(tree_kill_all(PATIENCE_MS / 4));
    assert_true(tree_empty());
}

static void who_only_holds_the_memory_of_a_dead_worker_is_ended_and_not_counted(void **state)
{
    struct proc p;
    const int64_t end = clock_deadline(PATIENCE_MS);
    const pid_t memory = fork(), other = memory ? fork() : 0;
    (void)state;
    if (memory == 0)
        prctl(PR_SET_NAME, CRUN_MEMORY_NAME);
    if (memory == 0 || other == 0)
        sleep_on(NULL);
    while ((!find(memory, &p) || strcmp(p.name, CRUN_MEMORY_NAME) != 0) && clock_left(end))
        usleep(1000);
    assert_int_equal(tree_others(NULL, 0, false), 1);
    assert_int_equal(tree_others(&other, 1, true), 0);
    assert_int_equal(waitpid(memory, NULL, 0), memory);
    assert_true(tree_kill_all(PATIENCE_MS / 4));
}

/* Children in sessions of their own, one after another. */
static _Noreturn void fork_on(void)
{
    for (;;) {
        const pid_t pid = fork();
        if (pid == 0) {
            setsid();
            usleep(20000);
            _exit(0);
        }
        usleep(500);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}

static int count_running(void)
{
    struct procs ps;
    int n = 0;
    assert_true(procs_below(&ps, getpid()));
    for (size_t i = 0; i < ps.n; i++)
        n += ps.v[i].state != 'T' && !proc_is_dead(&ps.v[i]);
    procs_free(&ps);
    return n;
}

static void whoever_forks_meanwhile_stands_still(void **state)
{
    struct proc p;
    const pid_t forks = fork(), spared = forks ? fork() : 0;
    (void)state;
    if (forks == 0)
        fork_on();
    if (spared == 0)
        sleep_on(NULL);
    const int64_t end = clock_deadline(PATIENCE_MS);
    while (count_running() < 3 && clock_left(end))
        usleep(1000);
    for (int looks = 0; looks < 2 && clock_left(end);) {
        looks = tree_pause(&spared, 1, false) > 0 ? 0 : looks + 1;
        usleep(1000);
    }
    assert_int_equal(count_running(), 1);
    assert_true(find(spared, &p) && p.state != 'T');
    tree_pause(&spared, 1, true);
    assert_true(find(forks, &p) && p.state != 'T');
    assert_true(tree_kill_all(PATIENCE_MS / 4));
}

/* As under qemu-user, where every child has an exit signal. */
static void a_helper_with_an_exit_signal_is_not_of_the_tree(void **state)
{
    (void)state;
    char text[TREE_ONE_MAX];
    const pid_t helper = fork();
    if (helper == 0)
        for (;;)
            pause();
    assert_true(helper > 0);
    assert_false(tree_empty());
    assert_true(tree_set_beside(0, helper));
    assert_true(tree_empty());
    assert_int_equal(tree_kill(), 0);
    tree_describe(text, sizeof text);
    assert_string_equal(text, "");
    assert_int_equal(kill(helper, SIGKILL), 0);
    assert_int_equal(waitpid(helper, NULL, 0), helper);
    assert_true(tree_set_beside(helper, 0));
    assert_false(tree_set_beside(helper, 0));
    assert_true(tree_empty());
}

static int set_up(void **state)
{
    sigset_t chld;
    (void)state;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    return sigprocmask(SIG_BLOCK, &chld, NULL) || prctl(PR_SET_CHILD_SUBREAPER, 1) || !tree_has_proc();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_reaches_a_user_of_many_groups),
        cmocka_unit_test(a_signal_that_is_not_taken_is_pending),
        cmocka_unit_test(a_process_whose_first_thread_has_ended_is_alive),
        cmocka_unit_test(a_process_that_nobody_has_reaped_is_dead),
        cmocka_unit_test(the_children_of_every_thread_are_found),
        cmocka_unit_test(whoever_left_its_parents_is_found),
        cmocka_unit_test(who_only_holds_the_memory_of_a_dead_worker_is_ended_and_not_counted),
        cmocka_unit_test(whoever_forks_meanwhile_stands_still),
        cmocka_unit_test(a_helper_with_an_exit_signal_is_not_of_the_tree),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
