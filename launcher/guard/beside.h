/* A helper: a process beside the job's tree. It is a child of the guardian that runs nothing of the user's, so whether
 * it lives says nothing about the job. neighbours.h lists the helpers.
 *
 * It is cloned without an exit signal. waitid(2) skips such children unless asked, so ECHILD means that the tree is
 * empty; tree.h recognises and spares them by it, too. Their socket reports their end as soon as the thread that
 * holds it is gone. Other threads may still be blocked in the kernel, with SIGKILL pending, until a disk answers.
 * Nobody waits for those: such a process *lingers*. */
#ifndef CRUN_LAUNCHER_BESIDE_H
#define CRUN_LAUNCHER_BESIDE_H

#include <stdbool.h>
#include <sys/types.h>

#define BESIDE_LINGER_MAX 64 /* number of lingering processes that are remembered */

struct beside {
    pid_t pid;
    int fd;       /* socket, at end-of-file once the process is gone; -1: there is none */
    bool is_done; /* it has said that its work is done */
    bool stays;   /* it has also said that it goes on until it is told again */
    int word;     /* the newest other byte that it sent; -1: none */
    pid_t lingering[BESIDE_LINGER_MAX];
    int n_lingering;
};

/* Start a helper: the child calls run(fd, arg), and _exit() with the result; fd: its end of the socket. -errno. */
int beside_start(struct beside *b, int (*run)(int fd, void *arg), void *arg);

/* Call when fd is readable. True: the helper is gone, or lingers. */
bool beside_is_gone(struct beside *b);

/* Bytes that a helper sends; all others have their own meaning. */
enum { BESIDE_DONE = 255, BESIDE_STAYS = 254 };

/* Send a byte to the helper, after SIGCONT in case it is stopped. False: it is ending already, or is gone. */
bool beside_tell(struct beside *b, char word);
/* True: it is gone, or lingers. */
bool beside_wait(struct beside *b, int ms);

enum beside_ending {
    BESIDE_ENDED,   /* by itself, or there was none */
    BESIDE_KILLED,  /* it did not end in time; described as it was then */
    BESIDE_LINGERS, /* it, or one before it, is still there and is described */
};

/* Tell the helper that nobody else is left; wait wait_ms, then kill it and wait BESIDE_KILL_MS. stays: if it says
 * BESIDE_STAYS, leave it. */
enum beside_ending beside_end(struct beside *b, int wait_ms, bool stays, char *out, int cap);
#define BESIDE_END 'E' /* nobody else is left */

#define BESIDE_KILL_MS 500

#endif
