/* A file that a user names and that is written as a whole, such as a report. Blocks as its disk does. */
#ifndef CRUN_LAUNCHER_WHOLE_FILE_H
#define CRUN_LAUNCHER_WHOLE_FILE_H

#include <stddef.h>

struct err;

/* Follows symbolic links, but for those that another user put into a folder such as /tmp: -EACCES. A file that is there
 * is replaced at once, by one of its mode, so that a reader sees the old text or the new one; a device, a FIFO, and a
 * file that cannot be replaced (a mount, a folder that is not ours to write to) are written in place. Where path is
 * what this process prints to, a socket too, behind what it has printed. Waits for a FIFO, a socket or a terminal at
 * most WHOLE_FILE_WAIT_MS, and for no FIFO that nobody reads. -errno. */
#define WHOLE_FILE_WAIT_MS 500
int whole_file_write(const char *path, const char *text, size_t n, struct err *e);

/* path below the folder of descriptor `at`, whose own path are its first at_bytes, slash included. No link below that
 * folder is followed: another user may have put it there. What has that name, a link too, is replaced, never written
 * to. -errno. */
int whole_file_write_below(int at, size_t at_bytes, const char *path, const char *text, size_t n, struct err *e);

/* A descriptor, the caller's, of the folder that holds what `path` names, which lies below the folder `at`; *name: that
 * name, within path. No link is followed. -errno. */
int whole_file_open_parent(int at, const char *path, const char **name);

/* Whether there is a place for it: 0 or -errno; -EISDIR: it is a folder. */
int whole_file_check(const char *path);

#endif
