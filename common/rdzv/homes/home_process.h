/* A process that has homes at hand for others: for those that may be held by a disk.
 *
 *     agent ── rdzv_home_far.c ──door──► thread ── rdzv_log_file.c ──► the folder
 *       └─────── one more for each handle ─────► thread
 *
 * The guardian starts it beside the agent and outside the tree whose end is the proof of this node's death, and another
 * one when it dies (launcher/guard/guardian.h). What it holds is nothing that a home could not read again. A thread
 * that the disk holds in the kernel is left there, with a table of descriptors to itself, so that nobody who reads or
 * waits for anything of ours waits for that disk as well; at the end the process is killed, named if even that does not
 * end it, and ends by itself when the disk answers. */
#ifndef CRUN_COMMON_HOME_PROCESS_H
#define CRUN_COMMON_HOME_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* What rdzv_home_open() is to be called with there, besides the texts. */
struct home_door {
    int64_t io_timeout_ms, keep_ms, max_lag_ms;
    bool unsafe;
};

/* The whole life of the process: until caller_fd (SOCK_SEQPACKET) is at its end, or end_fd is readable. Returns its
 * exit code; the caller calls _exit(2), for threads may be left. */
int home_process(int caller_fd, int end_fd);

/* Open that home, serve it on `door` (home_wire.h) and let interrupts in by wake_fd. Both are sent, and stay the
 * caller's. Returns before anything is opened; -EAGAIN: nobody takes it. */
int home_process_ask(int process_fd, const struct home_door *d, const char *url, const char *run_id, int door,
                     int wake_fd);

#endif
