/* Writes the CSV log of Caffe2's trainer. */
#include "worker/report/caffe2_log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/report/lines.h"

/* Column names and how each value of a row is written, in the original's order. */
#define COLUMNS(X)                                                                                                     \
    X(time_spent, "%.6f", double)                                                                                      \
    X(cumulative_time_spent, "%.6f", double)                                                                           \
    X(input_count, "%" PRId64, int64_t)                                                                                \
    X(cumulative_input_count, "%" PRId64, int64_t)                                                                     \
    X(cumulative_batch_count, "%" PRId64, int64_t)                                                                     \
    X(inputs_per_sec, "%.3f", double)                                                                                  \
    X(accuracy, "%.6g", double)                                                                                        \
    X(epoch, "%" PRId64, int64_t)                                                                                      \
    X(learning_rate, "%.9g", double)                                                                                   \
    X(loss, "%.9g", double)                                                                                            \
    X(test_accuracy, "%.6g", double)

enum column {
#define X(name, format, type) COL_##name,
    COLUMNS(X)
#undef X
        COL_COUNT
};

static const char header[] =
#define X(name, format, type) "," #name
    COLUMNS(X)
#undef X
    ;
#define HEADER (header + 1)

#define NAME_FORMAT "%s_gpu%d_b%d_L%d_lr%.2f_v2_"

struct caffe2_log {
    int fd; /* O_APPEND */
    char path[PATH_MAX];
};

/* The timestamp (15 bytes) of a name that fits the pattern for this arch; NULL if it does not. */
static const char *match_name(const char *name, const char *arch)
{
    size_t n = strlen(arch);
    int end = -1, gpu, b, labels;
    float lr;
    if (strncmp(name, arch, n) != 0)
        return NULL;
    if (sscanf(name + n, "_gpu%9d_b%9d_L%9d_lr%20f_v2_%n", &gpu, &b, &labels, &lr, &end) != 4 || end < 0)
        return NULL;
    const char *stamp = name + n + end;
    static const char shape[] = "dddddddd_dddddd.log";
    if (strlen(stamp) != sizeof shape - 1)
        return NULL;
    for (size_t i = 0; shape[i]; i++)
        if (shape[i] == 'd' ? stamp[i] < '0' || stamp[i] > '9' : stamp[i] != shape[i])
            return NULL;
    return stamp;
}

/* Name of the newest log in dir that fits; prefix: only those that begin so (NULL: any). -ENOENT if there is none. */
static int find_newest(const struct caffe2_log_options *o, const char *prefix, char name[NAME_MAX + 1], struct err *e)
{
    DIR *d = opendir(o->dir);
    if (!d)
        return err_errno(e, errno, "open the log folder %s", o->dir);
    char newest[20] = "";
    for (struct dirent *entry; (entry = readdir(d));) {
        const char *stamp = match_name(entry->d_name, o->arch);
        if (!stamp || (prefix && strncmp(entry->d_name, prefix, strlen(prefix)) != 0) || strcmp(stamp, newest) <= 0)
            continue;
        memcpy(newest, stamp, sizeof newest);
        snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
    }
    closedir(d);
    return newest[0] ? 0 : -ENOENT;
}

static bool read_row(const char *row, int64_t *epoch, double *seconds)
{
    const char *at = row;
    for (int col = 0; col < COL_COUNT; col++) {
        char *end;
        errno = 0;
        double v = strtod(at, &end);
        if (end == at || *end != (col == COL_COUNT - 1 ? '\0' : ','))
            return false;
        if (col == COL_epoch)
            *epoch = (int64_t)v;
        if (col == COL_cumulative_time_spent)
            *seconds = v;
        at = end + 1;
    }
    return true;
}

struct old_log {
    bool ours; /* parameters and header are there */
    bool has_rows;
    int64_t keep;   /* bytes */
    double seconds; /* cumulative, of the last row kept */
};

static int scan_rows(struct lines *l, int64_t first_epoch, struct old_log *ret, struct err *e)
{
    int rc;
    if ((rc = lines_next(l, e)) <= 0 || strncmp(l->text, "# ", 2) != 0)
        return rc < 0 ? rc : 0;
    if ((rc = lines_next(l, e)) <= 0 || strcmp(l->text, HEADER) != 0)
        return rc < 0 ? rc : 0;
    ret->ours = true;
    ret->keep = l->end;
    while ((rc = lines_next(l, e)) > 0) {
        int64_t epoch = 0;
        double seconds = 0;
        ret->has_rows = true;
        if (!read_row(l->text, &epoch, &seconds) || epoch >= first_epoch)
            break;
        ret->keep = l->end;
        ret->seconds = seconds;
    }
    return rc < 0 ? rc : 0;
}

static int look_at(const char *path, int64_t first_epoch, struct old_log *ret, struct err *e)
{
    *ret = (struct old_log){0};
    struct lines *l = malloc(sizeof *l);
    if (!l)
        return err_set(e, -ENOMEM, "no memory to read %s", path);
    int rc = lines_open(l, path, e);
    if (rc == 0) {
        rc = scan_rows(l, first_epoch, ret, e);
        lines_close(l);
    }
    free(l);
    return rc;
}

