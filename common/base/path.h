/* Folders that a program writes into. */
#ifndef CRUN_COMMON_PATH_H
#define CRUN_COMMON_PATH_H

struct err;

/* mkdir -p. 0 also if it is there. ERR_OUTPUT names the part that cannot be made. */
int path_make_dirs(const char *dir, struct err *e);

/* path_make_dirs(), and files can be made in it. ERR_OUTPUT. */
int path_make_writable(const char *dir, struct err *e);

/* A descriptor of a folder, the caller's. Its last part may be a link only if that is our user's or root's, as
 * many have it who keep things on another disk: nobody else can put a link there that is followed. -1 with errno;
 * ELOOP: somebody else's link. */
int path_open_dir(const char *path);

#endif
