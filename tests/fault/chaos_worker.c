/* A worker that keeps a journal of when it ran, for tests/e2e/elastic/test_chaos.py: a file of its own in $OUT/journal,
 *
 *     kind round rank world pid node begin-ns
 *     last-ns
 *
 * of monotonic time, the last one written again each millisecond: what is killed leaves it. kind: worker, or daemon, a
 * child of each worker in a session of its own. MASTER_ADDR:MASTER_PORT tells worlds apart.
 *
 * $OUT/finish: exit 0. SIGTERM: exit 75; each third rank and all daemons ignore it. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t told;

static void on_term(int signo)
{
    (void)signo;
    told = 1;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static const char *need(const char *name)
{
    const char *value = getenv(name);
    if (value)
        return value;
    fprintf(stderr, "chaos_worker: %s is not set\n", name);
    exit(2);
}

/* The line that does not change, in one go: whoever reads finds all of it or nothing. Returns its length, < 0: failed.
 */
static int begin(int fd, const char *kind)
{
    char line[512];
    const int64_t now = now_ns();
    const int n = snprintf(line, sizeof line, "%s %s %s %s:%s %d %s %lld\n", kind, need("CRUN_ROUND"), need("RANK"),
                           need("MASTER_ADDR"), need("MASTER_PORT"), (int)getpid(), need("CHAOS_NODE"), (long long)now);
    const int all = n + snprintf(line + n, sizeof line - (size_t)n, "%020lld\n", (long long)now);
    return write(fd, line, (size_t)all) == all ? n : -1;
}

static int keep_journal(const char *kind, const char *say)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    char path[4096], last[32];
    snprintf(path, sizeof path, "%s/journal/%s-%d-%lld", need("OUT"), kind, (int)getpid(), (long long)now_ns());
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    const int at = fd < 0 ? -1 : begin(fd, kind);
    if (at < 0)
        return 2;
    snprintf(path, sizeof path, "%s/finish", need("OUT"));
    for (int turn = 0; !told; turn++) {
        const int n = snprintf(last, sizeof last, "%020lld\n", (long long)now_ns());
        if (pwrite(fd, last, (size_t)n, at) != n)
            return 2;
        if (access(path, F_OK) == 0)
            return 0;
        if (say && turn % 50 == 0) {
            printf("%s turn %d\n", say, turn);
            fflush(stdout);
        }
        nanosleep(&pause, NULL);
    }
    return 75;
}

int main(void)
{
    const int rank = atoi(need("RANK"));
    const pid_t daemon = fork();
    if (daemon < 0)
        return 2;
    if (daemon == 0) {
        setsid();
        signal(SIGTERM, SIG_IGN);
        return keep_journal("daemon", NULL);
    }
    signal(SIGTERM, rank % 3 == 2 ? SIG_IGN : on_term);
    return keep_journal("worker", "step");
}
