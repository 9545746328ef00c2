/* The temporary folder for the workers' error records, if the user named no log folder: TMPDIR/crun-N, N of 64 random
 * bits, flat.
 *
 * A process holds a lock (flock(2)) on the folder that it uses. So a folder whose process was killed is recognised,
 * and a later run removes it. All functions block as long as the disk does. */
#ifndef CRUN_LAUNCHER_SCRATCH_H
#define CRUN_LAUNCHER_SCRATCH_H

#include <stdatomic.h>
#include <stdbool.h>

#define SCRATCH_OLD_S 60 /* seconds; a newer folder may be about to be locked */

/* Make the folder, or take over that of an earlier output process. Returns a descriptor, which holds the lock;
 * -errno. */
int scratch_make(const char *path);

/* Remove the folder with its content. */
void scratch_remove(const char *path, int fd);

/* Remove unused folders beside that path, until *stop. */
void scratch_sweep(const char *path, const atomic_bool *stop);

#endif
