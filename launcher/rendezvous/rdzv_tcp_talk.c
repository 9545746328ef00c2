/* What the rendezvous answers: news, acknowledgements, refusals. See rdzv_tcp.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/rendezvous/rdzv_tcp.h"

/* --- news */

void tcp_end(struct tcp *t, const struct rdzv_news *news)
{
    if (t->mode == TCP_OVER)
        return;
    t->mode = TCP_OVER;
    t->failing = false;
    tcp_alive_stop(t);
    uv_timer_stop(&t->retry);
    tcp_lease_moved(t);
    tcp_say(t, ASK_NEXT); /* so that the host knows that we know */
    t->o.on_news(t->o.arg, news);
}

static void report_members(const struct tcp *t, const struct rdzv_news *news, const char *addrs)
{
    if (rdzv_news_is_for_leader(news) && t->o.on_members)
        t->o.on_members(t->o.arg, addrs);
}

static void on_round(struct tcp *t, const struct tcp_asked *a, const struct rdzv_news *news, const char *addrs)
{
    if (t->mode == TCP_RUNNING && news->round != t->round)
        tcp_fence(t, "the rendezvous has begun another round");
    if (t->mode != TCP_JOINING || !a->joining || !t->joined)
        return;
    if (clock_ms() >= a->at + t->o.job.silence_ms) { /* it may have given us up meanwhile */
        t->joined = false;
        tcp_say(t, ASK_JOIN);
        return;
    }
    if (!news->spare) {
        t->mode = TCP_RUNNING;
        t->round = news->round;
        t->group_rank = news->group_rank;
        t->group_world = news->group_world;
        snprintf(t->leader.host, sizeof t->leader.host, "%s", news->leader_addr);
        snprintf(t->leader.port, sizeof t->leader.port, "%d", news->leader_port);
        tcp_lease_moved(t);
        report_members(t, news, addrs);
    }
    t->o.on_news(t->o.arg, news);
}

/* A round that we never heard of is stopped: our JOIN must name it. */
static void on_stop(struct tcp *t, const struct rdzv_news *news)
{
    t->failing = false;
    if (t->mode == TCP_JOINING && !t->leaving && t->joined_round < t->base.past.round) {
        t->joined = false;
        tcp_say(t, ASK_JOIN);
    } else if (t->mode == TCP_RUNNING || t->mode == TCP_DONE)
        t->o.on_news(t->o.arg, news);
}

/* The members' addresses that come with these news, page by page: each is asked for by a NEXT that acknowledges nothing
 * yet. 1: t->members has them all, or there are none; 0: not yet; -ENOMEM, -EINVAL. */
static int take_members(struct tcp *t, const struct rdzv_news *news, const redisReply *r)
{
    const bool other = t->members_seq != news->seq;
    const int from = t->members_from;
    t->members_from = 0;
    t->members_seq = news->seq;
    if (other || !from)
        buf_clear(&t->members);
    if (other && from && rdzv_news_is_for_leader(news))
        return 0;                       /* their first page was not asked for */
    char *page = calloc(1, r->len + 1); /* it is shorter */
    int rc = page ? rdzv_field_find(r->str, r->len, "member_addrs", page, r->len + 1) : -ENOMEM;
    rc = rc < 0 ? rc : buf_printf(&t->members, "%s%s", t->members.len && page[0] ? "," : "", page);
    free(page);
    t->members_from = rc < 0 ? 0 : (int)rdzv_field_number(r->str, r->len, "more", 0);
    return rc < 0 ? rc : t->members_from == 0;
}

static void on_news(struct tcp *t, const struct tcp_asked *a, const redisReply *r)
{
    struct rdzv_news news;
    struct err e = {0};
    if (rdzv_news_decode(r->str, r->len, &news, &e) < 0) {
        tcp_give_up(t, e.text);
        return;
    }
    if (news.seq <= t->seq)
        return;
    const int rc = take_members(t, &news, r);
    if (rc < 0)
        tcp_give_up(t, rc == -ENOMEM ? "no memory for the members' addresses" : "the members' addresses are malformed");
    if (rc <= 0)
        return;
    t->seq = news.seq;
    rdzv_past_heard(&t->base.past, &news);
    const char *addrs = t->members.data ? t->members.data : "";
    switch (news.kind) {
    case RDZV_NEWS_ROUND:
        on_round(t, a, &news, addrs);
        break;
    case RDZV_NEWS_STOP:
        on_stop(t, &news);
        break;
    case RDZV_NEWS_END:
        report_members(t, &news, addrs);
        tcp_end(t, &news);
        break;
    }
    buf_free(&t->members);
}

/* --- answers */

/* It was restarted and kept nothing, or another one is there. The JOIN that follows says what it has lost. */
static void lost_memory(struct tcp *t)
{
    char why[512];
    snprintf(why, sizeof why, "the rendezvous at %.200s has lost its memory of job '%.200s'", t->o.endpoint,
             t->o.run_id);
    tcp_fence(t, why);
}

