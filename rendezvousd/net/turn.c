/* Divides the loop's work into turns (turn.h). */
#include "rendezvousd/net/turn.h"
#include "common/base/log.h"
#include "rendezvousd/net/conn_impl.h"
#include <time.h>
#include <utlist.h>

#define MODULE "server"
#define SWEPT_AT_ONCE 2000 /* keys and awaited names per sweep: a fraction of a millisecond */

/* A clock with a precision of a few milliseconds that takes nanoseconds to read: it is read after each request. */
static int64_t coarse_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void begin(struct server *s)
{
    s->turns.over_ms = coarse_ms() + TURN_MS;
}

bool turn_over(struct server *s)
{
    if (s->turns.over_ms == 0) {
        begin(s);
        return false;
    }
    return coarse_ms() > s->turns.over_ms;
}

bool turn_read_over(struct server *s)
{
    return turn_over(s) && coarse_ms() > s->turns.over_ms - TURN_MS + TURN_READ_MS;
}

/* --- one connection */

/* Execute one request, or a piece of the last one. False: there is none, or it must wait. */
static bool execute_one(struct conn *c)
{
    if (c->closing || c->last_words || !c->front)
        return false;
    if (c->work) {
        if (c->work(c))
            c->work = NULL;
        if (c->last_words)
            conn_say_last_words(c);
        return true;
    }
    if (!conn_may_step(c))
        return false;
    int rc = c->front->step(c);
    if (rc == 0)
        return false;
    if (rc < 0) {
        conn_say_last_words(c);
        return false;
    }
    if (c->timer_kind == TIMER_REQUEST)
        conn_set_timer(c, TIMER_NONE, 0);
    if (c->last_words)
        conn_say_last_words(c);
    return true;
}

static bool execute_timed(struct conn *c)
{
    struct turns *t = &c->s->turns;
    const bool goes_on = c->work != NULL;
    const uint64_t began = !goes_on && t->requests % TURN_SAMPLE == 0 ? uv_hrtime() : 0;
    if (!execute_one(c))
        return false;
    t->requests += !goes_on;
    if (began > 0)
        times_add(&t->request_times, (double)(uv_hrtime() - began) / 1e9);
    return true;
}

static void execute(struct conn *c)
{
    c->yields = false;
    for (int left = TURN_REQUESTS; execute_timed(c);) {
        if (c->reply.failed) {
            log_info(MODULE, "client %llu closed: more than %zu bytes of replies wait for it",
                     (unsigned long long)c->id, c->s->o.max_output_bytes);
            conn_close(c);
            return;
        }
        left -= c->work ? TURN_PIECE : 1;
        if (left <= 0 || c->yields || c->reply.out.len >= TURN_BYTES || turn_over(c->s))
            return;
    }
}

static void stay_busy(struct conn *c)
{
    c->busy = true;
    DL_APPEND2(c->s->turns.busy, c, busy_prev, busy_next);
}

void turn_put_off(struct conn *c)
{
    if (!c->busy)
        stay_busy(c);
    conn_choose_reading(c);
}

void turn_leave(struct conn *c)
{
    if (c->busy)
        DL_DELETE2(c->s->turns.busy, c, busy_prev, busy_next);
    c->busy = false;
}

static bool has_more(struct conn *c)
{
    if (c->last_words || !c->front || (c->blocked && !c->blocked->interrupt))
        return false;
    return c->work || c->front->ready(c);
}

void conn_process(struct conn *c)
{
    if (c->closing) {
        if (c->busy)
            conn_finish_changes(c);
        return;
    }
    turn_leave(c);
    c->active_ms = (int64_t)uv_now(c->s->loop);
    space_tick(c->space, c->s);
    execute(c);
    if (c->closing)
        return;
    space_expect_expiry(c->space, c->s);
    conn_flush_soon(c);
    if (c->closing)
        return;
    if (has_more(c)) {
        stay_busy(c);
    } else if (c->timer_kind == TIMER_NONE && !c->blocked && c->front && c->front->unfinished(c)) {
        conn_set_timer(c, TIMER_REQUEST, c->s->o.request_timeout_ms);
    }
    conn_choose_reading(c);
}

