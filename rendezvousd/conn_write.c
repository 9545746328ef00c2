/* What a connection writes. Small replies wait until every client that the loop has heard is answered, and go out one after the other
 * before it sleeps: a peer that serves many connections is woken by the first and kept awake, not woken by each. */
#include "common/err.h"
#include "common/tls_stream.h"
#include "rendezvousd/conn_impl.h"
#include <utlist.h>

#define KEEP_OUT_BYTES (16 * 1024)

static void all_written(struct conn *c)
{
    buf_clear(&c->flying);
    c->flown = 0;
    if (c->flying.cap > KEEP_OUT_BYTES)
        buf_free(&c->flying);
}

static void on_written(uv_write_t *w, int status)
{
    struct conn *c = conn_of(w, write);
    c->writing = false;
    if (c->closing)
        return;
    if (status < 0) {
        conn_close(c);
        return;
    }
    all_written(c);
    conn_flush(c);
    conn_charge(c);
}

/* What is to be written next: the replies, sealed where the client speaks TLS. */
static struct buf *outgoing(struct conn *c)
{
    struct err e;
    if (!c->tls)
        return &c->reply.out;
    if (c->reply.out.len > 0 && tls_stream_write(c->tls, c->reply.out.data, c->reply.out.len, &c->sealed, &e) < 0)
        buf_clear(&c->sealed); /* as good as broken */
    buf_clear(&c->reply.out);
    return &c->sealed;
}

/* What the kernel takes at once goes at once; the rest is written when it can be. Filling and writing swap buffers. */
void conn_flush(struct conn *c)
{
    if (c->unsent)
        DL_DELETE2(c->s->unsent, c, unsent_prev, unsent_next);
    c->unsent = false;
    if (c->closing || c->writing)
        return;
    struct buf *out = outgoing(c);
    if (out->len == 0) {
        if (c->last_words)
            conn_close(c);
        return;
    }
    struct buf filled = *out;
    *out = c->flying;
    c->flying = filled;
    buf_clear(out);
    uv_buf_t b = uv_buf_init(c->flying.data, (unsigned)c->flying.len);
    int n = uv_try_write((uv_stream_t *)&c->tcp, &b, 1);
    if (n < 0 && n != UV_EAGAIN) {
        conn_close(c);
        return;
    }
    c->flown = n > 0 ? (size_t)n : 0;
    c->reply.out.max = c->s->o.max_output_bytes;
    if (c->flown == c->flying.len) {
        all_written(c);
        if (c->last_words)
            conn_close(c);
        return;
    }
    size_t rest = c->flying.len - c->flown;
    c->reply.out.max = rest < c->s->o.max_output_bytes ? c->s->o.max_output_bytes - rest : 1;
    b = uv_buf_init(c->flying.data + c->flown, (unsigned)rest);
    c->writing = true;
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, &b, 1, on_written) < 0) {
        c->writing = false;
        conn_close(c);
    }
}

void conn_flush_soon(struct conn *c)
{
    if (c->writing || c->reply.out.len >= KEEP_OUT_BYTES || c->last_words || c->tls) {
        conn_flush(c);
        conn_charge(c);
    } else if (c->reply.out.len == 0) {
        conn_charge(c);
    } else if (!c->unsent) {
        c->unsent = true;
        DL_APPEND2(c->s->unsent, c, unsent_prev, unsent_next);
    }
}

void conn_flush_all(uv_prepare_t *h)
{
    struct server *s = h->data;
    while (s->unsent) {
        struct conn *c = s->unsent;
        conn_flush(c);
        conn_charge(c);
        conn_drain_ready(s);
    }
}

/* Say what is queued, then close; a client that does not take it is closed all the same. */
void conn_say_last_words(struct conn *c)
{
    c->last_words = true;
    uv_read_stop((uv_stream_t *)&c->tcp);
    c->reading = false;
    conn_set_timer(c, TIMER_LINGER, c->s->o.request_timeout_ms);
}
