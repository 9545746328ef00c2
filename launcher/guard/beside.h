/* A process beside the tree: a child of the guardian whose end proves nothing, as it runs nothing of the user's. For
 * workers' output (output_process.h).
 *
 * It is cloned with no signal for its end, which waitid(2) leaves out unless asked: ECHILD speaks of the tree alone;
 * and tree.h is told to spare it. A socket tells of its end, which comes when its last thread is out of the kernel. */
#ifndef CRUN_LAUNCHER_BESIDE_H
#define CRUN_LAUNCHER_BESIDE_H

#include <stdbool.h>
#include <sys/types.h>

struct beside {
    pid_t pid;
    int fd; /* at end-of-file when it is gone; -1: there is none */
};

/* In the child run(fd, arg) is called, and _exit() with what it returns; fd: the other end. -errno. */
int beside_start(struct beside *b, int (*run)(int fd, void *arg), void *arg);

/* fd is readable: true if it is gone. */
bool beside_is_gone(struct beside *b);

/* Tell it by a byte that nobody else is left; wait so long, then kill it and wait BESIDE_KILL_MS. False: it is still
 * there, and described. */
bool beside_end(struct beside *b, int wait_ms, char *out, int cap);

#define BESIDE_KILL_MS 500

#endif
