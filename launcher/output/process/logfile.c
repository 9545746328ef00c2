/* Writes one log file: whole lines, rotation, size limit, full disks (logfile.h). */
#include "launcher/output/process/logfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"

#define RETRY_MS 1000 /* ms until a full disk is tried again */
#define PATH_BYTES 4200
#define NUMBER_MAX 1000000000 /* of a file that was rotated away */

/* An earlier job's last line may lack its end: end it, so that our first line is not appended to it. */
static void end_line(const struct logfile *f, int fd)
{
    char last = '\n';
    struct stat st;
    const int in = openat(f->at, f->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (in >= 0 && fstat(in, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 &&
        pread(in, &last, 1, st.st_size - 1) == 1 && last != '\n' && write(fd, "\n", 1) < 0)
        last = 0; /* a full disk is logged at the first line that cannot be written */
    if (in >= 0)
        close(in);
}

/* Open without blocking: the path may be a FIFO without a reader, or with a slow one. */
static int open_end(struct logfile *f)
{
    struct stat st;
    f->fd =
        openat(f->at, f->name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW, 0666);
    if (f->fd < 0)
        return -errno;
    end_line(f, f->fd);
    f->size = f->line_at = fstat(f->fd, &st) == 0 && S_ISREG(st.st_mode) ? st.st_size : 0;
    return 0;
}

int logfile_open(struct logfile *f, int at, size_t at_bytes, const char *path, const struct logfile_limits *limits,
                 struct err *e)
{
    memset(f, 0, sizeof *f);
    f->fd = -1;
    f->limits = *limits;
    f->path = strdup(path);
    f->at = at;
    f->name = f->path ? f->path + at_bytes : NULL;
    const int rc = f->path ? open_end(f) : -ENOMEM;
    if (rc == 0)
        return 0;
    free(f->path);
    f->path = NULL;
    return err_set(e, ERR_OUTPUT, "cannot write the log file %s: %s", path,
                   rc == -ENXIO   ? "it is a FIFO that nobody reads"
                   : rc == -ELOOP ? "it is a symbolic link"
                                  : strerror(-rc));
}

/* --- writing */

/* Write, and move *data and *n past what was written. Returns 0 or -errno. */
static int write_bytes(struct logfile *f, const char **data, size_t *n)
{
    while (*n > 0) {
        const ssize_t w = write(f->fd, *data, *n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -errno;
        const char *end = memrchr(*data, '\n', (size_t)w);
        if (end)
            f->line_at = f->size + (end - *data) + 1;
        f->size += w;
        f->total += w;
        *data += w;
        *n -= (size_t)w;
    }
    return 0;
}

static int write_note(struct logfile *f, const char *fmt, uint64_t bytes, const char *why)
{
    char text[256];
    const char *at = text;
    size_t n = (size_t)snprintf(text, sizeof text, fmt, (unsigned long long)bytes, why);
    return write_bytes(f, &at, &n);
}

/* Remove the unfinished line from the file. Returns its bytes; 0, too, if the file cannot be made shorter. */
static uint64_t take_back(struct logfile *f)
{
    const int64_t torn = f->size - f->line_at;
    if (torn == 0 || f->fd < 0 || ftruncate(f->fd, f->line_at) < 0)
        return 0;
    f->size = f->line_at;
    f->total -= torn;
    return (uint64_t)torn;
}

static void count_dropped(struct logfile *f, uint64_t bytes)
{
    if (f->capped) {
        f->left_out += bytes;
    } else {
        f->gap += bytes;
        f->lost += bytes;
    }
}

static void fail(struct logfile *f, int rc)
{
    if (f->lost == 0)
        f->unreported = rc;
    f->error = -rc;
    f->retry_ms = clock_deadline(RETRY_MS);
    count_dropped(f, take_back(f));
}

/* End an unfinished line with a newline: a FIFO cannot give its beginning back. */
static int end_torn(struct logfile *f)
{
    const char *at = "\n";
    size_t n = f->size > f->line_at;
    return write_bytes(f, &at, &n);
}

/* Of logfile_skip(): no error of a call. */
static const char *why_missing(const struct logfile *f)
{
    return f->error == ETIMEDOUT ? "the disk did not take them in time" : strerror(f->error);
}

/* Called at the beginning of a line after an error: is there room again? */
static bool resume(struct logfile *f)
{
    if (clock_left(f->retry_ms) > 0)
        return false;
    int rc = f->fd < 0 ? open_end(f) : 0;
    if (rc == 0)
        rc = end_torn(f);
    if (rc == 0)
        rc = write_note(f, "crun: %llu bytes are missing here (%s)\n", f->gap, why_missing(f));
    if (rc < 0) {
        take_back(f);
        f->retry_ms = clock_deadline(RETRY_MS);
        return false;
    }
    f->gap = 0;
    f->error = 0;
    return true;
}

/* --- limits */

/* One more than the highest N of the existing NAME.N: an earlier job may have left some. */
static int next_number(const struct logfile *f)
{
    const char *path = f->name, *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t n = strlen(name);
    char folder[PATH_BYTES];
    int highest = 0;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    const int fd = openat(f->at, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d && fd >= 0)
        close(fd);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        if (strncmp(entry->d_name, name, n) != 0 || entry->d_name[n] != '.')
            continue;
        const long long number = strtoll(entry->d_name + n + 1, NULL, 10);
        if (number > highest && number < NUMBER_MAX) /* a larger number is not ours */
            highest = (int)number;
    }
    if (d)
        closedir(d);
    return highest + 1;
}

static void rotate(struct logfile *f)
{
    char path[PATH_BYTES];
    if (f->next == 0)
        f->next = next_number(f);
    snprintf(path, sizeof path, "%s.%d", f->name, f->next);
    if (renameat(f->at, f->name, f->at, path) < 0) /* then the file goes on growing */
        return;
    close(f->fd);
    f->next++;
    f->rotated++;
    if (f->limits.rotate_keep > 0 && f->rotated > f->limits.rotate_keep) {
        snprintf(path, sizeof path, "%s.%d", f->name, f->next - 1 - (int)f->limits.rotate_keep);
        unlinkat(f->at, path, 0);
    }
    const int rc = open_end(f);
    if (rc < 0)
        fail(f, rc);
}

static void cap(struct logfile *f)
{
    const uint64_t torn = take_back(f);
    write_note(f, "crun: %llu bytes are the most a file may hold (--log-max-size); what follows is left out%s\n",
               (uint64_t)f->limits.max_bytes, "");
    f->capped = true;
    count_dropped(f, torn);
}

static int64_t left_of(int64_t limit, int64_t used)
{
    return limit == 0 ? INT64_MAX : limit > used ? limit - used : 0;
}

/* How many bytes of a chunk may be written now: whole lines, except at the end of the chunk. 0: the file is full. */
static size_t fitting(struct logfile *f, const char *data, size_t n)
{
    const int64_t max = left_of(f->limits.max_bytes, f->total);
    int64_t room = left_of(f->limits.rotate_bytes, f->size);
    if ((int64_t)n <= max && (int64_t)n <= room)
        return n;
    const char *end = memchr(data, '\n', n);
    const size_t line = end ? (size_t)(end - data) + 1 : n;
    if ((int64_t)line > max) {
        cap(f);
        return 0;
    }
    if ((int64_t)line > room && f->size == f->line_at && f->size > 0) {
        rotate(f);
        room = left_of(f->limits.rotate_bytes, f->size);
    }
    size_t most = n;
    most = (int64_t)most < max ? most : (size_t)max;
    most = (int64_t)most < room ? most : (size_t)room;
    end = most > line ? memrchr(data, '\n', most) : NULL;
    return end ? (size_t)(end - data) + 1 : line;
}

/* --- in all */

/* Drop a whole chunk; its last line may continue in the next one. */
static void drop(struct logfile *f, const char *data, size_t n)
{
    count_dropped(f, n);
    f->skipping = n > 0 ? data[n - 1] != '\n' : f->skipping;
}

static void write_lines(struct logfile *f, const char *data, size_t n)
{
    while (n > 0) {
        size_t part = f->capped ? 0 : fitting(f, data, n);
        if (part == 0 || f->error) {
            drop(f, data, n);
            return;
        }
        n -= part;
        const int rc = write_bytes(f, &data, &part);
        if (rc < 0) {
            fail(f, rc);
            drop(f, data, part + n);
            return;
        }
    }
}

int logfile_write(struct logfile *f, const char *data, size_t n)
{
    if (!f->path)
        return 0;
    if (f->skipping) {
        const char *end = memchr(data, '\n', n);
        const size_t part = end ? (size_t)(end - data) + 1 : n;
        drop(f, data, part);
        data += part;
        n -= part;
    }
    if (n > 0 && f->error && !resume(f))
        drop(f, data, n);
    else
        write_lines(f, data, n);
    const int rc = f->unreported;
    f->unreported = 0;
    return rc;
}

void logfile_skip(struct logfile *f, uint64_t bytes)
{
    if (!f->path)
        return;
    count_dropped(f, bytes);
    if (f->capped)
        return;
    if (!f->error) {
        f->error = ETIMEDOUT;
        f->retry_ms = 0;
    }
    f->skipping = false;
    resume(f);
}

void logfile_close(struct logfile *f)
{
    if (f->path) {
        if (f->fd >= 0 && f->left_out > 0)
            write_note(f, "crun: %llu bytes were left out%s\n", f->left_out, "");
        f->retry_ms = 0;
        if (f->error && f->gap > 0)
            resume(f);
        if (f->fd >= 0)
            close(f->fd);
    }
    free(f->path);
    f->path = NULL;
    f->fd = -1;
}
