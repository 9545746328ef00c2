/* When a node looks at the claim, claims the lead, renews its claim and releases it. See election.h. */
#include "common/rdzv/client/election.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/dice.h"
#include "common/base/numbers.h"

#define NEVER INT64_MAX

enum {
    LOOK_MS = 25,   /* ms between two looks at the claim; longer with more nodes */
    RENEWALS = 3,   /* in D */
    AGAIN_MS = 100, /* ms until a failed renewal is tried again */
    TURN_MS = 40,   /* between two group ranks that claim */
    TURNS = 8,      /* the first group ranks have a turn of their own to claim; all others share the next one */
    PAUSE_MS = 500, /* after a claim that failed */
    LAST_MS = 2000, /* ms that a node which released its claim, or could not lead, leaves to others */
    FRESH_MS = 5,   /* an older look than this is repeated before the claim is replaced */
    JITTER_MS = 20,
    API_MOST_MS = 500,
};

const char *election_state_name(enum election_state s)
{
    static const char *const names[] = {ELECTION_STATES(CHOICE_NAME)};
    return names[s];
}

/* A time plus one hundredth, for clocks that differ. */
static int64_t by_any_clock(int64_t ms)
{
    return ms + (ms + 99) / 100;
}

int64_t election_fence_ms(const struct election_options *o, int64_t before_ms)
{
    return by_any_clock(before_ms + o->silence_ms + o->kill_ms);
}

int64_t election_lately_ms(const struct election_options *o)
{
    return 2 * o->silence_ms + 3 * o->valid_ms;
}

static int64_t longest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t chance(struct election *x, int64_t most)
{
    return (int64_t)(dice_roll(&x->rng) % (uint64_t)(most + 1));
}

void election_init(struct election *x, const struct election_options *o)
{
    *x = (struct election){.o = *o, .rng = o->seed, .rank = -1, .next_look = NEVER, .next_renewal = NEVER};
    x->o.valid_ms = o->valid_ms > 0 ? o->valid_ms : ELECTION_D_MS;
    x->own = *o->own;
    x->own.epoch[0] = 0;
    x->o.own = NULL;
    x->full_ms = election_fence_ms(o, longest(x->o.valid_ms, o->away_ms));
}

static void add(struct election *x, enum election_effect_kind kind)
{
    assert(x->fx_count < ELECTION_EFFECTS_MAX);
    x->fx[x->fx_count++] = kind;
}

/* --- looking */

static void look(struct election *x)
{
    if (x->asking)
        return;
    x->asking = true;
    x->next_look = NEVER;
    add(x, ELECTION_LOOK);
}

static void start_looking_at(struct election *x, int64_t when, int64_t now)
{
    x->state = ELECTION_LOOKING;
    x->since = x->claim_at = 0;
    x->has_view = false;
    x->next_look = x->asking ? NEVER : when; /* a look under way says when the next one is */
    if (when <= now)
        look(x);
}

static void start_looking(struct election *x, int64_t now)
{
    start_looking_at(x, now, now);
}

static void note_epoch(struct election *x, const char *epoch)
{
    if (rdzv_epoch_number(epoch) > rdzv_epoch_number(x->highest))
        snprintf(x->highest, sizeof x->highest, "%s", epoch);
}

static bool is_own(const struct election *x)
{
    return x->own.epoch[0] && strcmp(x->view.epoch, x->own.epoch) == 0;
}

/* Must its leader take this node for gone before it goes on without the home? */
static bool counts_there(const struct election *x, int64_t now)
{
    return !x->view.away_ms || (strcmp(x->acked, x->view.epoch) == 0 && now - x->acked_at < election_lately_ms(&x->o));
}

static bool stood_still(const struct election *x, int64_t now)
{
    const int64_t ms = counts_there(x, now) ? x->o.valid_ms : x->view.away_ms;
    return x->since > 0 && now - x->since >= by_any_clock(ms);
}

static bool may_claim(const struct election *x, int64_t now)
{
    return !x->view.epoch[0] || x->view.released || is_own(x) || stood_still(x, now) ||
           (x->refused && counts_there(x, now));
}

