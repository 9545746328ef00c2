/* The client by itself: events in, effects out. What it does behind a connection is in launcher/rendezvous. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "common/rdzv/client/client.h"

enum { PATIENCE_MS = 3000, BEGIN_MS = 100000 };

/* The kind that is looked for, of the effects that wait; all of them are done. ms: of the last of its kind. */
static bool takes(struct client *c, enum client_effect_kind kind, int64_t *ms)
{
    bool found = false;
    for (const struct client_effect *fx; (fx = client_effect(c)); client_done(c))
        if (fx->kind == kind) {
            found = true;
            *ms = fx->ms;
        }
    return found;
}

static void no_wait_is_longer_than_the_node_waits_at_all(void **state)
{
    const struct client_options o = {.heartbeat_ms = 1000,
                                     .connect_ms = PATIENCE_MS,
                                     .run_id = "j",
                                     .node = "n",
                                     .endpoint = "h:1",
                                     .job = {.silence_ms = 3000}};
    struct client c;
    int64_t now = BEGIN_MS, ms = 0;
    (void)state;
    client_init(&c, &o);
    client_step(&c, &(struct client_event){.kind = CLIENT_JOIN}, now);
    assert_true(takes(&c, CLIENT_DIAL, &ms));
    assert_in_range(ms, 1, PATIENCE_MS);
    client_step(&c, &(struct client_event){.kind = CLIENT_DIALLED}, now += 10);
    takes(&c, CLIENT_HANG_UP, &ms);
    while (!takes(&c, CLIENT_FAILED, &ms) && now <= BEGIN_MS + PATIENCE_MS) /* who is there says nothing */
        client_step(&c, &(struct client_event){.kind = CLIENT_TICK}, now = client_deadline(&c));
    assert_int_equal(now, BEGIN_MS + PATIENCE_MS);
    client_finish(&c);
}

/* Whether one of the effects that wait tells people that somebody cannot be reached; all of them are done. */
static bool complains(struct client *c)
{
    bool found = false;
    for (const struct client_effect *fx; (fx = client_effect(c)); client_done(c))
        found = found || (fx->kind == CLIENT_PROGRESS && strncmp(fx->progress.text, "cannot reach", 12) == 0);
    return found;
}

/* When it is called trouble, with claims that are valid for so long; 0: as long as usual. */
static int64_t trouble_after(int64_t valid_ms)
{
    const struct client_options o = {.heartbeat_ms = 1000,
                                     .connect_ms = 60000,
                                     .run_id = "j",
                                     .node = "n",
                                     .endpoint = "redis://h",
                                     .job = {.silence_ms = 3000},
                                     .elected = true,
                                     .valid_ms = valid_ms,
                                     .shows_progress = true};
    const struct client_event refused = {
        .kind = CLIENT_DIALLED, .error = -ECONNREFUSED, .text = "h:2: Connection refused"};
    struct client c;
    int64_t now = BEGIN_MS, first = 0;
    client_init(&c, &o);
    client_step(&c, &(struct client_event){.kind = CLIENT_JOIN}, now);
    while (!first && now < BEGIN_MS + 30000) {
        client_step(&c, &(struct client_event){.kind = CLIENT_ADDRESS, .text = "h:2", .epoch = "1-a", .seen = "1-a"},
                    now);
        client_step(&c, &refused, now += 10);
        first = complains(&c) ? now : 0;
        client_step(&c, &(struct client_event){.kind = CLIENT_TICK}, now += 490);
        first = complains(&c) ? now : first;
    }
    client_finish(&c);
    return first - BEGIN_MS;
}

static void an_elected_leader_that_has_let_go_is_no_trouble_yet(void **state)
{
    (void)state;
    assert_in_range(trouble_after(0), 4500, 9000);
    assert_in_range(trouble_after(3000), 9000, 14000);
}

/* Answers TERM, and JOIN with `busy`. -> when the node gave up, or 0 if it never did. */
static int64_t asks_a_leader_that_waits(const struct client_options *o, const char *busy, int64_t for_ms)
{
    struct client c;
    int64_t now = BEGIN_MS, ms = 0;
    client_init(&c, o);
    client_step(&c, &(struct client_event){.kind = CLIENT_JOIN}, now);
    client_step(&c, &(struct client_event){.kind = CLIENT_ADDRESS, .text = "h:2", .epoch = "1-a", .seen = "1-a"}, now);
    client_step(&c, &(struct client_event){.kind = CLIENT_DIALLED}, now += 10);
    client_step(&c, &(struct client_event){.kind = CLIENT_READY}, now += 10);
    bool failed = false;
    for (const int64_t until = now + for_ms; !failed && now < until;) {
        struct client_event ev = {.kind = CLIENT_TICK};
        bool asked = false;
        for (const struct client_effect *fx; !asked && (fx = client_effect(&c)); client_done(&c)) {
            failed = failed || fx->kind == CLIENT_FAILED;
            asked = fx->kind == CLIENT_SEND;
            if (asked && fx->what == ASK_TERM)
                ev = (struct client_event){.kind = CLIENT_REPLY,
                                           .reply = {.kind = REPLY_STATUS, .text = "OK", .len = 2}};
            else if (asked)
                ev = (struct client_event){.kind = CLIENT_REPLY,
                                           .reply = {.kind = REPLY_ERROR, .text = busy, .len = strlen(busy)}};
        }
        now = asked ? now + 5 : failed ? now : client_deadline(&c);
        client_step(&c, &ev, now);
    }
    takes(&c, CLIENT_HANG_UP, &ms);
    client_finish(&c);
    return failed ? now - BEGIN_MS : 0;
}

