/* What ps(1) shows of a process that was forked and runs no other program: its name and its command line. */
#ifndef CRUN_LAUNCHER_TITLE_H
#define CRUN_LAUNCHER_TITLE_H

#include <sys/types.h>

/* Set the name to `what` (15 bytes of it) and the command line to "WHAT of PID". Overwrites the strings of argv; see
 * title_spare(). A process that cleans up after crun must not have "crun" in its name or command line, or the same
 * `killall -9 crun` or `pkill -9 -f crun` would hit it. Without /proc the command line stays. */
void title_set(const char *what, pid_t of);

/* A copy of argv, for code that keeps pointers to its strings across title_set(). Lives as long as the process; argv
 * itself if there is no memory. */
char **title_spare(int argc, char **argv);

#endif
