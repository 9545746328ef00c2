/* The rendezvous in this process: of one node, or where this crun hosts the others. The jobs are the caller's, or made
 * here for this node alone; there is no connection, so nothing is ever redialled.
 *
 * The workers of a node that hosts have a lease, too (jobs_lease()): if it is cut off from the others they may go on
 * under another host. It holds until join(), also while workers stop in good order.
 *
 * close() must not be called from inside a callback. */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/rdzv/client/lease.h"
#include "launcher/rendezvous/rdzv_client.h"
#include "rendezvousd/jobs/jobs.h"

#define PROGRESS_MS 1000

struct local {
    struct rdzv_client base;
    struct rdzv_client_options o;
    struct jobs *jobs;
    struct jobs_party *party;
    const char *run;
    uint64_t seq;  /* of the last news */
    bool waiting;  /* has joined, has not heard of a round yet */
    bool inside;   /* a callback of ours runs */
    bool working;  /* in a round; workers may be there */
    bool fenced;   /* they are being killed; no news but an END until join() */
    int64_t armed; /* the lease was looked at then */
    int open_handles;
    uv_timer_t progress, lease;
};

static void copy(char *out, size_t cap, const char *s)
{
    snprintf(out, cap, "%s", s ? s : "");
}

static int request_next(struct local *l, struct err *e)
{
    return jobs_next(l->party, l->run, l->o.node, l->seq, -1, e);
}

static int send_claim(struct local *l, enum rdzv_event_kind kind, const struct rdzv_cause *cause, struct err *e)
{
    struct rdzv_event ev = {.kind = kind, .round = l->base.past.round};
    copy(ev.node, sizeof ev.node, l->o.node);
    if (cause)
        ev.cause = *cause;
    return jobs_claim(l->party, l->run, &ev, e);
}

/* --- the lease */

/* Whose silence ends the round is told to the job at once: later on this node would seem to be the one that broke
 * it. */
static void blame(struct local *l, const char *lost)
{
    struct rdzv_cause cause = {.exit_code = EXIT_UNAVAILABLE, .rank = -1};
    snprintf(cause.text, sizeof cause.text,
             "nothing was heard of %.160s for %lld ms (--rdzv-conf keep_alive_interval, keep_alive_max_attempt)", lost,
             (long long)l->o.job.silence_ms);
    send_claim(l, RDZV_FAIL, &cause, NULL); /* a round that is over already needs none */
}

static void fence(struct local *l, int64_t now)
{
    const int64_t silence_ms = l->o.job.silence_ms;
    const int64_t still_ms = l->o.still_ms ? l->o.still_ms(l->o.arg, now - silence_ms) : 0;
    struct jobs_reach reach;
    char why[480], still[80] = "";
    jobs_reach(l->jobs, l->run, l->o.node, &reach);
    if (still_ms >= SILENCE_STILL_MS)
        snprintf(still, sizeof still, ", of which this crun itself stood still for %lld ms", (long long)still_ms);
    snprintf(why, sizeof why,
             "nothing was heard of %s for %lld ms%s (--rdzv-conf keep_alive_interval, keep_alive_max_attempt), which "
             "leaves fewer than %d nodes here, and others may go on under another host",
             reach.lost[0] ? reach.lost : "the others", (long long)silence_ms, still, l->o.job.min_nodes);
    l->working = false;
    l->fenced = true;
    l->base.past.restarts++;
    if (l->o.on_lease)
        l->o.on_lease(l->o.arg, now);
    l->o.on_fence(l->o.arg, why);
    if (l->fenced && reach.lost[0] && still_ms < SILENCE_STILL_MS)
        blame(l, reach.lost);
}

static void on_lease_over(uv_timer_t *t);

