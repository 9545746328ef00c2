/* Descriptors that no program of ours asked for: crun was started with them, or a library opened them. */
#ifndef CRUN_COMMON_OWN_FDS_H
#define CRUN_COMMON_OWN_FDS_H

/* Make all descriptors from 3 on that are open now close-on-exec: workers must not inherit what the caller's shell
 * had open. Not beside a thread that hands descriptors on to a program. */
void own_fds_keep(void);

#endif
