/* Standard output and error that are files: put aside, and written by threads (console_file.h). */
#include "launcher/stdio/console_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/apart.h"
#include "launcher/stdio/aside.h"

#define BYTES (64u << 10) /* of one write: what a pipe holds */
#define STACK_BYTES (BYTES + (64u << 10))

/* --- put aside */

static void open_one(struct console_file *f, int fd)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return;
    const int kept = fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0 ? -1 : aside_put(&fd, 1);
    if (kept < 0) {
        close(ends[0]);
        close(ends[1]);
        return;
    }
    f->kept = kept;
    f->out = ends[0];
    f->in = ends[1];
}

void console_files_open(struct console_file f[CONSOLE_FILES], struct console_file_page pages[CONSOLE_FILES])
{
    struct statx out, err;
    const bool is_out = aside_is_file(STDOUT_FILENO, &out), is_err = aside_is_file(STDERR_FILENO, &err);
    for (int i = 0; i < CONSOLE_FILES; i++)
        f[i] = (struct console_file){.kept = -1, .in = -1, .out = -1, .page = &pages[i]};
    if (is_out)
        open_one(&f[0], STDOUT_FILENO);
    if (is_err && is_out && out.stx_ino == err.stx_ino && out.stx_dev_major == err.stx_dev_major &&
        out.stx_dev_minor == err.stx_dev_minor)
        f[1].in = f[0].in; /* one pipe for both, so that lines do not cut into each other */
    else if (is_err)
        open_one(&f[1], STDERR_FILENO);
}

void console_files_enter(const struct console_file f[CONSOLE_FILES], bool keeps_stdin)
{
    struct statx in;
    if (!keeps_stdin && aside_is_file(STDIN_FILENO, &in))
        aside_be_null(STDIN_FILENO, O_RDONLY);
    for (int i = 0; i < CONSOLE_FILES; i++)
        if (f[i].in >= 0)
            dup2(f[i].in, STDOUT_FILENO + i);
    for (int i = 0; i < CONSOLE_FILES; i++)
        if (f[i].in >= 0 && (i == 0 || f[i].in != f[0].in))
            close(f[i].in);
}

void console_files_leave(const struct console_file f[CONSOLE_FILES])
{
    for (int i = 0; i < CONSOLE_FILES; i++)
        if (f[i].kept >= 0) {
            close(f[i].kept);
            close(f[i].out);
        }
}

bool console_files_exist(const struct console_file f[CONSOLE_FILES])
{
    return f[0].kept >= 0 || f[1].kept >= 0;
}

/* --- writing */

struct writer {
    struct console_file_page *page;
    int file;
    char last;    /* last byte written to the file; initially a newline */
    bool is_torn; /* the beginning of a line was lost, and its end has not come */
};

/* Like write(2); the page keeps the errno. */
static ssize_t put(struct writer *w, const char *data, size_t n)
{
    ssize_t written;
    atomic_store(&w->page->since_ms, clock_ms());
    do
        written = write(w->file, data, n);
    while (written < 0 && errno == EINTR);
    if (written < 0)
        atomic_store(&w->page->error, errno);
    if (written > 0)
        w->last = data[written - 1];
    atomic_store(&w->page->since_ms, 0);
    return written;
}

static void lose(struct writer *w, const char *data, size_t n)
{
    if (n > 0)
        w->is_torn = data[n - 1] != '\n';
    atomic_fetch_add(&w->page->lost, n);
}

/* Once the file accepts bytes again, write into it how many it has lost. */
static bool tell_lost(struct writer *w)
{
    char text[256];
    const unsigned long long lost = atomic_load(&w->page->lost), reported = atomic_load(&w->page->reported);
    if (lost == reported)
        return true;
    const int n = snprintf(text, sizeof text, "%scrun: %llu bytes are missing here (%s)\n", w->last == '\n' ? "" : "\n",
                           lost - reported, strerror(atomic_load(&w->page->error)));
    if (put(w, text, (size_t)n) < n)
        return false;
    atomic_store(&w->page->reported, lost);
    return true;
}

