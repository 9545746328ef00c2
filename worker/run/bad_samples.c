/* Writes the names of samples that cannot be used, and ends a run that has no others. */
#include "worker/run/bad_samples.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "worker/comm/comm.h"
#include "worker/data/loader/left_out.h"
#include "worker/data/loader/loader.h"
#include "worker/data/sets/dataset.h"

#define FILE_MAX_BYTES ((off_t)64 << 20)

/* A line break or tab in a name would be one of the file. */
static int add_clean(struct buf *b, const char *text)
{
    const size_t at = b->len;
    const int rc = buf_addstr(b, text);
    if (rc == 0)
        printable_make(b->data + at, b->len - at);
    return rc;
}

static int add_line(struct buf *b, struct dataset *d, const struct left_out_item *it)
{
    int rc = add_clean(b, d->ops->sample_name(d, it->id));
    rc = rc == 0 ? buf_addstr(b, "\t") : rc;
    rc = rc == 0 ? add_clean(b, it->why) : rc;
    return rc == 0 ? buf_addstr(b, "\n") : rc;
}

static int append(const char *path, const struct buf *b)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    int rc = fd < 0 ? -errno : 0;
    if (rc == 0)
        rc = lseek(fd, 0, SEEK_END) > FILE_MAX_BYTES ? -EFBIG : file_write_all(fd, b->data, b->len);
    if (fd >= 0 && close(fd) < 0 && rc == 0)
        rc = -errno;
    return rc;
}

static void write_items(const char *path, struct dataset *d, const struct left_out_item *items, size_t n)
{
    struct buf b = {0};
    int rc = 0;
    if (!path || n == 0)
        return;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = add_line(&b, d, &items[i]);
    rc = rc == 0 ? append(path, &b) : rc;
    if (rc < 0)
        log_warn("data", "names of %zu samples that were left out cannot be written to %s: %s", n, path, strerror(-rc));
    buf_free(&b);
}

void bad_samples_write(const char *path, struct loader *l, struct dataset *d)
{
    struct left_out *o = l ? loader_left_out(l) : NULL;
    if (!o)
        return;
    write_items(path, d, o->items, o->n_items);
    left_out_forget(o);
}

/* Everybody's items, in rank order. */
static int gather(struct comm *c, const struct left_out *o, struct left_out_item **ret, size_t *ret_n, struct err *e)
{
    size_t *bytes = calloc((size_t)c->world, sizeof *bytes);
    int64_t *counts = calloc((size_t)c->world, sizeof *counts), mine = o ? (int64_t)o->n_items : 0;
    int rc = bytes && counts ? c->ops->all_gather(c, COMM_CONTROL, &mine, counts, sizeof mine, NULL, e)
                             : err_errno(e, ENOMEM, "names of samples");
    for (int r = 0; r < c->world && rc == 0; r++) {
        if (counts[r] < 0 || counts[r] > LEFT_OUT_LISTED)
            rc = err_set(e, -EPROTO, "rank %d tells of %lld samples", r, (long long)counts[r]);
        bytes[r] = (size_t)counts[r] * sizeof **ret;
        *ret_n += (size_t)counts[r];
    }
    if (rc == 0 && !(*ret = calloc(*ret_n + 1, sizeof **ret)))
        rc = err_errno(e, ENOMEM, "names of %zu samples", *ret_n);
    if (rc == 0 && *ret_n > 0)
        rc = c->ops->all_gather_v(c, COMM_CONTROL, o ? o->items : NULL, *ret, bytes, NULL, e);
    free(bytes);
    free(counts);
    return rc;
}

int bad_samples_share(const char *path, struct loader *l, struct dataset *d, struct comm *c, struct err *e)
{
    struct left_out *o = l ? loader_left_out(l) : NULL;
    struct left_out_item *all = NULL;
    size_t n = 0;
    int rc = gather(c, o, &all, &n, e);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        all[i].why[sizeof all[i].why - 1] = '\0';
        if (all[i].id >= d->n)
            rc = err_set(e, -EPROTO, "a rank tells of sample %u of %zu", all[i].id, d->n);
        else if (o)
            left_out_know(o, all[i].id);
    }
    if (rc == 0)
        write_items(path, d, all, n);
    if (rc == 0 && o)
        left_out_forget(o);
    free(all);
    return rc;
}

int bad_samples_refuse(struct loader *l, struct dataset *d, const char *data, int64_t n, struct err *e)
{
    const struct left_out *o = l ? loader_left_out(l) : NULL;
    struct buf b = {.max = 4096};
    for (size_t i = 0; o && i < o->n_items && i < 3; i++) {
        const char *name = d->ops->sample_name(d, o->items[i].id);
        const size_t length = strlen(name);
        buf_printf(&b, "%s'%s%s'", i ? ", " : "", length > 40 ? "..." : "", name + (length > 40 ? length - 40 : 0));
    }
    err_set(e, ERR_DATA, "not one of the first %lld images of %.60s could be used: %s%s%s", (long long)n, data,
            b.len > 0 ? o->items[0].why : "see the other ranks' messages", b.len > 0 ? "; such are " : "",
            b.len > 0 ? b.data : "");
    buf_free(&b);
    return ERR_DATA;
}
