/* Which seats a host of a list hears, and what the host may do then. See seats.h. */
#include "common/rdzv/leader/seats.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

int seats_init(struct seats *s, const struct rdzv_config *c, struct err *e)
{
    *s = (struct seats){.min = c->min_nodes, .max = c->max_nodes, .silence_ms = c->silence_ms, .kill_ms = c->kill_ms};
    s->v = calloc((size_t)s->max, sizeof *s->v);
    return s->v ? 0 : err_set(e, -ENOMEM, "no memory for %d seats", s->max);
}

void seats_finish(struct seats *s)
{
    free(s->v);
    s->v = NULL;
}

/* --- events */

static struct seats_sent stamp(struct seats *s, int64_t now)
{
    return (struct seats_sent){now, ++s->order};
}

static bool is_heard(const struct seats *s, const struct seat *x, int64_t now)
{
    return x->confirmed.order > 0 && x->confirmed.ms > now - s->silence_ms;
}

int seats_connect(struct seats *s, int seat, const char *node, int64_t now, struct err *e)
{
    if (seat < 0 || seat >= s->max)
        return err_set(e, ERR_REFUSED,
                       "node '%s' has no seat among the hosts of a list: expected a node rank from 0 to "
                       "%d (--node-rank), got %d",
                       node, s->max - 1, seat);
    struct seat *x = &s->v[seat];
    if (x->node[0] && strcmp(x->node, node) != 0 && is_heard(s, x, now))
        return err_set(e, -EAGAIN, "node rank %d is taken by node '%s', which is heard of", seat, x->node);
    x->joined = (struct seats_sent){0};
    snprintf(x->node, sizeof x->node, "%s", node);
    return 0;
}

void seats_join(struct seats *s, int seat, int64_t now)
{
    if (s->v[seat].joined.order == 0)
        s->v[seat].joined = stamp(s, now);
}

struct seats_sent seats_answer(struct seats *s, int64_t now)
{
    return stamp(s, now);
}

void seats_confirm(struct seats *s, int seat, struct seats_sent sent)
{
    if (sent.order > s->v[seat].confirmed.order)
        s->v[seat].confirmed = sent;
}

void seats_leave(struct seats *s, int seat)
{
    s->v[seat].node[0] = 0;
    s->v[seat].joined = (struct seats_sent){0};
}

void seats_forget(struct seats *s)
{
    for (int i = 0; i < s->max; i++)
        s->v[i].joined = (struct seats_sent){0};
}

/* --- what follows from them */

int seats_of(const struct seats *s, const char *node)
{
    for (int i = 0; i < s->max; i++)
        if (s->v[i].node[0] && strcmp(s->v[i].node, node) == 0)
            return i;
    return -1;
}

int seats_heard(const struct seats *s, const char *but, int64_t now)
{
    int n = 0;
    for (int i = 0; i < s->max; i++)
        n += is_heard(s, &s->v[i], now) && !(but && strcmp(s->v[i].node, but) == 0);
    return n;
}

bool seats_may_answer(const struct seats *s, int64_t now)
{
    return seats_heard(s, NULL, now) >= s->min;
}

/* The order of the newest JOIN; 0: a seat has not joined. */
static uint64_t all_joined_at(const struct seats *s)
{
    uint64_t newest = 0;
    for (int i = 0; i < s->max; i++) {
        if (s->v[i].joined.order == 0)
            return 0;
        newest = s->v[i].joined.order > newest ? s->v[i].joined.order : newest;
    }
    return newest;
}

/* Has each of all MAX seats got an answer that was sent after all had joined? Then none of them has gone to another
 * host since. */
static bool all_are_here(const struct seats *s, int64_t now)
{
    const uint64_t newest = all_joined_at(s);
    for (int i = 0; i < s->max; i++)
        if (!is_heard(s, &s->v[i], now) || newest == 0 || s->v[i].confirmed.order <= newest)
            return false;
    return true;
}

bool seats_awaits(const struct seats *s, int seat)
{
    const uint64_t newest = all_joined_at(s);
    return newest > 0 && s->v[seat].confirmed.order <= newest;
}

/* When the MIN-th seat joined, oldest first, of the seats that are heard; INT64_MAX: fewer than MIN have. */
static int64_t min_joined_at(const struct seats *s, int64_t now)
{
    int64_t at = INT64_MAX;
    for (int i = 0; i < s->max; i++) {
        const struct seat *x = &s->v[i];
        int older = 0;
        if (!is_heard(s, x, now) || x->joined.order == 0)
            continue;
        for (int k = 0; k < s->max; k++)
            older += is_heard(s, &s->v[k], now) && s->v[k].joined.order > 0 && s->v[k].joined.order < x->joined.order;
        if (older == s->min - 1)
            at = x->joined.ms;
    }
    return at;
}

/* When the first round may begin. Another host may have heard a seat that we share until silence_ms after it left;
 * workers that it acknowledged then live for silence_ms + kill_ms more. One hundredth is added: clocks differ. */
int64_t seats_begin_at(const struct seats *s, int64_t now)
{
    const int64_t wait_ms = 2 * s->silence_ms + s->kill_ms, at = min_joined_at(s, now);
    if (all_are_here(s, now))
        return now;
    return at == INT64_MAX ? INT64_MAX : at + wait_ms + (wait_ms + 99) / 100;
}
