/* common/base/clock.h, whose time is a node's while the home of one runs (api_world.c). */
#include <limits.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "tests/sim/api.h"

int64_t (*api_clock)(void);

int64_t clock_ns(void)
{
    struct timespec t;
    if (api_clock)
        return api_clock() * 1000000;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t clock_ms(void)
{
    return clock_ns() / 1000000;
}

int64_t clock_deadline(int64_t timeout_ms)
{
    return clock_ms() + (timeout_ms > 0 ? timeout_ms : 0);
}

int clock_left(int64_t deadline_ms)
{
    const int64_t left = deadline_ms - clock_ms();
    return left < 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

struct timespec clock_timespec(int64_t deadline_ms)
{
    return (struct timespec){.tv_sec = deadline_ms / 1000, .tv_nsec = deadline_ms % 1000 * 1000000};
}

int64_t clock_wall_ms(void)
{
    return 0;
}

char *clock_iso(char *out, size_t cap)
{
    snprintf(out, cap, "-");
    return out;
}