/* Number of bytes that belong to a line whose beginning was lost. */
static size_t torn_bytes(const struct writer *w, const char *data, size_t n)
{
    const char *end = w->is_torn ? memchr(data, '\n', n) : NULL;
    return end ? (size_t)(end + 1 - data) : w->is_torn ? n : 0;
}

static void write_all(struct writer *w, const char *data, size_t n)
{
    const size_t torn = torn_bytes(w, data, n);
    ssize_t written;
    atomic_store(&w->page->held, n);
    lose(w, data, torn);
    data += torn;
    n -= torn;
    if (n > 0 && tell_lost(w))
        while (n > 0 && (written = put(w, data, n)) > 0) {
            data += written;
            n -= (size_t)written;
            atomic_store(&w->page->held, n);
        }
    lose(w, data, n);
    atomic_store(&w->page->held, 0);
}

/* The output process before this one was killed. */
static void note_gap(struct writer *w)
{
    char text[128];
    const unsigned long long held = atomic_load(&w->page->held);
    const int n = snprintf(text, sizeof text,
                           "crun: up to %llu bytes are missing here: the process that wrote them was killed\n", held);
    if (held > 0)
        put(w, text, (size_t)n);
}

static void close_file(struct console_file_page *p, int file)
{
    atomic_store(&p->since_ms, clock_ms());
    if (close(file) < 0 && !atomic_load(&p->error))
        atomic_store(&p->error, errno);
    atomic_store(&p->since_ms, 0);
}

int console_file_write(const struct console_file *f, int end_fd)
{
    char bytes[BYTES];
    struct writer w = {.page = f->page, .file = -1, .last = '\n'};
    TRY(aside_take(f->kept, &w.file, 1));
    note_gap(&w);
    for (bool ends = false;;) {
        struct pollfd p[2] = {{.fd = f->out, .events = POLLIN}, {.fd = end_fd, .events = POLLIN}};
        poll(p, 2, ends ? 0 : -1);
        ends = ends || p[1].revents;
        const ssize_t n = read(f->out, bytes, sizeof bytes);
        if (n > 0)
            write_all(&w, bytes, (size_t)n);
        else if (n == 0 || (errno == EAGAIN && ends))
            break;
    }
    close_file(f->page, w.file);
    return 0;
}

/* --- the threads */

struct writing {
    const struct console_file *f;
    int end_fd, gone_fd;
};

static void *run_writing(void *arg)
{
    const struct writing *w = arg;
    const int kept[] = {w->f->kept, w->f->out, w->end_fd, w->gone_fd};
    apart_keep(kept, 4);
    if (console_file_write(w->f, w->end_fd) < 0)
        _exit(1); /* no descriptor or memory: the next output process may have room */
    eventfd_write(w->gone_fd, 1);
    return NULL;
}

int console_files_start(const struct console_file f[CONSOLE_FILES], int end_fd, int gone_fd)
{
    static struct writing v[CONSOLE_FILES];
    int n = 0;
    for (int i = 0; i < CONSOLE_FILES; i++) {
        if (f[i].kept < 0)
            continue;
        v[n] = (struct writing){&f[i], end_fd, gone_fd};
        const int rc = apart_start(run_writing, &v[n++], STACK_BYTES);
        if (rc != 0)
            return -rc;
    }
    return n;
}

/* --- what becomes of it */

uint64_t console_files_lost(const struct console_file f[CONSOLE_FILES])
{
    return atomic_load(&f[0].page->lost) + atomic_load(&f[1].page->lost);
}

uint64_t console_file_waiting(const struct console_file *f)
{
    int waiting = 0;
    if (f->out >= 0)
        ioctl(f->out, FIONREAD, &waiting);
    return atomic_load(&f->page->held) + (uint64_t)waiting;
}

int console_file_patience_ms(const struct console_file *f, int64_t notified_ms)
{
    const int64_t since = atomic_load(&f->page->since_ms),
                  left = CONSOLE_FILE_MS - (clock_ms() - (since ? since : notified_ms));
    return left > 0 ? (int)left : 0;
}
