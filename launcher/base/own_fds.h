/* Descriptors that crun was started with. */
#ifndef CRUN_LAUNCHER_OWN_FDS_H
#define CRUN_LAUNCHER_OWN_FDS_H

/* Make all descriptors from 3 on that are open now close-on-exec: workers must not inherit what the caller's shell
 * had open. */
void own_fds_keep(void);

#endif
