/* When a node looks, claims, renews and lets go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "common/rdzv/client/election.h"

enum { SILENCE = 3000, KILL = 1000, FENCE = 4040, FULL = 5555, D_AND_MORE = 1515 };

static struct election x;
static int64_t now, away_ms; /* away_ms: of claims that are seen */

static int start(void **state)
{
    const struct rdzv_claim own = {.port = 1, .addrs = "10.0.0.1", .node = "me"};
    (void)state;
    now = 1000000;
    away_ms = 0;
    election_init(&x, &(struct election_options){.silence_ms = SILENCE, .kill_ms = KILL, .nodes = 4, .own = &own});
    return 0;
}

static void step(struct election_event ev)
{
    election_step(&x, &ev, now);
}

static bool did(enum election_effect_kind kind)
{
    for (int i = 0; i < x.fx_count; i++)
        if (x.fx[i] == kind)
            return true;
    return false;
}

static struct rdzv_claim claim(const char *epoch, uint64_t n)
{
    struct rdzv_claim c = {.n = n, .away_ms = away_ms, .port = 7, .addrs = "10.0.0.7", .node = "other"};
    snprintf(c.epoch, sizeof c.epoch, "%s", epoch);
    return c;
}

static void see(const char *epoch, uint64_t n)
{
    const struct rdzv_claim c = claim(epoch, n);
    step((struct election_event){.kind = ELECTION_SEEN, .rc = 1, .claim = &c});
}

/* Time passes, and looks find the same. True: it has claimed. */
static bool claims_within(int64_t ms, const char *epoch, uint64_t n)
{
    for (const int64_t until = now + ms; now < until; now += 5) {
        step((struct election_event){.kind = ELECTION_TICK});
        if (did(ELECTION_CLAIM))
            return true;
        if (x.asking && epoch)
            see(epoch, n);
        else if (x.asking)
            step((struct election_event){.kind = ELECTION_SEEN, .rc = 0});
        if (did(ELECTION_CLAIM))
            return true;
    }
    return false;
}

static void win(int rc)
{
    step((struct election_event){.kind = ELECTION_CLAIMED, .rc = 1, .sent = now});
    assert_true(did(ELECTION_LOAD));
    step((struct election_event){.kind = ELECTION_LOADED, .rc = rc});
    assert_int_equal(x.state, ELECTION_LEADING);
}

static void lead_first(void)
{
    step((struct election_event){.kind = ELECTION_BEGIN});
    assert_true(x.asking || x.o.away_ms > 0); /* over an API it looks a little later */
    if (x.asking)
        step((struct election_event){.kind = ELECTION_SEEN, .rc = 0});
    assert_true(did(ELECTION_CLAIM) || claims_within(x.o.away_ms ? 1000 : 100, NULL, 0));
    win(0);
}

static void an_empty_home_is_claimed_at_once_and_owes_nothing(void **state)
{
    (void)state;
    lead_first();
    assert_int_equal(rdzv_epoch_number(x.own.epoch), 1);
    assert_int_equal(x.hold_until, 0);
    assert_int_equal(x.grace_ms, 0);
    assert_int_equal(x.until, now + ELECTION_D_MS);
    assert_true(did(ELECTION_DIAL) && did(ELECTION_RENEW) && did(ELECTION_UNTIL));
}

/* Each is another node; true: it looks, not at once, and before that time. */
static bool looks_within(int64_t ms, uint64_t seed)
{
    const struct rdzv_claim own = {.port = 1, .addrs = "10.0.0.1", .node = "me"};
    election_init(&x, &(struct election_options){.away_ms = 20000, .nodes = 100, .seed = seed, .own = &own});
    step((struct election_event){.kind = ELECTION_BEGIN});
    if (did(ELECTION_LOOK))
        return false;
    now = election_deadline(&x);
    step((struct election_event){.kind = ELECTION_TICK});
    return did(ELECTION_LOOK) && now < 1000000 + ms;
}

static void a_hundred_nodes_do_not_all_ask_an_api_at_once(void **state)
{
    int late = 0, early = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        start(state);
        early += looks_within(50, seed);
        start(state);
        late += looks_within(101, seed);
    }
    assert_true(late > 90);
    assert_true(early > 20 && early < 80);
}

