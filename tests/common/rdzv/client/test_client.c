/* The client by itself: events in, effects out. What it does behind a connection is in launcher/rendezvous. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/job/exitcode.h"
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

/* --- a failure that was told */

static void says(struct client *c, const char *text, int64_t now)
{
    const struct client_reply reply = {.kind = text[0] ? REPLY_RECORD : REPLY_NIL, .text = text, .len = strlen(text)};
    client_step(c, &(struct client_event){.kind = CLIENT_REPLY, .reply = reply}, now);
}

/* The connection is lost, and another one is there. -> whether FAIL was sent on it. */
static bool fails_again(struct client *c, int64_t *now)
{
    bool found = false;
    client_step(c, &(struct client_event){.kind = CLIENT_LOST, .text = "reset"}, *now += 10);
    client_step(c, &(struct client_event){.kind = CLIENT_TICK}, *now += 200);
    client_step(c, &(struct client_event){.kind = CLIENT_DIALLED}, *now += 10);
    client_step(c, &(struct client_event){.kind = CLIENT_READY}, *now += 10);
    for (const struct client_effect *fx; (fx = client_effect(c)); client_done(c))
        found = found || (fx->kind == CLIENT_SEND && fx->what == ASK_FAIL);
    return found;
}

/* Its workers ran, and one has failed; it waits for the next round. */
static void fail_in_round_1(struct client *c, int64_t *now)
{
    static const struct rdzv_cause cause = {.exit_code = 1};
    begin_next(c, false, now);
    says(c, "kind=round seq=1 round=1 why=start group_rank=1 group_world=2 rank_base=1 world_size=2", *now += 10);
    assert_int_equal(c->mode, CLIENT_RUNNING);
    client_step(c, &(struct client_event){.kind = CLIENT_FAIL, .cause = &cause}, *now += 10);
    client_step(c, &(struct client_event){.kind = CLIENT_JOIN}, *now += 10);
    assert_true(c->failing);
}

/* It is told again on a new connection, but not once the next round runs, even if no STOP came between. */
static void a_failure_is_not_told_of_the_next_round(void **state)
{
    struct client c;
    int64_t now = BEGIN_MS, ms;
    (void)state;
    fail_in_round_1(&c, &now);
    takes(&c, CLIENT_SEND, &ms);
    assert_true(fails_again(&c, &now));
    says(&c, "", now += 10); /* to FAIL */
    says(&c, "instance=0123456789abcdef seq=1", now += 10);
    says(&c, "kind=round seq=3 round=2 why=failure group_rank=1 group_world=2 rank_base=1 world_size=2", now += 10);
    assert_int_equal(c.mode, CLIENT_RUNNING);
    takes(&c, CLIENT_SEND, &ms);
    assert_false(fails_again(&c, &now));
    client_finish(&c);
}

/* Nor once the rendezvous is given up: here while this node waits for the next round. */
static void a_failure_is_not_told_after_the_end(void **state)
{
    struct client c;
    int64_t now = BEGIN_MS, ms;
    (void)state;
    fail_in_round_1(&c, &now);
    client_step(&c, &(struct client_event){.kind = CLIENT_TROUBLE, .error = 69, .text = "the folder hangs"}, now += 10);
    assert_true(takes(&c, CLIENT_FAILED, &ms));
    assert_int_equal(c.mode, CLIENT_OVER);
    assert_false(c.failing);
    client_finish(&c);
}

/* One NEXT waits already. */
static void who_answers_nothing_is_given_up_before_its_requests_overflow(void **state)
{
    struct client c;
    int64_t now = BEGIN_MS, ms;
    (void)state;
    begin_next(&c, false, &now);
    for (int i = 1; i < CLIENT_ASKED_MAX; i++) {
        client_step(&c, &(struct client_event){.kind = CLIENT_PUBLISH, .text = "{}"}, now);
        assert_true(takes(&c, CLIENT_SEND, &ms));
    }
    client_step(&c, &(struct client_event){.kind = CLIENT_PUBLISH, .text = "{}"}, now);
    assert_true(takes(&c, CLIENT_HANG_UP, &ms));
    client_finish(&c);
}

/* Of what it says nothing can be believed: the connection is given up. */
static void who_makes_no_sense_is_given_up(void **state)
{
    static const struct client_reply nonsense[] = {{.kind = REPLY_OTHER, .text = ""},
                                                   {.kind = REPLY_STATUS, .text = "OK", .len = 2},
                                                   {.kind = REPLY_RECORD, .text = "kind=other seq=1", .len = 16}};
    struct client c;
    int64_t now = BEGIN_MS, ms;
    (void)state;
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        begin_next(&c, false, &now);
        client_step(&c, &(struct client_event){.kind = CLIENT_REPLY, .reply = nonsense[i]}, now += 10); /* to NEXT */
        assert_true(takes(&c, CLIENT_HANG_UP, &ms));
        client_finish(&c);
    }
    begin_next(&c, false, &now);
    says(&c, "", now += 10);
    assert_false(takes(&c, CLIENT_HANG_UP, &ms));
    c.asked_first = c.asked_last; /* nothing is asked */
    c.next_open = false;
    says(&c, "", now += 10);
    assert_true(takes(&c, CLIENT_HANG_UP, &ms));
    client_finish(&c);
}

