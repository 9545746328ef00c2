/* In the writing process: writes batches of logs to the state directory (state_writer.h). */
#include "rendezvousd/state/state_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/rdzv/homes/home_wire.h"
#include "rendezvousd/state/state_folder.h"
#include "rendezvousd/state/state_internal.h"

#define LOCK_MS 1000
#define LOCK_PAUSE_MS 10

int dir_writer_put(struct buf *batch, const char *id, enum dir_op op, const struct buf *text)
{
    TRY(home_put_text(batch, id));
    TRY(home_put(batch, &op, sizeof op));
    return home_put(batch, text->data, text->len);
}

/* --- writing */

/* close(2), too, may complain. */
static int write_and_close(int fd, const char *text, size_t n)
{
    int rc = file_write_all(fd, text, n);
    if (rc == 0 && fdatasync(fd) < 0)
        rc = -errno;
    return close(fd) < 0 && rc == 0 ? -errno : rc;
}

static int append(int dir, const char *name, const char *text, size_t n)
{
    const int fd = state_folder_file(dir, name, O_WRONLY | O_APPEND);
    return fd < 0 ? fd : write_and_close(fd, text, n);
}

int dir_renew(int dir, const char *name, const char *fresh, const char *text, size_t n)
{
    unlinkat(dir, fresh, 0); /* left by a daemon that died, or somebody's link */
    const int fd = state_folder_file(dir, fresh, O_WRONLY | O_CREAT | O_EXCL);
    int rc = fd < 0 ? fd : write_and_close(fd, text, n);
    if (rc == 0 && renameat(dir, fresh, dir, name) < 0)
        rc = -errno;
    if (rc == 0 && fsync(dir) < 0)
        rc = -errno;
    if (rc < 0)
        unlinkat(dir, fresh, 0);
    return rc;
}

static int remove_file(int dir, const char *name)
{
    if (unlinkat(dir, name, 0) < 0 && errno != ENOENT)
        return -errno;
    return fsync(dir) < 0 ? -errno : 0;
}

static int set_aside(int dir, const char *name)
{
    char aside[DIR_ID_MAX + 16];
    snprintf(aside, sizeof aside, "%s.damaged", name);
    if (renameat(dir, name, dir, aside) < 0 && errno != ENOENT)
        return -errno;
    return fsync(dir) < 0 ? -errno : 0;
}

static int carry_out(int dir, const char *id, enum dir_op op, const char *text, size_t n)
{
    char name[DIR_ID_MAX + 8], fresh[DIR_ID_MAX + 8];
    snprintf(name, sizeof name, "%s.log", id);
    snprintf(fresh, sizeof fresh, "%s.new", id);
    const int rc = op == DIR_APPEND   ? append(dir, name, text, n)
                   : op == DIR_RENEW  ? dir_renew(dir, name, fresh, text, n)
                   : op == DIR_REMOVE ? remove_file(dir, name)
                   : op == DIR_ASIDE  ? set_aside(dir, name)
                                      : 0;
    return rc == ERR_REFUSED ? -EPERM : rc; /* -EPERM, so that the log shows the system's words */
}

static int write_batch(int dir, struct home_pieces in, struct buf *out)
{
    const char *id, *op, *text;
    size_t op_n, n;
    buf_clear(out);
    while (home_take_text(&in, &id) == 0 && home_take(&in, &op, &op_n) == 0 && home_take(&in, &text, &n) == 0) {
        enum dir_op what;
        memcpy(&what, op, sizeof what);
        const int32_t rc = carry_out(dir, id, what, text, n);
        TRY(buf_add(out, &rc, sizeof rc));
    }
    return 0;
}

/* --- the door */

/* Lock the directory. A dead process may hold the lock for a moment, until the kernel has ended it. */
static int lock(int dir, int *ret)
{
    const int64_t deadline = clock_deadline(LOCK_MS);
    TRY(*ret = state_folder_file(dir, "lock", O_RDWR | O_CREAT));
    while (flock(*ret, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK || clock_left(deadline) == 0)
            return errno == EWOULDBLOCK ? -EBUSY : -errno;
        poll(NULL, 0, LOCK_PAUSE_MS);
    }
    return 0;
}

/* Open the directories. The daemon has checked them and named faults; if this process is started again, it checks
 * them again. */
static int enter(const char *path, int *ret_lock, int *ret_jobs)
{
    const int dir = state_folder_again(path);
    int rc = dir < 0 ? dir : lock(dir, ret_lock);
    if (rc == 0)
        rc = *ret_jobs = state_folder_within(dir, path, "jobs", false, NULL);
    if (dir >= 0)
        close(dir);
    return rc < 0 ? rc : 0;
}

void dir_serve(int64_t keep_ms, const char *path, const char *run_id, int door)
{
    struct home_inbox in = {0};
    struct home_head head = {0};
    struct buf out = {0};
    int lock_fd = -1, jobs_fd = -1;
    (void)keep_ms, (void)run_id;
    head.rc = enter(path, &lock_fd, &jobs_fd);
    while (home_receive(door, &in, INT64_MAX, -1) == 0) {
        head.number = in.head.number;
        if (head.rc == 0 && write_batch(jobs_fd, home_pieces(&in), &out) < 0)
            break;
        if (home_send(door, &head, &out, INT64_MAX, -1) < 0 || head.rc < 0)
            break;
    }
    buf_free(&in.body);
    buf_free(&out);
    if (jobs_fd >= 0)
        close(jobs_fd);
    if (lock_fd >= 0)
        close(lock_fd);
}
