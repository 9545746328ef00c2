/* Chooses which host of a list a node dials (hosts.h). */
#include "common/rdzv/client/hosts.h"

#include <assert.h>
#include <string.h>

#include "common/base/dice.h"

#define NEVER INT64_MAX

const char *hosts_state_name(enum hosts_state s)
{
    static const char *const names[] = {HOSTS_STATES(CHOICE_NAME)};
    return names[s];
}

void hosts_init(struct hosts *h, const struct hosts_options *o)
{
    *h = (struct hosts){.o = *o, .rng = o->seed, .host = -1, .due = NEVER};
}

int64_t hosts_deadline(const struct hosts *h)
{
    return h->due;
}

static void add(struct hosts *h, enum hosts_effect_kind kind)
{
    assert(h->fx_count < HOSTS_EFFECTS_MAX);
    h->fx[h->fx_count++] = kind;
}

static int64_t chance(struct hosts *h, int64_t most)
{
    return (int64_t)(dice_roll(&h->rng) % (uint64_t)(most + 1));
}

/* --- asking */

static void ask(struct hosts *h, int64_t now)
{
    memset(h->seen, 0, sizeof h->seen);
    h->state = HOSTS_ASKING;
    h->due = now + HOSTS_ASK_MS;
    add(h, HOSTS_ASK);
}

static bool acknowledges(const struct hosts *h, int host)
{
    return h->seen[host].seats + 1 >= h->o.min;
}

/* May a node go to this host? If the host does not know the node's round, its workers are lost: so not while the old
 * host may come back. */
static bool may_dial(const struct hosts *h, int host, bool working)
{
    const bool left = h->refused || (h->host >= 0 && h->seen[h->host].answer == HOSTS_REFUSED);
    return h->seen[host].answer == HOSTS_HEARS &&
           (!working || host == h->host || h->host < 0 || left || acknowledges(h, host));
}

/* Is host a better than host b? A host that is avoided loses ties. */
static bool is_better(const struct hosts *h, int a, int b, int64_t now)
{
    const bool acks_a = acknowledges(h, a), acks_b = acknowledges(h, b);
    const int seats_a = 2 * h->seen[a].seats - (h->avoided[a] > now ? 1 : 0);
    const int seats_b = 2 * h->seen[b].seats - (h->avoided[b] > now ? 1 : 0);
    if (acks_a != acks_b)
        return acks_a;
    if (seats_a != seats_b)
        return seats_a > seats_b;
    return h->seen[a].round > h->seen[b].round; /* equal: the host earlier in the list wins, which is b */
}

static int best(const struct hosts *h, bool working, int64_t now)
{
    int found = -1;
    for (int i = 0; i < h->o.count; i++)
        if (may_dial(h, i, working) && (found < 0 || is_better(h, i, found, now)))
            found = i;
    return found;
}

/* --- at a host */

/* Stay at this host until h->leave_at. Nodes that began together may have met at different hosts, each of which
 * hears too few: a node without workers that is not acknowledged looks for a better host meanwhile. */
static void stay(struct hosts *h, bool working, int64_t now)
{
    const int64_t look_ms = HOSTS_LOOK_MS + HOSTS_LOOK_SEAT_MS * h->o.min;
    h->state = HOSTS_AT;
    h->due = h->leave_at;
    if (working || h->heard || look_ms > h->o.silence_ms)
        return;
    const int64_t look = now + look_ms + chance(h, look_ms);
    h->due = look < h->due ? look : h->due;
}

static void give_time(struct hosts *h, int64_t now)
{
    h->leave_at = now + h->o.silence_ms + chance(h, 2 * h->o.silence_ms);
}

/* Do most hosts refuse our secret, and does no other host accept it, except one of our own that no other node uses? */
static bool is_denied(const struct hosts *h)
{
    int denied = 0;
    for (int i = 0; i < h->o.count; i++) {
        if (h->seen[i].answer == HOSTS_HEARS && (!h->seen[i].own || h->seen[i].seats > 0))
            return false;
        denied += h->denies[i];
    }
    return 2 * denied > h->o.count && !h->acked;
}