/* Its JOIN is refused for good. */
static void check_refusal(const char *run_id, const char *answer, int code, const char *text)
{
    const struct client_options o = {
        .heartbeat_ms = 1000, .connect_ms = 60000, .run_id = run_id, .node = "n", .endpoint = "h:1"};
    const struct client_reply reply = {.kind = REPLY_ERROR, .text = answer, .len = strlen(answer)};
    struct client c;
    int64_t now = BEGIN_MS;
    bool failed = false;
    client_init(&c, &o);
    client_step(&c, &(struct client_event){.kind = CLIENT_JOIN}, now);
    client_step(&c, &(struct client_event){.kind = CLIENT_DIALLED}, now += 10);
    client_step(&c, &(struct client_event){.kind = CLIENT_READY}, now += 10);
    client_step(&c, &(struct client_event){.kind = CLIENT_REPLY, .reply = reply}, now += 10);
    for (const struct client_effect *fx; (fx = client_effect(&c)); client_done(&c))
        if (fx->kind == CLIENT_FAILED) {
            failed = true;
            assert_int_equal(fx->code, code);
            if (!strstr(fx->text, text))
                fail_msg("'%s', expected '%s'", fx->text, text);
        }
    assert_true(failed);
    client_finish(&c);
}

static void a_join_that_is_refused_for_good_says_what_to_do(void **state)
{
    (void)state;
    check_refusal("none", "REFUSED run id 'none' is shared", EXIT_USAGE_ERROR, "no --rdzv-id is given");
    check_refusal("j", "REFUSED run id 'j' is shared", EXIT_USAGE_ERROR, "--rdzv-id 'j' is no name of one job alone");
    check_refusal("j", "REFUSED the job is over", EXIT_UNAVAILABLE, "h:1 refused this node: the job is over");
    check_refusal("j", "DIFFERS nnodes 1:1", EXIT_MISMATCH, "settings differ from those of job 'j' at h:1: nnodes");
    check_refusal("j", "NOAUTH who are you", EXIT_USAGE_ERROR, "does not admit this node: who are you");
    check_refusal("j", "ERR unknown command", EXIT_UNAVAILABLE, "h:1 answers, but is no rendezvous");
}

/* --- any order of events */

static uint32_t drawn = 1;

static uint32_t draw(uint32_t below)
{
    drawn = drawn * 1664525u + 1013904223u;
    return (drawn >> 8) % below;
}

static const char *any_news(char text[CLIENT_TEXT_MAX])
{
    static const char *const kinds[] = {"round", "round", "round", "stop", "stop", "end", "other"};
    static const char *const whys[] = {"start", "failure", "resize", "drain"};
    snprintf(text, CLIENT_TEXT_MAX,
             "kind=%s seq=%u round=%u why=%s restart_count=%u group_rank=%d group_world=2 rank_base=0 world_size=2 "
             "spare=%u exit_code=%u member_addrs=1.2.3.4 more=%d",
             kinds[draw(7)], draw(200), 1 + draw(9), whys[draw(4)], draw(3), (int)draw(3) - 1, draw(6) == 0, draw(2),
             draw(4) == 0 ? (int)draw(9) - 2 : 0);
    return text;
}

static const char *any_refusal(void)
{
    static const char *const v[] = {"FENCED f",  "REFUSED r", "DIFFERS d", "NOAUTH n",
                                    "NOJOB j",   "LIMIT l",   "BUSY b",    "FEW f",
                                    "LOADING l", "NOTERM t",  "STANDBY s", "ERR unknown command",
                                    "nonsense"};
    return v[draw(13)];
}

