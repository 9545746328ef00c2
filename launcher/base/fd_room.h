/* Room in the table of descriptors. Where threads share it, the kernel waits for all processors when it grows
 * (synchronize_rcu(): some 5 ms), at 64, 256 and 1,024 descriptors. */
#ifndef CRUN_LAUNCHER_FD_ROOM_H
#define CRUN_LAUNCHER_FD_ROOM_H

/* Before a process makes its first thread: the table has room for 1,024 descriptors from now on, or for as many as the
 * limit allows (ulimit -n). A fork() gives it up again. */
void fd_room_make(void);

#endif
