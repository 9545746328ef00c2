/* Reads the output of agents on other hosts, line by line (remote.h). */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "launcher/remote/remote_internal.h"
#include "launcher/remote/remote_wire.h"

#define LAST_READS 64

/* Cut the word off the end of a line. An unfinished line of a login script, or of an agent that was killed, may be
 * in front of it. */
static bool cut_word(const char *line, size_t *n, const char *word)
{
    const size_t len = strlen(word);
    if (*n < len || memcmp(line + *n - len, word, len) != 0)
        return false;
    *n -= len;
    return true;
}

/* Is this the last line of an agent that we stopped because another host is missing? It must not be shown: nobody
 * sent a signal, and the cause has been printed. */
static bool is_farewell_to_us(const struct remote *m, const char *line, size_t n)
{
    static const char farewell[] = "crun: stopped by SIGTERM";
    return m->failed && m->stopping && n == strlen(farewell) && memcmp(line, farewell, n) == 0;
}

static void on_line(void *ctx, const char *line, size_t n)
{
    struct far_stream *s = ctx;
    struct far *f = s->far;
    bool ours = f->ready && cut_word(line, &n, REMOTE_ALIVE);
    if (s->voice.is_err && cut_word(line, &n, REMOTE_JOINED)) /* may come before the other stream has been read */
        ours = f->joined = true;
    if (!s->voice.is_err && !f->ready)
        ours = f->ready = cut_word(line, &n, REMOTE_HELLO);
    else if (!s->voice.is_err && cut_word(line, &n, REMOTE_BYE))
        ours = f->over = true;
    if (s->voice.is_err && is_farewell_to_us(f->m, line, n))
        return;
    if (n > 0 || !ours)
        log_console_line(f->m->console, &s->voice, line, n);
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

/* Read once. False: nothing more now, or for good. */
static bool read_once(struct far_stream *s)
{
    struct remote *m = s->far->m;
    const ssize_t n = read(s->fd, m->scratch, sizeof m->scratch);
    if (n > 0) {
        s->far->unanswered = 0;
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
    TRY(log_voice_open(f->m->console, &s->voice, e));
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_errno(e, errno, "cannot make a pipe for host %s", f->host->name);
    s->fd = ends[0];
    *ret_fd = ends[1];
    TRY(watch_open(&s->watch, &f->m->loop, s->fd, UV_READABLE, on_readable, s, e));
    watch_set(s->watch, true);
    return 0;
}