/* The job has another name from now on. */
static void take_instance(struct tcp *t, const char *instance)
{
    struct rdzv_past *past = &t->base.past;
    if (past->instance[0] && past->round > 0)
        log_warn("rendezvous",
                 "%s did not know this job (instance %s, round %llu, restarts %d): it goes on there as instance %s",
                 t->o.endpoint, past->instance, (unsigned long long)past->round, past->restarts, instance);
    snprintf(past->instance, sizeof past->instance, "%s", instance);
}

/* A hosting crun that another job has begun to use: a slip of --rdzv-id would look like waiting for nodes. */
static void warn_of_other_job(const struct tcp *t, const redisReply *r)
{
    char run[256];
    if (t->base.past.round == 0 && rdzv_field_find(r->str, r->len, "serves", run, sizeof run) == 1)
        log_warn("rendezvous", "%s serves job '%s'; this node waits there for nodes of job '%s' (--rdzv-id)",
                 t->o.endpoint, run, t->o.run_id);
}

static void on_joined(struct tcp *t, const redisReply *r)
{
    char instance[RDZV_INSTANCE_MAX + 1];
    if (r->type != REDIS_REPLY_STRING || rdzv_field_find(r->str, r->len, "instance", instance, sizeof instance) != 1) {
        tcp_fail(t, EXIT_UNAVAILABLE, "%s does not answer as a rendezvous does", t->o.endpoint);
        return;
    }
    if (t->mode != TCP_JOINING)
        return;
    if (strcmp(instance, t->base.past.instance) != 0)
        take_instance(t, instance);
    t->seq = (uint64_t)rdzv_field_number(r->str, r->len, "seq", 0); /* its leader may count anew */
    t->joined = true;
    warn_of_other_job(t, r);
    tcp_say(t, ASK_NEXT);
}

static bool join_is_open(const struct tcp *t)
{
    for (unsigned i = t->asked_first; i != t->asked_last; i++)
        if (t->asked[i % TCP_ASKED_MAX].what == ASK_JOIN)
            return true;
    return false;
}

/* NEXT has ended with nothing, or its news is handled. */
static void go_on(struct tcp *t)
{
    if (t->mode == TCP_FENCED || t->mode == TCP_OVER)
        return;
    if (t->mode == TCP_JOINING && !t->joined && (!t->leaving || t->parting)) {
        if (join_is_open(t)) /* its answer goes on */
            return;
        if (t->leaving)
            tcp_say(t, ASK_JOIN);
        else
            tcp_again(t);
        return;
    }
    if (t->mode == TCP_JOINING && t->o.on_progress)
        tcp_say(t, ASK_STATUS);
    tcp_say(t, ASK_NEXT);
}

void tcp_progress(struct tcp *t, const struct rdzv_progress *p)
{
    int64_t now = clock_ms();
    if (!t->o.on_progress || (t->progress_at && now - t->progress_at < TCP_PROGRESS_MS - 50))
        return;
    t->progress_at = now;
    t->o.on_progress(t->o.arg, p);
}

static void on_status(struct tcp *t, const redisReply *r)
{
    struct rdzv_progress p = {0};
    if (r->type != REDIS_REPLY_STRING || t->mode != TCP_JOINING)
        return;
    presence_read(r->str, r->len, &p.now);
    tcp_progress(t, &p);
}

/* --- refusals */

enum verdict { FENCED, REFUSED, DIFFERS, DENIED, NOJOB, AGAIN, NOT_YET, NONSENSE };

static enum verdict verdict_of(const redisReply *r)
{
    static const struct {
        const char *word;
        enum verdict v;
    } words[] = {{"FENCED ", FENCED},    {"REFUSED ", REFUSED}, {"DIFFERS ", DIFFERS}, {"NOAUTH ", DENIED},
                 {"WRONGPASS ", DENIED}, {"NOPERM ", DENIED},   {"NOJOB ", NOJOB},     {"LIMIT ", AGAIN},
                 {"OOM ", AGAIN},        {"BUSY ", NOT_YET},    {"LOADING ", AGAIN},   {"ERR max number", AGAIN}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strncmp(r->str, words[i].word, strlen(words[i].word)) == 0)
            return words[i].v;
    return NONSENSE;
}

/* It cannot say yet whether this node begins a job or takes part in one: ask again on the same connection. */
static void wait_for_verdict(struct tcp *t, const char *why)
{
    struct rdzv_progress p = {0};
    const int64_t now = clock_ms();
    t->away = t->away ? t->away : now;
    if (now - t->away >= t->o.connect_ms) {
        tcp_fail(t, EXIT_UNAVAILABLE, "the rendezvous at %s does not take this node within %lld s: %s", t->o.endpoint,
                 (long long)(t->o.connect_ms / 1000), why);
        return;
    }
    p.left_ms = tcp_left_ms(t);
    snprintf(p.text, sizeof p.text, "waiting: %.*s", (int)sizeof p.text - 10, why);
    tcp_progress(t, &p);
    tcp_again(t);
}

