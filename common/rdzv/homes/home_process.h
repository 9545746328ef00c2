/* Homes at hand for others: by threads, for those that may be held by a disk.
 *
 *     agent ── rdzv_home_far.c ──door──► thread ── rdzv_log_file.c ──► a shared folder
 *       └─────── one more for each handle ─────► thread
 *     rendezvousd ── state_batch.c ──door──► thread ── state_writer.c ──► its state directory
 *
 * The threads are those of crun's output process (launcher/output/process/output_process.h), or of a process that
 * crun status and rendezvousd fork for themselves. What they hold is nothing that a home could not read again. A thread
 * that the disk holds in the kernel is left there, with a table of descriptors to itself (apart.h), so that nobody who
 * reads or waits for anything of ours waits for that disk as well. What came through a door is carried out, also after
 * the caller's end; a forked process ends with the last of it, when the disk answers. */
#ifndef CRUN_COMMON_HOME_PROCESS_H
#define CRUN_COMMON_HOME_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* What is at hand: it serves `url` on `door` (home_wire.h) until that is at its end. In a thread of its own.
 * Borrowed. */
typedef void home_service(int64_t keep_ms, const char *url, const char *run_id, int door);
home_service home_serve_folder; /* a shared folder, by its URL: calls of rdzv_home.h */

struct home_threads {
    home_service *service;
    int gone_fd;  /* an eventfd: a thread has ended */
    atomic_int n; /* that have not */
};

/* h lives as long as the process. 0 or -errno. */
int home_threads_open(struct home_threads *h, home_service *service);
/* Start what is asked for on caller_fd (SOCK_SEQPACKET) now. False: nobody will ask any more. */
bool home_threads_take(struct home_threads *h, int caller_fd);

/* The whole life of a process that does nothing else: until caller_fd is at its end and all doors are. Returns its exit
 * code; the caller calls _exit(2), for threads may be left. */
int home_process_run(int caller_fd, home_service *service);

/* Fork one of that name, which ignores the signals that end its caller, and keeps nothing open of it. Its socket, the
 * caller's; -errno. */
int home_process_start(home_service *service, const char *name, pid_t *ret_pid);

/* Have that served on `door`, which is sent, and stays the caller's. Returns before anything is opened; -EAGAIN: nobody
 * takes it; -EPIPE: the process is gone. */
int home_process_ask(int process_fd, int64_t keep_ms, const char *url, const char *run_id, int door);

#endif
