/* The budget of restarts: which restarts count against it, and how long the job waits before it uses another.
 * Without a restart window a number is enough; with one, the times of restarts that still count are kept. */
#include <errno.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/rdzv/machine/rdzv_impl.h"

int rdzv_reserve_restart_(struct rdzv *r)
{
    return ARRAY_RESERVE(r->restart_times, r->restart_cap, r->restart_n + 1);
}

size_t rdzv_expired_restarts_(const struct rdzv *r, int64_t now)
{
    size_t n = 0;
    while (n < r->restart_n && now - r->restart_times[n] > r->config.restart_window_ms)
        n++;
    return n;
}

void rdzv_forget_restarts_(struct rdzv *r, int64_t now)
{
    size_t old = rdzv_expired_restarts_(r, now);
    if (old == 0)
        return;
    r->restart_n -= old;
    memmove(r->restart_times, r->restart_times + old, r->restart_n * sizeof *r->restart_times);
}

int rdzv_used_up_(struct rdzv *r, int64_t now)
{
    if (r->config.restart_window_ms == 0)
        return r->m.restarts;
    rdzv_forget_restarts_(r, now);
    return (int)r->restart_n;
}

void rdzv_use_up_restart_(struct rdzv *r, int64_t now)
{
    r->m.restarts++;
    if (r->config.restart_window_ms == 0)
        return;
    r->restart_times[r->restart_n++] = now; /* reserved before the step began */
    r->restart_new = true;
}

int64_t rdzv_backoff_(const struct rdzv *r)
{
    const struct rdzv_config *c = &r->config;
    int64_t wait = c->backoff_ms;
    if (r->m.row < 2)
        return 0;
    for (int i = 2; i < r->m.row && wait < c->backoff_max_ms; i++)
        wait *= 2;
    return wait < c->backoff_max_ms ? wait : c->backoff_max_ms;
}

int rdzv_raise(struct rdzv *r, uint64_t round, int restarts, int64_t now_ms, struct err *e)
{
    int most = r->config.max_restarts;
    if (round > r->m.round_floor && round <= INT64_MAX)
        r->m.round_floor = round;
    if (r->config.restart_window_ms == 0 && restarts > most)
        restarts = most;
    if (r->config.restart_window_ms > 0) {
        rdzv_forget_restarts_(r, now_ms);
        while (r->m.restarts < restarts && r->restart_n < (size_t)most) {
            if (rdzv_reserve_restart_(r) < 0)
                return err_set(e, -ENOMEM, "no memory for the times of restarts");
            rdzv_use_up_restart_(r, now_ms);
        }
    }
    if (r->m.restarts < restarts)
        r->m.restarts = restarts;
    return 0;
}
