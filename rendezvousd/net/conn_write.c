/* Writes the replies of connections. Small replies wait until UNSENT_MAX clients have been answered, and are then
 * written one after the other, at the latest before the loop sleeps: so a peer with many connections is woken once,
 * not by each. With a larger UNSENT_MAX the replies would have left the processor's cache: if all of 1,000
 * connections are answered before the first write, throughput is a tenth lower. */
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/net/tls_stream.h"
#include "rendezvousd/net/conn_impl.h"
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <utlist.h>

#define MODULE "server"
#define KEEP_OUT_BYTES (16 * 1024)
#define UNSENT_MAX 32

static void empty(struct buf *b)
{
    buf_clear(b);
    if (b->cap > KEEP_OUT_BYTES)
        buf_free(b);
}

static void on_written(uv_write_t *w, int status)
{
    struct conn *c = conn_of(w, write);
    conn_write_over(c);
    if (c->closing)
        return;
    if (status < 0) {
        conn_close(c);
        return;
    }
    empty(&c->flying);
    c->flown = 0;
    conn_flush(c);
    conn_charge(c);
}

/* --- who does not read */

#define LOOKS 4 /* looks within request_timeout_ms; counted, not timed, so that a pause of this process does no harm */

/* Bytes that the client's host has not received yet, in our buffers and the kernel's. The kernel's alone may be
 * megabytes, so without it a slow reader would seem to read nothing. */
static size_t bytes_left(const struct conn *c)
{
    int fd, held = 0;
    if (uv_fileno((const uv_handle_t *)&c->tcp, &fd) < 0 || ioctl(fd, SIOCOUTQ, &held) < 0)
        held = 0;
    return uv_stream_get_write_queue_size((const uv_stream_t *)&c->tcp) + (size_t)held;
}

static void on_look(uv_timer_t *t)
{
    struct server *s = t->data;
    struct conn *c, *next;
    DL_FOREACH_SAFE2(s->written, c, next, written_next)
    {
        size_t left = bytes_left(c);
        c->idle_looks = left == c->write_left ? c->idle_looks + 1 : 0;
        c->write_left = left;
        if (c->idle_looks < LOOKS)
            continue;
        log_info(MODULE, "client %llu closed: it has read nothing for %lld ms, and %zu bytes wait for it",
                 (unsigned long long)c->id, (long long)s->o.request_timeout_ms, left);
        conn_close(c);
    }
}

static void write_begins(struct conn *c)
{
    struct server *s = c->s;
    c->writing = true;
    c->idle_looks = 0;
    c->write_left = bytes_left(c);
    if (!s->written) {
        const uint64_t ms = (uint64_t)(s->o.request_timeout_ms / LOOKS) + 1;
        uv_timer_start(&s->write_timer, on_look, ms, ms);
    }
    DL_APPEND2(s->written, c, written_prev, written_next);
}

void conn_write_over(struct conn *c)
{
    if (!c->writing)
        return;
    c->writing = false;
    if (!c->written_prev) /* a connection without a socket, which only pretends to write (tests/fuzz) */
        return;
    DL_DELETE2(c->s->written, c, written_prev, written_next);
    c->written_prev = NULL;
    if (!c->s->written)
        uv_timer_stop(&c->s->write_timer);
}

/* --- writing */

/* The bytes to be written next: the replies, encrypted if the client speaks TLS. */
static struct buf *outgoing(struct conn *c)
{
    struct err e;
    if (!c->tls)
        return &c->reply.out;
    if (c->reply.out.len > 0 && tls_stream_write(c->tls, c->reply.out.data, c->reply.out.len, &c->sealed, &e) < 0)
        buf_clear(&c->sealed); /* treat as broken */
    empty(&c->reply.out);
    if (c->last_words)
        tls_stream_end(c->tls, &c->sealed);
    return &c->sealed;
}

/* Write as much as the kernel accepts now, and the rest when possible. The buffers for filling and for writing are
 * swapped. */
void conn_flush(struct conn *c)
{
    if (c->unsent) {
        DL_DELETE2(c->s->unsent, c, unsent_prev, unsent_next);
        c->s->unsent_count--;
    }
    c->unsent = false;
    if (c->closing || c->writing)
        return;
    struct buf *out = outgoing(c);
    if (out->len == 0) {
        if (c->last_words)
            conn_close(c);
        return;
    }
    uv_buf_t b = uv_buf_init(out->data, (unsigned)out->len);
    int n = uv_try_write((uv_stream_t *)&c->tcp, &b, 1);
    if (n < 0 && n != UV_EAGAIN) {
        conn_close(c);
        return;
    }
    c->flown = n > 0 ? (size_t)n : 0;
    c->reply.out.max = c->s->o.max_output_bytes;
    if (c->flown == out->len) {
        empty(out);
        if (c->last_words)
            conn_close(c);
        return;
    }
    struct buf filled = *out;
    *out = c->flying;
    c->flying = filled;
    size_t rest = c->flying.len - c->flown;
    c->reply.out.max = rest < c->s->o.max_output_bytes ? c->s->o.max_output_bytes - rest : 1;
    b = uv_buf_init(c->flying.data + c->flown, (unsigned)rest);
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, &b, 1, on_written) < 0)
        conn_close(c);
    else
        write_begins(c);
}

static void flush_unsent(struct server *s)
{
    while (s->unsent) {
        struct conn *c = s->unsent;
        conn_flush(c);
        conn_charge(c);
    }
}

void conn_flush_soon(struct conn *c)
{
    if (c->writing || c->reply.out.len >= KEEP_OUT_BYTES || c->last_words || c->tls || c->rdzv) {
        conn_flush(c);
        conn_charge(c);
    } else if (c->reply.out.len == 0) {
        conn_charge(c);
    } else if (!c->unsent) {
        c->unsent = true;
        DL_APPEND2(c->s->unsent, c, unsent_prev, unsent_next);
        if (++c->s->unsent_count >= UNSENT_MAX)
            flush_unsent(c->s);
    }
}

/* Write what is queued, then close, even if the client does not read it. */
void conn_say_last_words(struct conn *c)
{
    c->last_words = true;
    uv_read_stop((uv_stream_t *)&c->tcp);
    c->reading = false;
    conn_set_timer(c, TIMER_LINGER, c->s->o.request_timeout_ms);
}
