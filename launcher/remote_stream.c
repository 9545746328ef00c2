#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "launcher/remote_internal.h"
#include "launcher/remote_wire.h"

#define LAST_READS 64

/* Login scripts there may print before it, and end without a newline. */
static bool ends_in_hello(const char *line, size_t n)
{
    const size_t hello = sizeof REMOTE_HELLO - 1;
    return n >= hello && memcmp(line + n - hello, REMOTE_HELLO, hello) == 0;
}

static void on_line(void *ctx, const char *line, size_t n)
{
    struct far_stream *s = ctx;
    struct far *f = s->far;
    const size_t hello = sizeof REMOTE_HELLO - 1, bye = sizeof REMOTE_BYE - 1;
    if (!s->voice.is_err && !f->ready && ends_in_hello(line, n)) {
        f->ready = true;
        if (n > hello)
            log_console_line(f->m->console, &s->voice, line, n - hello);
    } else if (!s->voice.is_err && n == bye && memcmp(line, REMOTE_BYE, n) == 0) {
        f->over = true;
    } else {
        log_console_line(f->m->console, &s->voice, line, n);
    }
}

static void pause_reading(struct remote *m, bool paused)
{
    m->paused = paused;
    for (int i = 0; i < m->n; i++) {
        if (m->far[i].out.watch)
            watch_set(m->far[i].out.watch, !paused);
        if (m->far[i].err.watch)
            watch_set(m->far[i].err.watch, !paused);
    }
}

void remote_drained(void *arg)
{
    struct remote *m = arg;
    if (m->paused && !log_console_full(m->console))
        pause_reading(m, false);
}

/* False: nothing more now, or ever. */
static bool read_once(struct far_stream *s)
{
    struct remote *m = s->far->m;
    const ssize_t n = read(s->fd, m->scratch, sizeof m->scratch);
    if (n > 0) {
        lines_feed(&s->lines, m->scratch, (size_t)n, on_line, s);
        return true;
    }
    if (n == 0) { /* would be readable for ever */
        watch_close(s->watch);
        s->watch = NULL;
    }
    return n < 0 && errno == EINTR;
}

static void on_readable(void *arg)
{
    struct far_stream *s = arg;
    read_once(s);
    log_console_kick(s->far->m->console);
    if (log_console_full(s->far->m->console))
        pause_reading(s->far->m, true);
}

void remote_stream_finish(struct far_stream *s)
{
    if (s->fd < 0)
        return;
    for (int i = 0; s->watch && i < LAST_READS && read_once(s); i++)
        log_console_kick(s->far->m->console);
    lines_finish(&s->lines, on_line, s);
    watch_close(s->watch);
    s->watch = NULL;
    close(s->fd);
    s->fd = -1;
    log_voice_close(&s->voice);
}

int remote_stream_open(struct far_stream *s, struct far *f, bool is_err, int *ret_fd, struct err *e)
{
    int ends[2];
    s->far = f;
    s->voice.is_err = is_err;
    lines_init(&s->lines);
    TRY(log_voice_open(f->m->console, &s->voice, true, e));
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_errno(e, errno, "cannot make a pipe for host %s", f->host->name);
    s->fd = ends[0];
    *ret_fd = ends[1];
    TRY(watch_open(&s->watch, &f->m->loop, s->fd, UV_READABLE, on_readable, s, e));
    watch_set(s->watch, true);
    return 0;
}
