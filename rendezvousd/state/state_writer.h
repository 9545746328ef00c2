/* The process that writes the state directory (state_dir.h), so that a disk which does not answer holds up neither a
 * heartbeat nor the end of the daemon.
 *
 *   daemon ── a batch: name, what, text of each log ──► writer: write, fdatasync, one log after the other
 *          ◄─ what became of each ─────────────────────
 *
 * Forked when the directory is opened, and again if it dies. It has no other descriptors of the daemon, and ignores the
 * signals that end one: what it was sent it writes. The end of the socket is its end; until then it holds the
 * directory's lock, so that a daemon started in the place of one that was killed never writes beside it. Once logs are
 * loaded the daemon itself has nothing open there: even close(2) may wait for a disk. */
#ifndef CRUN_RENDEZVOUSD_STATE_WRITER_H
#define CRUN_RENDEZVOUSD_STATE_WRITER_H

#include <sys/types.h>

struct buf;

enum dir_op {
    DIR_NOTHING,
    DIR_APPEND, /* to a file that is there */
    DIR_RENEW,  /* a whole file, in place of the one before, which stays until then */
    DIR_REMOVE, /* a file that is there or not */
};

/* Its socket (SOCK_STREAM, not blocking), the caller's, or -errno. The descriptors are borrowed; -1: it opens and locks
 * `dir` itself, and ends if it cannot. */
int dir_writer_start(const char *dir, int jobs_fd, int lock_fd, pid_t *ret_pid);

/* One log of a batch, which is a message of common/rdzv/homes/home_wire.h. The answer's body holds an int32_t for each:
 * 0 and it is on disk, or -errno. -ENOMEM. */
int dir_writer_put(struct buf *batch, const char *id, enum dir_op op, const struct buf *text);

/* A file in place of the one before, which stays until then: written as `fresh`, synced, renamed. Blocks. -errno. */
int dir_renew(int dir, const char *name, const char *fresh, const char *text, size_t n);

#endif
