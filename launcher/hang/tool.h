/* Runs a program and collects what it prints. */
#ifndef CRUN_LAUNCHER_TOOL_H
#define CRUN_LAUNCHER_TOOL_H

#include <stdatomic.h>

struct buf;
struct err;

/* argv[0] is searched on PATH. stdout and stderr are appended to out, up to out->max. The program is killed after
 * ms, or when *cancel is set. Blocks. 0: it ended by itself; its exit code is not known, because the agent's loop
 * reaps all children; -ENOENT: no such program; -ETIMEDOUT, -E2BIG, -ECANCELED. out keeps what it had printed. */
int tool_run(char *const *argv, int ms, const atomic_bool *cancel, struct buf *out, struct err *e);

#endif
