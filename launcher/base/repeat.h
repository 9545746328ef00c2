/* Decides when a repeated message is printed. Pure: times are clock_ms() values of the caller. */
#ifndef CRUN_LAUNCHER_REPEAT_H
#define CRUN_LAUNCHER_REPEAT_H

#include <stdbool.h>
#include <stdint.h>

struct repeat {
    int64_t first_ms, most_ms; /* the first pause after a printed message, which doubles each time; the longest pause */
    int64_t next_ms;           /* nothing is printed before then; 0: nothing was printed yet */
    int64_t pause_ms;          /* before next_ms */
    int unsaid;                /* times since it was last said */
};

/* A message is due: print it? *ret_unsaid: how often it was suppressed since it was printed last. The first time it
 * is printed at once; if no message was due for twice the longest pause, the pauses begin anew. */
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

/* Do two messages differ only in digits ("silent for 1200 ms", "silent for 2200 ms")? */
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
