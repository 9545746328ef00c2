/* The client of a rendezvous: the agent's calls, time, and the life of the connection. See client.h. */
#include "common/rdzv/client/client.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "common/rdzv/client/client_impl.h"
#include "common/rdzv/client/election.h"

#define PAUSE_FIRST_MS 50
#define PAUSE_MAX_MS 1000
#define DIAL_MS 5000
/* Time allowed for the proof of who we are: several times the server's --auth-timeout. The server first serves the
 * strangers that queued before us, and a client that dials again goes to the end of that queue. */
#define GREET_MS 10000
/* Of several addresses one may accept and never answer: it gets a heartbeat, and twice as much each time. */
#define GREET_DOUBLED_MAX 4
/* Advice for a user whose elected leader cannot be dialled. */
#define UNREACHED                                                                                                        \
    "; that node leads the job, and all others must reach it: let it announce another address (--local-addr, --iface), " \
    "or not lead (--rdzv-conf is_host=0)"

void client_init(struct client *c, const struct client_options *o)
{
    *c = (struct client){.o = *o, .rng = o->seed, .retry_at = INT64_MAX};
    c->lease = (struct lease){
        .silence_ms = o->job.silence_ms, .kill_ms = o->job.kill_ms, .grace_ms = o->elected ? 0 : o->grace_ms};
    snprintf(c->where, sizeof c->where, "%s", o->endpoint);
}

void client_finish(struct client *c)
{
    while (client_effect(c))
        client_done(c);
    buf_free(&c->report);
    buf_free(&c->sent);
    buf_free(&c->postmortem);
    buf_free(&c->answer);
    buf_free(&c->members);
}

/* --- effects */

struct client_effect *client_add_(struct client *c, enum client_effect_kind kind)
{
    struct client_effect *fx = &c->fx[c->fx_last++ % CLIENT_EFFECTS_MAX];
    assert(c->fx_last - c->fx_first <= CLIENT_EFFECTS_MAX);
    fx->kind = kind;
    fx->what = ASK_TERM;
    fx->seq = 0;
    fx->from = fx->code = 0;
    fx->together = false;
    fx->got = 0;
    fx->ms = 0;
    fx->members = NULL;
    fx->text[0] = 0;
    return fx;
}

void client_text_(struct client *c, enum client_effect_kind kind, const char *fmt, ...)
{
    struct client_effect *fx = client_add_(c, kind);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(fx->text, sizeof fx->text, fmt, ap);
    va_end(ap);
}

struct client_effect *client_effect(struct client *c)
{
    return c->fx_first == c->fx_last ? NULL : &c->fx[c->fx_first % CLIENT_EFFECTS_MAX];
}

void client_done(struct client *c)
{
    struct client_effect *fx = client_effect(c);
    free(fx->members);
    fx->members = NULL;
    c->fx_first++;
}

/* --- modes */

void client_set_mode_(struct client *c, enum client_mode mode)
{
    static const char *const names[] = {CLIENT_MODES(CHOICE_NAME)};
    if (mode != c->mode)
        log_debug("rendezvous", "%s -> %s", names[c->mode], names[mode]);
    c->mode = mode;
}

void client_lease_moved_(struct client *c)
{
    client_add_(c, CLIENT_LEASE)->ms = c->mode == CLIENT_RUNNING ? lease_until(&c->lease) : 0;
}

void client_alive_(struct client *c, bool on)
{
    if (c->alive_on == on || (on && c->lease.grace_ms <= 0))
        return;
    c->alive_on = on;
    client_add_(c, CLIENT_ALIVE)->ms = on;
}

void client_fence_(struct client *c, const char *why, int64_t now)
{
    if (c->mode != CLIENT_RUNNING && c->mode != CLIENT_DONE)
        return;
    const bool workers = c->mode == CLIENT_RUNNING;
    client_set_mode_(c, CLIENT_FENCED);
    c->past.restarts++; /* losing the round costs one restart; the rendezvous corrects this count later */
    c->failing = false;
    client_alive_(c, false);
    if (workers)
        client_add_(c, CLIENT_LEASE)->ms = now;
    client_text_(c, CLIENT_FENCE, "%s", why);
}

