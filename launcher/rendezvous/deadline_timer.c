/* Arms a timer where its deadline has moved, and only there. See deadline_timer.h. */
#include "launcher/rendezvous/deadline_timer.h"

#include "common/base/clock.h"
#include "common/base/container_of.h"

void deadline_timer_init(struct deadline_timer *t, uv_loop_t *loop, void (*over)(void *arg), void *arg)
{
    uv_timer_init(loop, &t->uv);
    t->due = INT64_MAX;
    t->over = over;
    t->arg = arg;
}

static void on_over(uv_timer_t *timer)
{
    struct deadline_timer *t = container_of(timer, struct deadline_timer, uv);
    t->due = INT64_MAX;
    t->over(t->arg);
}

void deadline_timer_set(struct deadline_timer *t, int64_t due)
{
    const int64_t now = clock_ms();
    if (due == t->due)
        return;
    t->due = due;
    uv_update_time(t->uv.loop);
    if (due == INT64_MAX)
        uv_timer_stop(&t->uv);
    else
        uv_timer_start(&t->uv, on_over, due > now ? (uint64_t)(due - now) : 0, 0);
}
