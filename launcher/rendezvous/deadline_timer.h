/* A timer of the loop that follows the deadline of a pure machine, a clock_ms() time. */
#ifndef CRUN_LAUNCHER_DEADLINE_TIMER_H
#define CRUN_LAUNCHER_DEADLINE_TIMER_H

#include <stdint.h>
#include <uv.h>

struct deadline_timer {
    uv_timer_t uv; /* the owner closes it; data is the owner's */
    int64_t due;   /* INT64_MAX: not armed */
    void (*over)(void *arg);
    void *arg;
};

void deadline_timer_init(struct deadline_timer *t, uv_loop_t *loop, void (*over)(void *arg), void *arg);
void deadline_timer_set(struct deadline_timer *t, int64_t due); /* INT64_MAX: never */

#endif
