/* A wall clock that is wrong, for LD_PRELOAD: CLOCK_REALTIME is FAULT_CLOCK_MS milliseconds later than it is. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t which, struct timespec *t)
{
    const char *text = getenv("FAULT_CLOCK_MS");
    const long rc = syscall(SYS_clock_gettime, which, t);
    if (rc < 0 || which != CLOCK_REALTIME || !text)
        return (int)rc;
    const long long ns = (long long)t->tv_sec * 1000000000 + t->tv_nsec + atoll(text) * 1000000;
    t->tv_sec = ns / 1000000000;
    t->tv_nsec = ns % 1000000000;
    return 0;
}