/* Of nodes that all begin at once: within which time they look, and claim, for the first time. A hundred who ask an API
 * in one instant all wait for the last one's answer; one that asked a little earlier leads by then. */
static int64_t first_ms(const struct election *x)
{
    return x->o.away_ms ? min_i64(x->o.nodes, API_MOST_MS) : x->o.nodes / 5;
}

/* How long this node waits before it claims: group ranks in turn, then all other nodes. Before the first round no
 * node has a rank. */
static int64_t turn(struct election *x)
{
    const int64_t late = x->last ? LAST_MS : 0;
    if (!x->view.epoch[0])
        return late + chance(x, JITTER_MS + first_ms(x));
    return late + TURN_MS * (x->rank >= 0 && x->rank < TURNS ? x->rank : TURNS) + chance(x, JITTER_MS);
}

/* --- claiming */

/* Compute the grace that we owe to nodes that the previous leader acknowledged. If our own claim succeeded but its
 * answer was lost, we still owe what the claim before it owed. */
static void take_debt(struct election *x, int64_t now)
{
    const bool again = is_own(x) && !x->view.released;
    x->was_member = x->highest[0];
    x->grace_ms = 0;
    x->handed_ms = again ? x->handed_ms : x->view.released && x->view.held ? x->view.hold_ms : 0;
    if (x->view.released && x->view.hold_ms > election_fence_ms(&x->o, 0))
        x->grace_ms = x->view.hold_ms - election_fence_ms(&x->o, 0);
    else if (!x->view.released && x->view.epoch[0] && (again || !stood_still(x, now)))
        x->grace_ms = by_any_clock(x->o.valid_ms);
    x->hold_until = 0;
}

static void claim(struct election *x, int64_t now)
{
    const uint64_t seen = rdzv_epoch_number(x->view.epoch), highest = rdzv_epoch_number(x->highest);
    take_debt(x, now);
    snprintf(x->own.epoch, sizeof x->own.epoch, "%" PRIu64 "-%016" PRIx64, (seen > highest ? seen : highest) + 1,
             dice_roll(&x->rng));
    x->own.n = 0;
    x->own.released = false;
    x->own.hold_ms = 0;
    x->own.held = false;
    x->own.away_ms = 0;
    x->state = ELECTION_CLAIMING;
    x->next_look = NEVER;
    add(x, ELECTION_CLAIM);
}

/* Go on looking: start each look when it is due, and claim when it is allowed and our turn has come. After a failed
 * look our turn stays: a claim that could be replaced at once (a released one, for example) still can. */
static void go_on_looking(struct election *x, int64_t now)
{
    if (x->o.never || (x->has_view && !may_claim(x, now)))
        x->claim_at = 0;
    else if (x->has_view && !x->claim_at)
        x->claim_at = now + turn(x);
    if (x->claim_at && x->claim_at < x->not_before)
        x->claim_at = x->not_before;
    const bool due = x->has_view && x->claim_at && now >= x->claim_at;
    if (due && now - x->seen_at <= FRESH_MS)
        claim(x, now);
    else if (due || now >= x->next_look)
        look(x); /* look before claiming: of a thousand nodes that begin at once only one claims */
}

static void dial(struct election *x)
{
    snprintf(x->dialled, sizeof x->dialled, "%s", x->view.epoch);
    x->refused = false;
    add(x, ELECTION_DIAL);
}

/* Our claim is valid from `sent` on. */
static void begin_term(struct election *x, int64_t sent, int64_t now)
{
    x->view = x->own;
    x->last = x->refused = false;
    x->claim_at = 0;
    note_epoch(x, x->own.epoch);
    x->until = sent + x->o.valid_ms;
    x->owed_until = now + x->grace_ms + election_fence_ms(&x->o, 0);
    x->few_since = 0;
    x->enough = false;
    x->state = ELECTION_LOADING;
    add(x, ELECTION_LOAD);
}

