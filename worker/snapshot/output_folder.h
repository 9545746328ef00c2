/* Whose is the checkpoint folder? A run writes to one that is empty or its own, and to nobody else's. */
#ifndef CRUN_WORKER_OUTPUT_FOLDER_H
#define CRUN_WORKER_OUTPUT_FOLDER_H

#include <stdbool.h>

struct err;
struct train_config;

/* Lock the folder open at fd for this run, as long as fd is open. true: another run holds it. Waits for two seconds:
 * the ranks of a job that was killed outlive its crun by a moment. */
bool output_folder_lock_fails(int fd);

/* Make cfg->checkpoint_dir where it is missing, and lock it for this run. One with checkpoints is taken if --resume
 * says so, or if `resume` and the job `run_id` (may be NULL) has written them; else *aside becomes true where
 * cfg->if_checkpoint says so: output_folder_set_aside() is the caller's to call before anything is written, when
 * nothing is left that may be refused.
 * *lock_fd is -1 before; it holds the lock until the caller closes it, also after a failure unless it is -1 still.
 * ERR_OUTPUT: cannot be written to, or a run that is alive has it; ERR_USAGE: holds another run's checkpoints. */
int output_folder_take(const struct train_config *cfg, bool resume, const char *run_id, int *lock_fd, bool *aside,
                       struct err *e);

/* DIR becomes DIR.until-TIME, and an empty one takes its place, locked. */
int output_folder_set_aside(const struct train_config *cfg, int *lock_fd, struct err *e);

#endif