void client_fail_(struct client *c, int code, const char *fmt, ...)
{
    char why[CLIENT_TEXT_MAX + 1];
    va_list ap;
    if (c->mode == CLIENT_OVER)
        return;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    if (c->mode == CLIENT_RUNNING) /* not where they are done */
        client_fence_(c, "", c->lease.acked);
    client_set_mode_(c, CLIENT_OVER);
    client_alive_(c, false);
    c->failing = false;
    c->retry_at = INT64_MAX;
    struct client_effect *fx = client_add_(c, CLIENT_FAILED);
    fx->code = code;
    memcpy(fx->text, why, sizeof why);
}

/* --- the clock */

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool waits_to_reach(const struct client *c)
{
    return (c->mode == CLIENT_JOINING || c->mode == CLIENT_DONE) && !c->up && c->o.shows_progress;
}

static const struct client_asked *oldest(const struct client *c)
{
    return c->asked_first == c->asked_last ? NULL : &c->asked[c->asked_first % CLIENT_ASKED_MAX];
}

int64_t client_deadline(const struct client *c)
{
    int64_t due = c->retry_at;
    if (c->mode == CLIENT_RUNNING)
        due = earlier(due, lease_until(&c->lease));
    if (c->connected && !c->up)
        due = earlier(due, c->greet_due);
    if (oldest(c))
        due = earlier(due, oldest(c)->due);
    if (waits_to_reach(c))
        due = earlier(due, c->progress_at + CLIENT_PROGRESS_MS);
    return due;
}

/* First thing in every step: kill the workers if their lease is over. */
static void check(struct client *c, int64_t now)
{
    char why[SILENCE_TEXT_MAX];
    if (c->mode != CLIENT_RUNNING || now < lease_until(&c->lease))
        return;
    silence_text(now - c->lease.acked, c->still_ms, why);
    client_fence_(c, why, now);
    if (c->connected || c->dialling)
        client_give_up_(c, why, now);
}

/* --- the connection */

int64_t client_left_ms_(const struct client *c, int64_t now)
{
    const int64_t left = c->away + c->o.connect_ms - now;
    return !c->away ? 0 : left > 0 ? left : 1;
}

void client_progress_(struct client *c, const struct rdzv_progress *p, int64_t now)
{
    if (!c->o.shows_progress || (c->progress_at && now - c->progress_at < CLIENT_PROGRESS_MS - 50))
        return;
    c->progress_at = now;
    client_add_(c, CLIENT_PROGRESS)->progress = *p;
}

static void still_out_of_reach(struct client *c, int64_t now)
{
    struct rdzv_progress p = {.for_ms = now - c->away, .left_ms = client_left_ms_(c, now), .error = c->error};
    if (c->stranger || c->homeless)
        snprintf(p.text, sizeof p.text, "%.*s", (int)sizeof p.text - 1, c->why);
    else if (c->why[0])
        snprintf(p.text, sizeof p.text, "cannot reach %.*s", (int)sizeof p.text - 14, c->why);
    else
        snprintf(p.text, sizeof p.text, "connecting to %.200s", c->where);
    client_progress_(c, &p, now);
}

static unsigned jitter(struct client *c, int64_t max)
{
    c->rng = c->rng * 1103515245u + 12345u;
    return max > 0 ? (c->rng >> 8) % (unsigned)max : 0;
}

void client_again_(struct client *c, int64_t now)
{
    const int64_t most =
        c->mode == CLIENT_RUNNING && c->o.heartbeat_ms / 2 < PAUSE_MAX_MS ? c->o.heartbeat_ms / 2 : PAUSE_MAX_MS;
    if (c->mode == CLIENT_OVER || c->mode == CLIENT_FENCED)
        return;
    const int64_t pause = earlier(c->pause_ms, most);
    c->pause_ms = pause ? 2 * pause : PAUSE_FIRST_MS;
    c->retry_at = now + pause / 2 + jitter(c, pause / 2 + 20);
}

static void out_of_reach(struct client *c, const char *why, int64_t now)
{
    const bool first = !c->why[0] && why[0];
    if (!c->away)
        c->away = now;
    if (why != c->why && !c->homeless)
        snprintf(c->why, sizeof c->why, "%s", why);
    if (c->mode == CLIENT_RUNNING || c->mode == CLIENT_FENCED || c->mode == CLIENT_OVER)
        return;
    if (why[0] && now - c->away >= c->o.connect_ms) {
        if (c->homeless)
            client_fail_(c, EXIT_UNAVAILABLE, "given up after %lld s (join_timeout): %s",
                         (long long)(c->o.connect_ms / 1000), c->why);
        else
            client_fail_(c, EXIT_UNAVAILABLE, "cannot reach the rendezvous at %s within %lld s: %s", c->o.endpoint,
                         (long long)(c->o.connect_ms / 1000), c->why);
        return;
    }
    if (first)
        c->progress_at = 0; /* report progress at once: the caller may want to act on it */
    if (waits_to_reach(c))
        still_out_of_reach(c, now);
}

