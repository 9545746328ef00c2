/* One client's connection: reads bytes, executes its requests one after the other, sends the replies in order.
 *
 * - read -> parser -> command -> reply buffer (turn.h limits how long); one write for all requests of a read
 *   (pipelining): conn_write.c;
 * - a command may block: no further request of this client is executed until it is answered, by an event, the timer or
 *   the connection's end. Bytes are still read (so that the end is seen), up to the limit of one request;
 * - a waiter is woken in the middle of another client's request: there it is only marked ready, and goes on afterwards;
 *
 * Its end: conn_close() removes it from all lists at once, and tells the waiters and the job for which it was a party.
 * From then on it is not woken, its requests are not executed, and nothing is written to it. Three holders may need the
 * struct for longer. Each is counted in `held_by`, and the last to release it frees it:
 *   - libuv, its socket, until on_closed();
 *   - libuv, its timer, as well;
 *   - its request with many names, if that was changing keys (many.h): it continues as conn.work of a closed
 *     connection, holds the key-space, too, and ends with conn_finished(). */
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/net/loop.h"
#include "common/net/tls_stream.h"
#include "rendezvousd/net/conn_impl.h"
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#define MODULE "server"
#define FINISH_MS 1000

/* --- end of a connection */

static void let_go(struct conn *c)
{
    if (--c->held_by > 0)
        return;
    struct server *s = c->s;
    if (c->front)
        c->front->close(c);
    buf_free(&c->reply.out);
    buf_free(&c->flying);
    buf_free(&c->sealed);
    tls_stream_free(c->tls);
    free(c);
    server_handle_closed(s);
}

static void on_closed(uv_handle_t *h)
{
    let_go(h->data);
}

static void leave_space(struct conn *c)
{
    space_expect_expiry(c->space, c->s);
    space_release(c->space);
    c->space = NULL;
}

void conn_finished(struct conn *c)
{
    leave_space(c);
    let_go(c);
}

/* Tell those that count on this connection that it closes. */
static void take_leave(struct conn *c)
{
    const struct blocked_ops *blocked = c->blocked;
    c->blocked = NULL;
    if (blocked)
        blocked->forget(c, c->blocked_arg);
    if (c->rdzv)
        rdzv_conn_gone(c);
    if (c->on_close)
        c->on_close(c);
}

static void leave_lists(struct conn *c)
{
    struct server *s = c->s;
    turn_leave(c);
    if (c->ready)
        DL_DELETE2(s->ready, c, ready_prev, ready_next);
    c->ready = false;
    conn_write_over(c);
    s->buffer_bytes -= c->charged;
    DL_DELETE(s->conns, c);
    s->clients--;
}

void conn_close(struct conn *c)
{
    if (c->closing)
        return;
    if (c->unsent)
        conn_flush(c); /* earlier requests get their answers, whatever the reason for closing */
    if (c->closing)
        return;
    c->closing = true;
    if (c->end == END_NONE)
        c->end = END_OURS;
    take_leave(c);
    leave_lists(c);
    c->held_by = 2; /* socket and timer */
    if (many_leave(c)) {
        c->held_by++;
        conn_finish_changes(c); /* may finish at once, and then release no more than this one reference */
    } else {
        leave_space(c);
    }
    uv_close((uv_handle_t *)&c->tcp, on_closed);
    uv_close((uv_handle_t *)&c->timer, on_closed);
    gate_leave(c);
}

void conn_finish(struct conn *c)
{
    if (!c->writing || c->blocked || c->rdzv) {
        conn_close(c);
        return;
    }
    conn_say_last_words(c);
    conn_set_timer(c, TIMER_LINGER, FINISH_MS);
}

static struct conn *largest_holder(const struct server *s)
{
    struct conn *c, *largest = s->conns;
    DL_FOREACH (s->conns, c) {
        const size_t theirs = gate_buffers(c), most = gate_buffers(largest);
        if (theirs > most || (theirs == most && c->charged > largest->charged))
            largest = c;
    }
    return largest;
}

/* Count the connection's buffers. All buffers together have a limit of their own, so that a write beyond the limit
 * of the keys can still be answered. If it is exceeded, the principal that holds most pays, with the connection that
 * holds most, not the one that happens to come next. */
