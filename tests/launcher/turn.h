/* For tests that share their loop with what they test. */
#ifndef CRUN_TESTS_LAUNCHER_TURN_H
#define CRUN_TESTS_LAUNCHER_TURN_H

#include <uv.h>

#include "common/base/clock.h"

/* How long this process stood still within TURN_UNTIL, all together since a test set it to 0: a machine that stops says
 * nothing of deadlines. */
static int64_t turn_stood_ms;
#define TURN_STILL_MS 50

static inline void turn_nudge(uv_timer_t *t)
{
    (void)t;
}

/* Turn the loop until the condition holds, or the time is over. */
#define TURN_UNTIL(loop, patience_ms, condition)                                                                       \
    do {                                                                                                               \
        uv_timer_t turn_timer_;                                                                                        \
        int64_t turn_end_ = clock_deadline(patience_ms);                                                               \
        uv_timer_init(loop, &turn_timer_);                                                                             \
        uv_timer_start(&turn_timer_, turn_nudge, 5, 5);                                                                \
        while (!(condition) && clock_left(turn_end_)) {                                                                \
            const int64_t turn_at_ = clock_ms();                                                                       \
            uv_run(loop, UV_RUN_ONCE);                                                                                 \
            const int64_t turn_stood_ = clock_ms() - turn_at_ - TURN_STILL_MS;                                         \
            turn_stood_ms += turn_stood_ > 0 ? turn_stood_ : 0;                                                        \
        }                                                                                                              \
        uv_close((uv_handle_t *)&turn_timer_, NULL);                                                                   \
        uv_run(loop, UV_RUN_NOWAIT);                                                                                   \
    } while (0)

#endif
