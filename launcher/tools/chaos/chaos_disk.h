/* Disk faults: a full file system for a while, and a flipped bit in a file. */
#ifndef CRUN_LAUNCHER_CHAOS_DISK_H
#define CRUN_LAUNCHER_CHAOS_DISK_H

#include <stddef.h>
#include <stdint.h>

struct err;

/* Take all free space of the folder's file system with an unnamed file. *ret_fd: keeps the space until it is closed,
 * also by the end of this process. -EOPNOTSUPP: that file system cannot reserve space without writing. */
int chaos_disk_fill(const char *folder, int *ret_fd, int64_t *ret_bytes, struct err *e);

/* Flip one bit of one file in or below that folder whose path there, or name, matches the pattern (fnmatch(3));
 * pick: chooses the file. outcome: "PATH byte 17 bit 3". -ENOENT: there is none, or it is gone. */
int chaos_disk_corrupt(const char *folder, const char *pattern, uint64_t pick, char *outcome, size_t cap,
                       struct err *e);

#endif
