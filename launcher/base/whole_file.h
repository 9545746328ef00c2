/* Writes a file that a user named as a whole, such as a report. Blocks as long as its disk does. */
#ifndef CRUN_LAUNCHER_WHOLE_FILE_H
#define CRUN_LAUNCHER_WHOLE_FILE_H

#include <stddef.h>

struct err;

/* Follows symbolic links, except those that another user put into a folder such as /tmp: -EACCES. An existing file
 * is replaced by a rename, keeping its mode, so that a reader sees either the old text or the new one; a device, a
 * FIFO, and a file that cannot be replaced (a mount, a folder that is not ours to write to) are written in place. If
 * path is what this process prints to (a socket, too), the text is appended. Waits at most WHOLE_FILE_WAIT_MS for a
 * FIFO, a socket or a terminal, and not for a FIFO without a reader. -errno. */
#define WHOLE_FILE_WAIT_MS 500
int whole_file_write(const char *path, const char *text, size_t n, struct err *e);

/* Write a file below the folder of descriptor `at`, whose own path is the first at_bytes of path, slash included. No
 * link below that folder is followed, because another user may have put it there. Whatever has that name, a link,
 * too, is replaced, never written to. -errno. */
int whole_file_write_below(int at, size_t at_bytes, const char *path, const char *text, size_t n, struct err *e);

/* Open the folder that contains `path`, which is relative to the folder `at`; the caller closes the descriptor.
 * *name: the last part of path. No link is followed. -errno. */
int whole_file_open_parent(int at, const char *path, const char **name);

/* Can such a file be written? 0 or -errno; -EISDIR: it is a folder. */
int whole_file_check(const char *path);

#endif
