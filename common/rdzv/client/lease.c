/* Computes until when a node's workers may run (lease.h). */
#include "common/rdzv/client/lease.h"

#include <stdio.h>

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void lease_acked(struct lease *l, int64_t asked)
{
    if (asked > l->acked)
        l->acked = asked;
    l->lost = l->refused = l->majority = 0;
}

void lease_lost(struct lease *l, int64_t now)
{
    if (!l->lost)
        l->lost = now;
}

void lease_dialled(struct lease *l, int64_t begun, int refused)
{
    l->refused = refused ? begun : 0;
}

void lease_majority(struct lease *l, int64_t asked)
{
    if (asked > l->majority)
        l->majority = asked;
}

int64_t lease_ms(int64_t silence_ms, int64_t kill_ms)
{
    return silence_ms - (silence_ms + kill_ms) / 100;
}

int64_t lease_until(const struct lease *l)
{
    const int64_t ms = lease_ms(l->silence_ms, l->kill_ms);
    int64_t heard = l->acked + ms;
    if (!l->lost || !l->refused || !l->majority)
        return heard;
    int64_t proved = least(least(l->refused, l->majority) + ms, l->lost + l->grace_ms);
    return proved > heard ? proved : heard;
}

char *silence_text(int64_t silent_ms, int64_t still_ms, char out[SILENCE_TEXT_MAX])
{
    const int n = snprintf(out, SILENCE_TEXT_MAX,
                           "nothing was heard of the rendezvous for %lld ms (--rdzv-conf keep_alive_interval, "
                           "keep_alive_max_attempt), ",
                           (long long)silent_ms);
    if (still_ms < SILENCE_STILL_MS)
        snprintf(out + n, SILENCE_TEXT_MAX - (size_t)n, "though this crun listened");
    else
        snprintf(out + n, SILENCE_TEXT_MAX - (size_t)n, "of which this crun itself stood still for %lld ms",
                 (long long)still_ms);
    return out;
}
