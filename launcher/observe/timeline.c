/* Prints where the time of a restart went (timeline.h). */
#include "launcher/observe/timeline.h"

#include <stdio.h>

static double ms(int64_t from, int64_t to)
{
    return from > 0 && to > from ? (double)(to - from) / 1e6 : 0;
}

char *timeline_text(const struct timeline *t, char *out, size_t cap)
{
    char budget[16] = "", kept[32] = "";
    if (t->max_restarts >= 0)
        snprintf(budget, sizeof budget, "/%d", t->max_restarts);
    if (t->kept > 0)
        snprintf(kept, sizeof kept, ", kept %d worker%s", t->kept, t->kept == 1 ? "" : "s");
    int n = snprintf(out, cap, "restart %d%s (%s)%s: detect %.1f ms, stop %.1f ms, rendezvous %.1f ms, spawn %.1f ms",
                     t->restart, budget, t->cause, kept, ms(t->woken, t->detected), ms(t->detected, t->gone),
                     ms(t->gone, t->round), ms(t->round, t->spawned));
    if (t->met && n >= 0 && (size_t)n < cap)
        n += snprintf(out + n, cap - (size_t)n, ", ranks met %.0f ms", ms(t->spawned, t->met));
    if (t->first_step && n >= 0 && (size_t)n < cap)
        snprintf(out + n, cap - (size_t)n, ", first step %.0f ms", ms(t->spawned, t->first_step));
    return out;
}