static void finish_changes(struct conn *c, bool at_once)
{
    turn_leave(c);
    while (!c->work(c)) {
        if (at_once || !turn_over(c->s))
            continue;
        stay_busy(c);
        return;
    }
    c->work = NULL;
    conn_finished(c);
}

void conn_finish_changes(struct conn *c)
{
    finish_changes(c, c->s->closing);
}

/* --- all of them */

void conn_drain_ready(struct server *s)
{
    while (s->ready && !turn_over(s)) {
        struct conn *c = s->ready;
        DL_DELETE2(s->ready, c, ready_prev, ready_next);
        c->ready = false;
        conn_process(c);
    }
}

/* Continue each busy connection once; if it is still busy, it goes to the end of the queue. */
static void run_busy(struct server *s)
{
    const struct conn *last = s->turns.busy ? s->turns.busy->busy_prev : NULL;
    for (bool end = !last; !end;) {
        struct conn *c = s->turns.busy;
        end = !c || c == last || turn_over(s);
        if (!c)
            return;
        conn_process(c);
    }
}

void turn_run(struct server *s)
{
    begin(s);
    keyspace_sweep(&s->memory, SWEPT_AT_ONCE);
    waiters_sweep(&s->remains, SWEPT_AT_ONCE);
    if (s->turns.accept) {
        s->turns.accept = false;
        server_accept_waiting(s);
    }
    conn_drain_ready(s);
    run_busy(s);
    conn_drain_ready(s);
}

static void on_idle(uv_idle_t *h)
{
    turn_run(h->data);
}

/* Write replies that were made in this turn before the loop sleeps. */
static void flush_all(struct server *s)
{
    while (s->unsent && !turn_over(s)) {
        struct conn *c = s->unsent;
        conn_flush(c);
        conn_charge(c);
        conn_drain_ready(s);
    }
}

static void on_prepare(uv_prepare_t *h)
{
    struct server *s = h->data;
    struct turns *t = &s->turns;
    begin(s);
    flush_all(s);
    t->over_ms = 0;
    t->accepted = 0;
    if (t->polled_ms > 0)
        times_add(&t->turn_times, ((double)uv_hrtime() / 1e6 - (double)t->polled_ms) / 1e3);
    if (s->unsent || s->ready || t->busy || t->accept || s->memory.remains || s->remains)
        uv_idle_start(&t->more, on_idle);
    else
        uv_idle_stop(&t->more);
}

/* Called after the loop has looked at the network and read its clock. */
static void on_check(uv_check_t *h)
{
    struct server *s = h->data;
    s->turns.polled_ms = uv_now(s->loop);
}

/* --- life */

static void on_handle_closed(uv_handle_t *h)
{
    server_handle_closed(h->data);
}

void turn_open(struct server *s)
{
    struct turns *t = &s->turns;
    uv_prepare_init(s->loop, &t->before_sleep);
    uv_idle_init(s->loop, &t->more);
    uv_check_init(s->loop, &t->after_poll);
    t->before_sleep.data = t->more.data = t->after_poll.data = s;
    uv_prepare_start(&t->before_sleep, on_prepare);
    uv_check_start(&t->after_poll, on_check);
    uv_unref((uv_handle_t *)&t->before_sleep);
    uv_unref((uv_handle_t *)&t->after_poll);
    s->open_handles += 3;
}

void turn_close(struct server *s)
{
    struct conn *c, *next;
    DL_FOREACH_SAFE2(s->turns.busy, c, next, busy_next)
    if (c->closing)
        finish_changes(c, true);
    uv_close((uv_handle_t *)&s->turns.before_sleep, on_handle_closed);
    uv_close((uv_handle_t *)&s->turns.after_poll, on_handle_closed);
    uv_close((uv_handle_t *)&s->turns.more, on_handle_closed);
}
