/* A job's home in a directory that all its nodes share (file:///DIR), made to work on NFS.
 *
 *   DIR/crun-RUN/             mode 0700, ours
 *     decision-00000001 ...   one decision each: written whole under another name, fsync(2), then link(2): a name is
 *                             taken once, by one
 *     pulse                   renewed by the leader
 *     beats/NODE, slots/NODE  written by the node, and for it
 *
 * link() is the fence: two leaders cannot both take the next number. A reply lost on its way makes the kernel say
 * EEXIST to the one who did take it: reading back tells. Decisions stay until the job ends: nobody can mistake a gap
 * for the end of the log. The other files are written in place, as frames with a checksum, and read by open,
 * read, close: that is what NFS keeps coherent (close-to-open). Nothing relies on inotify, locks, renaming over a file
 * that others read, or times of files (but for what is cleared away, rdzv_log_file_clear.c); a file read while it is
 * being written fails its checksum and is read again. A folder's cached listing is refreshed by making a file in it.
 * Everybody polls: every 20 ms while something happens, backing off to 1 s. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/net/own_address.h"
#include "common/net/resolve.h"
#include "common/rdzv/homes/framed_file.h"
#include "common/rdzv/homes/rdzv_log_file_internal.h"
#include "common/rdzv/homes/rdzv_log_home.h"
#include "common/rdzv/wire/rdzv_wire.h"

enum { POLL_FIRST_MS = 20, POLL_LAST_MS = 1000 };

/* --- small files */

int file_write(struct file_home *h, const char *path, int flags, bool sync, const char *text, size_t n, struct err *e)
{
    int rc = framed_file_write(h->job_fd, path, flags, sync, text, n);
    return rc < 0 ? err_errno(e, -rc, "write '%s/%s/%s'", h->dir, h->name, path) : 0;
}

int file_read(struct file_home *h, const char *path, struct buf *out, struct err *e)
{
    int rc = framed_file_read(h->job_fd, path, out);
    if (rc == -EPROTONOSUPPORT)
        return err_set(e, rc, "'%s/%s/%s' is of an older version of crun: all nodes of a job must have the same",
                       h->dir, h->name, path);
    return rc < 0 ? err_errno(e, -rc, "read '%s/%s/%s'", h->dir, h->name, path) : 0;
}

/* --- the folder */

static int make_folder(int at, const char *name)
{
    return mkdirat(at, name, 0700) == 0 || errno == EEXIST ? 0 : -errno;
}

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
    h->job_inode = st.st_ino;
    return 0;
}

void file_leave(struct file_home *h)
{
    if (h->job_fd >= 0)
        close(h->job_fd);
    h->job_fd = -1;
}

