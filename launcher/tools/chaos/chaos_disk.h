/* Faults of disks: full for a while, and a bit that is not what was written. */
#ifndef CRUN_LAUNCHER_CHAOS_DISK_H
#define CRUN_LAUNCHER_CHAOS_DISK_H

#include <stddef.h>
#include <stdint.h>

struct err;

/* Take all room of the file system of that folder by a file without a name. *ret_fd: it holds the room until it is
 * closed, by whatever end of this process. -EOPNOTSUPP: that file system cannot give room without writing. */
int chaos_disk_fill(const char *folder, int *ret_fd, int64_t *ret_bytes, struct err *e);

/* Turn one bit of one file at or below that folder whose path there, or name, fits the pattern (fnmatch(3)); pick: of
 * which. outcome: "PATH byte 17 bit 3". -ENOENT: there is none, or it is gone. */
int chaos_disk_corrupt(const char *folder, const char *pattern, uint64_t pick, char *outcome, size_t cap,
                       struct err *e);

#endif
