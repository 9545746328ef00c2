/* A place for the workers' error records where no log folder was asked for: TMPDIR/crun-N, N of 64 random bits, flat.
 *
 * Whoever uses one holds a lock of it (flock(2)) as long as he lives, so that one whose process was killed is not
 * mistaken for one in use, and is removed by a later run. All of this blocks as the disk does. */
#ifndef CRUN_LAUNCHER_SCRATCH_H
#define CRUN_LAUNCHER_SCRATCH_H

#include <stdatomic.h>
#include <stdbool.h>

#define SCRATCH_OLD_S 60 /* a younger one may be about to be locked */

/* Make it, or take over that of a process before this one. Returns a descriptor, which holds the lock; -errno. */
int scratch_make(const char *path);

/* With all that is in it. */
void scratch_remove(const char *path, int fd);

/* Remove what nobody uses any more beside that path, until *stop. */
void scratch_sweep(const char *path, const atomic_bool *stop);

#endif
