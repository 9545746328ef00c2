/* Writing metrics.jsonl, and cutting it back when a run goes on from an earlier step.
 *
 * Cutting back: all up to the first line to go stays where it is. Mostly nothing behind it is to be kept: one
 * ftruncate(2). Otherwise the file is written anew beside itself and renamed, so that a kill at any moment leaves the
 * old file or the new one. */
#include "worker/report/metrics.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/json/json.h"
#include "worker/report/lines.h"

struct metrics {
    int fd; /* O_APPEND */
    char *path;
    int64_t last_step; /* metrics_last_step() */
};

/* What stays of a file. */
struct cut {
    int64_t at;      /* bytes at the front that stay; -1: all */
    struct buf tail; /* lines behind them that stay */
    double seconds, last_step;
};

/* Our own lines are written with these exact keys; within JSON strings the quote before the colon would be escaped. */
static bool find_number(const char *line, const char *key, double *ret)
{
    const char *at = strstr(line, key);
    char *end;
    if (!at)
        return false;
    double v = strtod(at + strlen(key), &end);
    if (end == at + strlen(key))
        return false;
    *ret = v;
    return true;
}

static int find_cut(const char *path, int64_t first_step, bool evaluates, struct cut *c, struct err *e)
{
    struct lines *l = malloc(sizeof *l);
    if (!l)
        return err_set(e, -ENOMEM, "no memory to read %s", path);
    int rc = lines_open(l, path, e);
    if (rc < 0) {
        free(l);
        return rc;
    }
    while ((rc = lines_next(l, e)) > 0) {
        double step;
        bool known = find_number(l->text, "\"step\":", &step);
        bool redone = evaluates && known && step == (double)first_step && strstr(l->text, "\"test_loss\":");
        if (redone || (known && step > (double)first_step)) {
            c->at = c->at < 0 ? l->begin : c->at;
            continue;
        }
        find_number(l->text, "\"seconds\":", &c->seconds);
        if (known && strstr(l->text, "\"lr\":"))
            c->last_step = step;
        if (c->at >= 0 && buf_printf(&c->tail, "%s\n", l->text) < 0) {
            rc = err_set(e, -ENOMEM, "no memory to cut %s back", path);
            break;
        }
    }
    if (rc == 0 && l->torn && c->at < 0)
        c->at = l->end;
    lines_close(l);
    free(l);
    return rc;
}

static int copy_front(int from, int to, int64_t n, const char *path, struct err *e)
{
    char piece[65536];
    for (int64_t at = 0; at < n;) {
        size_t want = n - at < (int64_t)sizeof piece ? (size_t)(n - at) : sizeof piece;
        ssize_t r = pread(from, piece, want, at);
        if (r <= 0)
            return err_errno(e, r < 0 ? errno : EIO, "read %s", path);
        TRY(lines_write(to, piece, (size_t)r, path, e));
        at += r;
    }
    return 0;
}

/* A new file of front and tail takes the place of path; *fd becomes it. */
static int rewrite(int *fd, const char *path, const struct cut *c, struct err *e)
{
    char tmp[4096];
    if (snprintf(tmp, sizeof tmp, "%s.tmp", path) >= (int)sizeof tmp)
        return err_set(e, -ENAMETOOLONG, "a path is too long: %s", path);
    unlink(tmp);
    int new_fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (new_fd < 0)
        return err_errno(e, errno, "create %s", tmp);
    int rc = copy_front(*fd, new_fd, c->at, path, e);
    if (rc == 0)
        rc = lines_write(new_fd, c->tail.data, c->tail.len, tmp, e);
    if (rc == 0 && (fsync(new_fd) < 0 || rename(tmp, path) < 0))
        rc = err_errno(e, errno, "put %s in place", tmp);
    if (rc < 0) {
        close(new_fd);
        unlink(tmp);
        return rc;
    }
    close(*fd);
    *fd = new_fd;
    return 0;
}

static int cut_back(int *fd, const char *path, int64_t first_step, bool evaluates, struct cut *ret, struct err *e)
{
    struct cut c = {.at = -1};
    int rc = find_cut(path, first_step, evaluates, &c, e);
    if (rc == 0 && c.tail.len > 0)
        rc = rewrite(fd, path, &c, e);
    else if (rc == 0 && c.at >= 0 && ftruncate(*fd, c.at) < 0)
        rc = err_errno(e, errno, "cut %s back", path);
    buf_free(&c.tail);
    ret->seconds = c.seconds;
    ret->last_step = c.last_step;
    return rc;
}

int metrics_open(struct metrics **ret, const char *path, int64_t first_step, bool evaluates, double *ret_seconds,
                 struct err *e)
{
    struct cut kept = {.at = -1};
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd < 0)
        return err_errno(e, errno, "open %s", path);
    struct stat st;
    int rc = fstat(fd, &st) < 0     ? err_errno(e, errno, "look at %s", path)
             : !S_ISREG(st.st_mode) ? err_set(e, -EINVAL, "%s is not a regular file", path)
                                    : cut_back(&fd, path, first_step, evaluates, &kept, e);
    struct metrics *m = rc == 0 ? calloc(1, sizeof *m) : NULL;
    if (rc == 0 && (!m || !(m->path = strdup(path))))
        rc = err_set(e, -ENOMEM, "no memory to open %s", path);
    if (rc < 0) {
        close(fd);
        free(m);
        return rc;
    }
    m->fd = fd;
    m->last_step = (int64_t)kept.last_step;
    *ret = m;
    *ret_seconds = kept.seconds;
    return 0;
}

int64_t metrics_last_step(const struct metrics *m)
{
    return m->last_step;
}

