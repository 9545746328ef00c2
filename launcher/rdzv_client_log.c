/* A rendezvous in the decision log of a Redis or of a shared directory (common/rdzv_home.h), seen from one agent.
 *
 * Homes block, so they have threads: one that is this node (a seat: it beats, asks and hears), and, while this node leads, one that runs the
 * machine for all (common/rdzv_host.h). The loop's thread gives them requests under a mutex, and is given what was heard by an async.
 * The silence rule is the loop's own: a timer at the end of the lease, whatever the threads are stuck in.
 *
 * The node's thread also watches the leader's pulse: one that has stood still for silence_ms, or is let go, makes it claim. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/exitcode.h"
#include "common/log.h"
#include "common/rdzv_home.h"
#include "common/rdzv_host.h"
#include "common/rdzv_seat.h"
#include "common/rdzv_wire.h"
#include "launcher/rdzv_client.h"

enum {
    STACK_BYTES = 256 << 10,
    KEEP_MS = 3600000,
    JITTER_MS = 20,      /* before claiming what nobody leads */
    FIRST_PAUSE_MS = 50, /* before trying again what failed; doubles */
    LAST_PAUSE_MS = 1000,
    PROGRESS_MS = 1000,
    NOBODY_MS = 20,
};

enum item_kind { ITEM_NEWS, ITEM_LOST, ITEM_FAILED, ITEM_PROGRESS, ITEM_LOG };

/* What the node's thread has for the loop's. */
struct item {
    enum item_kind kind;
    struct rdzv_news news;
    char *members;
    struct rdzv_progress progress;
    int code;
    char text[512];
    struct item *next;
};

struct leader {
    pthread_t thread;
    bool running; /* a thread to join; the node's thread only */
    atomic_bool stop, over;
    struct rdzv_home *home; /* under the mutex while the thread runs */
    struct rdzv_host_options o;
    char seen[RDZV_EPOCH_MAX + 1];
    int rc;
    struct err e;
};

struct log_client {
    struct rdzv_client base;
    struct rdzv_client_options o;
    uv_async_t async;
    uv_timer_t fence;
    bool closing, works, done; /* the loop's */
    bool joined_once;
    int open_handles;

    pthread_mutex_t mutex;
    pthread_cond_t asked;
    struct rdzv_event asks[SEAT_REQUESTS_MAX];
    int ask_count;
    bool stop, ended, over;
    int64_t lease;
    struct item *first, **last;
    struct rdzv_home *home; /* for interrupt() */

    /* the node's thread */
    pthread_t thread;
    struct rdzv_seat seat;
    struct leader leader;
    struct rdzv_view view;
    struct buf beat, pulse;
    int64_t pulse_moved, claim_at, heard_at, progress_at, next_beat;
    int64_t leaderless; /* since when this node failed to lead and nobody else does, 0: somebody does */
    bool answered;      /* our first JOIN */
    bool knew_reign;    /* somebody led when we looked before */
    int pause_ms;
};

static uint64_t draw(void *arg)
{
    uint64_t v = 0;
    (void)arg;
    if (getrandom(&v, sizeof v, 0) != sizeof v)
        v = (uint64_t)clock_ns();
    return v;
}

/* ---- to the loop ------------------------------------------------------------------------------------------------------ */

static void post(struct log_client *l, struct item *item)
{
    pthread_mutex_lock(&l->mutex);
    item->next = NULL;
    *l->last = item;
    l->last = &item->next;
    pthread_mutex_unlock(&l->mutex);
    uv_async_send(&l->async);
}

static struct item *new_item(enum item_kind kind)
{
    struct item *i = calloc(1, sizeof *i);
    if (i)
        i->kind = kind;
    return i;
}

static void post_text(struct log_client *l, enum item_kind kind, int code, const char *text)
{
    struct item *i = new_item(kind);
    if (!i)
        return;
    i->code = code;
    snprintf(i->text, sizeof i->text, "%s", text);
    snprintf(i->progress.text, sizeof i->progress.text, "%.255s", text);
    post(l, i);
}

