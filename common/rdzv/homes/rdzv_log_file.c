/* A job's home in a directory that all its nodes share (file:///DIR), made to work on NFS.
 *
 *   DIR/crun-RUN/             mode 0700, ours; made under another name, and renamed when it is whole
 *     claim/...               who leads (rdzv_log_file_claim.c)
 *     log/00000001 ...        one decision each: written whole under another name, fsync(2), then link(2): a name is
 *                             taken once, by one
 *     log/first               the number of the first decision that counts, after older ones were removed
 *
 * link() is the fence of the log: two leaders cannot both take the next number, and each begins with a record of its
 * own, so that an older one finds its next number taken. A reply lost on its way makes the kernel say EEXIST to the one
 * who did take it: reading back tells. Decisions stay until the job ends, or until one that has led for a minute writes
 * a whole one: then `first` names that one, and those before it go. An older leader that takes a number which was
 * removed sees `first`, and gives it back.
 *
 * Files are read by open, read, close: that is what NFS keeps coherent (close-to-open). Nothing relies on inotify,
 * locks, or times of files (but for what is cleared away, rdzv_log_file_clear.c).
 *
 * The folder that a handle has open may be none of the job's any more: DIR was mounted anew, moved away, or removed and
 * made again. Each call asks whether the path still names it, and goes by the path. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/rdzv/homes/framed_file.h"
#include "common/rdzv/homes/rdzv_log_file_internal.h"
#include "common/rdzv/homes/rdzv_log_home.h"
#include "common/rdzv/wire/rdzv_wire.h"

#define FILE_FIRST FILE_LOG "/first"
#ifndef DROP_AFTER_MS
#define DROP_AFTER_MS 60000 /* since the claim: far more than a claim is valid */
#endif

/* --- small files */

int file_write(struct file_home *h, const char *path, int flags, bool sync, const char *text, size_t n, struct err *e)
{
    int rc = framed_file_write(h->job_fd, path, flags, sync, text, n);
    return rc < 0 ? err_errno(e, -rc, "write '%s/%s/%s'", h->dir, h->name, path) : 0;
}

int file_read(struct file_home *h, const char *path, struct buf *out, struct err *e)
{
    int rc = framed_file_read(h->job_fd, path, out);
    return rc < 0 ? err_errno(e, -rc, "read '%s/%s/%s'", h->dir, h->name, path) : 0;
}

/* --- the folder */