/* make: the folder, too. 1: there is none. */
static int enter_folder(struct file_home *h, bool make, struct err *e)
{
    if (h->dir_fd < 0)
        h->dir_fd = open(h->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (h->dir_fd < 0 && errno == ENOENT) /* nobody makes it; not to be taken for a file in it that comes and goes */
        return err_set(e, -ENOTDIR, "the shared folder '%s': %s", h->dir, strerror(ENOENT));
    if (h->dir_fd < 0)
        return err_errno(e, errno, "the shared folder '%s'", h->dir);
    int rc = make ? make_folder(h->dir_fd, h->name) : 0;
    if (rc == 0)
        h->job_fd = openat(h->dir_fd, h->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (!make && h->job_fd < 0 && errno == ENOENT)
        return 1;
    if (rc < 0 || h->job_fd < 0)
        return err_errno(e, rc < 0 ? -rc : errno, "the job's folder '%s/%s'", h->dir, h->name);
    rc = check_owner(h, e);
    if (rc == 0 && make && ((rc = make_folder(h->job_fd, "beats")) < 0 || (rc = make_folder(h->job_fd, "slots")) < 0))
        err_errno(e, -rc, "the job's folder '%s/%s'", h->dir, h->name);
    if (rc < 0)
        file_leave(h);
    if (rc == 0 && make && (fsync(h->job_fd) < 0 || fsync(h->dir_fd) < 0))
        rc = err_errno(e, errno, "the job's folder '%s/%s'", h->dir, h->name);
    h->next = 1;
    h->epoch[0] = 0;
    h->has_slot = false;
    return rc;
}

/* The folder we hold may have been cleared away by the last of an earlier job. */
static int be_inside(struct file_home *h, bool make, struct err *e)
{
    struct stat st;
    if (h->job_fd >= 0 && (fstatat(h->dir_fd, h->name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_ino != h->job_inode))
        file_leave(h);
    return h->job_fd >= 0 ? 0 : enter_folder(h, make, e);
}

int file_inside(struct file_home *h, struct err *e)
{
    return be_inside(h, true, e);
}

int file_inside_if_there(struct file_home *h, struct err *e)
{
    return be_inside(h, false, e);
}

static int64_t file_now(struct rdzv_home *base)
{
    (void)base;
    return clock_ms();
}

int64_t file_poll_ms(struct file_home *h)
{
    int64_t ms = (clock_ms() - h->active) / 10;
    return ms < POLL_FIRST_MS ? POLL_FIRST_MS : ms > POLL_LAST_MS ? POLL_LAST_MS : ms;
}

bool file_doze(struct file_home *h, int64_t ms)
{
    return rdzv_home_wait_(&h->base, -1, -1, clock_deadline(ms)) == 0;
}

static void note_activity(struct file_home *h, uint32_t *crc, const char *p, size_t n)
{
    uint32_t now = crc32c(0, p, n);
    if (now != *crc)
        h->active = clock_ms();
    *crc = now;
}

/* --- every node */

static unsigned long long epoch_number(const char *epoch)
{
    return strtoull(epoch, NULL, 10);
}

/* A pulse may come from a leader that does not know of its end yet: only the newest reign's counts. */
static int read_pulse(struct file_home *h, struct err *e)
{
    struct buf b = {0};
    char epoch[RDZV_EPOCH_MAX + 1] = "";
    int rc = file_read(h, "pulse", &b, e);
    if (rc == 0 && rdzv_field_find(b.data, b.len, "epoch", epoch, sizeof epoch) == 1 &&
        epoch_number(epoch) >= epoch_number(h->epoch)) {
        snprintf(h->epoch, sizeof h->epoch, "%s", epoch);
        buf_clear(&h->pulse);
        rc = buf_add(&h->pulse, b.data, b.len);
    }
    buf_free(&b);
    return rc == -ENOENT || rc == -EAGAIN ? 0 : rc;
}

/* The node makes its slot before it first looks for it: what NFS does not find it may not look for again for half a
 * minute. */
static void make_slot(struct file_home *h, const char *path)
{
    int fd = h->has_slot ? -1 : openat(h->job_fd, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        close(fd);
    h->has_slot = true;
}

static int file_exchange(struct rdzv_home *base, const char *node, const struct buf *beat, bool call,
                         struct rdzv_view *ret, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    char file[FILE_NAME_CAP], path[FILE_NAME_CAP + 8];
    framed_file_escape(node, file, sizeof file);
    TRY(file_inside(h, e));
    snprintf(path, sizeof path, "beats/%s", file);
    TRY(file_write(h, path, 0, false, beat->data, beat->len, e));
    if (call)
        h->active = clock_ms();
    TRY(read_pulse(h, e));
    snprintf(ret->epoch, sizeof ret->epoch, "%s", h->epoch);
    buf_clear(&ret->pulse);
    TRY(buf_add(&ret->pulse, h->pulse.data ? h->pulse.data : "", h->pulse.len));
    snprintf(path, sizeof path, "slots/%s", file);
    make_slot(h, path);
    int rc = file_read(h, path, &ret->slot, e);
    if (rc == -ENOENT || rc == -EAGAIN)
        buf_clear(&ret->slot);
    else if (rc < 0)
        return rc;
    h->slot_crc = crc32c(0, ret->slot.data ? ret->slot.data : "", ret->slot.len);
    return 0;
}

static int file_wait_slot(struct rdzv_home *base, const char *node, int64_t timeout_ms, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    char file[FILE_NAME_CAP], path[FILE_NAME_CAP + 8];
    struct buf b = {0};
    int64_t until = clock_deadline(timeout_ms);
    uint32_t before = h->slot_crc;
    framed_file_escape(node, file, sizeof file);
    snprintf(path, sizeof path, "slots/%s", file);
    while (clock_left(until) > 0 && h->slot_crc == before) {
        int64_t ms = file_poll_ms(h);
        if (!file_doze(h, ms < clock_left(until) ? ms : clock_left(until)))
            break;
        if (file_read(h, path, &b, NULL) == 0)
            note_activity(h, &h->slot_crc, b.data, b.len);
    }
    buf_free(&b);
    return 0;
}

int file_address(struct rdzv_home *base, char *ret, size_t cap, struct err *e)
{
    char text[INET6_ADDRSTRLEN] = "127.0.0.1";
    own_address(text);
    snprintf(ret, cap, "%s", text);
    return 0;
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
    buf_free(&h->pulse);
    free(h->dir);
    free(h->name);
    free(h);
}

static const struct rdzv_home_ops file_ops = {
    .name = "file",
    .now = file_now,
    .exchange = file_exchange,
    .wait_slot = file_wait_slot,
    .address = file_address,
    .forget = file_forget,
    .identity = file_identity,
    .claim = file_claim,
    .load = file_load,
    .append = file_append,
    .pulse = file_pulse,
    .beats = file_beats,
    .wait_calls = file_wait_calls,
    .close = file_close,
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
    const int rc = rdzv_home_init_(&h->base, &file_ops, o->wake_fd, e);
    if (rc < 0 || !h->dir || asprintf(&h->name, "crun-%s", run) < 0) {
        file_close(&h->base);
        return rc < 0 ? rc : err_set(e, -ENOMEM, "no memory for a shared folder");
    }
    *ret = &h->base;
    return 0;
}