static void a_claim_that_is_renewed_is_left_alone_and_one_that_stands_still_for_d_is_not(void **state)
{
    (void)state;
    step((struct election_event){.kind = ELECTION_BEGIN});
    for (uint64_t n = 0; n < 5; n++)
        assert_false(claims_within(1400, "3-a", n));
    const int64_t t = now;
    assert_true(claims_within(3000, "3-a", 9));
    assert_true(now - t >= D_AND_MORE && now - t < D_AND_MORE + 500);
    assert_int_equal(rdzv_epoch_number(x.own.epoch), 4);
    win(1);
    assert_int_equal(x.grace_ms, 0); /* D was waited out */
}

static void a_time_in_which_the_home_does_not_answer_does_not_count(void **state)
{
    (void)state;
    step((struct election_event){.kind = ELECTION_BEGIN});
    assert_false(claims_within(1000, "3-a", 1));
    step((struct election_event){.kind = ELECTION_SEEN, .rc = -110});
    assert_false(claims_within(1400, "3-a", 1));
    assert_true(claims_within(1000, "3-a", 1));
}

/* Two nodes behind a firewall that refuses would depose each other for ever. */
static void a_refusal_counts_only_of_a_leader_that_has_acknowledged(void **state)
{
    (void)state;
    step((struct election_event){.kind = ELECTION_BEGIN});
    see("3-a", 1);
    assert_true(did(ELECTION_DIAL));
    for (uint64_t n = 2; n < 6; n++) {
        step((struct election_event){.kind = ELECTION_AWAY, .refused = true});
        assert_false(claims_within(1000, "3-a", n));
    }
    step((struct election_event){.kind = ELECTION_ACKED});
    assert_int_equal(x.state, ELECTION_FOLLOWING);
    assert_int_equal(election_deadline(&x), INT64_MAX); /* it reads nothing */
    step((struct election_event){.kind = ELECTION_AWAY, .refused = true});
    assert_true(did(ELECTION_LOOK));
    assert_true(claims_within(500, "3-a", 9));
    win(1);
    assert_int_equal(x.grace_ms, D_AND_MORE); /* it may acknowledge others still */
}

static void group_ranks_claim_in_turn(void **state)
{
    int64_t took[3];
    for (int rank = 0; rank < 3; rank++) {
        start(state);
        step((struct election_event){.kind = ELECTION_RANK, .rank = rank * 4});
        step((struct election_event){.kind = ELECTION_BEGIN});
        see("3-a", 1);
        step((struct election_event){.kind = ELECTION_ACKED});
        step((struct election_event){.kind = ELECTION_AWAY, .refused = true});
        const int64_t t = now;
        assert_true(claims_within(1000, "3-a", 1));
        took[rank] = now - t;
    }
    assert_true(took[0] + 100 < took[1] && took[1] + 100 < took[2] && took[2] < 500);
}

static void a_release_hands_on_what_is_owed(void **state)
{
    struct rdzv_claim free = claim("3-a", 4);
    (void)state;
    step((struct election_event){.kind = ELECTION_BEGIN});
    see("3-a", 1);
    step((struct election_event){.kind = ELECTION_ACKED});
    step((struct election_event){.kind = ELECTION_AWAY, .refused = true});
    assert_true(claims_within(500, "3-a", 1));
    win(1);
    now += 100;
    step((struct election_event){.kind = ELECTION_LEAVE});
    assert_true(x.fx[0] == ELECTION_UNTIL && x.until == 0); /* first of all */
    assert_true(did(ELECTION_RELEASE) && x.own.released);
    assert_int_equal(x.own.hold_ms, D_AND_MORE + FENCE - 100);
    start(state);
    free.released = true;
    free.hold_ms = D_AND_MORE + FENCE - 100;
    step((struct election_event){.kind = ELECTION_BEGIN});
    step((struct election_event){.kind = ELECTION_SEEN, .rc = 1, .claim = &free});
    for (int i = 0; i < 200 && !did(ELECTION_CLAIM); i++, now += 5)
        step((struct election_event){.kind = x.asking ? ELECTION_SEEN : ELECTION_TICK, .rc = 1, .claim = &free});
    assert_true(did(ELECTION_CLAIM));
    win(1);
    assert_int_equal(x.grace_ms, D_AND_MORE - 100);
    assert_int_equal(x.hold_until, 0);
}