static long long pulse_number(const struct log_client *l, const char *key)
{
    char text[24] = "";
    return rdzv_field_find(l->pulse.data ? l->pulse.data : "", l->pulse.len, key, text, sizeof text) == 1
               ? strtoll(text, NULL, 10)
               : 0;
}

/* From the leader's pulse, while we wait for a round. */
static void tell_progress(struct log_client *l, int64_t now)
{
    struct item *i;
    if (!l->seat.joining || now < l->progress_at || !(i = new_item(ITEM_PROGRESS)))
        return;
    l->progress_at = now + PROGRESS_MS;
    char ranks[96] = "";
    rdzv_field_find(l->pulse.data ? l->pulse.data : "", l->pulse.len, "missing", ranks, sizeof ranks);
    i->progress.state = (enum rdzv_state)pulse_number(l, "state");
    i->progress.joined = (int)pulse_number(l, "joined");
    if (i->progress.joined == 0) /* this node is there */
        i->progress.joined = 1;
    i->progress.min_nodes = l->o.job.min_nodes;
    i->progress.max_nodes = l->o.job.max_nodes;
    if (ranks[0])
        snprintf(i->progress.missing, sizeof i->progress.missing, "node ranks %s", ranks);
    post(l, i);
}

/* ---- leading ---------------------------------------------------------------------------------------------------------- */

static int open_home(struct log_client *l, struct rdzv_home **ret, struct err *e)
{
    const struct rdzv_home_options o = {
        .run_id = l->o.run_id, .io_timeout_ms = l->o.job.silence_ms, .keep_ms = KEEP_MS};
    return rdzv_home_open(ret, l->o.endpoint, &o, e);
}

static void *lead(void *arg)
{
    struct log_client *l = arg;
    struct leader *d = &l->leader;
    d->rc = rdzv_host_lead(d->home, &d->o, d->seen, &d->e);
    atomic_store(&d->over, true);
    l->home->ops->interrupt(l->home);
    return NULL;
}

static int start_thread(pthread_t *t, void *(*run)(void *), void *arg)
{
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, STACK_BYTES);
    int rc = pthread_create(t, &a, run, arg);
    pthread_attr_destroy(&a);
    return -rc;
}

static void start_leading(struct log_client *l)
{
    struct leader *d = &l->leader;
    atomic_store(&d->stop, false);
    atomic_store(&d->over, false);
    d->e = (struct err){0};
    d->o = (struct rdzv_host_options){.job = l->o.job,
                                      .node = l->o.node,
                                      .heartbeat_ms = l->o.heartbeat_ms,
                                      .was_member = l->knew_reign,
                                      .random = draw,
                                      .stop = &d->stop};
    memcpy(d->seen, l->view.epoch, sizeof d->seen);
    if (open_home(l, &d->home, &d->e) < 0)
        return;
    d->running = start_thread(&d->thread, lead, l) == 0;
    if (!d->running)
        d->home->ops->close(d->home);
}

static void fail_for_good(struct log_client *l, int code, const char *why)
{
    l->ended = true;
    post_text(l, ITEM_FAILED, code, why);
}

static void fail_in_time(struct log_client *l, const char *why)
{
    char text[512];
    snprintf(text, sizeof text, "given up after %lld s (join_timeout): %.440s", (long long)(l->o.connect_ms / 1000),
             why);
    fail_for_good(l, EXIT_UNAVAILABLE, text);
}

/* The home takes our beats but not our decisions (a full disk, a right that is missing): without a leader nobody would ever be answered. */
static void cannot_lead(struct log_client *l, const char *why)
{
    int64_t now = clock_ms();
    l->leaderless = l->leaderless ? l->leaderless : now;
    if (now >= l->progress_at) {
        l->progress_at = now + PROGRESS_MS;
        post_text(l, ITEM_PROGRESS, 0, why);
    }
    if (!l->seat.works && !l->ended && now - l->leaderless >= l->o.connect_ms)
        fail_in_time(l, why);
}

