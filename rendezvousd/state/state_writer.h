/* What the daemon's process does in a state directory (state_dir.h), so that a disk which does not answer holds up
 * neither a heartbeat nor the end of the daemon.
 *
 *   daemon ── a batch: name, what, text of each log ──► writer: write, fdatasync, one log after the other
 *          ◄─ what became of each ─────────────────────
 *
 * What it was sent it writes, also when the daemon is gone. Until the end of its door it holds the directory's lock, so
 * that a daemon started in the place of one that was killed never writes beside it. Once logs are loaded the daemon
 * itself has nothing open there: even close(2) may wait for a disk. */
#ifndef CRUN_RENDEZVOUSD_STATE_WRITER_H
#define CRUN_RENDEZVOUSD_STATE_WRITER_H

#include <stddef.h>
#include <stdint.h>

struct buf;

enum dir_op {
    DIR_NOTHING,
    DIR_APPEND, /* to a file that is there */
    DIR_RENEW,  /* a whole file, in place of the one before, which stays until then */
    DIR_REMOVE, /* a file that is there or not */
    DIR_ASIDE,  /* likewise, renamed to ID.log.damaged */
};

/* One log of a batch, which is a message of common/rdzv/homes/home_wire.h. -ENOMEM. */
int dir_writer_put(struct buf *batch, const char *id, enum dir_op op, const struct buf *text);

/* In the process: a home_service of common/rdzv/homes/home_process.h. Takes the lock of the directory `path`, waiting a
 * second for another to let it go, and answers batches. An answer's rc: 0, or why the directory is not ours: -EBUSY,
 * -errno; nothing is written then, and the door closes. Its body holds an int32_t for each log: 0 and it is on disk, or
 * -errno. */
void dir_serve(int64_t keep_ms, const char *path, const char *run_id, int door);

/* A file in place of the one before, which stays until then: written as `fresh`, synced, renamed. Blocks. -errno. */
int dir_renew(int dir, const char *name, const char *fresh, const char *text, size_t n);

#endif