static void on_seen(struct election *x, const struct election_event *ev, int64_t now)
{
    x->asking = false;
    if (x->state != ELECTION_LOOKING)
        return;
    x->next_look = now + LOOK_MS + x->o.nodes / 20;
    if (ev->rc < 0) { /* a failed look may have the same cause as an unchanged claim, so the wait starts anew */
        x->since = 0;
        x->has_view = false;
        return;
    }
    const struct rdzv_claim none = {0}, *seen = ev->rc > 0 ? ev->claim : &none;
    const bool same = rdzv_claim_is(seen, &x->view);
    x->since = same && x->since > 0 ? x->since : now;
    x->claim_at = same ? x->claim_at : 0;
    x->view = *seen;
    x->has_view = true;
    x->seen_at = now;
    note_epoch(x, seen->epoch);
    if (seen->epoch[0] && !seen->released && !is_own(x) && strcmp(seen->epoch, x->dialled) != 0)
        dial(x);
    go_on_looking(x, now);
}

/* --- leading */

/* A claim without away_ms may stand from the sending on, whatever is confirmed. */
static void renew(struct election *x)
{
    x->next_renewal = NEVER;
    x->own.away_ms = x->enough ? x->o.away_ms : 0;
    if (x->away_ms > x->own.away_ms) {
        x->away_ms = x->own.away_ms;
        add(x, ELECTION_UNTIL);
    }
    add(x, ELECTION_RENEW);
}

static void resign(struct election *x)
{
    x->until = x->away_ms = 0;
    x->next_renewal = NEVER;
    x->dialled[0] = 0;
    add(x, ELECTION_UNTIL);
    add(x, ELECTION_RESIGN);
}

/* Stop leading: acknowledge nobody from now on. The release hands what is still owed to the next leader. */
static void release(struct election *x, int64_t now)
{
    resign(x);
    x->own.released = true;
    x->own.hold_ms = x->owed_until > now ? x->owed_until - now : 0;
    x->own.held = x->above || x->hold_until > now;
    x->state = ELECTION_RELEASING;
    add(x, ELECTION_RELEASE);
}

static void on_claimed(struct election *x, const struct election_event *ev, int64_t now)
{
    if (ev->rc > 0) {
        begin_term(x, ev->sent, now);
        return;
    }
    x->not_before = ev->rc < 0 ? now + PAUSE_MS : 0;
    start_looking(x, now); /* this look will show whether the claim succeeded after all */
}

static void on_loaded(struct election *x, const struct election_event *ev, int64_t now)
{
    if (x->state != ELECTION_LOADING)
        return;
    if (ev->rc < 0) {
        x->last = true;
        release(x, now);
        return;
    }
    int64_t hold_ms = x->handed_ms;
    if (ev->hold || x->above || (x->was_member && ev->rc == 0))
        hold_ms = longest(hold_ms, longest(ev->hold_ms, x->full_ms));
    if (hold_ms > 0) {
        x->hold_until = now + hold_ms;
        x->owed_until = longest(x->hold_until, x->owed_until);
    }
    x->few_from = now;
    if (ev->rc > 0 || hold_ms > 0)
        x->few_from = longest(x->hold_until, now + x->grace_ms) + election_fence_ms(&x->o, 0);
    x->above = false;
    x->state = ELECTION_LEADING;
    add(x, ELECTION_UNTIL);
    dial(x);
    renew(x);
}

static void on_renewed(struct election *x, const struct election_event *ev, int64_t now)
{
    if (x->state != ELECTION_LEADING)
        return;
    if (ev->rc == 0) {
        resign(x);
        start_looking(x, now);
        return;
    }
    x->next_renewal = ev->rc > 0 ? ev->sent + x->o.valid_ms / RENEWALS : now + AGAIN_MS;
    if (ev->rc > 0) {
        x->own.n = ev->claim->n;
        x->view = x->own;
        x->until = ev->sent + x->o.valid_ms;
        x->sent = ev->sent;
        x->away_ms = x->own.away_ms;
        add(x, ELECTION_UNTIL);
    }
}

/* Another epoch above ours exists. Its leader may still acknowledge nodes, so acknowledge nobody here until we have
 * claimed above it. */
static void on_higher(struct election *x, const struct election_event *ev, int64_t now)
{
    if (x->state != ELECTION_LEADING || !rdzv_epoch_is_foreign(ev->epoch, x->own.epoch))
        return;
    note_epoch(x, ev->epoch);
    resign(x);
    claim(x, now);
    x->above = true; /* until our claim is above, or another leader acknowledges us: this claim may fail */
}

