/* What a member asks of its rendezvous, when an answer is overdue, and what the answers say: news, acknowledgements,
 * refusals. See client.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "common/rdzv/client/client_impl.h"
#include "common/rdzv/wire/rdzv_wire.h"

/* --- asking */

/* How long an answer may take beyond the time that the server may hold it. Short enough to dial a lost path again
 * while the lease still runs. */
static int64_t patience_ms(const struct client *c)
{
    return c->mode == CLIENT_RUNNING ? c->o.heartbeat_ms : c->o.job.silence_ms + c->o.heartbeat_ms;
}

/* How long the server may hold a NEXT. Its answer proves when the rendezvous heard us: when the request was sent. So
 * requests are a little more frequent than one per heartbeat, but not so much that an idle agent wakes up twice. After
 * a connection was lost the first answer comes at once: the next may be lost, too, before a heartbeat has passed. */
int64_t client_hold_ms(const struct client *c)
{
    const int64_t hold = c->o.heartbeat_ms * 31 / 32;
    if (c->mode == CLIENT_RUNNING && c->lease.lost)
        return 0;
    if (c->mode == CLIENT_OVER || (c->parting && c->mode == CLIENT_JOINING && !c->joined))
        return 0;
    return c->mode == CLIENT_JOINING && hold > CLIENT_PROGRESS_MS ? CLIENT_PROGRESS_MS : hold;
}

void client_claim(const struct client *c, enum client_ask what, struct rdzv_event *ret)
{
    static const enum rdzv_event_kind kinds[] = {
        [ASK_JOIN] = RDZV_JOIN, [ASK_FAIL] = RDZV_FAIL, [ASK_DONE] = RDZV_DONE, [ASK_LEAVE] = RDZV_LEAVE};
    *ret = (struct rdzv_event){.kind = kinds[what], .round = c->round};
    snprintf(ret->node, sizeof ret->node, "%s", c->o.node);
    if (what == ASK_JOIN) {
        ret->round = c->past.round;
        ret->restarts = c->past.restarts;
        memcpy(ret->instance, c->past.instance, sizeof ret->instance);
    } else {
        ret->cause = what == ASK_FAIL ? c->cause : c->why_leaving;
    }
}

static bool send_request(struct client *c, enum client_ask what, bool together, int64_t now)
{
    if (c->asked_last - c->asked_first == CLIENT_ASKED_MAX) {
        if (what != ASK_REPORT && what != ASK_ANSWER)
            client_give_up_(c, "it answers nothing", now);
        return false;
    }
    struct client_asked *a = &c->asked[c->asked_last++ % CLIENT_ASKED_MAX];
    *a = (struct client_asked){
        .what = what, .at = now, .due = now + patience_ms(c), .joining = c->mode == CLIENT_JOINING};
    if (what == ASK_NEXT)
        a->due += client_hold_ms(c);
    c->next_open = c->next_open || what == ASK_NEXT;
    struct client_effect *fx = client_add_(c, CLIENT_SEND);
    fx->what = what;
    fx->seq = what == ASK_ANSWER ? c->answered : c->seq;
    fx->from = c->members_from;
    fx->ms = client_hold_ms(c);
    fx->together = together;
    fx->got = c->got;
    return true;
}

/* Send the report together with the next request: the host wakes up for that one anyway. */
static void send_report(struct client *c, int64_t now)
{
    const struct buf before = c->sent;
    if (c->report.len == 0)
        return;
    if (c->mode == CLIENT_RUNNING || c->mode == CLIENT_DONE)
        send_request(c, ASK_REPORT, true, now);
    c->sent = c->report;
    c->report = before;
    buf_clear(&c->report);
}

void client_say_(struct client *c, enum client_ask what, int64_t now)
{
    if (!c->up || (what == ASK_NEXT && c->next_open))
        return;
    const bool carries = what == ASK_FAIL || what == ASK_DONE || what == ASK_LEAVE || what == ASK_NEXT;
    if (carries)
        send_report(c, now);
    if (what == ASK_JOIN) {
        c->joined_round = c->past.round;
        c->join_sent = true;
    }
    send_request(c, what, false, now);
}

