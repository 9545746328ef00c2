/* The thread that is this node in a decision log: it beats, asks and hears. See rdzv_log_client.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/job/exitcode.h"
#include "launcher/rendezvous/rdzv_log_client.h"

enum {
    FIRST_PAUSE_MS = 50, /* before trying again what failed; doubles */
    LAST_PAUSE_MS = 1000,
    NOBODY_MS = 20,
};

/* --- to the agent */

/* From the leader's pulse, while we wait for a round. */
static void post_progress(struct log_client *l, int64_t now)
{
    struct log_item *i;
    if (!l->seat.joining || now < l->progress_at || !(i = log_client_item(ITEM_PROGRESS)))
        return;
    l->progress_at = now + LOG_CLIENT_PROGRESS_MS;
    presence_read(l->pulse.data ? l->pulse.data : "", l->pulse.len, &i->progress.now);
    if (l->pulse_moved > 0) /* one of a leader that died stands still until another one leads */
        presence_age(&i->progress.now, now - l->pulse_moved);
    if (i->progress.now.joined == 0) /* this node is there */
        i->progress.now.joined = 1;
    i->progress.now.min_nodes = l->o.job.min_nodes;
    i->progress.now.max_nodes = l->o.job.max_nodes;
    log_client_post(l, i);
}

void log_client_fail(struct log_client *l, int code, const char *why)
{
    l->ended = l->failed = true;
    log_client_post_text(l, ITEM_FAILED, code, why);
}

void log_client_fail_in_time(struct log_client *l, const char *why)
{
    char text[512];
    snprintf(text, sizeof text, "given up after %lld s (join_timeout): %.440s", (long long)(l->o.connect_ms / 1000),
             why);
    log_client_fail(l, EXIT_UNAVAILABLE, text);
}

/* --- beats */

static void heard(struct log_client *l, const struct rdzv_heard *h)
{
    if (l->ended) {
        if (h->bits & SEAT_LAPSED)
            log_client_post_text(l, ITEM_LOST, 0, "the rendezvous could not be reached in time");
        return;
    }
    if (h->bits & SEAT_REFUSED) {
        log_client_fail(l, h->code == ERR_MISMATCH ? EXIT_MISMATCH : EXIT_UNAVAILABLE, h->why);
        return;
    }
    if (h->bits & SEAT_LAPSED)
        log_client_post_text(l, ITEM_LOST, 0, "the rendezvous could not be reached in time");
    if (h->bits & SEAT_UNKNOWN)
        log_client_post_text(l, ITEM_LOST, 0,
                             h->bits & SEAT_LOST ? "the rendezvous has lost this job (was its Redis emptied?)"
                                                 : "the job went on without this node");
    struct log_item *i = h->bits & SEAT_NEWS ? log_client_item(ITEM_NEWS) : NULL;
    if (!i)
        return;
    i->news = h->news;
    i->members = h->members_len ? strndup(h->members, h->members_len) : NULL;
    l->ended |= h->news.kind == RDZV_NEWS_END;
    log_client_post(l, i);
}

static void publish_lease(struct log_client *l)
{
    bool moved;
    pthread_mutex_lock(&l->mutex);
    moved = l->seat.lease > l->lease;
    l->lease = l->seat.lease;
    pthread_mutex_unlock(&l->mutex);
    if (moved && (l->seat.works || l->ended)) /* workers that stop after the end have a lease as well */
        uv_async_send(&l->async);
}

/* Requests of the loop, into the seat. */
static int pass_requests(struct log_client *l, struct err *e)
{
    struct rdzv_event asks[SEAT_REQUESTS_MAX];
    pthread_mutex_lock(&l->mutex);
    int n = l->ask_count;
    memcpy(asks, l->asks, (size_t)n * sizeof *asks);
    pthread_mutex_unlock(&l->mutex);
    for (int i = 0; i < n; i++)
        if (asks[i].kind == RDZV_JOIN && !asks[i].addr[0])
            TRY(l->home->ops->address(l->home, asks[i].addr, sizeof asks[i].addr, e));
    for (int i = 0; i < n; i++)
        TRY(rdzv_seat_ask(&l->seat, &asks[i]));
    pthread_mutex_lock(&l->mutex);
    l->ask_count -= n;
    memmove(l->asks, l->asks + n, (size_t)l->ask_count * sizeof *asks);
    pthread_mutex_unlock(&l->mutex);
    return 0;
}

