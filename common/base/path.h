/* Folders that a program writes into. */
#ifndef CRUN_COMMON_PATH_H
#define CRUN_COMMON_PATH_H

struct err;

/* mkdir -p. 0 also if it exists. ERR_OUTPUT names the part that cannot be made. */
int path_make_dirs(const char *dir, struct err *e);

/* path_make_dirs(), and check that files can be made in it. ERR_OUTPUT. */
int path_make_writable(const char *dir, struct err *e);

/* Open a folder; the caller closes the descriptor. The last part of the path may be a link only if this user or root
 * owns it, as is common for folders that are kept on another disk: a link of anybody else is not followed. -1 with
 * errno; ELOOP: a link of somebody else. */
int path_open_dir(const char *path);

#endif