/* Say the first words on a new connection. A node that is leaving sends LEAVE and NEXT, not JOIN: if the leader has
 * forgotten it, a JOIN would make it a new node. */
void client_greet_(struct client *c, int64_t now)
{
    if (c->mode == CLIENT_FENCED || c->mode == CLIENT_OVER)
        return;
    if (c->o.elected && !c->o.listed && !c->named)
        c->named = send_request(c, ASK_TERM, true, now);
    if (c->failing)
        client_say_(c, ASK_FAIL, now);
    if (c->leaving)
        client_say_(c, ASK_LEAVE, now);
    if (c->mode == CLIENT_DONE)
        client_say_(c, ASK_DONE, now);
    client_say_(c, c->mode == CLIENT_JOINING && !c->leaving ? ASK_JOIN : ASK_NEXT, now);
}

/* --- news */

static void tell(struct client *c, const struct rdzv_news *news, const char *members)
{
    struct client_effect *fx = client_add_(c, CLIENT_TELL);
    fx->news = *news;
    fx->members = rdzv_news_is_for_leader(news) ? strdup(members) : NULL;
}

void client_end_(struct client *c, const struct rdzv_news *news, const char *members, int64_t now)
{
    if (c->mode == CLIENT_OVER)
        return;
    client_set_mode_(c, CLIENT_OVER);
    c->failing = false;
    client_alive_(c, false);
    c->retry_at = INT64_MAX;
    client_lease_moved_(c);
    client_say_(c, ASK_NEXT, now); /* tells the host that this node has the news */
    tell(c, news, members);
}

static void on_round(struct client *c, const struct client_asked *a, const struct rdzv_news *news, const char *members,
                     int64_t now)
{
    if (c->mode == CLIENT_RUNNING && news->round != c->round)
        client_fence_(c, "the rendezvous has begun another round", now);
    if (c->mode != CLIENT_JOINING || !a->joining || !c->joined)
        return;
    if (now >= a->at + lease_ms(c->o.job.silence_ms, c->o.job.kill_ms)) { /* it may have given this node up meanwhile */
        c->joined = false;
        client_say_(c, ASK_JOIN, now);
        return;
    }
    c->failing = false; /* whatever failed was of a round that is over */
    if (!news->spare) {
        client_set_mode_(c, CLIENT_RUNNING);
        c->round = news->round;
        client_lease_moved_(c);
    }
    tell(c, news, members);
}

/* The round was stopped before this node heard of its start: our JOIN must name that round. */
static void on_stop(struct client *c, const struct rdzv_news *news, int64_t now)
{
    c->failing = false;
    if (c->mode == CLIENT_JOINING && !c->leaving && c->joined_round < c->past.round) {
        c->joined = false;
        client_say_(c, ASK_JOIN, now);
    } else if (c->mode == CLIENT_RUNNING || c->mode == CLIENT_DONE)
        tell(c, news, "");
}

/* The members' addresses that come with these news, page by page: each is asked for by a NEXT that acknowledges
 * nothing yet. Returns 1: c->members has them all, or there are none; 0: not yet; -ENOMEM, -EINVAL. */
static int take_members(struct client *c, const struct rdzv_news *news, const struct client_reply *r)
{
    const bool other = c->members_seq != news->seq;
    const int from = c->members_from;
    c->members_from = 0;
    c->members_seq = news->seq;
    if (other || !from)
        buf_clear(&c->members);
    if (other && from && rdzv_news_is_for_leader(news))
        return 0;                       /* their first page was not requested */
    char *page = calloc(1, r->len + 1); /* it is shorter */
    int rc = page ? rdzv_field_find(r->text, r->len, "member_addrs", page, r->len + 1) : -ENOMEM;
    rc = rc < 0 ? rc : buf_printf(&c->members, "%s%s", c->members.len && page[0] ? "," : "", page);
    free(page);
    c->members_from = rc < 0 ? 0 : (int)rdzv_field_number(r->text, r->len, "more", 0);
    return rc < 0 ? rc : c->members_from == 0;
}