static int check_owner(struct file_home *h, struct err *e)
{
    struct stat st;
    if (fstat(h->job_fd, &st) < 0)
        return err_errno(e, errno, "'%s/%s'", h->dir, h->name);
    if (st.st_uid != geteuid())
        return err_set(e, ERR_REFUSED, "'%s/%s' belongs to uid %u, not to us (%u): another user's job has this run id",
                       h->dir, h->name, (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_mode & 022)
        return err_set(e, ERR_REFUSED, "'%s/%s' may be written by others (mode %03o): expected 700", h->dir, h->name,
                       (unsigned)st.st_mode & 0777);
    if (faccessat(h->job_fd, FILE_CLAIM, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
        return err_set(e, ERR_REFUSED,
                       "'%s/%s' is of an older version of crun, whose nodes dial no leader: all nodes of a job must "
                       "have the same",
                       h->dir, h->name);
    return 0;
}

void file_leave(struct file_home *h)
{
    if (h->job_fd >= 0)
        close(h->job_fd);
    h->job_fd = -1;
}

/* What a folder begins with, in one of another name. */
static int furnish(int fd)
{
    if (mkdirat(fd, FILE_CLAIM, 0700) < 0 || mkdirat(fd, FILE_LOG, 0700) < 0)
        return -errno;
    TRY(framed_file_write(fd, FILE_MARK, O_EXCL, false, RDZV_HOME_MARK, strlen(RDZV_HOME_MARK)));
    TRY(file_token_make(fd));
    return fsync(fd) < 0 ? -errno : 0;
}

/* There is one afterwards, ours or another node's. */
static int make_folder(const struct file_home *h)
{
    char draft[64];
    int rc = 0;
    if (faccessat(h->dir_fd, h->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    snprintf(draft, sizeof draft, "crun-~new-%d-%lld", (int)getpid(), (long long)clock_ns());
    if (mkdirat(h->dir_fd, draft, 0700) < 0)
        return -errno;
    const int fd = openat(h->dir_fd, draft, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    rc = fd < 0 ? -errno : furnish(fd);
    if (rc == 0 && renameat(h->dir_fd, draft, h->dir_fd, h->name) < 0)
        rc = errno == EEXIST || errno == ENOTEMPTY ? 1 : -errno;
    if (rc != 0 && fd >= 0)
        file_remove(h->dir_fd, fd, draft);
    if (fd >= 0)
        close(fd);
    return rc < 0 ? rc : fsync(h->dir_fd) < 0 ? -errno : 0;
}

static bool is_same(int fd, const struct stat *st)
{
    struct stat own;
    return fstat(fd, &own) == 0 && st->st_dev == own.st_dev && st->st_ino == own.st_ino;
}

/* The folder we hold may have been cleared away with an earlier job. */
static bool is_there(const struct file_home *h)
{
    struct stat st;
    return fstatat(h->dir_fd, h->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && is_same(h->job_fd, &st);
}

static int no_folder(const struct file_home *h, int errno_value, struct err *e)
{
    /* nobody makes it; not to be taken for a file in it that comes and goes, nor for one that is another now */
    const int rc = errno_value == ENOENT ? -ENOTDIR : errno_value == ESTALE ? -EIO : -errno_value;
    return err_set(e, rc, "the shared folder '%s': %s", h->dir, strerror(errno_value));
}

/* DIR itself. -ESTALE, once, when it is another one; the next call opens it. */
static int check_dir(struct file_home *h, struct err *e)
{
    struct stat st;
    if (h->dir_fd < 0)
        return 0;
    if (stat(h->dir, &st) < 0)
        return no_folder(h, errno, e);
    if (is_same(h->dir_fd, &st))
        return 0;
    file_leave(h);
    close(h->dir_fd);
    h->dir_fd = -1;
    return err_set(e, -ESTALE,
                   "the shared folder '%s' is another one now than when this node began (mounted anew, or replaced): "
                   "the job goes by what is in it now",
                   h->dir);
}

/* make: the folder, too. 1: there is none. */
static int enter_folder(struct file_home *h, bool make, struct err *e)
{
    if (h->dir_fd < 0)
        h->dir_fd = open(h->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (h->dir_fd < 0)
        return no_folder(h, errno, e);
    int rc = make ? make_folder(h) : 0;
    if (rc == 0)
        h->job_fd = openat(h->dir_fd, h->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (!make && h->job_fd < 0 && errno == ENOENT)
        return 1;
    if (rc < 0 || h->job_fd < 0)
        return err_errno(e, rc < 0 ? -rc : errno, "the job's folder '%s/%s'", h->dir, h->name);
    rc = check_owner(h, e);
    h->next = 0;
    h->reign[0] = 0;
    if (rc == 0)
        return 0;
    const bool gone = !is_there(h); /* cleared away meanwhile: then it is empty, not another version's */
    file_leave(h);
    return gone ? err_set(e, -EAGAIN, "'%s/%s' is being removed", h->dir, h->name) : rc;
}

int file_inside(struct file_home *h, bool make, struct err *e)
{
    TRY(check_dir(h, e));
    if (h->job_fd >= 0 && !is_there(h))
        file_leave(h);
    return h->job_fd >= 0 ? 0 : enter_folder(h, make, e);
}

/* --- the log */

static void decision_name(unsigned n, char out[32])
{
    snprintf(out, 32, FILE_LOG "/%08u", n);
}

/* The number of the first decision that counts. */
static int read_first(struct file_home *h, unsigned *ret, struct err *e)
{
    struct buf b = {0};
    int rc = file_read(h, FILE_FIRST, &b, e);
    *ret = rc == 0 && b.len ? (unsigned)strtoul(b.data, NULL, 10) : 1;
    buf_free(&b);
    return rc == -ENOENT ? 0 : rc;
}

/* Read decision h->next, and on, to the end; out may be NULL. */
static int read_on(struct file_home *h, struct buf *out, struct err *e)
{
    struct buf b = {0};
    char name[32], epoch[RDZV_EPOCH_MAX + 1];
    int rc = 0;
    while (rc == 0) {
        decision_name(h->next, name);
        rc = file_read(h, name, &b, e);
        if (rc < 0)
            break;
        size_t line = strcspn(b.data, "\n"), word = strcspn(b.data, " \n") + 1; /* "@reign epoch=..." */
        if (line > word && rdzv_field_find(b.data + word, line - word, "epoch", epoch, sizeof epoch) == 1)
            memcpy(h->reign, epoch, sizeof epoch);
        rc = out ? buf_add(out, b.data, b.len) : 0;
        h->next++;
    }
    buf_free(&b);
    return rc == -ENOENT   ? 0
           : rc == -EAGAIN ? err_set(e, ERR_CORRUPT, "'%s/%s/%s' is damaged", h->dir, h->name, name)
                           : rc;
}

/* To the end; while this is read, what comes first may be removed. */
static int catch_up(struct file_home *h, struct buf *out, struct err *e)
{
    unsigned first, before;
    TRY(read_first(h, &first, e));
    do {
        before = first;
        if (h->next < first) {
            h->next = first;
            if (out)
                buf_clear(out);
        }
        TRY(read_on(h, out, e));
        TRY(read_first(h, &first, e));
    } while (first > before && first > h->next);
    return 0;
}

static int sync_log(const struct file_home *h)
{
    const int fd = openat(h->job_fd, FILE_LOG, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int rc = fd < 0 || fsync(fd) < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return rc;
}

/* A whole decision has the last number that was taken: those before it go. What fails is tried with the next one. */
static void drop_older(struct file_home *h)
{
    const unsigned whole = h->next - 1;
    char name[32], draft[64], text[16];
    unsigned n;
    if (!h->claimed || clock_ms() - h->claimed < DROP_AFTER_MS || read_first(h, &n, NULL) < 0)
        return;
    snprintf(draft, sizeof draft, FILE_LOG "/.draft-%d-%lld", (int)getpid(), (long long)clock_ns());
    const int len = snprintf(text, sizeof text, "%u\n", whole);
    if (file_write(h, draft, O_EXCL, true, text, (size_t)len, NULL) < 0 ||
        renameat(h->job_fd, draft, h->job_fd, FILE_FIRST) < 0 || sync_log(h) < 0) {
        unlinkat(h->job_fd, draft, 0);
        return;
    }
    for (; n < whole; n++) {
        decision_name(n, name);
        unlinkat(h->job_fd, name, 0);
    }
}

/* A number that was just taken: was it free because older ones were removed? `first` is written before they go. */
static int check_number(struct file_home *h, const char *name, struct err *e)
{
    unsigned first;
    TRY(read_first(h, &first, e));
    if (h->next - 1 >= first)
        return 1;
    unlinkat(h->job_fd, name, 0);
    return 0;
}

/* Take the next number for text. 1, or 0: somebody else has it. */
static int take_number(struct file_home *h, const struct buf *text, struct err *e)
{
    char name[32], draft[64];
    struct buf b = {0};
    decision_name(h->next, name);
    snprintf(draft, sizeof draft, FILE_LOG "/.draft-%d-%lld", (int)getpid(), (long long)clock_ns());
    TRY(file_write(h, draft, O_EXCL, true, text->data, text->len, e));
    int rc = linkat(h->job_fd, draft, h->job_fd, name, 0) == 0 ? 1 : -errno;
    unlinkat(h->job_fd, draft, 0);
    const int synced = rc == 1 ? sync_log(h) : 0; /* the name, too, is on disk before it counts */
    rc = synced < 0 ? synced : rc;
    if (rc == -EEXIST) { /* by us, if a reply was lost on its way */
        rc = file_read(h, name, &b, e);
        rc = rc < 0 ? rc : b.len == text->len && memcmp(b.data, text->data, b.len) == 0;
        buf_free(&b);
    } else if (rc < 0)
        return err_errno(e, -rc, "link '%s/%s/%s'", h->dir, h->name, name);
    h->next += rc == 1;
    return rc == 1 ? check_number(h, name, e) : rc;
}

/* --- the calls */

static int file_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    TRY(file_inside((struct file_home *)base, true, e));
    snprintf(ret, RDZV_IDENTITY_MAX + 1, "folder");
    return 0;
}

/* An older leader's decision may come before our record, which the load that follows then reads. */
static int file_claim(struct rdzv_home *base, const struct rdzv_claim *seen, const struct rdzv_claim *own,
                      const struct buf *record, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    int rc;
    TRY(file_inside(h, true, e));
    TRY(rc = file_token_take(h, seen, own, e));
    while (rc == 1) {
        TRY(catch_up(h, NULL, e));
        int taken;
        TRY(taken = take_number(h, record, e));
        if (taken == 1)
            break;
    }
    memcpy(h->reign, own->epoch, sizeof h->reign);
    h->claimed = rc == 1 ? clock_ms() : 0;
    return rc;
}

static int file_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    const int rc = file_inside(h, false, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    h->next = 1;
    return catch_up(h, ret, e);
}

/* A handle that has read nothing yet, or whose decision may stand already, reads to the end first. */
static int file_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    const int rc = file_inside(h, false, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    if (h->next == 0)
        TRY(catch_up(h, NULL, e));
    const int taken = strcmp(h->reign, w->epoch) == 0 ? take_number(h, w->decision, e) : 0;
    if (taken == 1 && w->whole)
        drop_older(h);
    return taken;
}

static int file_renew(struct rdzv_home *base, struct rdzv_claim *own, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    const int rc = file_inside(h, false, e);
    return rc != 0 ? (rc < 0 ? rc : 0) : file_token_renew(h, own, e);
}

/* --- the handle */

static void file_close(struct rdzv_home *base)
{
    struct file_home *h = (struct file_home *)base;
    if (!h)
        return;
    file_leave(h);
    if (h->dir_fd >= 0)
        close(h->dir_fd);
    rdzv_home_finish_(base);
    free(h->dir);
    free(h->name);
    free(h);
}

static const struct rdzv_home_ops file_ops = {
    .name = "file",
    .identity = file_identity,
    .load = file_load,
    .append = file_append,
    .forget = file_forget,
    .close = file_close,
    .look = file_look,
    .claim = file_claim,
    .renew = file_renew,
};

int rdzv_log_file_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e)
{
    const char *path = url + strlen("file://");
    char run[FILE_NAME_CAP];
    struct file_home *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for a shared folder");
    h->dir_fd = h->job_fd = -1;
    h->keep_ms = o->keep_ms;
    framed_file_escape(o->run_id, run, sizeof run - 64);
    h->dir = strdup(path);
    const int rc = rdzv_home_init_(&h->base, &file_ops, e);
    if (rc < 0 || !h->dir || asprintf(&h->name, "crun-%s", run) < 0) {
        file_close(&h->base);
        return rc < 0 ? rc : err_set(e, -ENOMEM, "no memory for a shared folder");
    }
    *ret = &h->base;
    return 0;
}