static void drop(struct client *c, bool unheard)
{
    if (c->connected || c->dialling)
        client_add_(c, CLIENT_HANG_UP)->ms = unheard;
    c->connected = c->dialling = c->up = c->next_open = c->named = c->acked = false;
    c->asked_first = c->asked_last = 0;
    c->got = 0;
}

static void seek(struct client *c, bool refused)
{
    if (c->o.elected && c->mode != CLIENT_OVER && c->mode != CLIENT_FENCED && c->mode != CLIENT_NEW)
        client_add_(c, CLIENT_SEEK)->ms = refused;
}

/* ms, cut to the time that is left until this node gives up. */
static int64_t within_patience(const struct client *c, int64_t ms, int64_t now)
{
    const bool waits = c->away && (c->mode == CLIENT_JOINING || c->mode == CLIENT_DONE);
    return waits ? earlier(ms, client_left_ms_(c, now)) : ms;
}

static void dial(struct client *c, int64_t now)
{
    c->retry_at = INT64_MAX;
    if (c->o.elected && !c->epoch[0]) {
        seek(c, false);
        return;
    }
    c->dialling = true;
    c->dial_begun = now;
    client_add_(c, CLIENT_DIAL)->ms = c->mode == CLIENT_RUNNING ? c->o.heartbeat_ms : within_patience(c, DIAL_MS, now);
}

static int64_t greet_ms(const struct client *c)
{
    const unsigned doubled = c->unproved < GREET_DOUBLED_MAX ? c->unproved : GREET_DOUBLED_MAX;
    return c->several ? earlier(c->o.heartbeat_ms << doubled, GREET_MS) : GREET_MS;
}

/* Whoever listens there does not lead (any more, or yet). Normal during an election; an error only if it lasts. */
void client_turn_away_(struct client *c, const char *why, int64_t now)
{
    char text[640];
    client_text_(c, CLIENT_NOTE, "%s: %s", c->where, why);
    drop(c, false);
    if (c->mode == CLIENT_RUNNING)
        lease_lost(&c->lease, now);
    c->away = c->away ? c->away : now;
    snprintf(text, sizeof text, "%.120s: %.500s", c->where, why);
    if (now - c->away >= CLIENT_PROGRESS_MS)
        out_of_reach(c, text, now);
    client_again_(c, now);
    seek(c, false);
}

/* If the leader that is dialled is dead, another one leads by then. */
static int64_t another_leads_ms(const struct client *c)
{
    return 3 * (c->o.valid_ms > 0 ? c->o.valid_ms : ELECTION_D_MS);
}

/* An elected leader closes its port and its connections when it lets go, and one that died has none: another claim
 * follows, so this is trouble only if it lasts. */
static void cannot_reach(struct client *c, const char *why, int64_t now)
{
    c->away = c->away ? c->away : now;
    if (!c->o.elected || c->o.listed || now - c->away >= another_leads_ms(c))
        out_of_reach(c, why, now);
}

void client_give_up_(struct client *c, const char *why, int64_t now)
{
    char text[640];
    const bool unheard = c->connected && (!c->up || (oldest(c) && now >= oldest(c)->due));
    c->unproved += c->connected && !c->up;
    client_text_(c, CLIENT_NOTE, "the connection to %s is given up: %s", c->where, why);
    snprintf(text, sizeof text, "%.120s%s %s", c->where, c->stranger ? "" : ":", why);
    drop(c, unheard);
    if (c->mode == CLIENT_RUNNING) {
        lease_lost(&c->lease, now);
        client_alive_(c, true);
    }
    cannot_reach(c, text, now);
    client_again_(c, now);
    seek(c, false);
}

