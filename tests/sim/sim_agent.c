/* A simulated agent: does what rdzv.h asks of one, and nothing more. It knows its own clock alone.
 *
 * Its lease is the newest request that was answered: it starts workers only within silence_ms of it, and kills them,
 * within kill_ms, when it lapses. Every STOP is answered by JOIN once its workers are gone; what is not answered is
 * asked again. */
#include "common/base/err.h"
#include "tests/sim/sim_impl.h"
#include <stdio.h>
#include <string.h>

enum { HEARTBEAT_MS = 1000, REPEAT_MS = 700, GRACE_MS = 5000 };

static int64_t clock_of(const struct world *w, const struct agent *a)
{
    return w->now + a->skew;
}

static int64_t lease_end(const struct world *w, const struct agent *a)
{
    return a->acked_send + w->config.silence_ms;
}

static void ask(struct world *w, struct agent *a, enum request what)
{
    uint64_t round = what == ASK_JOIN ? a->told_round : a->worker_round;
    struct message m = {
        .sent = clock_of(w, a), .agent = (int)(a - w->agents), .ask = what, .round = round, .seen_seq = a->seen_seq};
    if (what == ASK_JOIN && round > 0 && !a->instance[0])
        sim_broken(w, "%s names round %llu of no instance", a->id, (unsigned long long)round);
    m.restarts = a->restarts;
    memcpy(m.news.instance, a->instance, sizeof m.news.instance);
    a->asked_join = what == ASK_JOIN ? m.sent : a->asked_join;
    sim_send(w, m);
    a->next_ask = clock_of(w, a) + (what == ASK_HEARTBEAT ? HEARTBEAT_MS : REPEAT_MS);
}

static void start_joining(struct world *w, struct agent *a)
{
    a->mode = AGENT_JOINING;
    a->joining_since = clock_of(w, a);
    a->next_ask = a->joining_since;
}

/* The first words on a new connection are what was claimed last: a daemon that was killed may not have kept it. */
static void greet(struct world *w, struct agent *a)
{
    a->greets = a->done_told = false;
    if (a->mode == AGENT_WAITING)
        start_joining(w, a);
}

static void ask_again(struct world *w, struct agent *a)
{
    if (a->greets && w->up)
        greet(w, a);
    if (a->leaving && a->mode != AGENT_JOINING)
        ask(w, a, ASK_LEAVE);
    else if (a->mode == AGENT_JOINING && !a->workers)
        ask(w, a, ASK_JOIN);
    else if (a->mode == AGENT_WORKING && a->failed)
        ask(w, a, ASK_FAIL);
    else if (a->mode == AGENT_WORKING && a->done && !a->done_told)
        ask(w, a, ASK_DONE);
    else
        ask(w, a, ASK_HEARTBEAT);
}

void sim_agent_born(struct world *w, struct agent *a)
{
    static const char *const roles[] = {"", "trainer", "reader"};
    a->skew = sim_between(w, -1000000, 1000000000);
    a->acked_send = a->answered_send = clock_of(w, a);
    a->heard_sent = a->taken_sent = a->acked_send - 1;
    a->finish_at = a->killed_at = NEVER;
    a->slots = (int)sim_between(w, 1, 8);
    a->node_rank = (int)sim_between(w, -1, 40);
    snprintf(a->role, sizeof a->role, "%s", roles[w->roles ? sim_between(w, 0, 2) : 0]);
    start_joining(w, a);
}

void sim_agent_kill_workers(struct world *w, struct agent *a, int64_t within_ms)
{
    int64_t at = clock_of(w, a) + (sim_chance(w, 0.3) ? within_ms : sim_between(w, 0, within_ms));
    if (a->workers && at < a->killed_at)
        a->killed_at = at;
    a->finish_at = NEVER;
}

static void start_workers(struct world *w, struct agent *a, uint64_t round)
{
    memcpy(a->worker_instance, a->instance, sizeof a->worker_instance);
    if (round < w->account.round && strcmp(a->instance, w->instance) == 0)
        sim_broken(w, "%s starts round %llu while round %llu is under way", a->id, (unsigned long long)round,
                   (unsigned long long)w->account.round);
    a->mode = AGENT_WORKING;
    a->workers = true;
    a->worker_round = round;
    a->done = a->done_told = a->failed = a->lapsed = a->lost = false;
    a->killed_at = NEVER;
    a->finish_at = clock_of(w, a) + sim_between(w, 200, sim_chance(w, 0.5) ? 60000 : 15000);
    sim_check_alone(w, a);
}

static void take_news(struct world *w, struct agent *a, const struct told *news)
{
    if (news->seq <= a->seen_seq)
        return;
    a->seen_seq = news->seq;
    if (news->round > a->told_round)
        a->told_round = news->round;
    if (news->kind != RDZV_NEWS_END)
        a->restarts = news->restarts;
    switch (news->kind) {
    case RDZV_NEWS_ROUND:
        if (a->workers)
            sim_broken(w, "%s is told of round %llu while it works in round %llu", a->id,
                       (unsigned long long)news->round, (unsigned long long)a->worker_round);
        if (news->spare)
            a->mode = AGENT_WAITING;
        else if (clock_of(w, a) < lease_end(w, a))
            start_workers(w, a, news->round);
        else
            start_joining(w, a);
        break;
    case RDZV_NEWS_STOP:
        sim_agent_kill_workers(w, a, GRACE_MS);
        start_joining(w, a);
        break;
    case RDZV_NEWS_END:
        sim_agent_kill_workers(w, a, w->config.kill_ms);
        a->mode = AGENT_ENDED;
        break;
    }
}

