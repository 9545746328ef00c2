/* Call stacks by libdw, opened on first use. Declared here, because its headers are not needed on a machine that only
 * builds crun: the few functions are part of an interface that elfutils has kept since 2013. */
#ifndef CRUN_LAUNCHER_STACKS_DW_H
#define CRUN_LAUNCHER_STACKS_DW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "common/base/buf.h"

struct err;
struct stacks_dw;

/* All threads must be stopped under ptrace by the calling thread until stacks_dw_close(). */
int stacks_dw_open(struct stacks_dw **ret, pid_t pid, struct err *e);

/* "  #0  0x7f12 read+0x1d (/lib/libc.so.6)" for each frame. */
int stacks_dw_thread(struct stacks_dw *s, pid_t tid, const atomic_bool *cancel, struct buf *out, struct err *e);
void stacks_dw_close(struct stacks_dw *s); /* NULL allowed */

#endif