static void end_leading(struct log_client *l, bool now)
{
    struct leader *d = &l->leader;
    if (!d->running || (!now && !atomic_load(&d->over)))
        return;
    atomic_store(&d->stop, true);
    d->home->ops->interrupt(d->home);
    pthread_join(d->thread, NULL);
    d->home->ops->close(d->home);
    d->running = false;
    l->claim_at = clock_ms() + l->o.heartbeat_ms / 4;
    if (d->rc < 0) {
        post_text(l, ITEM_LOG, 0, d->e.text); /* loggers are the loop's */
        l->pulse_moved = 0;                   /* nobody leads: claim again soon */
        if (!now)
            cannot_lead(l, d->e.text);
    }
}

/* Does nobody lead? A little chance decides who asks first. */
static void watch_leader(struct log_client *l, int64_t now)
{
    bool none = !l->view.epoch[0] || pulse_number(l, "free") > 0;
    l->knew_reign |= l->view.epoch[0] != 0;
    int64_t patience = l->o.job.silence_ms + (int64_t)(draw(NULL) % (uint64_t)(l->o.heartbeat_ms / 2 + 1));
    end_leading(l, false);
    if (l->view.pulse.len != l->pulse.len ||
        (l->pulse.len && memcmp(l->view.pulse.data, l->pulse.data, l->pulse.len) != 0)) {
        buf_clear(&l->pulse);
        buf_add(&l->pulse, l->view.pulse.data ? l->view.pulse.data : "", l->view.pulse.len);
        l->pulse_moved = now;
        l->leaderless = pulse_number(l, "n") > 0 ? 0 : l->leaderless;
        none = !l->view.epoch[0] || pulse_number(l, "free") > 0;
    }
    if (l->leader.running || l->ended || (!none && now - l->pulse_moved < patience)) {
        l->claim_at = none ? l->claim_at : 0;
        return;
    }
    if (!l->claim_at)
        l->claim_at = now + (int64_t)(draw(NULL) % (uint64_t)(JITTER_MS + l->o.job.max_nodes / 5));
    else if (now >= l->claim_at)
        start_leading(l);
}

/* ---- the node ----------------------------------------------------------------------------------------------------------- */

static void heard(struct log_client *l, const struct rdzv_heard *h)
{
    if (h->bits & SEAT_REFUSED) {
        fail_for_good(l, h->code == ERR_MISMATCH ? EXIT_MISMATCH : EXIT_UNAVAILABLE, h->why);
        return;
    }
    if (h->bits & SEAT_LAPSED)
        post_text(l, ITEM_LOST, 0, "the rendezvous could not be reached in time");
    if (h->bits & SEAT_UNKNOWN)
        post_text(l, ITEM_LOST, 0,
                  h->bits & SEAT_LOST ? "the rendezvous has lost this job (was its Redis emptied?)"
                                      : "the job went on without this node");
    struct item *i = h->bits & SEAT_NEWS ? new_item(ITEM_NEWS) : NULL;
    if (!i)
        return;
    i->news = h->news;
    i->members = h->members_len ? strndup(h->members, h->members_len) : NULL;
    l->ended |= h->news.kind == RDZV_NEWS_END;
    post(l, i);
}

static void publish_lease(struct log_client *l)
{
    bool moved;
    pthread_mutex_lock(&l->mutex);
    moved = l->seat.lease > l->lease;
    l->lease = l->seat.lease;
    pthread_mutex_unlock(&l->mutex);
    if (moved && l->seat.works)
        uv_async_send(&l->async);
}

