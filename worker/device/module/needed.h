/* Which libraries a file that dlopen() refused still wants: dlopen itself names the first alone. */
#ifndef CRUN_WORKER_DEVICE_NEEDED_H
#define CRUN_WORKER_DEVICE_NEEDED_H

#include <stddef.h>

/* The DT_NEEDED names of the library at `path` that are neither where the loader looks nor in its own DT_RUNPATH, as
 * "liba.so.1, libb.so.2 and libc.so.3", cut short to cap. Their number; 0 also if the file cannot be read as a library
 * of this machine. */
int needed_missing(const char *path, char *out, size_t cap);

#endif
