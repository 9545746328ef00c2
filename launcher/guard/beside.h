/* A process beside the tree: a child of the guardian whose end proves nothing, as it runs nothing of the user's. Which
 * there are: neighbours.h.
 *
 * It is cloned with no signal for its end, which waitid(2) leaves out unless asked: ECHILD speaks of the tree alone,
 * and tree.h spares it by that sign. A socket tells of its end as soon as the thread that holds it is gone; others of
 * its threads may then be left in the kernel, with SIGKILL pending, until a disk answers. Nobody waits for them: such a
 * process is one that *lingers*. */
#ifndef CRUN_LAUNCHER_BESIDE_H
#define CRUN_LAUNCHER_BESIDE_H

#include <stdbool.h>
#include <sys/types.h>

#define BESIDE_LINGER_MAX 64 /* of those, so many are kept in mind */

struct beside {
    pid_t pid;
    int fd;       /* at end-of-file when it is gone; -1: there is none */
    bool is_done; /* it said that its work is done */
    bool stays;   /* and that it goes on until it is told again */
    int word;     /* the newest other byte that it said; -1: none */
    pid_t lingering[BESIDE_LINGER_MAX];
    int n_lingering;
};

/* In the child run(fd, arg) is called, and _exit() with what it returns; fd: the other end. -errno. */
int beside_start(struct beside *b, int (*run)(int fd, void *arg), void *arg);

/* fd is readable: true if it is gone, or lingers. */
bool beside_is_gone(struct beside *b);

/* What it says; other bytes are its own. */
enum { BESIDE_DONE = 255, BESIDE_STAYS = 254 };

/* It is continued if it was stopped, and notified by a byte. False: it ends already, or is gone. */
bool beside_tell(struct beside *b, char word);
/* True: it is gone, or lingers. */
bool beside_wait(struct beside *b, int ms);

enum beside_ending {
    BESIDE_ENDED,   /* by itself, or there was none */
    BESIDE_KILLED,  /* it did not end in time: described as it was then */
    BESIDE_LINGERS, /* it is still there, or one before it is, and described */
};

/* Tell it that nobody else is left; wait so long, then kill it and wait BESIDE_KILL_MS. stays: one that says
 * BESIDE_STAYS may. */
enum beside_ending beside_end(struct beside *b, int wait_ms, bool stays, char *out, int cap);
#define BESIDE_END 'E' /* nobody else is left */

#define BESIDE_KILL_MS 500

#endif