static void set_lease(struct local *l, int64_t until, int64_t now)
{
    l->armed = now;
    if (l->o.on_lease)
        l->o.on_lease(l->o.arg, until == INT64_MAX ? 0 : until);
    uv_update_time(l->lease.loop);
    if (until == INT64_MAX)
        uv_timer_stop(&l->lease);
    else
        uv_timer_start(&l->lease, on_lease_over, (uint64_t)(until - now), 0);
}

static void keep_lease(struct local *l)
{
    const int64_t until = l->working ? jobs_lease(l->party) : INT64_MAX, now = clock_ms();
    if (until > now) {
        set_lease(l, until, now);
        return;
    }
    uv_timer_stop(&l->lease);
    fence(l, now);
}

static void on_lease_over(uv_timer_t *t)
{
    keep_lease(container_of(t, struct local, lease));
}

/* Moved with what others answer, so that its timer wakes nobody as long as all is well; but not with each of them, for
 * they may be thousands. */
static void on_confirmed(void *arg)
{
    struct local *l = arg;
    const int64_t now = clock_ms();
    if (!l->working || now - l->armed < l->o.heartbeat_ms / 4)
        return;
    const int64_t until = jobs_lease(l->party);
    if (until > now) /* else its timer is due */
        set_lease(l, until, now);
}

static void set_working(struct local *l, bool working)
{
    if (l->working == working)
        return;
    l->working = working;
    keep_lease(l);
}

/* --- news */

static void on_told(void *arg, const struct rdzv_news *news, const char *member_addrs, int more)
{
    struct local *l = arg;
    const bool end = news->kind == RDZV_NEWS_END;
    (void)more; /* all comes at once */
    l->seq = news->seq;
    l->inside = true;
    rdzv_past_heard(&l->base.past, news);
    if (l->fenced && !end) { /* JOIN answers it */
        l->inside = false;
        request_next(l, NULL);
        return;
    }
    if (end || (news->kind == RDZV_NEWS_ROUND && !news->spare))
        set_working(l, !end);
    if (l->fenced) { /* before it began */
        l->inside = false;
        request_next(l, NULL);
        return;
    }
    if (news->kind == RDZV_NEWS_ROUND ? !news->spare : end) {
        l->waiting = false;
        uv_timer_stop(&l->progress);
    }
    if (member_addrs && l->o.on_members)
        l->o.on_members(l->o.arg, member_addrs);
    l->o.on_news(l->o.arg, news);
    l->inside = false;
    if (!end)
        request_next(l, NULL); /* it cannot fail: this node has just got its news */
}

static void on_asked(void *arg, const char *record, size_t n)
{
    struct local *l = arg;
    (void)n; /* it is text */
    if (l->o.on_asked)
        l->o.on_asked(l->o.arg, record);
}

static void on_progress(uv_timer_t *t)
{
    struct local *l = container_of(t, struct local, progress);
    struct rdzv_progress p = {0};
    if (jobs_progress(l->jobs, NULL, l->run, &p.now, NULL) < 0)
        return;
    l->o.on_progress(l->o.arg, &p);
}

/* Jobs of its own live in a crun that hosts nobody else: they have no limits to keep. */
static int open_jobs(struct local *l, uv_loop_t *loop, struct err *e)
{
    l->jobs = l->o.jobs;
    if (l->jobs)
        return 0;
    return jobs_create(&l->jobs, &(struct jobs_options){.loop = loop, .embedded = true, .max_joins = INT_MAX}, e);
}

static int local_open(struct rdzv_client **ret, uv_loop_t *loop, const struct rdzv_client_options *o, struct err *e)
{
    struct local *l = calloc(1, sizeof *l);
    if (!l)
        return err_errno(e, ENOMEM, "rendezvous");
    l->base.ops = &rdzv_client_local_ops;
    l->base.past = o->past;
    l->o = *o;
    l->run = o->run_id ? o->run_id : "";
    int rc = open_jobs(l, loop, e);
    if (rc == 0)
        rc = jobs_party_open(
            &l->party, l->jobs,
            &(struct jobs_party_options){
                .principal = "", .told = on_told, .confirmed = on_confirmed, .asked = on_asked, .arg = l},
            e);
    if (rc < 0) {
        if (!o->jobs)
            jobs_destroy(l->jobs);
        free(l);
        return rc;
    }
    uv_timer_init(loop, &l->progress);
    uv_timer_init(loop, &l->lease);
    l->progress.data = l->lease.data = l;
    l->open_handles = 2;
    *ret = &l->base;
    return 0;
}

