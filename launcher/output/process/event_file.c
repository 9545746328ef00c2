/* Appends lines to the event log file, on a thread (event_file.h). */
#include "launcher/output/process/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/container_of.h"
#include "common/base/err.h"
#include "launcher/output/output_wire.h"
#include "launcher/output/process/file_thread.h"

#define LOST_TEXT 40 /* ,"lost":N */

struct event_file {
    struct event_file_options o;
    struct file_thread *thread;
    struct file_job open;
    uint64_t waiting; /* lines that the thread still has */
    bool is_reported; /* it was printed that lines are missing */
    /* the thread's own */
    int fd;    /* -1: none */
    bool torn; /* the file ends within a line */
    uint64_t last;
    unsigned long long lost;
    struct err e;
};

struct line {
    struct file_job job;
    struct event_file *f;
    uint64_t number;
    int error; /* -errno of a failed write */
    size_t n;
    char text[]; /* a newline, which is written if a torn line is before it, then the line */
};

/* --- on the thread */

/* Does the file end within a line? An earlier crun may have been killed while it wrote. A pipe or device has no end
 * to look at. */
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

/* Open without blocking: a pipe may have no reader. */
static void open_now(struct file_job *job)
{
    struct event_file *f = container_of(job, struct event_file, open);
    file_thread_enter(f->thread, f->o.path);
    f->fd = open(f->o.path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (f->fd < 0)
        err_set(&f->e, ERR_OUTPUT, "cannot write the event log %s (--event-log): %s", f->o.path, strerror(errno));
    else
        f->torn = ends_within_line(f->o.path);
}

/* Into the object, before its end. */
static void add_lost(struct line *l, unsigned long long lost)
{
    char *end = l->text + l->n - 2; /* "}\n" */
    if (lost > 0 && l->n > 2 && *end == '}')
        l->n = (size_t)(end - l->text) + (size_t)snprintf(end, LOST_TEXT + 3, ",\"lost\":%llu}\n", lost);
}

/* Write a line, whole or not at all if the file system allows that: the next line ends a torn one. */
static int write_text(struct event_file *f, const struct line *l)
{
    const size_t skip = f->torn ? 0 : 1, n = l->n - skip;
    ssize_t wrote;
    do
        wrote = write(f->fd, l->text + skip, n);
    while (wrote < 0 && errno == EINTR);
    if (wrote == (ssize_t)n) {
        f->torn = false;
        return 0;
    }
    const int why = wrote < 0 ? errno : ENOSPC;
    f->torn = f->torn ? wrote != 1 : wrote > 0;
    return -why;
}

static void write_now(struct file_job *job)
{
    struct line *l = container_of(job, struct line, job);
    struct event_file *f = l->f;
    if (f->fd < 0)
        return;
    file_thread_enter(f->thread, f->o.path);
    f->lost += l->number - f->last - 1;
    f->last = l->number;
    add_lost(l, f->lost);
    l->error = write_text(f, l);
    f->lost = l->error ? f->lost + 1 : 0;
    atomic_store(&f->o.page->events, l->number);
}

/* --- on the loop */

static void on_opened(struct file_job *job)
{
    struct event_file *f = container_of(job, struct event_file, open);
    f->o.opened(f->o.arg, f->e.code, f->e.text);
}

static void on_written(struct file_job *job)
{
    struct line *l = container_of(job, struct line, job);
    struct event_file *f = l->f;
    char text[512];
    f->waiting--;
    if (l->error && !f->is_reported) {
        snprintf(text, sizeof text, "the event log %.300s is incomplete from here on: %s; the job goes on", f->o.path,
                 strerror(-l->error));
        f->is_reported = true;
        f->o.print(f->o.arg, text);
    }
    free(l);
}

int event_file_create(struct event_file **ret, uv_loop_t *loop, const struct event_file_options *o, struct err *e)
{
    struct event_file *f = calloc(1, sizeof *f);
    if (!f)
        return err_errno(e, ENOMEM, "event log");
    f->o = *o;
    f->fd = -1;
    f->last = atomic_load(&o->page->events);
    f->open = (struct file_job){.work = open_now, .done = on_opened};
    const struct file_thread_options thread = {.disk = "the disk of the event log",
                                               .meanwhile = "events wait in memory, 1 MiB of them, and are left out "
                                                            "and counted beyond that",
                                               .print = o->print,
                                               .moved = o->moved,
                                               .arg = o->arg};
    TRY(file_thread_create(&f->thread, loop, &thread, e));
    file_thread_add(f->thread, &f->open);
    *ret = f;
    return 0;
}

void event_file_add(struct event_file *f, uint64_t number, const char *line, size_t n)
{
    struct line *l = malloc(sizeof *l + 1 + n + LOST_TEXT);
    if (!l) /* its number will be missing */
        return;
    *l = (struct line){.job = {.work = write_now, .done = on_written}, .f = f, .number = number, .n = n + 1};
    l->text[0] = '\n';
    memcpy(l->text + 1, line, n);
    f->waiting++;
    file_thread_add(f->thread, &l->job);
}

struct file_thread *event_file_thread(struct event_file *f)
{
    return f->thread;
}

uint64_t event_file_waiting(const struct event_file *f)
{
    return f->waiting;
}
