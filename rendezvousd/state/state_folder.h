/* Opens folders and files of the state directory (state_dir.h) so that no other user decides what the daemon writes
 * to or reads: all are reached through descriptors, no link is followed below DIR, files must be regular, and belong
 * to the daemon's user or root. Folders must not be writable for group or others, except DIR itself if it is sticky,
 * like /tmp; DIR may be a link that the daemon's user or root owns. */
#ifndef CRUN_RENDEZVOUSD_STATE_FOLDER_H
#define CRUN_RENDEZVOUSD_STATE_FOLDER_H

#include <stdbool.h>

struct err;

/* Open DIR, or a folder in it; made with mode 0700 if `make`, DIR always. Returns a descriptor, which the caller
 * closes. ERR_REFUSED: a forbidden link, somebody else's folder, or writable for others; -errno. Block on the disk.
 * path: of dir, for e. */
int state_folder_top(const char *path, struct err *e);
int state_folder_within(int dir, const char *path, const char *name, bool make, struct err *e);
/* Open a folder that was checked before, by its path without links, in another process. */
int state_folder_again(const char *path);

/* Open a file, or create it (O_CREAT) with mode 0600. ERR_REFUSED: a link, not a regular file, or somebody else's;
 * -errno. */
int state_folder_file(int dir, const char *name, int flags);
#define STATE_FOLDER_FOREIGN                                                                                           \
    "it is a link, no regular file, or another user's: remove it if it is none of this daemon's, or choose another "   \
    "--state-dir"

#endif