/* Is this answer a question to this node, instead of nil? */
static bool is_question(struct client *c, const struct client_reply *r)
{
    char what[16];
    if (rdzv_field_find(r->text, r->len, "ask", what, sizeof what) != 1)
        return false;
    client_text_(c, CLIENT_ASKED, "%.*s", (int)(r->len < CLIENT_TEXT_MAX ? r->len : CLIENT_TEXT_MAX), r->text);
    return true;
}

static void on_news(struct client *c, const struct client_asked *a, const struct client_reply *r, int64_t now)
{
    struct rdzv_news news;
    struct err e = {0};
    if (is_question(c, r))
        return;
    if (rdzv_news_decode(r->text, r->len, &news, &e) < 0) {
        client_give_up_(c, e.text, now);
        return;
    }
    if (news.seq <= c->seq)
        return;
    const int rc = take_members(c, &news, r);
    if (rc < 0)
        client_give_up_(
            c, rc == -ENOMEM ? "no memory for the members' addresses" : "the members' addresses are malformed", now);
    if (rc <= 0)
        return;
    c->seq = news.seq;
    rdzv_past_heard(&c->past, &news);
    const char *members = c->members.data ? c->members.data : "";
    switch (news.kind) {
    case RDZV_NEWS_ROUND:
        on_round(c, a, &news, members, now);
        break;
    case RDZV_NEWS_STOP:
        on_stop(c, &news, now);
        break;
    case RDZV_NEWS_END:
        client_end_(c, &news, members, now);
        break;
    }
    buf_free(&c->members);
}

/* --- answers */

/* The rendezvous was restarted without its state, or another one listens there. The JOIN that follows carries what
 * it lost. */
static void lost_memory(struct client *c, int64_t now)
{
    char why[CLIENT_TEXT_MAX + 1];
    if (c->left[0])
        snprintf(why, sizeof why, "the host %s of job '%.200s' is lost; it goes on at %.390s, in another round",
                 c->left, c->o.run_id, c->where);
    else
        snprintf(why, sizeof why, "the rendezvous at %.390s has lost its memory of job '%.200s'", c->where,
                 c->o.run_id);
    client_fence_(c, why, now);
}

/* Adopt the instance that the rendezvous names: the job's id from now on. */
static void take_instance(struct client *c, const char *instance)
{
    struct rdzv_past *past = &c->past;
    if (past->instance[0] && past->round > 0)
        client_text_(c, c->left[0] ? CLIENT_NOTE : CLIENT_WARN,
                     "%s did not know this job (instance %s, round %llu, restarts %d): it goes on there as instance %s",
                     c->where, past->instance, (unsigned long long)past->round, past->restarts, instance);
    snprintf(past->instance, sizeof past->instance, "%s", instance);
}

/* The hosting crun serves another job already. Warn: a typing error in --rdzv-id would look like waiting for nodes. */
static void warn_of_other_job(struct client *c, const struct client_reply *r)
{
    char run[256];
    if (c->past.round == 0 && rdzv_field_find(r->text, r->len, "serves", run, sizeof run) == 1)
        client_text_(c, CLIENT_WARN, "%s serves job '%s'; this node waits there for nodes of job '%s' (--rdzv-id)",
                     c->where, run, c->o.run_id);
}

static void on_joined(struct client *c, const struct client_reply *r, int64_t now)
{
    char instance[RDZV_INSTANCE_MAX + 1];
    if (r->kind != REPLY_RECORD || rdzv_field_find(r->text, r->len, "instance", instance, sizeof instance) != 1) {
        client_fail_(c, EXIT_UNAVAILABLE, "%s does not answer as a rendezvous does", c->where);
        return;
    }
    if (c->mode != CLIENT_JOINING)
        return;
    if (strcmp(instance, c->past.instance) != 0)
        take_instance(c, instance);
    c->seq = (uint64_t)rdzv_field_number(r->text, r->len, "seq", 0); /* its leader may count anew */
    c->joined = true;
    warn_of_other_job(c, r);
    client_say_(c, ASK_NEXT, now);
}

