/* Makes room in the descriptor table. If threads share it, growing it (at 64, 256 and 1,024 descriptors) waits for
 * all processors (synchronize_rcu(), about 5 ms). */
#ifndef CRUN_LAUNCHER_FD_ROOM_H
#define CRUN_LAUNCHER_FD_ROOM_H

/* Call before the first thread is made: the table then has room for 1,024 descriptors, or for as many as the limit
 * (ulimit -n) allows. A fork() undoes it. */
void fd_room_make(void);

#endif