static int write_head(struct caffe2_log *l, const char *parameters, struct err *e)
{
    struct buf b;
    buf_init(&b, LINE_MAX_BYTES);
    int rc = buf_printf(&b, "# %s\n%s\n", parameters, HEADER);
    if (rc < 0) {
        buf_free(&b);
        return err_set(e, rc, "the parameters of %s are too long: %zu bytes", l->path, strlen(parameters));
    }
    for (char *p = b.data; p < b.data + 2 + strlen(parameters); p++)
        if (*p == '\n' || *p == '\r')
            *p = ' ';
    rc = lines_write(l->fd, b.data, b.len, l->path, e);
    buf_free(&b);
    return rc;
}

/* Does a run that is alive write it? If not, it is ours as long as this process has it open. */
static bool lock_fails(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) < 0 &&
           errno == EWOULDBLOCK; /* a file system without locks is used without one */
}

/* 1: *l goes on with an old file, cut back; 0: there is none that fits. */
static int open_old(struct caffe2_log *l, const struct caffe2_log_options *o, const char *prefix, int64_t first_epoch,
                    double *ret_seconds, struct err *e)
{
    bool resume = o->resume || first_epoch > 0;
    char name[NAME_MAX + 1];
    struct old_log old;
    int rc = find_newest(o, resume ? NULL : prefix, name, e);
    if (rc < 0)
        return rc == -ENOENT ? 0 : rc;
    if (snprintf(l->path, sizeof l->path, "%s/%s", o->dir, name) >= (int)sizeof l->path)
        return err_set(e, -ENAMETOOLONG, "a path is too long: %s", o->dir);
    TRY(look_at(l->path, first_epoch, &old, e));
    if (!old.ours || (!resume && old.has_rows))
        return 0;
    l->fd = open(l->path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
    if (l->fd < 0)
        return err_errno(e, errno, "open %s", l->path);
    if (lock_fails(l->fd)) {
        close(l->fd);
        l->fd = -1;
        return 0;
    }
    if (ftruncate(l->fd, old.has_rows ? old.keep : 0) < 0)
        return err_errno(e, errno, "cut %s back", l->path);
    if (!old.has_rows)
        TRY(write_head(l, o->parameters, e));
    *ret_seconds = old.seconds;
    return 1;
}

/* Two starts within one second: the later one takes the next second's name. */
static int open_new(struct caffe2_log *l, const struct caffe2_log_options *o, const char *prefix, struct err *e)
{
    time_t now = time(NULL);
    for (int later = 0; later < 60; later++) {
        char stamp[24];
        struct tm tm;
        time_t t = now + later;
        localtime_r(&t, &tm);
        strftime(stamp, sizeof stamp, "%Y%m%d_%H%M%S", &tm);
        if (snprintf(l->path, sizeof l->path, "%s/%s%s.log", o->dir, prefix, stamp) >= (int)sizeof l->path)
            return err_set(e, -ENAMETOOLONG, "a path is too long: %s", o->dir);
        l->fd = open(l->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (l->fd >= 0 && !lock_fails(l->fd))
            return write_head(l, o->parameters, e);
        if (l->fd >= 0) { /* another start was quicker to use it again */
            close(l->fd);
            l->fd = -1;
            continue;
        }
        if (errno != EEXIST)
            return err_errno(e, errno, "create %s", l->path);
    }
    return err_set(e, -EEXIST, "%s and the names of the next minute are taken", l->path);
}

int caffe2_log_open(struct caffe2_log **ret, const struct caffe2_log_options *o, int64_t first_epoch,
                    double *ret_seconds, struct err *e)
{
    char prefix[NAME_MAX + 1];
    if (!o->arch[0] || strchr(o->arch, '/') ||
        snprintf(prefix, sizeof prefix, NAME_FORMAT, o->arch, o->devices, o->batch, o->labels, o->lr) >= NAME_MAX - 24)
        return err_set(e, -EINVAL, "architecture '%.40s' cannot be part of a file name", o->arch);
    struct caffe2_log *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, -ENOMEM, "no memory for a log in %s", o->dir);
    l->fd = -1;
    double seconds = 0;
    int rc = open_old(l, o, prefix, first_epoch, &seconds, e);
    if (rc == 0)
        rc = open_new(l, o, prefix, e);
    if (rc < 0) {
        caffe2_log_close(l);
        return rc;
    }
    *ret_seconds = seconds;
    *ret = l;
    return 0;
}

int caffe2_log_row(struct caffe2_log *l, const struct caffe2_row *r, struct err *e)
{
    char line[2048]; /* 11 numbers: three of at most 320 bytes, eight of 25 */
    size_t at = 0;
#define X(name, format, type) at += (size_t)snprintf(line + at, sizeof line - at, format ",", (type)r->name);
    COLUMNS(X)
#undef X
    line[at - 1] = '\n';
    return lines_write(l->fd, line, at, l->path, e);
}

const char *caffe2_log_path(const struct caffe2_log *l)
{
    return l->path;
}

void caffe2_log_close(struct caffe2_log *l)
{
    if (!l)
        return;
    if (l->fd >= 0)
        close(l->fd);
    free(l);
}