void conn_charge(struct conn *c)
{
    if (c->closing)
        return;
    struct server *s = c->s;
    size_t in = c->front ? c->front->memory(c) : 0;
    size_t now = in + c->reply.out.cap + c->flying.cap + c->sealed.cap;
    bool grows = now > c->charged;
    s->buffer_bytes += now - c->charged;
    gate_count_buffers(c, now);
    c->charged = now;
    while (grows && s->buffer_bytes > s->o.max_memory_bytes && !c->closing) {
        struct conn *largest = largest_holder(s);
        log_info(MODULE, "client %llu closed: no memory for %zu bytes of buffers, and it holds most of them, %zu",
                 (unsigned long long)largest->id, s->buffer_bytes, largest->charged);
        conn_close(largest);
    }
}

/* --- the timer */

static void on_timer(uv_timer_t *t)
{
    struct conn *c = conn_of(t, timer);
    enum conn_timer kind = c->timer_kind;
    c->timer_kind = TIMER_NONE;
    if (c->closing)
        return;
    if (kind == TIMER_BLOCKED) {
        const struct blocked_ops *blocked = c->blocked;
        c->blocked = NULL;
        blocked->timeout(c, c->blocked_arg);
        conn_process(c);
        conn_drain_ready(c->s);
        return;
    }
    const int64_t left = kind == TIMER_AUTH ? gate_time_left_ms(c) : 0;
    if (left > 0) {
        conn_set_timer(c, TIMER_AUTH, left);
        server_accept_waiting(c->s);
        return;
    }
    if (kind == TIMER_AUTH) {
        struct server *s = c->s;
        gate_too_late(c);
        conn_say_last_words(c);
        conn_flush(c);
        server_accept_waiting(s);
        return;
    }
    if (kind == TIMER_REQUEST)
        log_info(MODULE, "client %llu closed: its request was not complete after %lld ms", (unsigned long long)c->id,
                 (long long)c->s->o.request_timeout_ms);
    conn_close(c);
}

void conn_set_timer(struct conn *c, enum conn_timer kind, int64_t ms)
{
    c->timer_kind = kind;
    if (kind == TIMER_NONE)
        uv_timer_stop(&c->timer);
    else
        uv_timer_start(&c->timer, on_timer, (uint64_t)ms, 0);
}

/* --- in */

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *b)
{
    struct conn *c = h->data;
    const bool later = !c->rdzv && turn_read_over(c->s);
    (void)suggested;
    *b = uv_buf_init(c->s->read_bytes, later ? 0 : sizeof c->s->read_bytes);
}

static int choose_front(struct conn *c, const char *first)
{
    const struct front *binary =
        c->trust == TRUST_NONE ? NULL : c->s->o.binary; /* its protocol has no authentication */
    const unsigned char byte = (unsigned char)*first;
    const struct front *front = binary && byte < 0x20 && byte != '\r' && byte != '\n' ? binary : &front_resp;
    TRY(front->open(c));
    c->front = front;
    return 0;
}

static int feed(struct conn *c, const char *p, size_t n)
{
    if (n == 0)
        return 0;
    if (!c->front)
        TRY(choose_front(c, p));
    return c->front->feed(c, p, n);
}

/* Decrypt TLS records: their content goes to the front end, handshake and alerts to the client. */
static int take_sealed(struct conn *c, const char *p, size_t n)
{
    struct buf plain;
    struct err e;
    buf_init(&plain, 0);
    bool was_ready = tls_stream_ready(c->tls);
    int rc = tls_stream_feed(c->tls, p, n, &plain, &c->sealed, &e);
    if (rc < 0) {
        gate_refused(c, "%s", e.text);
        conn_say_last_words(c); /* the alert */
        rc = 0;
    } else {
        if (!was_ready && tls_stream_ready(c->tls) && c->timer_kind == TIMER_AUTH)
            conn_set_timer(c, TIMER_AUTH, gate_auth_timeout_ms(c)); /* the handshake's time is not counted */
        int fed = feed(c, plain.data, plain.len);
        if (rc == 1)
            conn_say_last_words(c);
        rc = fed;
    }
    buf_free(&plain);
    return rc;
}

#define TLS_HANDSHAKE 0x16 /* the first byte of a TLS client; no front end begins with it */

static int begin_tls(struct conn *c)
{
    struct err e;
    int rc = tls_stream_create(&c->tls, gate_tls(c->s), NULL, &e);
    if (rc < 0)
        log_warn(MODULE, "client %llu closed: %s", (unsigned long long)c->id, e.text);
    if (rc == 0 && c->trust == TRUST_NONE)
        conn_set_timer(c, TIMER_AUTH, c->s->o.request_timeout_ms);
    return rc;
}