static void on_dialled(struct client *c, const struct client_event *ev, int64_t now)
{
    const bool refused = ev->error == -ECONNREFUSED || ev->error == -ECONNRESET;
    c->dialling = c->stranger = false;
    c->error = ev->error;
    if (ev->error == 0) {
        c->connected = true;
        c->greet_due = now + within_patience(c, greet_ms(c), now);
        return;
    }
    lease_dialled(&c->lease, c->dial_begun, refused);
    check(c, now);
    if (c->mode == CLIENT_RUNNING)
        client_lease_moved_(c);
    char why[512];
    snprintf(why, sizeof why, c->o.elected && !c->o.listed ? "%.250s" UNREACHED : "%.500s", ev->text);
    cannot_reach(c, why, now);
    client_again_(c, now);
    seek(c, refused);
}

/* The leader's address cannot be used. If the leader died, the address may belong to somebody else by now, and
 * another node claims after D; if it lives, it denies this node on every try. */
bool client_is_denied_(struct client *c, int64_t now)
{
    if (!c->o.elected || c->o.listed)
        return true;
    if (strcmp(c->denied, c->epoch) != 0) {
        snprintf(c->denied, sizeof c->denied, "%s", c->epoch);
        c->denied_since = now;
    }
    return now - c->denied_since >= another_leads_ms(c);
}

static void on_lost(struct client *c, const struct client_event *ev, int64_t now)
{
    if (!c->connected)
        return; /* the check gave it up */
    if (ev->how == RDZV_DENIED && c->mode == CLIENT_JOINING && client_is_denied_(c, now)) {
        client_fail_(c, EXIT_USAGE_ERROR, "the rendezvous at %s and this node do not trust each other: %s%s", c->where,
                     ev->text, c->o.secret_help ? c->o.secret_help : "");
        drop(c, false);
        return;
    }
    c->stranger = ev->how == RDZV_STRANGER;
    client_give_up_(c, ev->text, now);
}

/* A new address of the leader. A member never goes back to a lower epoch: its greeting names the highest that it has
 * seen. */
static void on_address(struct client *c, const struct client_event *ev, int64_t now)
{
    if (c->mode == CLIENT_OVER)
        return;
    drop(c, false);
    const bool moves = c->o.listed && c->past.round > 0 && strcmp(c->where, ev->text) != 0;
    snprintf(c->left, sizeof c->left, "%.127s", moves ? c->where : "");
    snprintf(c->where, sizeof c->where, "%s", ev->text);
    snprintf(c->epoch, sizeof c->epoch, "%s", ev->epoch);
    snprintf(c->seen, sizeof c->seen, "%s", ev->seen);
    c->stranger = false;
    c->pause_ms = 0;
    if (c->mode != CLIENT_FENCED && c->mode != CLIENT_NEW)
        dial(c, now);
}

static void on_direct(struct client *c, const struct client_event *ev, int64_t now)
{
    c->o.elected = c->o.listed = false;
    c->several = true;
    c->lease.grace_ms = c->o.grace_ms;
    on_address(c, &(struct client_event){.text = ev->text, .epoch = "", .seen = ""}, now);
}

static void on_trouble(struct client *c, const struct client_event *ev, int64_t now)
{
    if (ev->error) {
        client_fail_(c, ev->error, "%s", ev->text);
        drop(c, false);
        return;
    }
    c->homeless = ev->text[0];
    if (!c->homeless)
        return;
    snprintf(c->why, sizeof c->why, "%s", ev->text);
    if (!c->up && c->mode != CLIENT_NEW)
        out_of_reach(c, c->why, now);
}

/* --- the agent's calls */

static void on_join(struct client *c, int64_t now)
{
    if (c->mode == CLIENT_OVER)
        return;
    client_set_mode_(c, CLIENT_JOINING);
    c->joined = false;
    c->progress_at = now;
    client_alive_(c, false);
    client_lease_moved_(c);
    if (c->up) {
        client_greet_(c, now);
    } else if (!c->dialling && !c->connected) {
        c->away = now;
        if (c->pause_ms == 0)
            dial(c, now);
        else
            client_again_(c, now);
    }
}

static void on_leave(struct client *c, const struct rdzv_cause *why, int64_t now)
{
    c->leaving = true;
    c->why_leaving = why ? *why : (struct rdzv_cause){.rank = -1};
    c->parting = c->mode == CLIENT_RUNNING || c->mode == CLIENT_FENCED;
    if (c->mode != CLIENT_OVER && !c->join_sent)
        client_end_(c, &(struct rdzv_news){.kind = RDZV_NEWS_END, .exit_code = EXIT_REQUEUE}, "", now);
    else if (c->up && c->mode != CLIENT_OVER)
        client_say_(c, ASK_LEAVE, now);
}