void metrics_close(struct metrics *m)
{
    if (!m)
        return;
    close(m->fd);
    free(m->path);
    free(m);
}

/* One line, one write. What a full disk leaves of it is taken back, so that the next line does not continue it. */
static int write_line(struct metrics *m, const char *line, size_t n, struct err *e)
{
    struct stat st;
    bool known = fstat(m->fd, &st) == 0;
    int rc = lines_write(m->fd, line, n, m->path, e);
    if (rc < 0 && known && ftruncate(m->fd, st.st_size) < 0)
        return rc; /* the first error says more; a torn line is cut at the next start */
    return rc;
}

struct member {
    const char *name;
    double value;
    bool exact, left_out;
};

/* Ten digits, or, where the value is compared with another run's, as few as read back to the very same number. */
static int put_number(char *out, size_t cap, double v, bool exact)
{
    int n, digits = 10;
    if (!isfinite(v))
        return snprintf(out, cap, "null");
    do
        n = snprintf(out, cap, "%.*g", digits, v);
    while (exact && strtod(out, NULL) != v && ++digits <= 17);
    return n;
}

static int put_object(struct metrics *m, const struct member *v, size_t n, struct err *e)
{
    char line[1024];
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (v[i].left_out)
            continue;
        at += (size_t)snprintf(line + at, sizeof line - at, "%c\"%s\":", at ? ',' : '{', v[i].name);
        at += (size_t)put_number(line + at, sizeof line - at, v[i].value, v[i].exact);
    }
    at += (size_t)snprintf(line + at, sizeof line - at, "}\n");
    return write_line(m, line, at, e);
}

int metrics_step(struct metrics *m, const struct metrics_step *s, struct err *e)
{
    const bool unscaled = !(s->loss_scale > 0);
    const struct member v[] = {
        {"step", (double)s->step},
        {"epoch", s->epoch},
        {"loss", s->loss, .exact = true},
        {"perplexity", exp(s->loss), .left_out = !s->tokens},
        {"acc1", s->acc1},
        {"acc5", s->acc5},
        {"lr", s->lr},
        {s->tokens ? "tokens_per_sec" : "images_per_sec", s->rate},
        {"data_wait", s->data_wait},
        {"comm_wait", s->comm_wait},
        {"seconds", s->seconds},
        {"bad_samples", (double)s->bad_samples},
        {"loss_scale", s->loss_scale, .left_out = unscaled},
        {"skipped", (double)s->skipped, .left_out = unscaled},
        {"grad_norm", s->grad_norm, .left_out = s->grad_norm == 0},
    };
    return put_object(m, v, sizeof v / sizeof *v, e);
}

int metrics_eval(struct metrics *m, const struct metrics_eval *s, struct err *e)
{
    const struct member v[] = {
        {"step", (double)s->step},
        {"epoch", s->epoch},
        {"test_loss", s->loss, .exact = true},
        {"test_perplexity", exp(s->loss), .left_out = !s->tokens},
        {"test_acc1", s->acc1},
        {"test_acc5", s->acc5},
        {s->tokens ? "test_tokens" : "test_images", (double)s->counted},
        {"seconds", s->seconds},
        {"bad_samples", (double)s->bad_samples},
    };
    return put_object(m, v, sizeof v / sizeof *v, e);
}

/* Hand the members of `from` over to `to`; from may be NULL. */
static void move_members(cJSON *to, cJSON *from)
{
    for (cJSON *i; from && to && (i = from->child);) {
        cJSON_DetachItemViaPointer(from, i);
        cJSON_AddItemToObject(to, i->string, i);
    }
    cJSON_Delete(from);
}

/* Writes o as a line, and frees it. */
static int put_json(struct metrics *m, cJSON *o, bool complete, struct err *e)
{
    complete = complete && json_clean(o, NULL) == 0;
    char *text = complete ? cJSON_PrintUnformatted(o) : NULL;
    cJSON_Delete(o);
    size_t n = text ? strlen(text) : 0;
    char *line = text ? realloc(text, n + 2) : NULL;
    if (!line) {
        free(text);
        return err_set(e, -ENOMEM, "no memory for an event");
    }
    memcpy(line + n, "\n", 2);
    int rc = n + 1 < LINE_MAX_BYTES ? write_line(m, line, n + 1, e) : err_set(e, -EINVAL, "an event has %zu bytes", n);
    free(line);
    return rc;
}

int metrics_event(struct metrics *m, const char *name, int64_t step, int restart, struct cJSON *more, struct err *e)
{
    char when[CLOCK_ISO_LEN];
    cJSON *o = cJSON_CreateObject();
    bool complete = cJSON_AddStringToObject(o, "event", name) && cJSON_AddNumberToObject(o, "step", (double)step) &&
                    cJSON_AddNumberToObject(o, "restart", restart) &&
                    cJSON_AddStringToObject(o, "time", clock_iso(when, sizeof when));
    move_members(o, more);
    return put_json(m, o, complete, e);
}

int metrics_checkpoint(struct metrics *m, int64_t step, double copy_ms, double write_ms, int64_t bytes, struct err *e)
{
    cJSON *o = cJSON_CreateObject();
    bool complete =
        cJSON_AddStringToObject(o, "event", "checkpoint") && cJSON_AddNumberToObject(o, "step", (double)step) &&
        cJSON_AddNumberToObject(o, "copy_ms", copy_ms) && cJSON_AddNumberToObject(o, "write_ms", write_ms) &&
        cJSON_AddNumberToObject(o, "bytes", (double)bytes);
    return put_json(m, o, complete, e);
}