/* Its round breaks here, and its rendezvous may never say so. */
static void lose_round(struct agent *a)
{
    a->restarts += a->mode == AGENT_WORKING && !a->lost;
    a->lost = true;
}

void sim_agent_receive(struct world *w, struct agent *a, const struct message *m)
{
    if (a->mode == AGENT_DEAD || a->mode == AGENT_ENDED)
        return;
    /* An ordered connection never answers an older request after a newer one, nor one asked in another life. */
    bool old = m->acked_send < a->joining_since || m->acked_send < a->answered_send;
    bool stale = m->news.kind == RDZV_NEWS_ROUND && (old || m->acked_send < a->asked_join);
    if (m->acked_send > a->answered_send)
        a->answered_send = m->acked_send;
    if (m->ask == ASK_JOIN && m->answer != ANSWER_REFUSED && m->acked_send == a->asked_join &&
        a->mode == AGENT_JOINING) {
        if (m->news.instance[0]) /* else a connection that counts no more is refused: it says nothing of a job */
            memcpy(a->instance, m->news.instance, sizeof a->instance);
        if (m->answer == ANSWER_OK) /* else it is a member already, by a JOIN whose answer was lost */
            a->seen_seq = m->seen_seq;
    }
    if (m->answer == ANSWER_OK && m->acked_send > a->acked_send) /* a refusal extends no lease */
        a->acked_send = m->acked_send;
    if (m->news.kind != 0 && !stale && strcmp(m->news.instance, a->instance) == 0)
        take_news(w, a, &m->news);
    if (a->mode == AGENT_ENDED)
        return;
    a->done_told |= m->answer == ANSWER_OK && m->ask == ASK_DONE && m->round == a->worker_round;
    /* a copy of its JOIN came late, and has made it a member of another instance */
    bool elsewhere = m->acked_send > a->asked_join && m->news.instance[0] && strcmp(m->news.instance, a->instance) != 0;
    if (m->answer == ANSWER_DIFFERS && a->mode == AGENT_JOINING &&
        m->acked_send == a->asked_join) { /* it has no part in any job here, and no workers */
        a->mode = AGENT_ENDED;
        if (sim_faulty(w)) /* somebody starts it again */
            sim_add_agent(w);
    } else if ((m->answer == ANSWER_REFUSED || elsewhere) && m->acked_send >= a->joining_since &&
               a->mode != AGENT_JOINING) {
        lose_round(a);
        sim_agent_kill_workers(w, a, w->config.kill_ms);
        start_joining(w, a);
    } else if (m->answer == ANSWER_OK && m->ask == ASK_JOIN && m->acked_send == a->asked_join &&
               m->acked_send >= a->joining_since && a->mode == AGENT_JOINING && !a->workers) {
        a->mode = AGENT_WAITING;
    }
}

int64_t sim_agent_wake(const struct world *w, const struct agent *a)
{
    int64_t at = NEVER;
    if (a->workers) {
        int64_t lapse = !a->lapsed && lease_end(w, a) < a->killed_at ? lease_end(w, a) : a->killed_at;
        at = lapse < a->finish_at ? lapse : a->finish_at;
    }
    if (a->mode == AGENT_ENDED && !a->workers && !a->bye)
        return a->paused_until > w->now ? a->paused_until : w->now;
    if (a->mode != AGENT_ENDED && a->mode != AGENT_DEAD && a->next_ask < at)
        at = a->next_ask;
    if (at != NEVER)
        at -= a->skew;
    return a->mode != AGENT_DEAD && (at < a->paused_until || (a->woke && at > a->paused_until)) ? a->paused_until : at;
}

/* A node that stood still looks at its lease before its workers go on: both are one host, and the agent's timer is due
 * at once. */
static void wake(struct world *w, struct agent *a)
{
    a->woke = false;
    if (a->workers && lease_end(w, a) <= clock_of(w, a)) {
        a->finish_at = NEVER;
        a->killed_at = clock_of(w, a);
    } else if (a->workers) {
        sim_check_alone(w, a);
    }
}

static void workers_gone(struct world *w, struct agent *a)
{
    a->workers = false;
    a->killed_at = NEVER;
    if (a->mode == AGENT_WORKING && !a->failed)
        start_joining(w, a); /* the lease lapsed */
    else if (a->mode == AGENT_JOINING)
        a->next_ask = clock_of(w, a);
}

void sim_agent_tick(struct world *w, struct agent *a)
{
    int64_t now = clock_of(w, a);
    if (a->woke)
        wake(w, a);
    if (a->workers && a->killed_at <= now)
        workers_gone(w, a);
    if (a->workers && lease_end(w, a) <= now && !a->lapsed) {
        lose_round(a);
        a->lapsed = true; /* workers that were given time to stop in good order have no more of it */
        sim_agent_kill_workers(w, a, w->config.kill_ms);
    }
    if (a->workers && a->finish_at <= now) {
        a->workers = false;
        a->finish_at = NEVER;
        a->done = true;
        a->next_ask = now;
    }
    if (a->mode != AGENT_ENDED && a->mode != AGENT_DEAD && a->next_ask <= now)
        ask_again(w, a);
    if (a->mode == AGENT_ENDED && !a->workers && !a->bye) {
        a->bye = true;
        sim_send(w, (struct message){.agent = (int)(a - w->agents), .ask = TELL_GONE});
    }
}
