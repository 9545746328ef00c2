/* A sentence that would be printed again and again: when it is said. Pure: times are clock_ms() values that the caller
 * brings. */
#ifndef CRUN_LAUNCHER_REPEAT_H
#define CRUN_LAUNCHER_REPEAT_H

#include <stdbool.h>
#include <stdint.h>

struct repeat {
    int64_t first_ms, most_ms; /* the pauses after what was said: the first one, which doubles, and the longest */
    int64_t next_ms;           /* nothing is said before; 0: nothing was said yet */
    int64_t pause_ms;          /* before next_ms */
    int unsaid;                /* times since it was last said */
};

/* There is something to say now: is it said? *ret_unsaid: how many times it was not, since the last one that was. It is
 * said at once the first time; if nothing came for twice the longest pause, the pauses begin anew. */
static inline bool repeat_is_said(struct repeat *r, int64_t now_ms, int *ret_unsaid)
{
    const bool anew = r->next_ms == 0 || now_ms - r->next_ms >= 2 * r->most_ms;
    *ret_unsaid = 0;
    if (!anew && now_ms < r->next_ms) {
        r->unsaid++;
        return false;
    }
    r->pause_ms = anew ? r->first_ms : 2 * r->pause_ms;
    if (r->pause_ms > r->most_ms)
        r->pause_ms = r->most_ms;
    r->next_ms = now_ms + r->pause_ms;
    *ret_unsaid = r->unsaid;
    r->unsaid = 0;
    return true;
}

/* "silent for 1200 ms" and "silent for 2200 ms": they differ in nothing but digits. */
static inline bool repeat_is_same(const char *a, const char *b)
{
    for (;; a++, b++) {
        while (*a >= '0' && *a <= '9')
            a++;
        while (*b >= '0' && *b <= '9')
            b++;
        if (*a != *b || *a == 0)
            return *a == *b;
    }
}

#endif
