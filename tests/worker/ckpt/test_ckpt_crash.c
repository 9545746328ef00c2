/* Saves that do not end: killed at random moments, on a full disk, beyond a file-size limit. What was there before
 * stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "tests/worker/ckpt/state.h"
#include "tests/worker/scratch/scratch.h"

#define KILLS 50

/* Saves step after step from `first` and reports each acknowledged one; never returns. */
static _Noreturn void save_for_ever(const char *dir, int64_t first, int report)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int64_t step = first;; step++) {
        struct err e;
        if (state_save(dir, step, 2, &e) < 0) {
            fprintf(stderr, "%s\n", e.text);
            _exit(1);
        }
        if (write(report, &step, sizeof step) != sizeof step)
            _exit(2);
    }
}

static int64_t read_report(int fd, int64_t last)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int64_t step;
    assert_int_equal(poll(&p, 1, 30000), 1);
    while (read(fd, &step, sizeof step) == sizeof step)
        last = step;
    return last;
}

/* Start a saver; after its first acknowledged save, kill it at a moment between now and 1.5 times what that save took,
 * so that every part of a save is hit on fast and slow disks. Returns the last step it acknowledged. */
static int64_t kill_one(const char *dir, int64_t first, unsigned *seed)
{
    int fds[2], status;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    fflush(NULL);
    int64_t start = clock_ns();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        save_for_ever(dir, first, fds[1]);
    close(fds[1]);
    int64_t first_report;
    assert_int_equal(read(fds[0], &first_report, sizeof first_report), sizeof first_report);
    assert_int_equal(first_report, first);
    int64_t wait = (int64_t)(1.5 * (double)(clock_ns() - start) * rand_r(seed) / RAND_MAX);
    /* not to synchronise: the random moment itself */
    struct timespec moment = {.tv_sec = wait / 1000000000, .tv_nsec = wait % 1000000000};
    nanosleep(&moment, NULL);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    int64_t last = read_report(fds[0], first_report);
    close(fds[0]);
    return last;
}

static void whenever_a_save_is_killed_a_complete_checkpoint_is_readable(void **state)
{
    unsigned seed = (unsigned)getpid();
    int torn = 0;
    int64_t next = 0, saved = 0;
    for (int i = 0; i < KILLS; i++) {
        int64_t acknowledged = kill_one(*state, next, &seed), found = -1;
        struct err e = {0};
        torn += scratch_count(*state, ".tmp") > 0;
        assert_int_equal(ckpt_latest(*state, &found, &e), 0);
        if (found < acknowledged || found > acknowledged + 1)
            fail_msg("kill %d: step %lld was acknowledged, %lld found", i, (long long)acknowledged, (long long)found);
        state_check(*state, found);
        saved += found - next + 1;
        next = found + 1;
    }
    print_message("# %d kills over %lld saves, %d within one\n", KILLS, (long long)saved, torn);
    assert_true(torn > 0);
    struct err e;
    assert_int_equal(state_save(*state, next, 2, &e), 0);
    assert_int_equal(scratch_count(*state, ".tmp"), 0);
}

/* In a child process: 0 if saving step 2 fails with `code`, names the folder, and leaves step 1 and nothing else. */
static int expect_failure(const char *dir, int code)
{
    struct err e = {0};
    int64_t step;
    int rc = state_save(dir, 2, 1, &e);
    if (rc != code || !strstr(e.text, dir)) {
        fprintf(stderr, "# %s '%s' instead of %s\n", err_name(rc), e.text, err_name(code));
        return 1;
    }
    if (ckpt_latest(dir, &step, &e) < 0 || step != 1)
        return 2;
    return scratch_count(dir, ".tmp") == 0 && scratch_count(dir, "2") == 0 ? 0 : 3;
}

static int in_child(int (*body)(const char *dir), const char *dir)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(body(dir));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int beyond_a_limit(const char *dir)
{
    struct rlimit small = {.rlim_cur = 100000, .rlim_max = 100000};
    signal(SIGXFSZ, SIG_IGN);
    return setrlimit(RLIMIT_FSIZE, &small) < 0 ? 9 : expect_failure(dir, -EFBIG);
}

static void a_file_size_limit_leaves_the_checkpoint_before(void **state)
{
    struct err e;
    assert_int_equal(state_save(*state, 1, 0, &e), 0);
    assert_int_equal(in_child(beyond_a_limit, *state), 0);
    state_check(*state, 1);
}

#define CANNOT_MOUNT 77

static int on_a_small_disk(const char *dir)
{
    struct err e;
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", dir, "tmpfs", 0, "size=800k") < 0)
        return CANNOT_MOUNT;
    return state_save(dir, 1, 0, &e) < 0 ? 9 : expect_failure(dir, -ENOSPC);
}

static void a_full_disk_leaves_the_checkpoint_before(void **state)
{
    int rc = in_child(on_a_small_disk, *state);
    if (rc == CANNOT_MOUNT) {
        print_message("# SKIP no right to mount a small disk\n");
        skip();
    }
    assert_int_equal(rc, 0);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    log_init(LOG_ERROR, "");
    const struct CMUnitTest tests[] = {
        CASE(whenever_a_save_is_killed_a_complete_checkpoint_is_readable),
        CASE(a_file_size_limit_leaves_the_checkpoint_before),
        CASE(a_full_disk_leaves_the_checkpoint_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
