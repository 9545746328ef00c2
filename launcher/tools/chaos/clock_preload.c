/* A wall clock that can be made wrong, for LD_PRELOAD: CLOCK_REALTIME is as many nanoseconds ahead as the file
 * CRUN_CHAOS_CLOCK says, a signed 64-bit number in the machine's order that may change at any time (`crun chaos`,
 * clock). The file is made if it does not exist. Other clocks stay right, as when somebody sets a machine's wall
 * clock. Links nothing of the project. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S INT64_C(1000000000)

static _Atomic int64_t *ahead;

__attribute__((constructor)) static void open_clock(void)
{
    const char *file = getenv("CRUN_CHAOS_CLOCK");
    struct stat st;
    const int fd = file ? open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (st.st_size == sizeof(int64_t) || st.st_size == 0) &&
        ftruncate(fd, sizeof(int64_t)) == 0) {
        void *p = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
        ahead = p == MAP_FAILED ? NULL : p;
    }
    close(fd);
}

int clock_gettime(clockid_t which, struct timespec *t)
{
    const long rc = syscall(SYS_clock_gettime, which, t);
    if (rc < 0 || (which != CLOCK_REALTIME && which != CLOCK_REALTIME_COARSE) || !ahead)
        return (int)rc;
    const int64_t ns = (int64_t)t->tv_sec * NS_PER_S + t->tv_nsec + atomic_load_explicit(ahead, memory_order_relaxed);
    t->tv_sec = ns / NS_PER_S;
    t->tv_nsec = ns % NS_PER_S;
    return 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    tv->tv_sec = t.tv_sec;
    tv->tv_usec = t.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *ret)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (ret)
        *ret = t.tv_sec;
    return t.tv_sec;
}

int timespec_get(struct timespec *t, int base)
{
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, t) == 0 ? base : 0;
}