static bool join_is_open(const struct client *c)
{
    for (unsigned i = c->asked_first; i != c->asked_last; i++)
        if (c->asked[i % CLIENT_ASKED_MAX].what == ASK_JOIN)
            return true;
    return false;
}

/* A NEXT ended with nil, or its news has been handled: ask the next one. */
static void go_on(struct client *c, int64_t now)
{
    if (c->mode == CLIENT_FENCED || c->mode == CLIENT_OVER)
        return;
    if (c->mode == CLIENT_JOINING && !c->joined && (!c->leaving || c->parting)) {
        if (join_is_open(c)) /* its answer goes on */
            return;
        if (c->leaving)
            client_say_(c, ASK_JOIN, now);
        else
            client_again_(c, now);
        return;
    }
    if (c->mode == CLIENT_JOINING && c->o.shows_progress)
        client_say_(c, ASK_STATUS, now);
    client_say_(c, ASK_NEXT, now);
}

static void on_status(struct client *c, const struct client_reply *r, int64_t now)
{
    struct rdzv_progress p = {0};
    if (r->kind != REPLY_RECORD || c->mode != CLIENT_JOINING)
        return;
    presence_read(r->text, r->len, &p.now);
    client_progress_(c, &p, now);
}

/* --- refusals */

enum verdict { FENCED, REFUSED, DIFFERS, DENIED, NOJOB, AGAIN, NOT_YET, NO_TERM, FEW, NONSENSE };

static enum verdict verdict_of(const struct client_reply *r)
{
    static const struct {
        const char *word;
        enum verdict v;
    } words[] = {{"FENCED ", FENCED},    {"REFUSED ", REFUSED}, {"DIFFERS ", DIFFERS}, {"NOAUTH ", DENIED},
                 {"WRONGPASS ", DENIED}, {"NOPERM ", DENIED},   {"NOJOB ", NOJOB},     {"LIMIT ", AGAIN},
                 {"OOM ", AGAIN},        {"BUSY ", NOT_YET},    {"LOADING ", AGAIN},   {"ERR max number", AGAIN},
                 {"NOTERM ", NO_TERM},   {"FEW ", FEW},         {"STANDBY ", NO_TERM}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strncmp(r->text, words[i].word, strlen(words[i].word)) == 0)
            return words[i].v;
    return NONSENSE;
}

/* The rendezvous cannot say yet whether this node begins a job or takes part in one: ask again on the same
 * connection. Under an elected leader this time does not count as being out of reach: the wait ends by itself, and a
 * leader that gave up would only make its successor wait from the start. */
static void wait_for_verdict(struct client *c, const char *why, int64_t now)
{
    const bool counts = !c->o.elected || c->o.listed;
    struct rdzv_progress p = {0};
    c->away = c->away && counts ? c->away : now;
    if (now - c->away >= c->o.connect_ms) {
        client_fail_(c, EXIT_UNAVAILABLE, "the rendezvous at %s does not take this node within %lld s: %s", c->where,
                     (long long)(c->o.connect_ms / 1000), why);
        return;
    }
    p.for_ms = now - c->away;
    p.left_ms = counts ? client_left_ms_(c, now) : 0;
    snprintf(p.text, sizeof p.text, "waiting: %.*s", (int)sizeof p.text - 10, why);
    client_progress_(c, &p, now);
    client_again_(c, now);
}

/* A JOIN was refused for good. "none" is the id of a job without a run id, also if the user typed it: torchrun does
 * not distinguish the two. */
static void on_join_refused_for_good(struct client *c, const char *answer)
{
    static const char of_the_id[] = "run id '";
    const char *why = rdzv_refusal(answer);
    if (strncmp(why, of_the_id, strlen(of_the_id)) != 0)
        client_fail_(c, EXIT_UNAVAILABLE, "the rendezvous at %s refused this node: %s", c->where, why);
    else if (strcmp(c->o.run_id, "none") == 0)
        client_fail_(
            c, EXIT_USAGE_ERROR,
            "no --rdzv-id is given, and jobs share the rendezvous at %s: expected a name of this job's own, the "
            "same on all its nodes",
            c->where);
    else
        client_fail_(
            c, EXIT_USAGE_ERROR,
            "--rdzv-id '%s' is no name of one job alone, and jobs share the rendezvous at %s: expected another "
            "one, the same on all nodes",
            c->o.run_id, c->where);
}

