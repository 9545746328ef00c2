/* A file that is there as a whole or not at all. */
#ifndef CRUN_LAUNCHER_WHOLE_FILE_H
#define CRUN_LAUNCHER_WHOLE_FILE_H

#include <stddef.h>

struct err;

/* In place of any of that name: written beside it, then renamed. 0 or -errno. Blocks as the disk does. */
int whole_file_write(const char *path, const char *text, size_t n, struct err *e);

#endif
