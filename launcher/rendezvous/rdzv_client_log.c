/* The agent's calls to a rendezvous in a decision log, and what its threads have heard, on the loop. See
 * rdzv_log_client.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "launcher/rendezvous/rdzv_lease.h"
#include "launcher/rendezvous/rdzv_log_client.h"

enum {
    STACK_BYTES = 256 << 10,
    KEEP_MS = 3600000,
    FAREWELL_MS = 1500, /* for a home that does not answer; what it does not get others infer from our silence */
};

/* --- for the threads */

void log_client_post(struct log_client *l, struct log_item *item)
{
    pthread_mutex_lock(&l->mutex);
    item->next = NULL;
    *l->last = item;
    l->last = &item->next;
    pthread_mutex_unlock(&l->mutex);
    uv_async_send(&l->async);
}

struct log_item *log_client_item(enum log_item_kind kind)
{
    struct log_item *i = calloc(1, sizeof *i);
    if (i)
        i->kind = kind;
    return i;
}

void log_client_post_text(struct log_client *l, enum log_item_kind kind, int code, const char *text)
{
    struct log_item *i = log_client_item(kind);
    if (!i)
        return;
    i->code = code;
    snprintf(i->text, sizeof i->text, "%s", text);
    log_client_post(l, i);
}

void log_client_post_trouble(struct log_client *l, int64_t now, const char *why, int64_t left_ms)
{
    struct log_item *i;
    if (now < l->progress_at || !(i = log_client_item(ITEM_PROGRESS)))
        return;
    l->progress_at = now + LOG_CLIENT_PROGRESS_MS;
    snprintf(i->progress.text, sizeof i->progress.text, "%.255s", why);
    i->progress.left_ms = left_ms;
    log_client_post(l, i);
}

uint64_t log_client_draw(void *arg)
{
    uint64_t v = 0;
    (void)arg;
    if (getrandom(&v, sizeof v, 0) != sizeof v)
        v = (uint64_t)clock_ns();
    return v;
}

int log_client_open_home(struct log_client *l, struct rdzv_home **ret, struct err *e)
{
    const struct rdzv_home_options o = {.run_id = l->o.run_id,
                                        .io_timeout_ms = l->o.job.silence_ms,
                                        .keep_ms = KEEP_MS,
                                        .allow_unsafe = l->o.allow_unsafe,
                                        .max_lag_ms = l->o.max_lag_ms,
                                        .process_fd = l->o.home_fd};
    return rdzv_home_open(ret, l->o.endpoint, &o, e);
}

int log_client_start(pthread_t *t, void *(*run)(void *), void *arg)
{
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, STACK_BYTES);
    int rc = pthread_create(t, &a, run, arg);
    pthread_attr_destroy(&a);
    return -rc;
}

/* --- the loop */

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
    struct log_client *l = container_of(t, struct log_client, fence);
    char why[SILENCE_TEXT_MAX];
    if (l->closing || !l->works)
        return;
    if (clock_ms() < lease_of(l)) {
        arm(l);
        return;
    }
    const int64_t heard = lease_of(l) - l->o.job.silence_ms;
    silence_text(clock_ms() - heard, l->o.still_ms ? l->o.still_ms(l->o.arg, heard) : 0, why);
    fence(l, why);
}

static int queue_request(struct log_client *l, const struct rdzv_event *ev);
static int log_join(struct rdzv_client *c, struct err *e);

static void deliver_news(struct log_client *l, const struct log_item *i)
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
    l->o.on_news(l->o.arg, &i->news);
    arm(l);
}

static void deliver(struct log_client *l, const struct log_item *i)
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

