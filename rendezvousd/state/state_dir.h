/* The state directory of a daemon as a home (rdzv_home.h): one append-only log of records per job, so that jobs outlive
 * the daemon.
 *
 *   DIR/lock            held while a daemon uses it: two never share one
 *   DIR/epoch           how often it was opened, a decimal number
 *   DIR/jobs/ID.log     records (state_log.h)
 *
 * A directory with a log of another version is refused at the opening, by name and with nothing touched. A damaged log
 * is set aside, and the others are read all the same.
 *
 * Appending only copies; a process of its own (state_writer.h) writes everything that has gathered and syncs it
 * (group commit: one fdatasync per log and turn), so that no disk ever delays a heartbeat, or the end of the daemon. A
 * log that cannot be written any more (disk full, I/O error) is reported once and removed, and then all of it counts as
 * kept: its job goes on in memory only, and a restarted daemon does not know it rather than knowing it wrongly. It is
 * written anew as soon as it can be (rdzv_home.rewrite): that is tried after 100 ms, then less and less often, at last
 * every 30 s. So is the removal, where the disk refuses that; what stays at the end is named. Loop thread only. */
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

/* Make or take over DIR. *ret_epoch: how often it was opened, this time included. -EBUSY: another daemon uses it;
 * ERR_MISMATCH: a log in it is of another version. Blocks on the disk. */
int state_dir_open(struct state_dir **ret, uv_loop_t *loop, const char *path, uint64_t *ret_epoch, struct err *e);
/* The directory `name` in it, made if there is none: written by the same process, closed before. */
int state_dir_open_within(struct state_dir **ret, struct state_dir *d, const char *name, struct err *e);
/* Has what is left written, waits for it, for 2 s where the disk does not answer, and lets the directory go. All homes
 * are closed by then. NULL allowed; the loop must turn once more. */
void state_dir_close(struct state_dir *d);

/* The home of a new job. id: 1 to 64 letters, digits or '-'. Its file is made with the first decision. forget() takes
 * the file away, when the home is closed. -ENOMEM. */
int state_dir_home(struct state_dir *d, const char *id, struct rdzv_home **ret, struct err *e);
/* What is to be appended cannot be put into words (no memory): the log is lost as if the disk were full. */
void state_home_lose(struct rdzv_home *h, int rc);
/* The job has a fault: its file is renamed to ID.log.damaged, nothing more is written, and whatever is appended counts
 * as kept. */
void state_home_set_aside(struct rdzv_home *h);
/* Give take() the home of every log that is there, in the order of their names; whoever took one over must append
 * something whole before all else, for the end of the file may be torn, or forget it. Where take() returns ERR_CORRUPT
 * (its load() did, or the text makes no sense) the file is renamed to ID.log.damaged and logged: the others are read
 * all the same. Another error ends it; e names the file. A home that was not taken is closed here. Once: afterwards
 * nothing of the directory is open here. */
int state_dir_each(struct state_dir *d, int (*take)(void *arg, struct rdzv_home *h, struct err *e), void *arg,
                   struct err *e);
size_t state_dir_damaged(const struct state_dir *d); /* files that were set aside */

#endif
