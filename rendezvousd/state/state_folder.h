/* Folders and files of the state directory (state_dir.h), so that nobody else decides what the daemon writes to or
 * reads: all are reached through descriptors, no link is followed below DIR, files are regular ones, and they belong to
 * the daemon's user or to root. Folders are written by no group and no others. DIR itself may be if it is sticky, as
 * /tmp is, and may be a link of the daemon's user's or root's. */
#ifndef CRUN_RENDEZVOUSD_STATE_FOLDER_H
#define CRUN_RENDEZVOUSD_STATE_FOLDER_H

#include <stdbool.h>

struct err;

/* DIR, and a folder in it; made with mode 0700 if `make`, DIR always. A descriptor, the caller's. ERR_REFUSED: a link
 * that is not allowed, somebody else's, or others may write to it; -errno. Block on the disk. path: of dir, for e. */
int state_folder_top(const char *path, struct err *e);
int state_folder_within(int dir, const char *path, const char *name, bool make, struct err *e);
/* One that was opened before, by its path without links, to be written by another process. */
int state_folder_again(const char *path);

/* open(2) of a file that is there, or is made (O_CREAT) with mode 0600. ERR_REFUSED: a link, no regular file, or
 * somebody else's; -errno. */
int state_folder_file(int dir, const char *name, int flags);
#define STATE_FOLDER_FOREIGN                                                                                           \
    "it is a link, no regular file, or another user's: remove it if it is none of this daemon's, or choose another "   \
    "--state-dir"

#endif