static void on_join_refused(struct client *c, const struct client_reply *r, int64_t now)
{
    switch (verdict_of(r)) {
    case FENCED: /* the round is one that this node has not heard of, or this connection is obsolete: NEXT will tell */
        c->seq = 0; /* a leader that lost decisions may reuse a number that this node has seen */
        client_say_(c, ASK_NEXT, now);
        break;
    case AGAIN:
    case NOJOB:
    case FEW:
        client_give_up_(c, rdzv_refusal(r->text), now);
        break;
    case NO_TERM:
        client_turn_away_(c, rdzv_refusal(r->text), now);
        break;
    case NOT_YET:
        wait_for_verdict(c, rdzv_refusal(r->text), now);
        break;
    case DIFFERS:
        client_fail_(c, EXIT_MISMATCH, "this node's settings differ from those of job '%s' at %s: %s", c->o.run_id,
                     c->where, rdzv_refusal(r->text));
        break;
    case DENIED:
        if (!client_is_denied_(c, now)) {
            client_give_up_(c, rdzv_refusal(r->text), now);
            break;
        }
        client_fail_(c, EXIT_USAGE_ERROR, "the rendezvous at %s does not admit this node: %s", c->where,
                     rdzv_refusal(r->text));
        break;
    case NONSENSE:
        if (strncmp(r->text, "ERR unknown command", 19) == 0) { /* a Redis */
            client_fail_(c, EXIT_UNAVAILABLE, "%s answers, but is no rendezvous: %s", c->where, rdzv_refusal(r->text));
            break;
        }
        /* fall through */
    case REFUSED:
        on_join_refused_for_good(c, r->text);
        break;
    }
}

/* The host acknowledges nobody, because it hears too few seats. Wait: others may join it, or this node finds a
 * better host. */
static void on_few(struct client *c, int64_t now)
{
    c->away = c->away ? c->away : now;
    if (now - c->away >= c->o.connect_ms && (c->mode == CLIENT_JOINING || c->mode == CLIENT_DONE))
        client_fail_(c, EXIT_UNAVAILABLE, "fewer nodes than a round needs (%d) met at the hosts %s within %lld s",
                     c->o.job.min_nodes, c->o.endpoint, (long long)(c->o.connect_ms / 1000));
}

/* NEXT, DONE or FAIL is refused. A node that is joining has nothing to lose: it joins again. */
static void on_refused(struct client *c, const struct client_asked *a, const struct client_reply *r, int64_t now)
{
    enum verdict v = verdict_of(r);
    if (a->what != ASK_NEXT && c->mode == CLIENT_JOINING)
        return; /* a claim about a round that is over */
    if (v == FEW) {
        on_few(c, now);
        return;
    }
    if (c->mode == CLIENT_JOINING && (v == REFUSED || v == NOJOB)) {
        c->joined = false;
        client_again_(c, now);
    } else if (v == NOT_YET) {
        client_again_(c, now); /* the leader decides nothing for a while: repeat the claim after that */
    } else if (v == NO_TERM) {
        client_turn_away_(c, rdzv_refusal(r->text), now);
    } else if (c->mode == CLIENT_JOINING) {
        client_give_up_(c, rdzv_refusal(r->text), now);
    } else if (v == NOJOB || (v == REFUSED && c->left[0])) {
        lost_memory(c, now);
    } else if (v == FENCED || v == REFUSED) {
        client_fence_(c, rdzv_refusal(r->text), now);
    } else {
        client_give_up_(c, rdzv_refusal(r->text), now);
    }
}

/* The listener is not the leader that this node dials, or its job does not know our workers' round. */
static void on_term_refused(struct client *c, const struct client_reply *r, int64_t now)
{
    if (verdict_of(r) == FENCED && (c->mode == CLIENT_RUNNING || c->mode == CLIENT_DONE))
        client_fence_(c, rdzv_refusal(r->text), now);
    else
        client_turn_away_(c, rdzv_refusal(r->text), now);
}

