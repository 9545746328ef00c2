/* Reads the clocks, and computes deadlines (clock.h). */
#include "common/base/clock.h"

#include <limits.h>
#include <stdio.h>

int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t clock_ms(void)
{
    return clock_ns() / 1000000;
}

int64_t clock_deadline(int64_t timeout_ms)
{
    int64_t now = clock_ms();
    if (timeout_ms < 0)
        return now;
    return timeout_ms > INT64_MAX - now ? INT64_MAX : now + timeout_ms;
}

int clock_left(int64_t deadline_ms)
{
    int64_t left = deadline_ms - clock_ms();
    return left < 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

struct timespec clock_timespec(int64_t deadline_ms)
{
    return (struct timespec){.tv_sec = deadline_ms / 1000, .tv_nsec = deadline_ms % 1000 * 1000000};
}

int64_t clock_wall_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

char *clock_iso(char *out, size_t cap)
{
    struct timespec t;
    struct tm tm;
    char day[24];
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out, cap, "%s.%03dZ", day, (int)(t.tv_nsec / 1000000));
    return out;
}
