/* Writes the state directory (state_dir.h) in a process of its own, so that a disk that does not answer delays neither
 * a heartbeat nor the end of the daemon.
 *
 *   daemon ── a batch: name, what, text of each log ──► writer: write, fdatasync, one log after the other
 *          ◄─ what became of each ─────────────────────
 *
 * It writes all that it was sent, even if the daemon is gone. It holds the directory's lock until its connection
 * ends, so that a daemon that replaces a killed one never writes at the same time. Once logs are loaded, the daemon
 * itself has nothing open there, because even close(2) may wait for a disk. */
#ifndef CRUN_RENDEZVOUSD_STATE_WRITER_H
#define CRUN_RENDEZVOUSD_STATE_WRITER_H

#include <stddef.h>
#include <stdint.h>

struct buf;

enum dir_op {
    DIR_NOTHING,
    DIR_APPEND, /* to a file that is there */
    DIR_RENEW,  /* a whole file that replaces the old one, which stays until then */
    DIR_REMOVE, /* a file that is there or not */
    DIR_ASIDE,  /* likewise, renamed to ID.log.damaged */
};

/* Add one log to a batch, which is a message of common/rdzv/homes/home_wire.h. -ENOMEM. */
int dir_writer_put(struct buf *batch, const char *id, enum dir_op op, const struct buf *text);

/* In that process: a home_service of common/rdzv/homes/home_process.h. Locks the directory `path`, waiting a second
 * for another process to unlock it, and answers batches. An answer's rc: 0, or why the directory cannot be used:
 * -EBUSY, -errno; then nothing is written, and the door closes. Its body has an int32_t for each log: 0: it is on
 * disk; or -errno. */
void dir_serve(int64_t keep_ms, const char *path, const char *run_id, int door);

/* Replace a file: write `fresh`, sync, rename. The old file stays until then. Blocks. -errno. */
int dir_renew(int dir, const char *name, const char *fresh, const char *text, size_t n);

#endif