/* Is this the last denial before giving up? */
static bool note_denial(struct hosts *h)
{
    h->denials = is_denied(h) ? h->denials + 1 : 0;
    return h->denials >= HOSTS_DENIALS;
}

static void choose(struct hosts *h, bool working, int64_t now)
{
    const int found = best(h, working, now);
    if (note_denial(h)) {
        h->state = HOSTS_IDLE;
        h->due = NEVER;
        add(h, HOSTS_DENY);
        return;
    }
    if (h->denials) {
        h->state = HOSTS_PAUSING;
        h->due = now + HOSTS_AGAIN_MS;
        return;
    }
    if (h->connected && (found < 0 || found == h->host)) {
        if (now >= h->leave_at)
            give_time(h, now);
        stay(h, working, now);
        return;
    }
    if (found < 0) {
        h->state = HOSTS_PAUSING;
        h->due = now + HOSTS_AGAIN_MS;
        return;
    }
    h->host = found;
    h->connected = true;
    h->refused = h->heard = false;
    give_time(h, now);
    stay(h, working, now);
    add(h, HOSTS_DIAL);
}

static bool all_answered(const struct hosts *h)
{
    for (int i = 0; i < h->o.count; i++)
        if (!h->seen[i].here)
            return false;
    return true;
}

static void on_answer(struct hosts *h, const struct hosts_event *ev, int64_t now)
{
    if (h->state != HOSTS_ASKING)
        return;
    h->seen[ev->host].here = true;
    h->seen[ev->host].own = ev->own;
    h->seen[ev->host].answer = ev->answer;
    h->seen[ev->host].seats = ev->seats;
    h->seen[ev->host].round = ev->round;
    /* keep the denial of a host that does not listen any more: it may have ended because we deny it, too */
    h->denies[ev->host] = ev->answer == HOSTS_DENIED || (h->denies[ev->host] && ev->answer != HOSTS_HEARS);
    if (all_answered(h))
        choose(h, ev->working, now);
}

static void on_acked(struct hosts *h, const struct hosts_event *ev, int64_t now)
{
    if (h->state == HOSTS_IDLE || h->host < 0)
        return;
    h->acked = h->heard = true;
    h->connected = true; /* dialled again meanwhile */
    h->refused = false;
    h->avoided[h->host] = 0;
    give_time(h, now);
    stay(h, ev->working, now);
}

static void on_away(struct hosts *h, const struct hosts_event *ev, int64_t now)
{
    if (h->state == HOSTS_IDLE)
        return;
    h->refused = ev->refused;
    if (h->connected || h->state == HOSTS_AT) {
        h->connected = false;
        ask(h, now);
    }
}

static void on_tick(struct hosts *h, const struct hosts_event *ev, int64_t now)
{
    if (now < h->due)
        return;
    if (h->state == HOSTS_ASKING) {
        choose(h, ev->working, now);
        return;
    }
    if (h->state == HOSTS_AT && now >= h->leave_at) {
        h->avoided[h->host] = now + 2 * h->o.silence_ms;
        h->heard = false;
    }
    ask(h, now);
}

void hosts_step(struct hosts *h, const struct hosts_event *ev, int64_t now)
{
    h->fx_count = 0;
    switch (ev->kind) {
    case HOSTS_BEGIN:
        if (h->state == HOSTS_IDLE || h->state == HOSTS_PAUSING)
            ask(h, now);
        break;
    case HOSTS_ANSWER:
        on_answer(h, ev, now);
        break;
    case HOSTS_ACKED:
        on_acked(h, ev, now);
        break;
    case HOSTS_AWAY:
        on_away(h, ev, now);
        break;
    case HOSTS_LEAVE:
        h->state = HOSTS_IDLE;
        h->due = NEVER;
        break;
    case HOSTS_TICK:
        on_tick(h, ev, now);
        break;
    }
}
