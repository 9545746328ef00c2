/* A process that has homes at hand for others: for those that may be held by a disk.
 *
 *     agent ── rdzv_home_far.c ──door──► thread ── rdzv_log_file.c ──► a shared folder
 *       └─────── one more for each handle ─────► thread
 *     rendezvousd ── state_batch.c ──door──► thread ── state_writer.c ──► its state directory
 *
 * The guardian starts it beside the agent and outside the tree whose end is the proof of this node's death, and another
 * one when it dies (launcher/guard/guardian.h); crun status and rendezvousd start one for themselves. What it holds is
 * nothing that a home could not read again. A thread that the disk holds in the kernel is left there, with a table of
 * descriptors to itself, so that nobody who reads or waits for anything of ours waits for that disk as well. What came
 * through a door is carried out, also after the caller's end; the process ends with the last of it, when the disk
 * answers. The guardian kills it at the end, and names it if even that does not end it. */
#ifndef CRUN_COMMON_HOME_PROCESS_H
#define CRUN_COMMON_HOME_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* What a process has at hand: it serves `url` on `door` (home_wire.h) until that is at its end. In a thread of its own.
 * Borrowed. */
typedef void home_service(int64_t keep_ms, const char *url, const char *run_id, int door);
home_service home_serve_folder; /* a shared folder, by its URL: calls of rdzv_home.h */

/* The whole life of the process: until caller_fd (SOCK_SEQPACKET) is at its end and all doors are, or end_fd is
 * readable (-1: there is none). Returns its exit code; the caller calls _exit(2), for threads may be left. */
int home_process_run(int caller_fd, int end_fd, home_service *service);
int home_process(int caller_fd, int end_fd); /* with home_serve_folder() */

/* Fork one of that name, which ignores the signals that end its caller, and keeps nothing open of it. Its socket, the
 * caller's; -errno. */
int home_process_start(home_service *service, const char *name, pid_t *ret_pid);

/* Have that served on `door`, which is sent, and stays the caller's. Returns before anything is opened; -EAGAIN: nobody
 * takes it; -EPIPE: the process is gone. */
int home_process_ask(int process_fd, int64_t keep_ms, const char *url, const char *run_id, int door);

#endif
