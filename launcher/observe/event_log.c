#include "launcher/observe/event_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/utf8.h"

#define LINE_MAX_BYTES (64u << 10)

struct event_log {
    struct event_log_options o;
    int fd;    /* -1: none */
    bool torn; /* the file ends within a line */
    bool said; /* that lines are missing */
    unsigned long long lost;
    struct buf line;
    struct json_write w;
};

/* An earlier crun may have been killed in mid-line. Pipes and devices have no end to look at. */
static bool ends_within_line(const char *path)
{
    char last = '\n';
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) != 1)
        last = '\n';
    close(fd);
    return last != '\n';
}

int event_log_open(struct event_log **ret, const struct event_log_options *o, struct err *e)
{
    struct event_log *l = calloc(1, sizeof *l);
    if (!l)
        return err_errno(e, ENOMEM, "event log");
    l->o = *o;
    l->fd = -1;
    buf_init(&l->line, LINE_MAX_BYTES);
    if (o->path) /* a pipe without a reader must not hold us up */
        l->fd = open(o->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (o->path && l->fd < 0) {
        const int why = errno;
        free(l);
        return err_set(e, ERR_OUTPUT, "cannot write the event log %s (--event-log): %s", o->path, strerror(why));
    }
    l->torn = o->path && ends_within_line(o->path);
    *ret = l;
    return 0;
}

struct json_write *event_log_begin(struct event_log *l, const char *kind)
{
    char now[CLOCK_ISO_LEN];
    if (!l)
        return NULL;
    buf_clear(&l->line);
    buf_addstr(&l->line, "\n"); /* of a line before that is torn; left out where none is */
    l->w = (struct json_write){.out = &l->line};
    json_begin(&l->w, NULL, '{');
    json_text(&l->w, "time", clock_iso(now, sizeof now));
    json_int(&l->w, "mono_ns", clock_ns());
    json_text(&l->w, "event", kind);
    json_text(&l->w, "run_id", l->o.run_id);
    json_text(&l->w, "node", l->o.node);
    return &l->w;
}

/* All of it or nothing, as far as the file system lets us: what went in of a torn line is ended by the next one. */
static int write_line(struct event_log *l, const char *line, size_t n)
{
    const size_t skip = l->torn ? 0 : 1;
    ssize_t wrote;
    do
        wrote = write(l->fd, line + skip, n - skip);
    while (wrote < 0 && errno == EINTR);
    if (wrote == (ssize_t)(n - skip)) {
        l->torn = false;
        return 0;
    }
    const int why = wrote < 0 ? errno : ENOSPC;
    l->torn = l->torn ? wrote != 1 : wrote > 0;
    return -why;
}

static void write_file(struct event_log *l)
{
    const int rc = l->w.rc < 0 ? l->w.rc : write_line(l, l->line.data, l->line.len);
    if (rc == 0) {
        l->lost = 0;
        return;
    }
    char text[512];
    l->lost++;
    snprintf(text, sizeof text, "the event log %.300s is incomplete from here on: %s; the job goes on", l->o.path,
             strerror(-rc));
    if (!l->said && l->o.fail)
        l->o.fail(l->o.arg, text);
    l->said = true;
}

void event_log_end(struct event_log *l)
{
    if (!l)
        return;
    if (l->lost > 0)
        json_int(&l->w, "lost", (long long)l->lost);
    json_end(&l->w, '}');
    if (l->w.rc == 0)
        l->w.rc = buf_addstr(&l->line, "\n");
    if (l->w.rc == 0)
        utf8_clean(l->line.data);
    if (l->fd >= 0)
        write_file(l);
    if (l->o.say && l->w.rc == 0)
        l->o.say(l->o.arg, l->line.data + 1);
}

void event_log_close(struct event_log *l)
{
    if (!l)
        return;
    if (l->fd >= 0)
        close(l->fd);
    buf_free(&l->line);
    free(l);
}
