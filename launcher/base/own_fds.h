/* Descriptors that crun was started with. */
#ifndef CRUN_LAUNCHER_OWN_FDS_H
#define CRUN_LAUNCHER_OWN_FDS_H

/* All from 3 on that are open now are closed when a program is executed: workers do not get what the caller's shell had
 * open. */
void own_fds_keep(void);

#endif
