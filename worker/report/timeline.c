/* Writes the time of a run in the Chrome trace event format. */
#include "worker/report/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/report/lines.h"

#define FLUSH_BYTES 65536
#define NAME_CAP 160

struct timeline {
    int fd; /* O_APPEND; -1: given up */
    char *path;
    int rank;
    int64_t first, count;
    atomic_bool recording;
    pthread_mutex_t lock; /* the rest */
    struct buf out;       /* whole records */
    int64_t events;
    bool first_record; /* the next one follows the opening bracket */
};

static const char *const track_names[] = {
#define X(name, text) text,
    TIMELINE_TRACKS(X)
#undef X
};

/* With the lock held. */
static void write_out(struct timeline *t)
{
    struct err e;
    if (t->fd >= 0 && t->out.len > 0 && lines_write(t->fd, t->out.data, t->out.len, t->path, &e) < 0) {
        log_warn("timeline", "%s; it ends here", e.text);
        close(t->fd);
        t->fd = -1;
    }
    buf_clear(&t->out);
}

/* Names are tensors' and ours: what JSON would have to escape does not occur but by mistake. */
static void clean(const char *name, char out[NAME_CAP])
{
    snprintf(out, NAME_CAP, "%s", name);
    for (char *c = out; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
            *c = '_';
}

static const char *separator(struct timeline *t)
{
    const char *s = t->first_record ? "" : ",\n";
    t->first_record = false;
    return s;
}

static void put_head(struct timeline *t)
{
    buf_printf(&t->out, "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
               separator(t), t->rank, t->rank);
    for (int i = 0; i < TIMELINE_NTRACKS; i++)
        buf_printf(&t->out,
                   ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                   t->rank, i, track_names[i]);
}

int timeline_open(struct timeline **ret, const struct timeline_options *o, struct err *e)
{
    int fd = open(o->path, O_WRONLY | O_APPEND | O_CLOEXEC | O_CREAT | (o->create ? O_TRUNC : 0), 0666);
    if (fd < 0)
        return err_set(e, ERR_OUTPUT, "open the timeline %s: %s", o->path, strerror(errno));
    struct timeline *t = calloc(1, sizeof *t);
    if (!t || !(t->path = strdup(o->path))) {
        free(t);
        close(fd);
        return err_set(e, -ENOMEM, "no memory for a timeline");
    }
    t->fd = fd;
    t->rank = o->rank;
    t->first = o->first;
    t->count = o->count;
    pthread_mutex_init(&t->lock, NULL);
    if (o->create)
        buf_addstr(&t->out, "[\n");
    t->first_record = o->create;
    put_head(t);
    write_out(t);
    *ret = t;
    return 0;
}

void timeline_close(struct timeline *t, bool complete)
{
    if (!t)
        return;
    if (complete)
        buf_addstr(&t->out, "\n]\n");
    write_out(t);
    if (t->fd >= 0)
        close(t->fd);
    pthread_mutex_destroy(&t->lock);
    buf_free(&t->out);
    free(t->path);
    free(t);
}

bool timeline_recording(const struct timeline *t)
{
    return t && atomic_load_explicit(&((struct timeline *)(uintptr_t)t)->recording, memory_order_relaxed);
}

void timeline_step(struct timeline *t, int64_t step)
{
    if (!t)
        return;
    bool on = step >= t->first && step - t->first < t->count;
    timeline_flush(t);
    atomic_store(&t->recording, on);
}

void timeline_flush(struct timeline *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    write_out(t);
    pthread_mutex_unlock(&t->lock);
}

/* ,"args":{"kernel":"jit:avx2","shape":"64x8x8"} */
static void put_args(struct buf *out, const struct timeline_event *ev)
{
    const char *const keys[] = {"kernel", "shape"}, *const values[] = {ev->kernel, ev->shape};
    char safe[NAME_CAP];
    int n = 0;
    for (int i = 0; i < 2; i++)
        if (values[i]) {
            clean(values[i], safe);
            buf_printf(out, "%s\"%s\":\"%s\"", n++ ? "," : ",\"args\":{", keys[i], safe);
        }
    buf_addstr(out, n ? "}" : "");
}

static void put_event(struct timeline *t, const struct timeline_event *ev)
{
    const int64_t took = ev->end_ns - ev->start_ns;
    char safe[NAME_CAP];
    clean(ev->name, safe);
    buf_printf(&t->out,
               "%s{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%" PRId64 ".%03d,\"dur\":%" PRId64
               ".%03d,\"pid\":%d,\"tid\":%d",
               separator(t), safe, ev->category, ev->start_ns / 1000, (int)(ev->start_ns % 1000), took / 1000,
               (int)(took % 1000), t->rank, (int)ev->track);
    put_args(&t->out, ev);
    buf_addstr(&t->out, "}");
}

void timeline_put(struct timeline *t, const struct timeline_event *ev)
{
    if (!t || (!ev->always && !timeline_recording(t)))
        return;
    pthread_mutex_lock(&t->lock);
    if (t->events == TIMELINE_EVENTS_MAX)
        log_warn("timeline", "%s holds %d records of rank %d: the rest is left out", t->path, TIMELINE_EVENTS_MAX,
                 t->rank);
    if (t->events++ < TIMELINE_EVENTS_MAX && t->fd >= 0)
        put_event(t, ev);
    if (t->out.len >= FLUSH_BYTES)
        write_out(t);
    pthread_mutex_unlock(&t->lock);
}