static int local_join(struct rdzv_client *c, struct err *e)
{
    struct local *l = (struct local *)c;
    struct rdzv_event ev = {.kind = RDZV_JOIN,
                            .round = l->base.past.round,
                            .restarts = l->base.past.restarts,
                            .slots = l->o.slots,
                            .node_rank = l->o.node_rank,
                            .waits = l->o.waits,
                            .numbered = l->o.numbered};
    struct jobs_joined joined;
    if (l->o.store_port)
        ev.port = l->o.store_port(l->o.arg);
    if (ev.port < 0)
        return err_set(e, -EADDRNOTAVAIL, "the bootstrap store has no port to listen on");
    copy(ev.node, sizeof ev.node, l->o.node);
    copy(ev.addr, sizeof ev.addr, l->o.addr);
    copy(ev.addrs, sizeof ev.addrs, l->o.addrs);
    copy(ev.role, sizeof ev.role, l->o.role);
    copy(ev.instance, sizeof ev.instance, l->base.past.instance);
    l->waiting = true;
    l->fenced = l->working = false;
    keep_lease(l);
    TRY(jobs_join(l->party, l->run, &ev, &l->o.job, &joined, e));
    l->seq = joined.seq;
    copy(l->base.past.instance, sizeof l->base.past.instance, joined.instance);
    TRY(request_next(l, e));
    if (l->waiting && l->o.on_progress)
        uv_timer_start(&l->progress, on_progress, PROGRESS_MS, PROGRESS_MS);
    return 0;
}

static int local_fail(struct rdzv_client *c, const struct rdzv_cause *cause, struct err *e)
{
    return send_claim((struct local *)c, RDZV_FAIL, cause, e);
}

static int local_done(struct rdzv_client *c, struct err *e)
{
    set_working((struct local *)c, false);
    return send_claim((struct local *)c, RDZV_DONE, NULL, e);
}

static int local_leave(struct rdzv_client *c, const struct rdzv_cause *why, struct err *e)
{
    return send_claim((struct local *)c, RDZV_LEAVE, why, e);
}

static int local_report(struct rdzv_client *c, const char *fields, struct err *e)
{
    struct local *l = (struct local *)c;
    return jobs_report(l->party, l->run, l->o.node, fields, strlen(fields), e);
}

static int local_answer(struct rdzv_client *c, uint64_t id, const char *text, struct err *e)
{
    struct local *l = (struct local *)c;
    return jobs_answer(l->party, l->run, l->o.node, id, text, strlen(text), e);
}

static void on_closed(uv_handle_t *h)
{
    struct local *l = h->data;
    if (--l->open_handles == 0)
        free(l);
}

static void local_close(struct rdzv_client *c)
{
    struct local *l = (struct local *)c;
    if (!l)
        return;
    assert(!l->inside);
    jobs_party_close(l->party, JOBS_GONE);
    if (!l->o.jobs)
        jobs_destroy(l->jobs);
    uv_close((uv_handle_t *)&l->progress, on_closed);
    uv_close((uv_handle_t *)&l->lease, on_closed);
}

const struct rdzv_client_ops rdzv_client_local_ops = {
    .name = "local",
    .open = local_open,
    .join = local_join,
    .fail = local_fail,
    .done = local_done,
    .leave = local_leave,
    .report = local_report,
    .answer = local_answer,
    .close = local_close,
};