/* Requests of the loop, into the seat. */
static int take_asks(struct log_client *l, struct err *e)
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
    TRY(take_asks(l, e));
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
    watch_leader(l, now);
    tell_progress(l, now);
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
    int64_t now = clock_ms();
    end_leading(l, false);
    if (now >= l->progress_at) {
        l->progress_at = now + PROGRESS_MS;
        post_text(l, ITEM_PROGRESS, 0, why);
    }
    if (!l->answered && for_good(rc))
        fail_for_good(l, rc == -EROFS || rc == -ECONNABORTED ? EXIT_UNAVAILABLE : EXIT_USAGE_ERROR, why);
    else if (now - l->heard_at >= l->o.connect_ms)
        fail_in_time(l, why);
    l->pause_ms = l->pause_ms ? l->pause_ms * 2 : FIRST_PAUSE_MS;
    l->pause_ms = l->pause_ms > LAST_PAUSE_MS ? LAST_PAUSE_MS : l->pause_ms;
}

/* Until something is asked, closed, or the time is over. */
static bool stopped_after(struct log_client *l, int64_t ms)
{
    int64_t until = clock_deadline(ms);
    struct timespec t = {.tv_sec = until / 1000, .tv_nsec = until % 1000 * 1000000};
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
    end_leading(l, true);
    l->seat.bye = true;
    if (l->seat.q == 0)
        return;
    if (!l->ended && rdzv_seat_beat(&l->seat, &l->beat) == 0)
        l->home->ops->exchange(l->home, l->o.node, &l->beat, true, &l->view, &e);
    if (l->ended)
        l->home->ops->forget(l->home, l->o.node);
}

