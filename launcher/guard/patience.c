/* Decides when the guardian gives up an agent that does not react to signals (patience.h). */
#include "launcher/guard/patience.h"

#include <stddef.h>

#include "common/base/numbers.h"

/* Numbers wrap around. */
#define HAS_HEARD(b, number) ((int32_t)(atomic_load(&(b)->heard) - (number)) >= 0)

void board_init(struct board *b)
{
    static const int usual[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        bits |= UINT64_C(1) << (usual[i] - 1);
    atomic_store(&b->stops, bits);
}

/* --- the agent's side */

uint32_t board_forwarded(const struct board *b)
{
    return atomic_load(&b->forwarded);
}

void board_heard(struct board *b, uint32_t forwarded)
{
    atomic_store(&b->heard, forwarded);
}

void board_turned(struct board *b, int64_t now_ms)
{
    atomic_store(&b->turned_ms, now_ms);
}

void board_stopping(struct board *b, int64_t until_ms)
{
    atomic_store(&b->until_ms, until_ms);
    atomic_store(&b->is_stopping, true);
}

/* --- the guardian's side */

/* Did the agent read the signals without taking them as a request to stop? A worker that has the terminal may handle
 * Ctrl-C itself; the agent then does not count it. */
static bool were_no_wish(const struct patience *p, const struct board *b)
{
    return HAS_HEARD(b, p->last) && !atomic_load(&b->is_stopping);
}

static void count_sigint(struct patience *p, const struct board *b, bool typed, int64_t now_ms)
{
    const int64_t apart = typed ? SIGINT_TYPED_APART_MS : SIGINT_APART_MS;
    if (p->sigints > 0 && now_ms - p->sigint_ms < apart)
        return;
    if (p->sigints > 0 && were_no_wish(p, b))
        p->sigints = 0;
    p->sigints++;
    p->sigint_ms = now_ms;
}

void patience_forward(struct patience *p, struct board *b, int signo, bool typed, int64_t now_ms)
{
    const uint32_t number = atomic_fetch_add(&b->forwarded, 1) + 1;
    if (!(atomic_load(&b->stops) >> (signo - 1) & 1))
        return;
    if (signo == SIGINT)
        count_sigint(p, b, typed, now_ms);
    p->signo = p->signo ? p->signo : signo;
    p->last = number;
    if (p->is_awaited)
        return;
    p->is_awaited = true;
    p->awaited = number;
    p->unheard_ms = 0;
    p->looked_ms = now_ms;
}

static void await_hearing(struct patience *p, const struct board *b, int64_t ran_ms)
{
    p->unheard_ms += ran_ms;
    if (!HAS_HEARD(b, p->awaited))
        return;
    p->is_awaited = !HAS_HEARD(b, p->last);
    p->awaited = p->last;
    p->unheard_ms = 0;
    p->warned = false;
}

static bool await_end(struct patience *p, const struct board *b, int64_t now_ms, int64_t ran_ms)
{
    const int64_t until = p->signo && atomic_load(&b->is_stopping) ? atomic_load(&b->until_ms) : 0;
    if (until != p->until_ms)
        p->left_ms = until - now_ms + PATIENCE_MS;
    else
        p->left_ms -= ran_ms;
    p->until_ms = until;
    return until;
}

enum patience_verdict patience_look(struct patience *p, const struct board *b, int64_t now_ms, int *ret_wait_ms)
{
    const int64_t ran_ms = min_i64(now_ms - p->looked_ms, 2 * PATIENCE_TICK_MS);
    int64_t wait = PATIENCE_TICK_MS;
    p->looked_ms = now_ms;
    *ret_wait_ms = -1;
    if (p->sigints >= 3)
        return PATIENCE_THIRD_SIGINT;
    if (p->is_awaited)
        await_hearing(p, b, ran_ms);
    const bool has_end = await_end(p, b, now_ms, ran_ms);
    if (p->is_awaited && p->unheard_ms >= PATIENCE_MS)
        return PATIENCE_UNHEARD;
    if (has_end && p->left_ms <= 0)
        return PATIENCE_OVERDUE;
    if (p->is_awaited)
        wait = min_i64(wait, PATIENCE_MS - p->unheard_ms);
    if (has_end)
        wait = min_i64(wait, p->left_ms);
    if (p->is_awaited || has_end)
        *ret_wait_ms = (int)wait;
    if (!p->is_awaited || p->warned || p->unheard_ms < PATIENCE_WARN_MS)
        return PATIENCE_KEEP;
    p->warned = true;
    return PATIENCE_WARN;
}