/* Workers that no log names may be left. */
static void a_release_during_a_hold_hands_the_hold_on(void **state)
{
    (void)state;
    lead_first();
    step((struct election_event){.kind = ELECTION_HIGHER, .epoch = "7-b"});
    win(1);
    now += 100;
    step((struct election_event){.kind = ELECTION_UNABLE});
    const struct rdzv_claim free = x.own;
    assert_true(free.released && free.held);
    start(state);
    step((struct election_event){.kind = ELECTION_BEGIN});
    step((struct election_event){.kind = ELECTION_SEEN, .rc = 1, .claim = &free});
    for (int i = 0; i < 200 && !did(ELECTION_CLAIM); i++, now += 5)
        step((struct election_event){.kind = x.asking ? ELECTION_SEEN : ELECTION_TICK, .rc = 1, .claim = &free});
    assert_true(did(ELECTION_CLAIM));
    win(1);
    assert_int_equal(x.hold_until, now + FULL - 100);
}

static void a_claim_above_whose_answer_is_lost_keeps_its_hold(void **state)
{
    (void)state;
    lead_first();
    step((struct election_event){.kind = ELECTION_HIGHER, .epoch = "7-b"});
    const struct rdzv_claim ours = x.own;
    step((struct election_event){.kind = ELECTION_CLAIMED, .rc = -104});
    for (int i = 0; i < 400 && !did(ELECTION_CLAIM); i++, now += 5)
        step((struct election_event){.kind = x.asking ? ELECTION_SEEN : ELECTION_TICK, .rc = 1, .claim = &ours});
    assert_true(did(ELECTION_CLAIM));
    win(1);
    assert_int_equal(x.hold_until, now + FULL);
}

static void whoever_hears_too_few_lets_go_and_comes_last(void **state)
{
    (void)state;
    lead_first();
    for (int i = 0; i < 25 && x.state == ELECTION_LEADING; i++, now += 500) {
        const struct rdzv_claim as_it_is = x.own;
        step((struct election_event){.kind = ELECTION_RENEWED, .rc = 1, .sent = now, .claim = &as_it_is});
        step((struct election_event){.kind = ELECTION_HEARD, .enough = false});
    }
    assert_int_equal(x.state, ELECTION_RELEASING);
    assert_true(now - 1000000 >= ELECTION_FEW_MS && now - 1000000 < ELECTION_FEW_MS + 1500);
    struct rdzv_claim free = x.own;
    step((struct election_event){.kind = ELECTION_RELEASED});
    const int64_t t = now;
    for (int i = 0; i < 2000 && !did(ELECTION_CLAIM); i++, now += 5)
        step((struct election_event){.kind = x.asking ? ELECTION_SEEN : ELECTION_TICK, .rc = 1, .claim = &free});
    assert_true(now - t >= 2000 && now - t < 3000);
}

/* How long a leader stays that hears nobody, from now on. */
static int64_t stays_alone(void)
{
    const int64_t t = now;
    for (; now - t < 100000 && x.state == ELECTION_LEADING; now += 500) {
        const struct rdzv_claim as_it_is = x.own;
        step((struct election_event){.kind = ELECTION_RENEWED, .rc = 1, .sent = now, .claim = &as_it_is});
        step((struct election_event){.kind = ELECTION_HEARD, .enough = false});
    }
    return now - t;
}

/* Else the next one would wait for them anew, and so on for ever, if it takes longer than ELECTION_FEW_MS. */
static void whoever_hears_too_few_first_gives_up_those_that_it_took_over(void **state)
{
    (void)state;
    x.o.silence_ms = 15000;
    x.full_ms = election_fence_ms(&x.o, ELECTION_D_MS);
    step((struct election_event){.kind = ELECTION_BEGIN});
    assert_true(claims_within(3000, "3-a", 9));
    win(1);
    const int64_t fence_ms = election_fence_ms(&x.o, 0), alone_ms = stays_alone();
    assert_in_range(alone_ms, fence_ms + ELECTION_FEW_MS, fence_ms + ELECTION_FEW_MS + 1500);
}

