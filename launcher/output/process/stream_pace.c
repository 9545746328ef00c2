/* Which streams are read now, and when a line without an end is shown. */
#include "launcher/output/process/streams_internal.h"

#include "launcher/base/watch.h"
#include "launcher/output/process/file_thread.h"
#include "launcher/output/process/queued_file.h"

/* --- lines without an end */

static void show_partial(struct stream *s)
{
    struct partial_text text;
    int64_t ms = -1;
    const int64_t now = (int64_t)uv_now(s->all->loop);
    const struct buf *line = &s->lines.part;
    if (line->len > 0 && partial_check(&s->partial, line->data, line->len, now, &text, &ms))
        log_console_line(s->all->console, &s->voice, text.text, text.n);
    s->look_at = ms < 0 ? -1 : now + ms;
}

/* What came meanwhile may be the end of the line. */
static void show_partial_if_due(struct stream *s)
{
    if (s->look_at < 0 || s->look_at > (int64_t)uv_now(s->all->loop))
        return;
    if (!s->watch || !stream_read(s))
        show_partial(s);
}

static void arm(struct streams *m);

static void on_timer(uv_timer_t *t)
{
    struct streams *m = t->data;
    for (int i = 0; i < 2 * m->n; i++)
        show_partial_if_due(streams_stream(m, i));
    log_console_kick(m->console);
    if (log_console_full(m->console))
        streams_pause(m, true);
    arm(m);
}

/* Not while the console is behind: then nothing is read, and a line only seems to stand still. */
static void arm(struct streams *m)
{
    int64_t next = -1;
    for (int i = 0; i < 2 * m->n && !m->paused; i++) {
        const struct stream *s = streams_stream(m, i);
        if (s->look_at >= 0 && (next < 0 || s->look_at < next))
            next = s->look_at;
    }
    const int64_t now = (int64_t)uv_now(m->loop);
    if (next >= 0)
        uv_timer_start(&m->timer, on_timer, next > now ? (uint64_t)(next - now) : 1, 0);
    else
        uv_timer_stop(&m->timer);
}

void stream_grew(struct stream *s, size_t bytes)
{
    struct streams *m = s->all;
    s->look_at = -1;
    if (!s->shown || s->lines.part.len == 0)
        return;
    partial_grew(&s->partial, bytes, (int64_t)uv_now(m->loop));
    show_partial(s);
    if (s->look_at >= 0 && !m->paused && !uv_is_active((uv_handle_t *)&m->timer))
        arm(m);
}

/* A second anew for each. */
static void wait_again(struct streams *m)
{
    for (int i = 0; i < 2 * m->n; i++) {
        struct stream *s = streams_stream(m, i);
        if (s->look_at >= 0)
            s->look_at = (int64_t)uv_now(m->loop) + PARTIAL_MS;
    }
    arm(m);
}

void stream_update_watch(struct stream *s)
{
    if (s->watch)
        watch_set(s->watch, !s->held && !((s->shown || s->live) && s->all->paused));
}

/* Read from the workers whose output is shown, unless a console is behind. */
void streams_pause(struct streams *m, bool paused)
{
    if (m->paused == paused)
        return;
    m->paused = paused;
    for (int i = 0; i < 2 * m->n; i++)
        stream_update_watch(streams_stream(m, i));
    wait_again(m);
}

void streams_on_drained(void *arg)
{
    struct streams *m = arg;
    if (m->paused && !log_console_full(m->console))
        streams_pause(m, false);
    if (m->console)
        m->o.moved(m->o.arg);
}

/* --- files that are behind */

static bool is_behind(const struct stream *s)
{
    const struct queued_file *filtered = s->all->filtered[s->voice.is_err];
    return (s->file && queued_file_is_full(s->file)) || (filtered && queued_file_is_full(filtered));
}

static bool is_still(struct streams *m)
{
    return file_thread_still_ms(m->files) >= STREAMS_STILL_MS;
}

static void on_still(uv_timer_t *t);

void stream_hold_if_behind(struct stream *s)
{
    struct streams *m = s->all;
    if (!is_behind(s) || is_still(m))
        return;
    s->held = true;
    stream_update_watch(s);
    if (!uv_is_active((uv_handle_t *)&m->still))
        uv_timer_start(&m->still, on_still, STREAMS_STILL_MS, 0);
}

void streams_release(struct streams *m, bool all)
{
    bool more = false;
    for (int i = 0; i < 2 * m->n; i++) {
        struct stream *s = streams_stream(m, i);
        if (s->held && (all || !is_behind(s))) {
            s->held = false;
            stream_update_watch(s);
        }
        more = more || s->held;
    }
    if (!more)
        uv_timer_stop(&m->still);
}

static void on_still(uv_timer_t *t)
{
    struct streams *m = t->data;
    uv_timer_start(&m->still, on_still, STREAMS_STILL_MS, 0);
    streams_release(m, is_still(m));
}