/* "none" is the name of a job without one, also where it was typed: to torchrun the two are the same. */
static void on_join_refused_for_good(struct tcp *t, const char *answer)
{
    static const char word[] = "REFUSED ", of_the_id[] = "run id '";
    const char *why = strncmp(answer, word, strlen(word)) == 0 ? answer + strlen(word) : answer;
    if (strncmp(why, of_the_id, strlen(of_the_id)) != 0)
        tcp_fail(t, EXIT_UNAVAILABLE, "the rendezvous at %s refused this node: %s", t->o.endpoint, why);
    else if (strcmp(t->o.run_id, "none") == 0)
        tcp_fail(t, EXIT_USAGE_ERROR,
                 "no --rdzv-id is given, and jobs share the rendezvous at %s: expected a name of this job's own, the "
                 "same on all its nodes",
                 t->o.endpoint);
    else
        tcp_fail(t, EXIT_USAGE_ERROR,
                 "--rdzv-id '%s' is no name of one job alone, and jobs share the rendezvous at %s: expected another "
                 "one, the same on all nodes",
                 t->o.run_id, t->o.endpoint);
}

static void on_join_refused(struct tcp *t, const redisReply *r)
{
    switch (verdict_of(r)) {
    case FENCED: /* of a round that we have not heard of, or on a connection that counts no more: NEXT will say */
        tcp_say(t, ASK_NEXT);
        break;
    case AGAIN:
    case NOJOB:
        tcp_give_up(t, r->str);
        break;
    case NOT_YET:
        wait_for_verdict(t, r->str + strlen("BUSY "));
        break;
    case DIFFERS:
        tcp_fail(t, EXIT_MISMATCH, "this node's settings differ from those of job '%s' at %s: %s", t->o.run_id,
                 t->o.endpoint, r->str + strlen("DIFFERS "));
        break;
    case DENIED:
        tcp_fail(t, EXIT_USAGE_ERROR, "the rendezvous at %s does not admit this node: %s", t->o.endpoint, r->str);
        break;
    case NONSENSE:
        if (strncmp(r->str, "ERR unknown command", 19) == 0) { /* a Redis */
            tcp_fail(t, EXIT_UNAVAILABLE, "%s answers, but is no rendezvous: %s", t->o.endpoint, r->str);
            break;
        }
        /* fall through */
    case REFUSED:
        on_join_refused_for_good(t, r->str);
        break;
    }
}

/* NEXT, DONE or FAIL is refused. A node that is joining has nothing to lose: it joins again. */
static void on_refused(struct tcp *t, const struct tcp_asked *a, const redisReply *r)
{
    enum verdict v = verdict_of(r);
    if (a->what != ASK_NEXT && t->mode == TCP_JOINING)
        return; /* a claim about a round that is over */
    if (t->mode == TCP_JOINING && (v == REFUSED || v == NOJOB)) {
        t->joined = false;
        tcp_again(t);
    } else if (t->mode == TCP_JOINING) {
        tcp_give_up(t, r->str);
    } else if (v == NOJOB) {
        lost_memory(t);
    } else if (v == FENCED || v == REFUSED) {
        tcp_fence(t, r->str);
    } else {
        tcp_give_up(t, r->str);
    }
}

static void on_error(struct tcp *t, const struct tcp_asked *a, const redisReply *r)
{
    enum verdict v = verdict_of(r);
    log_debug("rendezvous", "refused: %s", r->str);
    if (t->mode == TCP_FENCED || t->mode == TCP_OVER)
        return;
    if (a->what == ASK_JOIN && t->mode == TCP_JOINING)
        on_join_refused(t, r);
    else if (a->what == ASK_LEAVE && (v == REFUSED || v == NOJOB)) /* gone already */
        tcp_end(t, &(struct rdzv_news){.kind = RDZV_NEWS_END, .exit_code = EXIT_REQUEUE});
    else if (a->what == ASK_NEXT || a->what == ASK_DONE || a->what == ASK_FAIL)
        on_refused(t, a, r);
}

void tcp_on_reply(struct tcp *t, const redisReply *r)
{
    if (t->asked_first == t->asked_last) {
        tcp_give_up(t, "it answers what nobody asked");
        return;
    }
    const struct tcp_asked a = t->asked[t->asked_first++ % TCP_ASKED_MAX];
    if (a.what == ASK_NEXT)
        t->next_open = false;
    if (r->type == REDIS_REPLY_ERROR) {
        on_error(t, &a, r);
        return;
    }
    lease_acked(&t->lease, a.at);
    tcp_reached(t);
    if (t->mode == TCP_RUNNING)
        tcp_lease_moved(t);
    if (a.what == ASK_JOIN)
        on_joined(t, r);
    else if (a.what == ASK_STATUS)
        on_status(t, r);
    else if (a.what == ASK_NEXT && r->type == REDIS_REPLY_STRING)
        on_news(t, &a, r);
    else if (a.what == ASK_NEXT && r->type != REDIS_REPLY_NIL)
        tcp_give_up(t, "the answer makes no sense");
    /* One NEXT is always open, unless the answer to JOIN is awaited. */
    if (a.what == ASK_NEXT && t->up)
        go_on(t);
}