static void on_fail(struct client *c, const struct rdzv_cause *cause, int64_t now)
{
    if (c->mode != CLIENT_RUNNING)
        return;
    c->failing = true;
    c->cause = *cause;
    client_say_(c, ASK_FAIL, now);
}

static void on_finish(struct client *c, int64_t now)
{
    if (c->mode != CLIENT_RUNNING)
        return;
    client_set_mode_(c, CLIENT_DONE);
    client_alive_(c, false);
    client_lease_moved_(c);
    client_say_(c, ASK_DONE, now);
}

static void keep(struct buf *to, const char *text)
{
    buf_clear(to);
    if (buf_addstr(to, text) < 0) /* for people: the next one comes soon */
        buf_clear(to);
}

/* An answer to a question of the leader goes out on this connection or not at all: the asker does not wait for
 * another one. */
static void on_answer(struct client *c, const struct client_event *ev, int64_t now)
{
    if (c->mode == CLIENT_FENCED || c->mode == CLIENT_OVER)
        return;
    keep(&c->answer, ev->text);
    c->answered = ev->id;
    if (c->answer.len)
        client_say_(c, ASK_ANSWER, now);
}

/* --- time */

static void on_retry(struct client *c, int64_t now)
{
    c->retry_at = INT64_MAX;
    if (c->mode == CLIENT_OVER || c->mode == CLIENT_FENCED)
        return;
    if (c->up)
        client_greet_(c, now);
    else if (!c->dialling && !c->connected)
        dial(c, now);
}

static void on_tick(struct client *c, int64_t now)
{
    if (c->connected && !c->up && now >= c->greet_due)
        client_give_up_(c, "it does not answer", now);
    else if (oldest(c) && now >= oldest(c)->due)
        client_give_up_(c, "it does not answer any more", now);
    else if (waits_to_reach(c) && now >= c->progress_at + CLIENT_PROGRESS_MS)
        out_of_reach(c, c->why, now);
    if (now >= c->retry_at)
        on_retry(c, now);
}

void client_step(struct client *c, const struct client_event *ev, int64_t now)
{
    c->still_ms = ev->still_ms;
    if (ev->kind != CLIENT_DIALLED && ev->kind != CLIENT_JOIN && ev->kind != CLIENT_LEAVE)
        check(c, now);
    switch (ev->kind) {
    case CLIENT_JOIN:
        on_join(c, now);
        break;
    case CLIENT_FAIL:
        on_fail(c, ev->cause, now);
        break;
    case CLIENT_FINISH:
        on_finish(c, now);
        break;
    case CLIENT_LEAVE:
        on_leave(c, ev->cause, now);
        break;
    case CLIENT_REPORT:
        if (c->mode == CLIENT_RUNNING)
            keep(&c->report, ev->text);
        break;
    case CLIENT_PUBLISH:
        keep(&c->postmortem, ev->text);
        client_say_(c, ASK_POSTMORTEM, now);
        break;
    case CLIENT_ANSWER:
        on_answer(c, ev, now);
        break;
    case CLIENT_ADDRESS:
        on_address(c, ev, now);
        break;
    case CLIENT_DIRECT:
        on_direct(c, ev, now);
        break;
    case CLIENT_TROUBLE:
        on_trouble(c, ev, now);
        break;
    case CLIENT_DIALLED:
        on_dialled(c, ev, now);
        check(c, now);
        break;
    case CLIENT_READY:
        c->up = c->connected;
        if (c->up)
            client_greet_(c, now);
        break;
    case CLIENT_LOST:
        on_lost(c, ev, now);
        break;
    case CLIENT_REPLY:
        if (c->connected)
            client_hear_(c, &ev->reply, now);
        break;
    case CLIENT_MAJORITY:
        if (!c->alive_on)
            break;
        lease_majority(&c->lease, ev->at);
        client_lease_moved_(c);
        break;
    case CLIENT_STORE_FAILED:
        client_fail_(c, EXIT_UNAVAILABLE, "this node cannot listen for its workers' store: %s", strerror(-ev->error));
        break;
    case CLIENT_TICK:
        on_tick(c, now);
        break;
    }
    client_check_(c);
}

bool client_is_answered(const struct client *c)
{
    return !c->up || c->asked_first == c->asked_last;
}
