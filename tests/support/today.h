/* Tests of a grid whose points are dear take every fifth one, and another fifth each day; --slow takes all of them
 * (TEST_POINTS=all), and the large sizes of other tests. TEST_DAY=N repeats a day: days since 1970, or what is left of
 * them when divided by five. */
#ifndef CRUN_TESTS_SUPPORT_TODAY_H
#define CRUN_TESTS_SUPPORT_TODAY_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline bool are_all_points_taken(void)
{
    const char *points = getenv("TEST_POINTS");
    return points && strcmp(points, "all") == 0;
}

/* The i-th point of a grid. */
static inline bool is_for_today(size_t i)
{
    const char *day = getenv("TEST_DAY");
    if (are_all_points_taken())
        return true;
    return (i + (size_t)(day ? atoll(day) : time(NULL) / 86400)) % 5 == 0;
}

#endif