static int take(struct conn *c, const char *p, size_t n)
{
    if (!c->front && !c->tls && gate_tls(c->s) && p[0] == TLS_HANDSHAKE)
        TRY(begin_tls(c));
    if (c->tls)
        return take_sealed(c, p, n);
    if (!c->front && gate_tls_only(c->s)) {
        gate_refused(c, "no TLS");
        reply_error(&c->reply, "NOPERM this server speaks TLS only");
        conn_say_last_words(c);
        return 0;
    }
    return feed(c, p, n);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b)
{
    struct conn *c = conn_of(stream, tcp);
    if (c->closing || n == 0)
        return;
    if (n == UV_ENOBUFS) { /* on_alloc() gave no buffer: try later */
        turn_put_off(c);
        return;
    }
    if (n < 0) {
        c->end = n == UV_EOF ? END_OF_FILE : END_RESET;
        conn_close(c);
        return;
    }
    struct server *s = c->s;
    if (take(c, b->base, (size_t)n) < 0)
        conn_close(c);
    else
        conn_process(c);
    conn_drain_ready(s);
}

static size_t buffered(struct conn *c)
{
    return c->front ? c->front->buffered(c) : 0;
}

/* Decide whether to read. A blocked client may send ahead as much as one request; a busy one, nothing. */
void conn_choose_reading(struct conn *c)
{
    bool want = !c->last_words && !c->busy && (!c->blocked || buffered(c) < c->s->o.max_request_bytes);
    if (want == c->reading)
        return;
    c->reading = want;
    if (!want)
        uv_read_stop((uv_stream_t *)&c->tcp);
    else if (uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read) < 0)
        conn_close(c);
}

bool conn_may_step(struct conn *c)
{
    if (!c->blocked)
        return true;
    if (!c->blocked->interrupt || !c->front->ready(c))
        return false;
    const struct blocked_ops *blocked = c->blocked;
    c->blocked = NULL;
    conn_set_timer(c, TIMER_NONE, 0);
    blocked->interrupt(c, c->blocked_arg);
    return true;
}

/* --- waiting */

void conn_block(struct conn *c, const struct blocked_ops *ops, void *arg, int64_t timeout_ms)
{
    c->blocked = ops;
    c->blocked_arg = arg;
    if (timeout_ms >= 0)
        conn_set_timer(c, TIMER_BLOCKED, timeout_ms);
    else
        conn_set_timer(c, TIMER_NONE, 0);
}

void conn_wake(struct conn *c)
{
    c->blocked = NULL;
    conn_set_timer(c, TIMER_NONE, 0);
    if (c->closing || c->ready)
        return;
    c->ready = true;
    DL_APPEND2(c->s->ready, c, ready_prev, ready_next);
}

void conn_trusted(struct conn *c)
{
    if (c->timer_kind == TIMER_AUTH)
        conn_set_timer(c, TIMER_NONE, 0);
}

void conn_use_space(struct conn *c, struct space *sp)
{
    space_hold(sp);
    space_expect_expiry(c->space, c->s);
    space_release(c->space);
    c->space = sp;
    space_tick(sp, c->s);
}

/* --- beginning */

static bool can_watch(const struct conn *c)
{
    int fd;
    return uv_fileno((const uv_handle_t *)&c->tcp, &fd) == 0 && loop_can_watch(c->s->loop, fd) == 0;
}

int conn_accept(struct server *s, uv_stream_t *listener)
{
    struct conn *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    uv_tcp_init(s->loop, &c->tcp); /* cannot fail, because it makes no socket yet */
    c->s = s;
    c->tcp.data = c->timer.data = c;
    uv_timer_init(s->loop, &c->timer);
    c->id = ++s->connections;
    c->since_ms = c->active_ms = (int64_t)uv_now(s->loop);
    buf_init(&c->reply.out, s->o.max_output_bytes);
    buf_init(&c->flying, s->o.max_output_bytes);
    c->space = space_hold(s->space);
    s->open_handles++;
    s->clients++;
    DL_APPEND(s->conns, c);
    const char *no = uv_accept(listener, (uv_stream_t *)&c->tcp) == 0 && can_watch(c) ? gate_admit(c) : NULL;
    if (!c->peer) {
        log_warn(MODULE, "client %llu closed: no memory for it", (unsigned long long)c->id);
        conn_close(c);
        return 0;
    }
    if (no) {
        s->refused++;
        reply_error(&c->reply, "%s", no);
        conn_say_last_words(c);
        conn_flush(c);
        return 0;
    }
    if (c->trust == TRUST_NONE)
        conn_set_timer(c, TIMER_AUTH, gate_auth_timeout_ms(c));
    conn_choose_reading(c);
    return 0;
}