/* The leader may be this node itself: if it gave up, the next one would begin to wait anew. */
static void what_an_elected_leader_waits_for_is_no_part_of_the_join_timeout(void **state)
{
    struct client_options o = {.heartbeat_ms = 1000,
                               .connect_ms = PATIENCE_MS,
                               .run_id = "j",
                               .node = "n",
                               .endpoint = "redis://h",
                               .job = {.silence_ms = 3000},
                               .elected = true};
    (void)state;
    assert_int_equal(asks_a_leader_that_waits(&o, "BUSY it is waited for", 10 * PATIENCE_MS), 0);
    o.listed = true; /* another node may have this one's seat for ever */
    assert_in_range(asks_a_leader_that_waits(&o, "BUSY node rank 1 is taken", 10 * PATIENCE_MS), PATIENCE_MS,
                    PATIENCE_MS + 2000);
}

/* A client that has joined, and asks NEXT. listed: of a list of hosts. */
static void begin_next(struct client *c, bool listed, int64_t *now)
{
    static const char joined[] = "instance=0123456789abcdef seq=0 v=1";
    const struct client_options o = {.heartbeat_ms = 1000,
                                     .connect_ms = 60000,
                                     .run_id = "j",
                                     .node = "n",
                                     .endpoint = "h:1",
                                     .job = {.silence_ms = 3000, .min_nodes = 1, .max_nodes = 1},
                                     .elected = listed,
                                     .listed = listed};
    int64_t ms;
    client_init(c, &o);
    client_step(c, &(struct client_event){.kind = CLIENT_JOIN}, *now);
    if (listed)
        client_step(c, &(struct client_event){.kind = CLIENT_ADDRESS, .text = "h:1", .epoch = "listed", .seen = ""},
                    *now);
    client_step(c, &(struct client_event){.kind = CLIENT_DIALLED}, *now += 10);
    client_step(c, &(struct client_event){.kind = CLIENT_READY}, *now += 10);
    client_step(c,
                &(struct client_event){.kind = CLIENT_REPLY,
                                       .reply = {.kind = REPLY_RECORD, .text = joined, .len = strlen(joined)}},
                *now += 10);
    takes(c, CLIENT_SEND, &ms);
}

/* A question acknowledges as nil does and is handed on; NEXT goes on, and counts it as an answer that came. */
static void a_question_is_a_nil_that_asks(void **state)
{
    static const char question[] = "kind=round seq=0 ask=stacks id=7 ms=800 rank=-1";
    (void)state;
    for (int listed = 0; listed < 2; listed++) {
        struct client c;
        int64_t now = BEGIN_MS;
        bool asked = false, went_on = false;
        begin_next(&c, listed, &now);
        const uint64_t got = c.got;
        client_step(&c,
                    &(struct client_event){.kind = CLIENT_REPLY,
                                           .reply = {.kind = REPLY_RECORD, .text = question, .len = strlen(question)}},
                    now += 500);
        for (const struct client_effect *fx; (fx = client_effect(&c)); client_done(&c)) {
            if (fx->kind == CLIENT_ASKED) {
                asked = true;
                assert_string_equal(fx->text, question);
            }
            assert_int_not_equal(fx->kind, CLIENT_TELL);
            went_on =
                went_on || (fx->kind == CLIENT_SEND && fx->what == ASK_NEXT && fx->seq == 0 && fx->got == got + 1);
        }
        assert_true(asked && went_on);
        assert_int_equal(c.lease.acked, now - 500); /* when that NEXT was sent */
        /* the answer leaves on the same connection, and its own reply acknowledges nothing */
        client_step(&c, &(struct client_event){.kind = CLIENT_ANSWER, .id = 7, .text = "{}"}, now += 10);
        const struct client_effect *fx = client_effect(&c);
        assert_int_equal(fx->kind, CLIENT_SEND);
        assert_int_equal(fx->what, ASK_ANSWER);
        assert_int_equal(fx->seq, 7);
        assert_string_equal(c.answer.data, "{}");
        client_done(&c);
        client_finish(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_is_a_nil_that_asks),
        cmocka_unit_test(no_wait_is_longer_than_the_node_waits_at_all),
        cmocka_unit_test(an_elected_leader_that_has_let_go_is_no_trouble_yet),
        cmocka_unit_test(what_an_elected_leader_waits_for_is_no_part_of_the_join_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
