/* What crun was started with, and what becomes of it: descriptors, signals, limits. Workers get theirs back
 * (guardian_link). */
#ifndef CRUN_LAUNCHER_INHERITED_H
#define CRUN_LAUNCHER_INHERITED_H

#include <signal.h>

struct guardian_link;

/* 0 or -errno. */
int inherited_fill_fds(void);
/* Those that the guardian waits for are blocked; which they are. */
void inherited_block_signals(struct guardian_link *l, sigset_t *waited);
void inherited_raise_files(struct guardian_link *l);

#endif