static void whoever_hears_too_few_first_waits_for_what_may_be_lost_and_gives_up_its_nodes(void **state)
{
    (void)state;
    x.o.silence_ms = 15000;
    x.full_ms = election_fence_ms(&x.o, ELECTION_D_MS);
    step((struct election_event){.kind = ELECTION_BEGIN});
    assert_true(claims_within(3000, "3-a", 9));
    step((struct election_event){.kind = ELECTION_CLAIMED, .rc = 1, .sent = now});
    step((struct election_event){.kind = ELECTION_LOADED, .rc = 1, .hold = true});
    const int64_t wait_ms = x.full_ms + election_fence_ms(&x.o, 0), alone_ms = stays_alone();
    assert_in_range(alone_ms, wait_ms + ELECTION_FEW_MS, wait_ms + ELECTION_FEW_MS + 1500);
}

/* Its turn is 2 s after it has let go; of ten looks one fails. */
static void a_claim_above_that_fails_is_made_again_with_its_hold(void **state)
{
    (void)state;
    lead_first();
    const struct rdzv_claim before = x.own;
    step((struct election_event){.kind = ELECTION_HIGHER, .epoch = "7-b"});
    step((struct election_event){.kind = ELECTION_CLAIMED, .rc = -110});
    for (int i = 0; i < 1000 && !did(ELECTION_CLAIM); i++, now += 5)
        step((struct election_event){.kind = x.asking ? ELECTION_SEEN : ELECTION_TICK, .rc = 1, .claim = &before});
    assert_true(did(ELECTION_CLAIM));
    win(1);
    assert_int_equal(x.hold_until, now + FULL);
}

static void a_look_that_fails_delays_no_claim_that_was_released(void **state)
{
    (void)state;
    lead_first();
    step((struct election_event){.kind = ELECTION_UNABLE});
    struct rdzv_claim free = x.own;
    step((struct election_event){.kind = ELECTION_RELEASED});
    const int64_t t = now;
    int looks = 0;
    for (int i = 0; i < 2000 && !did(ELECTION_CLAIM); i++, now += 5) {
        if (x.asking)
            step((struct election_event){.kind = ELECTION_SEEN, .rc = ++looks % 10 ? 1 : -110, .claim = &free});
        else
            step((struct election_event){.kind = ELECTION_TICK});
        assert_true(election_deadline(&x) > now || x.asking || did(ELECTION_CLAIM)); /* it does not ask in a circle */
    }
    assert_true(did(ELECTION_CLAIM) && looks > 20);
    assert_true(now - t >= 2000 && now - t < 3000);
}

static void a_higher_epoch_is_claimed_above_with_a_full_hold(void **state)
{
    (void)state;
    lead_first();
    step((struct election_event){.kind = ELECTION_HIGHER, .epoch = "7-b"});
    assert_true(x.fx[0] == ELECTION_UNTIL && x.until == 0);
    assert_true(did(ELECTION_RESIGN) && did(ELECTION_CLAIM));
    assert_int_equal(rdzv_epoch_number(x.own.epoch), 8);
    win(1);
    assert_int_equal(x.hold_until, now + FULL);
    step((struct election_event){.kind = ELECTION_HIGHER, .epoch = "6-c"});
    assert_int_equal(x.fx_count, 0);
}

/* It was emptied, and gives a number again. */
static void a_home_that_knows_nothing_is_held_by_whoever_knows_an_epoch(void **state)
{
    (void)state;
    step((struct election_event){.kind = ELECTION_BEGIN});
    see("5-a", 1);
    step((struct election_event){.kind = ELECTION_ACKED});
    step((struct election_event){.kind = ELECTION_AWAY, .refused = false});
    assert_true(claims_within(500, NULL, 0));
    assert_int_equal(rdzv_epoch_number(x.own.epoch), 6);
    win(0);
    assert_int_equal(x.hold_until, now + FULL);
    assert_true(rdzv_epoch_is_foreign("6-z", "6-y") && rdzv_epoch_is_foreign("7-y", "6-y"));
    assert_false(rdzv_epoch_is_foreign("6-y", "6-y") || rdzv_epoch_is_foreign("5-y", "6-y") ||
                 rdzv_epoch_is_foreign("", "1-y"));
}

