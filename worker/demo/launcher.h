/* Which crun to use. The container runtime of that name is another program. */
#ifndef CRUN_WORKER_DEMO_LAUNCHER_H
#define CRUN_WORKER_DEMO_LAUNCHER_H

#include <limits.h>

struct err;

/* This program's own file, by which ranks are started. -errno. */
int launcher_self(char ret[PATH_MAX], struct err *e);

/* given (NULL: none), or the first of these that says of itself that it is crun: beside this program, in the build
 * folder that it lies in, crun-launcher and crun on PATH, where Debian's package has it. -ENOENT: *e names those that
 * are something else. Blocks, 10 seconds a program at most. */
int launcher_find(char ret[PATH_MAX], const char *given, struct err *e);

#endif