static void on_error(struct client *c, const struct client_asked *a, const struct client_reply *r, int64_t now)
{
    enum verdict v = verdict_of(r);
    log_debug("rendezvous", "refused: %s", r->text);
    if (c->mode == CLIENT_FENCED || c->mode == CLIENT_OVER)
        return;
    if (a->what == ASK_TERM)
        on_term_refused(c, r, now);
    else if (a->what == ASK_JOIN && c->mode == CLIENT_JOINING)
        on_join_refused(c, r, now);
    else if (a->what == ASK_LEAVE && (v == REFUSED || v == NOJOB)) /* gone already */
        client_end_(c, &(struct rdzv_news){.kind = RDZV_NEWS_END, .exit_code = EXIT_REQUEUE}, "", now);
    else if (a->what == ASK_NEXT || a->what == ASK_DONE || a->what == ASK_FAIL)
        on_refused(c, a, r, now);
}

/* Answer to TERM: "OK", or "OK INSTANCE" with the instance of the job there. That may be an older job if the home
 * lost ours. */
static void on_term(struct client *c, const struct client_reply *r, int64_t now)
{
    const char *instance = r->kind == REPLY_STATUS && strncmp(r->text, "OK ", 3) == 0 ? r->text + 3 : "";
    if (instance[0] && c->past.round > 0 && strcmp(instance, c->past.instance) != 0)
        lost_memory(c, now);
}

/* Does the answer to this request extend the lease? Answers to questions and reports do not: they only show that a
 * server is there. */
static bool acknowledges(enum client_ask what)
{
    return what == ASK_JOIN || what == ASK_NEXT || what == ASK_FAIL || what == ASK_DONE || what == ASK_LEAVE;
}

static void on_acknowledged(struct client *c, const struct client_asked *a)
{
    lease_acked(&c->lease, a->at);
    c->away = 0;
    c->unproved = 0;
    c->pause_ms = 0;
    client_alive_(c, false);
    if (c->mode == CLIENT_RUNNING)
        client_lease_moved_(c);
    if (c->o.elected && (c->o.listed || !c->acked)) {
        c->acked = true;
        client_add_(c, CLIENT_ACKED);
    }
}

static bool is_few(const struct client_asked *a, const struct client_reply *r)
{
    if (r->kind == REPLY_ERROR)
        return a->what == ASK_NEXT && verdict_of(r) == FEW;
    return a->what == ASK_JOIN && r->kind == REPLY_RECORD && rdzv_field_number(r->text, r->len, "few", 0) > 0;
}

void client_hear_(struct client *c, const struct client_reply *r, int64_t now)
{
    if (c->asked_first == c->asked_last) {
        client_give_up_(c, "it answers what nobody asked", now);
        return;
    }
    const struct client_asked a = c->asked[c->asked_first++ % CLIENT_ASKED_MAX];
    const bool few = is_few(&a, r);
    if (a.what == ASK_NEXT)
        c->next_open = false;
    c->got += a.what == ASK_NEXT || a.what == ASK_JOIN;
    if (r->kind == REPLY_ERROR) {
        on_error(c, &a, r, now);
        if (few && c->up)
            go_on(c, now);
        return;
    }
    if (few)
        on_few(c, now);
    else if (acknowledges(a.what))
        on_acknowledged(c, &a);
    if (a.what == ASK_JOIN)
        on_joined(c, r, now);
    else if (a.what == ASK_TERM)
        on_term(c, r, now);
    else if (a.what == ASK_STATUS)
        on_status(c, r, now);
    else if (a.what == ASK_NEXT && r->kind == REPLY_RECORD)
        on_news(c, &a, r, now);
    else if (a.what == ASK_NEXT && r->kind != REPLY_NIL)
        client_give_up_(c, "the answer makes no sense", now);
    /* One NEXT is always open, unless the answer to JOIN is awaited. */
    if (a.what == ASK_NEXT && c->up)
        go_on(c, now);
}