static void on_heard(struct election *x, const struct election_event *ev, int64_t now)
{
    x->enough = ev->enough;
    if (x->state != ELECTION_LEADING || ev->enough || now < x->few_from ||
        now >= x->until) { /* nodes leave a leader that does not acknowledge */
        x->few_since = 0;
        return;
    }
    x->few_since = x->few_since ? x->few_since : now;
    if (now - x->few_since < ELECTION_FEW_MS)
        return;
    x->last = true;
    release(x, now);
}

/* --- following */

static void on_acked(struct election *x)
{
    snprintf(x->acked, sizeof x->acked, "%s", x->dialled);
    if (x->state != ELECTION_LOOKING)
        return;
    x->state = ELECTION_FOLLOWING;
    x->refused = x->last = x->above = false;
    x->next_look = NEVER;
    x->claim_at = 0;
}

static void on_away(struct election *x, const struct election_event *ev, int64_t now)
{
    if (x->state == ELECTION_FOLLOWING)
        start_looking_at(x, now + chance(x, x->o.nodes / 5), now); /* all of them have lost it: not all at once */
    if (x->state != ELECTION_LOOKING)
        return;
    x->acked_at = ev->sent;
    x->refused = ev->refused && x->acked[0] && strcmp(x->acked, x->dialled) == 0;
    go_on_looking(x, now);
}

static void on_leave(struct election *x, int64_t now)
{
    x->o.never = true;
    if (x->state == ELECTION_LEADING)
        release(x, now);
    else if (x->state != ELECTION_CLAIMING && x->state != ELECTION_LOADING && x->state != ELECTION_RELEASING)
        x->state = ELECTION_IDLE;
    x->next_look = x->next_renewal = NEVER;
}

/* --- time */

static void on_tick(struct election *x, int64_t now)
{
    if (x->state == ELECTION_LOOKING)
        go_on_looking(x, now);
    if (x->state == ELECTION_LEADING && now >= x->next_renewal)
        renew(x);
}

int64_t election_deadline(const struct election *x)
{
    int64_t due = x->state == ELECTION_LEADING ? x->next_renewal : NEVER;
    if (x->state != ELECTION_LOOKING)
        return due;
    due = x->next_look;
    return x->has_view && x->claim_at && !x->asking && x->claim_at < due ? x->claim_at
                                                                         : due; /* an answer goes on by itself */
}

void election_step(struct election *x, const struct election_event *ev, int64_t now)
{
    x->fx_count = 0;
    switch (ev->kind) {
    case ELECTION_BEGIN:
        if (x->state == ELECTION_IDLE)
            start_looking_at(x, x->o.away_ms ? now + chance(x, first_ms(x)) : now, now);
        break;
    case ELECTION_SEEN:
        on_seen(x, ev, now);
        break;
    case ELECTION_CLAIMED:
        if (x->state == ELECTION_CLAIMING)
            on_claimed(x, ev, now);
        break;
    case ELECTION_LOADED:
        on_loaded(x, ev, now);
        break;
    case ELECTION_RENEWED:
        on_renewed(x, ev, now);
        break;
    case ELECTION_UNABLE:
        if (x->state != ELECTION_LEADING)
            break;
        x->last = true;
        release(x, now);
        break;
    case ELECTION_RELEASED:
        if (x->state == ELECTION_RELEASING && x->o.never)
            x->state = ELECTION_IDLE;
        else if (x->state == ELECTION_RELEASING)
            start_looking(x, now);
        break;
    case ELECTION_ACKED:
        on_acked(x);
        break;
    case ELECTION_AWAY:
        on_away(x, ev, now);
        break;
    case ELECTION_HIGHER:
        on_higher(x, ev, now);
        break;
    case ELECTION_HEARD:
        on_heard(x, ev, now);
        break;
    case ELECTION_RANK:
        x->rank = ev->rank;
        break;
    case ELECTION_LEAVE:
        on_leave(x, now);
        break;
    case ELECTION_TICK:
        on_tick(x, now);
        break;
    }
    if (x->state == ELECTION_LEADING && x->o.never && ev->kind == ELECTION_LOADED)
        release(x, now);
}
