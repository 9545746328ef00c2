#include "launcher/rendezvous/rdzv_lease.h"

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

int64_t lease_until(const struct lease *l)
{
    int64_t heard = l->acked + l->silence_ms;
    if (!l->lost || !l->refused || !l->majority)
        return heard;
    int64_t proved = least(least(l->refused, l->majority) + l->silence_ms, l->lost + l->grace_ms);
    return proved > heard ? proved : heard;
}
