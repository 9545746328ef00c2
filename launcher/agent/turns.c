/* Measures whether the agent's own loop was stopped, and keeps its memory resident (turns.h). */
#include "launcher/agent/turns.h"

#include <errno.h>
#include <stdlib.h>
#include <uv.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "launcher/agent/run.h"
#include "launcher/base/resident.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/patience.h"

#define FORGET_MS 60000 /* ms for which a longer stop is kept beside newer ones */

struct turns {
    uv_prepare_t before; /* the loop waits */
    uv_check_t after;
    uv_timer_t resident;
    struct board *board;
    bool waits;       /* or takes what ended the wait */
    int64_t awake_ms; /* since when the loop has not waited */
    int64_t due_ms;   /* when its wait ends at the latest, 0: no limit */
    int64_t still_ms, still_end_ms;
};

static void note(struct turns *t, int64_t still_ms, int64_t now_ms)
{
    if (still_ms < t->still_ms && now_ms - t->still_end_ms < FORGET_MS)
        return;
    t->still_ms = still_ms;
    t->still_end_ms = now_ms;
}

static void before_wait(uv_prepare_t *h)
{
    struct turns *t = container_of(h, struct turns, before);
    const int64_t now_ms = clock_ms();
    const int timeout_ms = uv_backend_timeout(h->loop);
    note(t, now_ms - t->awake_ms, now_ms);
    t->due_ms = timeout_ms >= 0 ? now_ms + timeout_ms : 0;
    t->waits = true;
}

static void after_wait(uv_check_t *h)
{
    struct turns *t = container_of(h, struct turns, after);
    t->awake_ms = clock_ms();
    t->waits = false;
    if (t->due_ms)
        note(t, t->awake_ms - t->due_ms, t->awake_ms);
    board_turned(t->board, t->awake_ms);
}

static void on_resident(uv_timer_t *h)
{
    resident_keep();
}

int64_t turns_still_ms(const struct run *r, int64_t since_ms)
{
    const struct turns *t = r->turns;
    const int64_t now_ms = clock_ms();
    const int64_t now_still_ms = !t->waits ? now_ms - t->awake_ms : t->due_ms ? now_ms - t->due_ms : 0;
    const int64_t past_ms = t->still_end_ms >= since_ms ? t->still_ms : 0;
    return now_still_ms > past_ms ? now_still_ms : past_ms;
}

int turns_open(struct run *r, struct err *e)
{
    struct turns *t = calloc(1, sizeof *t);
    if (!t)
        return err_errno(e, ENOMEM, "agent");
    t->board = r->link->board;
    t->awake_ms = clock_ms();
    uv_prepare_init(&r->loop, &t->before);
    uv_check_init(&r->loop, &t->after);
    uv_prepare_start(&t->before, before_wait);
    uv_check_start(&t->after, after_wait);
    uv_unref((uv_handle_t *)&t->before);
    uv_unref((uv_handle_t *)&t->after);
    uv_timer_init(&r->loop, &t->resident);
    uv_unref((uv_handle_t *)&t->resident);
    uv_timer_start(&t->resident, on_resident, RESIDENT_AFTER_MS, 0);
    r->turns = t;
    return 0;
}

void turns_close(struct run *r)
{
    if (!r->turns)
        return;
    uv_close((uv_handle_t *)&r->turns->before, NULL);
    uv_close((uv_handle_t *)&r->turns->after, NULL);
    uv_close((uv_handle_t *)&r->turns->resident, NULL);
}

void turns_free(struct run *r)
{
    free(r->turns);
    r->turns = NULL;
}
