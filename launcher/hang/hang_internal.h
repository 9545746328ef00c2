/* What hang.c and hang_lesson.c share; for them alone. */
#ifndef CRUN_LAUNCHER_HANG_INTERNAL_H
#define CRUN_LAUNCHER_HANG_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "launcher/hang/hang.h"

static inline bool hang_progressed(const struct hang_worker *w)
{
    return atomic_load(&w->page->first_step_ns) != 0;
}

static inline int64_t hang_later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t hang_sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#endif
