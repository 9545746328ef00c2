/* Forks a process for each rank, watches over them, and ends all when one fails. */
#include "worker/meet/spawn.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"

enum { GRACE_MS = 10000, REAP_MS = 5000 };

/* Shared by the ranks: hashes of what some of them have said; 0: free. */
enum { SAID = 16 };
static _Atomic uint32_t *said;

bool spawn_says_first(const char *text)
{
    const uint32_t hash = crc32c(0, text, strlen(text)) | 1;
    for (int i = 0; said && i < SAID; i++) {
        uint32_t other = 0;
        if (atomic_compare_exchange_strong(&said[i], &other, hash))
            return true;
        if (other == hash)
            return false;
    }
    return true;
}

static const int forwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
enum { FORWARDED = sizeof forwarded / sizeof *forwarded };

struct team {
    pid_t *pids; /* 0: has ended */
    int n, left, code;
    bool failed;     /* some rank has: the others are to end */
    bool killed;     /* by SIGKILL: SIGTERM did not end them in time */
    int64_t next_at; /* of clock_ms(), once failed: kill; once killed: give up */
};

static void signal_all(const struct team *t, int sig)
{
    for (int i = 0; i < t->n; i++)
        if (t->pids[i] > 0)
            kill(t->pids[i], sig);
}

static void say_failure(int rank, int status)
{
    if (WIFSIGNALED(status))
        fprintf(stderr, "trainer: rank %d was killed by signal %d (%s); ending the others\n", rank, WTERMSIG(status),
                strsignal(WTERMSIG(status)));
    else
        fprintf(stderr, "trainer: rank %d ended with exit code %d; ending the others\n", rank, WEXITSTATUS(status));
}

static bool by_us(const struct team *t, int status)
{
    return WIFSIGNALED(status) && (WTERMSIG(status) == SIGTERM || (WTERMSIG(status) == SIGKILL && t->killed));
}

/* A rank whose peer has gone fails with EXIT_FAIL, and may be seen before the peer: a code that says more comes
 * first. */
static void note_end(struct team *t, int rank, int status)
{
    const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (code == EXIT_OK)
        return;
    if (code == EXIT_REQUEUE) {
        if (!t->failed)
            t->code = code;
        return;
    }
    if (!t->failed) {
        say_failure(rank, status);
        t->failed = true;
        t->code = code;
        t->next_at = clock_ms() + GRACE_MS;
        signal_all(t, SIGTERM);
    } else if (t->code == EXIT_FAIL && code != EXIT_FAIL && !by_us(t, status)) {
        say_failure(rank, status);
        t->code = code;
    }
}

static void reap(struct team *t)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (int i = 0; i < t->n; i++)
            if (t->pids[i] == pid) {
                t->pids[i] = 0;
                t->left--;
                note_end(t, i, status);
            }
}

/* Uninterruptible sleep, on a disk that hangs say, outlasts SIGKILL. */
static void say_left(const struct team *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->pids[i] > 0)
            fprintf(stderr, "trainer: rank %d, process %d, has not ended %d s after SIGKILL and is left behind\n", i,
                    (int)t->pids[i], REAP_MS / 1000);
}

static void supervise(struct team *t, const sigset_t *watched)
{
    while (t->left > 0) {
        const int64_t left = t->next_at - clock_ms();
        const struct timespec wait = {.tv_sec = left > 0 ? left / 1000 : 0,
                                      .tv_nsec = left > 0 ? left % 1000 * 1000000 : 0};
        const int sig = t->failed ? sigtimedwait(watched, NULL, &wait) : sigwaitinfo(watched, NULL);
        if (sig > 0 && sig != SIGCHLD)
            signal_all(t, sig);
        reap(t);
        if (t->left == 0 || !t->failed || clock_ms() < t->next_at)
            continue;
        if (t->killed) {
            say_left(t);
            return;
        }
        signal_all(t, SIGKILL);
        t->killed = true;
        t->next_at = clock_ms() + REAP_MS;
    }
}

static int start(struct team *t, const sigset_t *before, int *ret_rank, struct err *e)
{
    const pid_t parent = getpid();
    for (int i = 0; i < t->n; i++) {
        const pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(EXIT_FAIL);
            sigprocmask(SIG_SETMASK, before, NULL);
            *ret_rank = i;
            return 0;
        }
        if (pid < 0) {
            const int rc = err_errno(e, errno, "start rank %d of %d", i, t->n);
            signal_all(t, SIGKILL);
            return rc;
        }
        t->pids[i] = pid;
        t->left++;
    }
    *ret_rank = -1;
    return 0;
}

int spawn_ranks(int n, int *ret_rank, int *ret_code, struct err *e)
{
    struct team t = {.pids = calloc((size_t)n, sizeof *t.pids), .n = n};
    sigset_t watched, before;
    void *page = mmap(NULL, SAID * sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!t.pids || page == MAP_FAILED)
        return err_set(e, -ENOMEM, "no memory for %d ranks", n);
    said = page;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    for (int i = 0; i < FORWARDED; i++)
        sigaddset(&watched, forwarded[i]);
    sigprocmask(SIG_BLOCK, &watched, &before);
    const int rc = start(&t, &before, ret_rank, e);
    if (rc == 0 && *ret_rank < 0)
        supervise(&t, &watched);
    free(t.pids);
    if (*ret_rank < 0)
        sigprocmask(SIG_SETMASK, &before, NULL);
    *ret_code = t.code;
    return rc;
}
