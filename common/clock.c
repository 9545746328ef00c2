#include "common/clock.h"

#include <stdio.h>
#include <time.h>

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
