/* A program that is run for what it prints. */
#ifndef CRUN_LAUNCHER_TOOL_H
#define CRUN_LAUNCHER_TOOL_H

#include <stdatomic.h>

struct buf;
struct err;

/* argv[0] is looked for on PATH. Both of its outputs are appended to out, up to out->max; then, after ms, or when
 * *cancel is set, it is killed. Blocks meanwhile. 0: it has ended by itself, and how is not reported (the agent's loop
 * reaps all children); -ENOENT: there is no such program; -ETIMEDOUT, -E2BIG, -ECANCELED. What it printed until then is
 * there. */
int tool_run(char *const *argv, int ms, const atomic_bool *cancel, struct buf *out, struct err *e);

#endif