static void what_may_be_lost_is_waited_for(void **state)
{
    (void)state;
    step((struct election_event){.kind = ELECTION_BEGIN});
    assert_true(claims_within(3000, "3-a", 1));
    step((struct election_event){.kind = ELECTION_CLAIMED, .rc = 1, .sent = now});
    step((struct election_event){.kind = ELECTION_LOADED, .rc = 1, .hold = true, .hold_ms = 15000});
    assert_int_equal(x.hold_until, now + 15000);
    assert_int_equal(x.owed_until, now + 15000);
}

static void d_counts_from_the_sending_of_a_renewal_that_was_confirmed(void **state)
{
    (void)state;
    lead_first();
    struct rdzv_claim renewed = x.own;
    const int64_t sent = now;
    renewed.n = 1;
    now += 700;
    step((struct election_event){.kind = ELECTION_RENEWED, .rc = -104});
    assert_int_equal(x.until, sent + ELECTION_D_MS);
    step((struct election_event){.kind = ELECTION_RENEWED, .rc = 1, .sent = sent + 500, .claim = &renewed});
    assert_int_equal(x.until, sent + 500 + ELECTION_D_MS);
    step((struct election_event){.kind = ELECTION_RENEWED, .rc = 0});
    assert_true(did(ELECTION_RESIGN) && did(ELECTION_LOOK) && x.until == 0);
}

static void of_a_thousand_nodes_that_lose_their_leader_not_all_ask_at_once(void **state)
{
    int64_t first = INT64_MAX, last = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        start(state);
        x.o.nodes = 1000;
        x.rng = seed;
        step((struct election_event){.kind = ELECTION_BEGIN});
        assert_true(did(ELECTION_LOOK));
        see("3-a", 1);
        step((struct election_event){.kind = ELECTION_ACKED});
        step((struct election_event){.kind = ELECTION_AWAY});
        const int64_t wait = did(ELECTION_LOOK) ? 0 : election_deadline(&x) - now;
        first = wait < first ? wait : first;
        last = wait > last ? wait : last;
    }
    assert_true(first < 50 && last > 100 && last <= 200);
    start(state);
    step((struct election_event){.kind = ELECTION_BEGIN});
    see("3-a", 1);
    now += 100;
    step((struct election_event){.kind = ELECTION_TICK});
    assert_true(did(ELECTION_LOOK));
    step((struct election_event){.kind = ELECTION_ACKED});
    step((struct election_event){.kind = ELECTION_AWAY}); /* while that look is under way */
    assert_int_equal(election_deadline(&x), INT64_MAX);
}

/* Its leader may go on without the home for so long. */
static void a_claim_with_a_time_away_is_left_to_those_that_its_leader_has_acknowledged_lately(void **state)
{
    (void)state;
    away_ms = 20000;
    step((struct election_event){.kind = ELECTION_BEGIN});
    assert_false(claims_within(20000, "3-a", 1));
    step((struct election_event){.kind = ELECTION_ACKED});
    const int64_t acked = now;
    step((struct election_event){.kind = ELECTION_AWAY, .sent = acked});
    assert_false(claims_within(D_AND_MORE - 15, "3-a", 1));
    assert_true(claims_within(500, "3-a", 1));
    assert_int_equal(x.own.away_ms, 0);
    start(state);
    away_ms = 20000;
    step((struct election_event){.kind = ELECTION_BEGIN});
    see("3-a", 1);
    step((struct election_event){.kind = ELECTION_ACKED});
    now += election_lately_ms(&x.o);
    step((struct election_event){.kind = ELECTION_AWAY, .refused = true, .sent = 1000000});
    assert_false(claims_within(20000, "3-a", 1));
    assert_true(claims_within(1000, "3-a", 1));
    win(1);
    assert_int_equal(x.grace_ms, 0); /* all of it was waited out */
}

static void renew(bool heard)
{
    step((struct election_event){.kind = ELECTION_HEARD, .enough = heard});
    now = x.next_renewal;
    step((struct election_event){.kind = ELECTION_TICK});
    assert_true(did(ELECTION_RENEW));
}