/* What a rendezvous says to the oldest request, or whatever else listens there. */
static struct client_reply any_reply(const struct client *c, char text[CLIENT_TEXT_MAX])
{
    struct client_reply r = {.kind = (enum client_reply_kind)draw(REPLY_OTHER + 1), .text = text};
    const enum client_ask what = c->asked[c->asked_first % CLIENT_ASKED_MAX].what;
    if (draw(16))
        r.kind = what == ASK_JOIN ? REPLY_RECORD : what != ASK_NEXT ? REPLY_STATUS : draw(2) ? REPLY_NIL : REPLY_RECORD;
    text[0] = 0;
    if (r.kind == REPLY_ERROR)
        strcpy(text, any_refusal());
    else if (r.kind == REPLY_STATUS)
        strcpy(text, draw(8) ? "OK" : "OK 00000000000000bb");
    else if (r.kind == REPLY_RECORD && (what == ASK_JOIN || draw(8) == 0))
        snprintf(text, CLIENT_TEXT_MAX, "instance=00000000000000%s seq=%u few=%u", draw(8) ? "aa" : "bb", draw(9),
                 draw(8) == 0);
    else if (r.kind == REPLY_RECORD && draw(8) == 0)
        strcpy(text, "kind=round seq=0 ask=stacks id=7 ms=800 rank=-1");
    else if (r.kind == REPLY_RECORD)
        any_news(text);
    r.len = strlen(text);
    return r;
}

static void any_event(struct client *c, const struct client_options *o, int64_t now)
{
    static const struct rdzv_cause cause = {.exit_code = 1, .rank = 0};
    static const int errors[] = {0, 0, 0, -ECONNREFUSED, -ETIMEDOUT};
    char text[CLIENT_TEXT_MAX] = "t";
    struct client_event ev = {.kind = (enum client_event_kind)draw(CLIENT_TICK + 1),
                              .cause = &cause,
                              .text = text,
                              .epoch = "2-a",
                              .seen = "2-a",
                              .at = now};
    if (draw(3))
        ev.kind = draw(2) ? CLIENT_REPLY : CLIENT_TICK;
    if (c->dialling && draw(2))
        ev.kind = CLIENT_DIALLED;
    if (c->connected && !c->up && draw(2))
        ev.kind = CLIENT_READY;
    if ((ev.kind == CLIENT_JOIN && c->mode == CLIENT_RUNNING) || (ev.kind == CLIENT_ADDRESS && !o->elected) ||
        (ev.kind == CLIENT_DIRECT && draw(8)) || (ev.kind == CLIENT_DIALLED && !c->dialling) ||
        (ev.kind == CLIENT_STORE_FAILED && draw(30)))
        return; /* not what the shell does, or too often */
    ev.error = ev.kind == CLIENT_DIALLED                    ? errors[draw(5)]
               : ev.kind == CLIENT_TROUBLE && draw(30) == 0 ? 1
               : ev.kind == CLIENT_STORE_FAILED             ? -EMFILE
                                                            : 0;
    ev.how = (enum rdzv_lost)draw(3);
    ev.id = draw(100);
    if (ev.kind == CLIENT_REPLY)
        ev.reply = any_reply(c, text);
    client_step(c, &ev, now);
}

/* client_check_() aborts if not. */
static void no_server_breaks_a_rule(void **state)
{
    int been[CLIENT_OVER + 1] = {0};
    (void)state;
    for (int life = 0; life < 8000; life++) {
        const bool elected = life % 3, listed = life % 3 == 2;
        const struct client_options o = {.heartbeat_ms = 1000,
                                         .connect_ms = 60000,
                                         .grace_ms = elected ? 0 : 60000,
                                         .run_id = "j",
                                         .node = "n",
                                         .endpoint = "h:1",
                                         .job = {.silence_ms = 3000, .kill_ms = 1000, .min_nodes = 1, .max_nodes = 2},
                                         .elected = elected,
                                         .listed = listed,
                                         .shows_progress = life % 2};
        struct client c;
        int64_t now = BEGIN_MS, ms;
        client_init(&c, &o);
        client_step(&c, &(struct client_event){.kind = CLIENT_JOIN}, now);
        for (int i = 0; i < 150 && c.mode != CLIENT_OVER; i++) {
            any_event(&c, &o, now += draw(4) ? draw(200) : draw(4000));
            been[c.mode]++;
            takes(&c, CLIENT_TELL, &ms);
        }
        client_finish(&c);
    }
    for (int m = CLIENT_JOINING; m <= CLIENT_OVER; m++)
        assert_in_range(been[m], 1000, INT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_is_a_nil_that_asks),
        cmocka_unit_test(no_wait_is_longer_than_the_node_waits_at_all),
        cmocka_unit_test(an_elected_leader_that_has_let_go_is_no_trouble_yet),
        cmocka_unit_test(what_an_elected_leader_waits_for_is_no_part_of_the_join_timeout),
        cmocka_unit_test(a_failure_is_not_told_of_the_next_round),
        cmocka_unit_test(a_failure_is_not_told_after_the_end),
        cmocka_unit_test(who_answers_nothing_is_given_up_before_its_requests_overflow),
        cmocka_unit_test(who_makes_no_sense_is_given_up),
        cmocka_unit_test(a_join_that_is_refused_for_good_says_what_to_do),
        cmocka_unit_test(no_server_breaks_a_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
