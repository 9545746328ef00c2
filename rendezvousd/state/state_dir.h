/* The state directory of a daemon as a home (rdzv_home.h): one append-only log of records per job, so that jobs outlive
 * the daemon.
 *
 *   DIR/lock            held while a daemon uses it: two never share one
 *   DIR/epoch           how often it was opened, a decimal number
 *   DIR/jobs/ID.log     records (state_log.h)
 *
 * A directory that contains a log of another version is refused when opened; the log is named and nothing is changed. A
 * damaged log is set aside, and the others are read.
 *
 * Appending only copies the text. A process of its own (state_writer.h) writes and syncs all that has gathered
 * (group commit: one fdatasync per log and turn), so that no disk delays a heartbeat, or the end of the daemon. A
 * log that cannot be written any more (disk full, I/O error) is *lost*: this is reported once, the file is removed,
 * and from then on everything counts as stored. Its job goes on in memory only, and a restarted daemon does not know
 * the job, which is better than knowing it wrongly. The log is written anew as soon as possible (rdzv_home.rewrite):
 * this is tried after 100 ms, then less and less often, at last every 30 s. The removal is tried again in the same
 * way if the disk refuses it; files that remain at the end are named. Loop thread only. */
#ifndef CRUN_RENDEZVOUSD_STATE_DIR_H
#define CRUN_RENDEZVOUSD_STATE_DIR_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/wire/rdzv_frame.h"

struct state_dir;

#define STATE_RECORD_MAX RDZV_FRAME_MAX /* bytes of one record's text */
#define STATE_FILE_MAX ((size_t)1 << 30)

/* Open DIR, or make it. *ret_epoch: how often it has been opened, this time included. -EBUSY: another daemon uses
 * it; ERR_MISMATCH: it contains a log of another version. Blocks on the disk. */
int state_dir_open(struct state_dir **ret, uv_loop_t *loop, const char *path, uint64_t *ret_epoch, struct err *e);
/* Open the directory `name` inside it, or make it. The same process writes it; close it before the outer one. */
int state_dir_open_within(struct state_dir **ret, struct state_dir *d, const char *name, struct err *e);
/* Have the rest written and wait for it, 2 s if the disk does not answer, then close. All homes must have been
 * closed. NULL allowed; the loop must turn once more. */
void state_dir_close(struct state_dir *d);

/* The home of a new job. id: 1 to 64 letters, digits or '-'. Its file is made with the first decision; forget()
 * removes it when the home is closed. -ENOMEM. */
int state_dir_home(struct state_dir *d, const char *id, struct rdzv_home **ret, struct err *e);
/* A text to be appended cannot be made (no memory): treat the log as lost, as if the disk were full. */
void state_home_lose(struct rdzv_home *h, int rc);
/* The job has a bug of ours: rename its file to ID.log.damaged and write nothing more; everything appended counts as
 * stored. */
void state_home_set_aside(struct rdzv_home *h);
/* Call take() for the home of every existing log, in the order of names. The receiver must either append something
 * whole before all else, because the end of the file may be torn, or forget it. If take() returns ERR_CORRUPT (its
 * load() did, or the text makes no sense), the file is renamed to ID.log.damaged, which is logged, and the others
 * are read. Another error ends it; e names the file. Homes that were not taken are closed. Call once: afterwards
 * this process has nothing open in the directory. */
int state_dir_each(struct state_dir *d, int (*take)(void *arg, struct rdzv_home *h, struct err *e), void *arg,
                   struct err *e);
size_t state_dir_damaged(const struct state_dir *d); /* files that were set aside */

#endif