/* Its leader may be cut off from it, and go on for so long. */
static void a_home_that_was_emptied_is_held_for_the_time_away_too(void **state)
{
    const struct rdzv_claim own = {.port = 1, .addrs = "10.0.0.1", .node = "me"};
    (void)state;
    election_init(
        &x, &(struct election_options){
                .silence_ms = SILENCE, .kill_ms = KILL, .valid_ms = 3000, .away_ms = 20000, .nodes = 4, .own = &own});
    step((struct election_event){.kind = ELECTION_BEGIN});
    see("5-a", 1);
    step((struct election_event){.kind = ELECTION_ACKED});
    step((struct election_event){.kind = ELECTION_AWAY, .sent = now});
    assert_true(claims_within(500, NULL, 0));
    win(0);
    assert_int_equal(x.hold_until, now + election_fence_ms(&x.o, 20000));
}

/* A renewal without it may stand, whether or not its answer comes. */
static void a_leader_has_a_time_away_from_a_confirmed_renewal_on_until_it_sends_one_without(void **state)
{
    (void)state;
    x.o.away_ms = 20000;
    lead_first();
    const struct rdzv_claim first = x.own;
    step((struct election_event){.kind = ELECTION_RENEWED, .rc = 1, .sent = now, .claim = &first});
    assert_int_equal(x.own.away_ms, 0);
    renew(true);
    assert_int_equal(x.own.away_ms, 20000);
    assert_int_equal(x.away_ms, 0);
    const struct rdzv_claim as_sent = x.own;
    step((struct election_event){.kind = ELECTION_RENEWED, .rc = 1, .sent = now, .claim = &as_sent});
    assert_int_equal(x.away_ms, 20000);
    assert_int_equal(x.sent, now);
    renew(false);
    assert_int_equal(x.fx[0], ELECTION_UNTIL);
    assert_int_equal(x.away_ms, 0);
    assert_true(x.until > 0);
}

static void who_may_not_lead_never_claims(void **state)
{
    (void)state;
    x.o.never = true;
    step((struct election_event){.kind = ELECTION_BEGIN});
    assert_false(claims_within(5000, NULL, 0));
    assert_false(claims_within(5000, "3-a", 1));
}

#define FRESH(test) cmocka_unit_test_setup(test, start)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FRESH(an_empty_home_is_claimed_at_once_and_owes_nothing),
        FRESH(a_hundred_nodes_do_not_all_ask_an_api_at_once),
        FRESH(a_claim_that_is_renewed_is_left_alone_and_one_that_stands_still_for_d_is_not),
        FRESH(a_time_in_which_the_home_does_not_answer_does_not_count),
        FRESH(a_refusal_counts_only_of_a_leader_that_has_acknowledged),
        FRESH(group_ranks_claim_in_turn),
        FRESH(a_release_hands_on_what_is_owed),
        FRESH(whoever_hears_too_few_lets_go_and_comes_last),
        FRESH(whoever_hears_too_few_first_gives_up_those_that_it_took_over),
        FRESH(whoever_hears_too_few_first_waits_for_what_may_be_lost_and_gives_up_its_nodes),
        FRESH(a_release_during_a_hold_hands_the_hold_on),
        FRESH(a_claim_above_whose_answer_is_lost_keeps_its_hold),
        FRESH(a_claim_above_that_fails_is_made_again_with_its_hold),
        FRESH(a_look_that_fails_delays_no_claim_that_was_released),
        FRESH(a_higher_epoch_is_claimed_above_with_a_full_hold),
        FRESH(a_home_that_knows_nothing_is_held_by_whoever_knows_an_epoch),
        FRESH(what_may_be_lost_is_waited_for),
        FRESH(d_counts_from_the_sending_of_a_renewal_that_was_confirmed),
        FRESH(of_a_thousand_nodes_that_lose_their_leader_not_all_ask_at_once),
        FRESH(a_claim_with_a_time_away_is_left_to_those_that_its_leader_has_acknowledged_lately),
        FRESH(a_home_that_was_emptied_is_held_for_the_time_away_too),
        FRESH(a_leader_has_a_time_away_from_a_confirmed_renewal_on_until_it_sends_one_without),
        FRESH(who_may_not_lead_never_claims),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