/* One beat and what comes of it. 1: at once again. */
static int beat(struct log_client *l, struct err *e)
{
    struct rdzv_heard h;
    TRY(pass_requests(l, e));
    TRY(rdzv_seat_beat(&l->seat, &l->beat));
    int64_t sent = clock_ms();
    bool call = l->seat.waiting_count > 0 || l->seat.bye;
    TRY(l->home->ops->exchange(l->home, l->o.node, &l->beat, call, &l->view, e));
    int64_t now = clock_ms();
    l->heard_at = now;
    l->next_beat = sent + l->o.heartbeat_ms;
    TRY(rdzv_seat_hear(&l->seat, &l->view, sent, now, &h, e));
    l->answered |= l->seat.answered > 0;
    publish_lease(l);
    heard(l, &h);
    log_client_watch_leader(l, now);
    post_progress(l, now);
    return h.bits & SEAT_AGAIN ? 1 : 0;
}

static bool for_good(int rc)
{
    return rc == ERR_REFUSED || rc == -EROFS || rc == -EINVAL || rc == -EPROTO || rc == -ENOTDIR || rc == -EACCES ||
           rc == -ECONNABORTED;
}

/* The home cannot be reached, or does not let us in. */
static void trouble(struct log_client *l, int rc, const char *why)
{
    const int64_t now = clock_ms();
    log_client_end_leading(l, false);
    if (l->ended)
        ; /* only to show that this node is there */
    else if (!l->answered && for_good(rc))
        log_client_fail(l, rc == -EROFS || rc == -ECONNABORTED ? EXIT_UNAVAILABLE : EXIT_USAGE_ERROR, why);
    else if (now - l->heard_at >= l->o.connect_ms)
        log_client_fail_in_time(l, why);
    else
        log_client_post_trouble(l, now, why, l->heard_at + l->o.connect_ms - now);
    l->pause_ms = l->pause_ms ? l->pause_ms * 2 : FIRST_PAUSE_MS;
    l->pause_ms = l->pause_ms > LAST_PAUSE_MS ? LAST_PAUSE_MS : l->pause_ms;
}

/* Until something is asked, closed, or the time is over. */
static bool stopped_after(struct log_client *l, int64_t ms)
{
    int64_t until = clock_deadline(ms);
    const struct timespec t = clock_timespec(until);
    pthread_mutex_lock(&l->mutex);
    while (!l->stop && clock_left(until) > 0 && (l->pause_ms > 0 || l->ask_count == 0))
        pthread_cond_timedwait(&l->asked, &l->mutex, &t);
    bool stop = l->stop;
    pthread_mutex_unlock(&l->mutex);
    return stop;
}

static int wait_for_more(struct log_client *l, struct err *e)
{
    int64_t until = l->next_beat, now = clock_ms();
    if (l->claim_at && !l->leader.running && l->claim_at < until)
        until = l->claim_at;
    int64_t nobody = NOBODY_MS + l->o.job.max_nodes / 10; /* a thousand need not ask fifty times a second */
    if (!l->view.epoch[0] && now + nobody < until)
        until = now + nobody; /* somebody will lead in a moment, and nobody would tell us */
    return until > now ? l->home->ops->wait_slot(l->home, l->o.node, until - now, e) : 0;
}

/* In good order: who leads lets go, who is done clears up, who is not says that it has gone. */
static void farewell(struct log_client *l)
{
    struct err e;
    log_client_end_leading(l, true);
    l->seat.bye = true;
    if (l->seat.q == 0)
        return;
    if (!l->ended && rdzv_seat_beat(&l->seat, &l->beat) == 0)
        l->home->ops->exchange(l->home, l->o.node, &l->beat, true, &l->view, &e);
    if (l->ended)
        l->home->ops->forget(l->home, l->o.node);
}

void *log_client_node(void *arg)
{
    struct log_client *l = arg;
    while (!stopped_after(l, l->pause_ms)) {
        struct err e = {0};
        bool idle;
        pthread_mutex_lock(&l->mutex);
        idle = l->failed || (l->seat.q == 0 && l->ask_count == 0);
        pthread_mutex_unlock(&l->mutex);
        l->pause_ms = 0;
        if (idle) {
            stopped_after(l, l->o.heartbeat_ms);
            l->heard_at = l->seat.q ? l->heard_at : clock_ms();
            continue;
        }
        int rc;
        while ((rc = beat(l, &e)) == 1)
            ;
        rc = rc ? rc : wait_for_more(l, &e); /* also after the end: what beats may still have workers */
        if (rc < 0)
            trouble(l, rc, e.text);
    }
    farewell(l);
    pthread_mutex_lock(&l->mutex);
    l->over = true;
    pthread_mutex_unlock(&l->mutex);
    uv_async_send(&l->async);
    return NULL;
}
