/* A worker that leaves its time everywhere it runs: one line "round rank nanoseconds" at the start and every two
 * milliseconds after, all workers of a job into one file ($OUT/stamps), so that a test can see whether two rounds ever
 * ran at once. Monotonic time: one machine.
 *
 * $OUT/finish: exit 0. SIGTERM: exit 75; nothing where STAMP_DEAF is set. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t told;

static void on_term(int signo)
{
    (void)signo;
    told = 1;
}

int main(void)
{
    const char *out = getenv("OUT"), *round = getenv("CRUN_ROUND"), *rank = getenv("RANK");
    const struct timespec pause = {.tv_nsec = 2000000};
    char path[4096], line[128];
    if (!out || !round || !rank)
        return 2;
    signal(SIGTERM, getenv("STAMP_DEAF") ? SIG_IGN : on_term);
    snprintf(path, sizeof path, "%s/stamps", out);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    snprintf(path, sizeof path, "%s/finish", out);
    while (!told) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        int n = snprintf(line, sizeof line, "%s %s %lld%09ld\n", round, rank, (long long)t.tv_sec, t.tv_nsec);
        if (write(fd, line, (size_t)n) != n)
            return 2;
        if (access(path, F_OK) == 0)
            return 0;
        nanosleep(&pause, NULL);
    }
    return 75;
}