static void free_items(struct log_item *i)
{
    while (i) {
        struct log_item *next = i->next;
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

static void close_all(struct log_client *l)
{
    l->async.data = l->fence.data = l->late.data = l;
    uv_close((uv_handle_t *)&l->async, on_handle_closed);
    uv_close((uv_handle_t *)&l->fence, on_handle_closed);
    uv_close((uv_handle_t *)&l->late, on_handle_closed);
}

static void close_handles(struct log_client *l)
{
    pthread_join(l->thread, NULL);
    close_all(l);
}

static void on_async(uv_async_t *a)
{
    struct log_client *l = container_of(a, struct log_client, async);
    pthread_mutex_lock(&l->mutex);
    struct log_item *i = l->first;
    bool over = l->over;
    l->first = NULL;
    l->last = &l->first;
    pthread_mutex_unlock(&l->mutex);
    for (struct log_item *p = i; p && !l->closing; p = p->next)
        deliver(l, p);
    free_items(i);
    if (over)
        close_handles(l);
    else if (!l->closing)
        arm(l);
}

static int queue_request(struct log_client *l, const struct rdzv_event *ev)
{
    int rc = 0;
    pthread_mutex_lock(&l->mutex);
    if (l->ask_count == SEAT_REQUESTS_MAX)
        rc = -EBUSY;
    else
        l->asks[l->ask_count++] = *ev;
    pthread_cond_signal(&l->asked);
    pthread_mutex_unlock(&l->mutex);
    rdzv_home_interrupt(l->home);
    return rc;
}

static int log_join(struct rdzv_client *c, struct err *e)
{
    struct log_client *l = (struct log_client *)c;
    struct rdzv_event ev = {.kind = RDZV_JOIN,
                            .slots = l->o.slots,
                            .node_rank = l->o.node_rank,
                            .waits = l->o.waits,
                            .numbered = l->o.numbered};
    no_more_work(l);
    l->done = false;
    ev.port = l->o.store_port ? l->o.store_port(l->o.arg) : 0;
    if (ev.port < 0)
        return err_set(e, -EADDRNOTAVAIL, "no port for the bootstrap store");
    snprintf(ev.addr, sizeof ev.addr, "%s", l->o.addr ? l->o.addr : "");
    snprintf(ev.addrs, sizeof ev.addrs, "%s", l->o.addrs ? l->o.addrs : "");
    snprintf(ev.role, sizeof ev.role, "%s", l->o.role ? l->o.role : "");
    l->joined_once = true;
    return queue_request(l, &ev);
}

static int log_fail(struct rdzv_client *c, const struct rdzv_cause *cause, struct err *e)
{
    struct log_client *l = (struct log_client *)c;
    (void)e;
    return queue_request(l, &(struct rdzv_event){.kind = RDZV_FAIL, .cause = *cause});
}

static int log_done(struct rdzv_client *c, struct err *e)
{
    struct log_client *l = (struct log_client *)c;
    (void)e;
    no_more_work(l);
    l->done = true;
    return queue_request(l, &(struct rdzv_event){.kind = RDZV_DONE});
}

static int log_leave(struct rdzv_client *c, const struct rdzv_cause *why, struct err *e)
{
    struct log_client *l = (struct log_client *)c;
    (void)e;
    if (l->joined_once)
        return queue_request(
            l, &(struct rdzv_event){.kind = RDZV_LEAVE, .cause = why ? *why : (struct rdzv_cause){.rank = -1}});
    const struct rdzv_news end = {.seq = 1, .kind = RDZV_NEWS_END, .exit_code = EXIT_REQUEUE, .cause.rank = -1};
    struct log_item *i = log_client_item(ITEM_NEWS);
    if (!i)
        return -ENOMEM;
    i->news = end;
    log_client_post(l, i);
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

/* The farewell takes too long. */
static void on_late(uv_timer_t *t)
{
    struct log_client *l = container_of(t, struct log_client, late);
    rdzv_home_cancel(l->home);
    pthread_mutex_lock(&l->mutex);
    if (l->leader.home)
        rdzv_home_cancel(l->leader.home);
    pthread_mutex_unlock(&l->mutex);
}

static void log_close(struct rdzv_client *c)
{
    struct log_client *l = (struct log_client *)c;
    if (!l || l->closing)
        return;
    l->closing = true;
    uv_update_time(l->late.loop);
    uv_timer_start(&l->late, on_late, FAREWELL_MS, 0);
    pthread_mutex_lock(&l->mutex);
    l->stop = true;
    pthread_cond_signal(&l->asked);
    pthread_mutex_unlock(&l->mutex);
    rdzv_home_interrupt(l->home);
}

static int init_seat(struct log_client *l, struct err *e)
{
    char inc[20];
    snprintf(inc, sizeof inc, "%016llx", (unsigned long long)log_client_draw(NULL));
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
    l->open_handles = 3;
    l->heard_at = clock_ms();
    pthread_mutex_init(&l->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->asked, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = log_client_open_home(l, &l->home, e);
    rc = rc == -EINVAL ? ERR_USAGE : rc; /* the URL */
    if (rc == 0)
        rc = init_seat(l, e);
    if (rc == 0)
        rc = uv_async_init(loop, &l->async, on_async);
    if (rc == 0) {
        uv_timer_init(loop, &l->fence);
        uv_timer_init(loop, &l->late);
        if ((rc = log_client_start(&l->thread, log_client_node, l)) == 0) {
            *ret = &l->base;
            return 0;
        }
        err_errno(e, -rc, "a thread for the rendezvous");
        close_all(l);
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