static void *node_thread(void *arg)
{
    struct log_client *l = arg;
    while (!stopped_after(l, l->pause_ms)) {
        struct err e = {0};
        bool idle;
        pthread_mutex_lock(&l->mutex);
        idle = l->ended || (l->seat.q == 0 && l->ask_count == 0);
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
        rc = rc || l->ended ? rc : wait_for_more(l, &e);
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

/* ---- the loop ----------------------------------------------------------------------------------------------------------- */

static void on_fence_timer(uv_timer_t *t);

static int64_t lease_of(struct log_client *l)
{
    pthread_mutex_lock(&l->mutex);
    int64_t lease = l->lease;
    pthread_mutex_unlock(&l->mutex);
    return lease;
}

static void no_more_work(struct log_client *l)
{
    l->works = false;
    uv_timer_stop(&l->fence);
    if (l->o.on_lease)
        l->o.on_lease(l->o.arg, 0);
}

/* Whoever works, or is done and waits for the others, must join again. */
static void fence(struct log_client *l, const char *why)
{
    if (!l->works && !l->done)
        return;
    l->done = false;
    no_more_work(l);
    l->o.on_fence(l->o.arg, why);
}

static void arm(struct log_client *l)
{
    int64_t left = lease_of(l) - clock_ms();
    if (!l->works)
        return;
    uv_update_time(l->fence.loop);
    uv_timer_start(&l->fence, on_fence_timer, left > 0 ? (uint64_t)left : 0, 0);
    if (l->o.on_lease)
        l->o.on_lease(l->o.arg, lease_of(l));
}

static void on_fence_timer(uv_timer_t *t)
{
    struct log_client *l = (struct log_client *)((char *)t - offsetof(struct log_client, fence));
    char why[96];
    if (l->closing || !l->works)
        return;
    if (clock_ms() < lease_of(l)) {
        arm(l);
        return;
    }
    snprintf(why, sizeof why, "the rendezvous has not answered for %lld ms", (long long)l->o.job.silence_ms);
    fence(l, why);
}

static int ask(struct log_client *l, const struct rdzv_event *ev);
static int log_join(struct rdzv_client *c, struct err *e);

static void deliver_news(struct log_client *l, const struct item *i)
{
    struct err e;
    bool starts = i->news.kind == RDZV_NEWS_ROUND && !i->news.spare;
    if (starts && clock_ms() >= lease_of(l)) {
        log_join(&l->base, &e); /* it took too long to reach us */
        return;
    }
    if (i->members && l->o.on_members)
        l->o.on_members(l->o.arg, i->members);
    if (starts)
        l->works = true;
    if (i->news.kind == RDZV_NEWS_END)
        no_more_work(l);
    l->o.on_news(l->o.arg, &i->news);
    arm(l);
}

static void deliver(struct log_client *l, const struct item *i)
{
    switch (i->kind) {
    case ITEM_NEWS:
        deliver_news(l, i);
        break;
    case ITEM_LOST:
        fence(l, i->text);
        break;
    case ITEM_FAILED:
        no_more_work(l);
        l->o.on_failed(l->o.arg, i->code, i->text);
        break;
    case ITEM_PROGRESS:
        if (l->o.on_progress)
            l->o.on_progress(l->o.arg, &i->progress);
        break;
    case ITEM_LOG:
        log_info("rendezvous", "this node no longer leads: %s", i->text);
        break;
    }
}

static void free_items(struct item *i)
{
    while (i) {
        struct item *next = i->next;
        free(i->members);
        free(i);
        i = next;
    }
}

static void on_handle_closed(uv_handle_t *h)
{
    struct log_client *l = h->data;
    if (--l->open_handles > 0)
        return;
    free_items(l->first);
    rdzv_seat_finish(&l->seat);
    buf_free(&l->view.pulse);
    buf_free(&l->view.slot);
    buf_free(&l->beat);
    buf_free(&l->pulse);
    l->home->ops->close(l->home);
    pthread_mutex_destroy(&l->mutex);
    pthread_cond_destroy(&l->asked);
    free(l);
}

static void close_handles(struct log_client *l)
{
    pthread_join(l->thread, NULL);
    l->async.data = l->fence.data = l;
    uv_close((uv_handle_t *)&l->async, on_handle_closed);
    uv_close((uv_handle_t *)&l->fence, on_handle_closed);
}

static void on_async(uv_async_t *a)
{
    struct log_client *l = (struct log_client *)((char *)a - offsetof(struct log_client, async));
    pthread_mutex_lock(&l->mutex);
    struct item *i = l->first;
    bool over = l->over;
    l->first = NULL;
    l->last = &l->first;
    pthread_mutex_unlock(&l->mutex);
    for (struct item *p = i; p && !l->closing; p = p->next)
        deliver(l, p);
    free_items(i);
    if (over)
        close_handles(l);
    else if (!l->closing)
        arm(l);
}

static int ask(struct log_client *l, const struct rdzv_event *ev)
{
    int rc = 0;
    pthread_mutex_lock(&l->mutex);
    if (l->ask_count == SEAT_REQUESTS_MAX)
        rc = -EBUSY;
    else
        l->asks[l->ask_count++] = *ev;
    pthread_cond_signal(&l->asked);
    pthread_mutex_unlock(&l->mutex);
    l->home->ops->interrupt(l->home);
    return rc;
}

static int log_join(struct rdzv_client *c, struct err *e)
{
    struct log_client *l = (struct log_client *)c;
    struct rdzv_event ev = {.kind = RDZV_JOIN, .slots = l->o.slots, .node_rank = l->o.node_rank};
    no_more_work(l);
    l->done = false;
    ev.port = l->o.store_port ? l->o.store_port(l->o.arg) : 0;
    if (ev.port < 0)
        return err_set(e, -EADDRNOTAVAIL, "no port for the bootstrap store");
    snprintf(ev.addr, sizeof ev.addr, "%s", l->o.addr ? l->o.addr : "");
    snprintf(ev.addrs, sizeof ev.addrs, "%s", l->o.addrs ? l->o.addrs : "");
    snprintf(ev.role, sizeof ev.role, "%s", l->o.role ? l->o.role : "");
    l->joined_once = true;
    return ask(l, &ev);
}

static int log_fail(struct rdzv_client *c, const struct rdzv_cause *cause, struct err *e)
{
    struct log_client *l = (struct log_client *)c;
    (void)e;
    return ask(l, &(struct rdzv_event){.kind = RDZV_FAIL, .cause = *cause});
}

static int log_done(struct rdzv_client *c, struct err *e)
{
    struct log_client *l = (struct log_client *)c;
    (void)e;
    no_more_work(l);
    l->done = true;
    return ask(l, &(struct rdzv_event){.kind = RDZV_DONE});
}

static int log_leave(struct rdzv_client *c, struct err *e)
{
    struct log_client *l = (struct log_client *)c;
    (void)e;
    if (l->joined_once)
        return ask(l, &(struct rdzv_event){.kind = RDZV_LEAVE});
    const struct rdzv_news end = {.seq = 1, .kind = RDZV_NEWS_END, .exit_code = EXIT_REQUEUE, .cause.rank = -1};
    struct item *i = new_item(ITEM_NEWS);
    if (!i)
        return -ENOMEM;
    i->news = end;
    post(l, i);
    return 0;
}

/* Nobody draws status pages from a log. */
static int log_report(struct rdzv_client *c, const char *fields, struct err *e)
{
    (void)c;
    (void)fields;
    (void)e;
    return 0;
}

static void log_close(struct rdzv_client *c)
{
    struct log_client *l = (struct log_client *)c;
    if (!l || l->closing)
        return;
    l->closing = true;
    pthread_mutex_lock(&l->mutex);
    l->stop = true;
    pthread_cond_signal(&l->asked);
    pthread_mutex_unlock(&l->mutex);
    l->home->ops->interrupt(l->home);
}

static int init_seat(struct log_client *l, struct err *e)
{
    char inc[20];
    snprintf(inc, sizeof inc, "%016llx", (unsigned long long)draw(NULL));
    if (strlen(l->o.node) > RDZV_ID_MAX || strpbrk(l->o.node, " \n"))
        return err_set(e, -EINVAL, "node id '%.80s': expected 1 to %d bytes without blanks", l->o.node, RDZV_ID_MAX);
    return rdzv_seat_init(&l->seat, l->o.node, inc, &l->o.job, clock_ms());
}

static int log_open(struct rdzv_client **ret, uv_loop_t *loop, const struct rdzv_client_options *o, struct err *e)
{
    struct log_client *l = calloc(1, sizeof *l);
    pthread_condattr_t monotonic;
    if (!l)
        return err_errno(e, ENOMEM, "rendezvous");
    l->base.ops = &rdzv_client_log_ops;
    l->o = *o;
    l->last = &l->first;
    l->open_handles = 2;
    l->heard_at = clock_ms();
    pthread_mutex_init(&l->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->asked, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = open_home(l, &l->home, e);
    rc = rc == -EINVAL ? ERR_USAGE : rc; /* the URL */
    rc = rc ? rc : init_seat(l, e);
    rc = rc ? rc : uv_async_init(loop, &l->async, on_async);
    if (rc == 0) {
        uv_timer_init(loop, &l->fence);
        if ((rc = start_thread(&l->thread, node_thread, l)) == 0) {
            *ret = &l->base;
            return 0;
        }
        err_errno(e, -rc, "a thread for the rendezvous");
        l->async.data = l->fence.data = l;
        uv_close((uv_handle_t *)&l->async, on_handle_closed);
        uv_close((uv_handle_t *)&l->fence, on_handle_closed);
        return rc;
    }
    if (l->home)
        l->home->ops->close(l->home);
    rdzv_seat_finish(&l->seat);
    free(l);
    return rc;
}

const struct rdzv_client_ops rdzv_client_log_ops = {
    .name = "log",
    .open = log_open,
    .join = log_join,
    .fail = log_fail,
    .done = log_done,
    .leave = log_leave,
    .report = log_report,
    .close = log_close,
};
