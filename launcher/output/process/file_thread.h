/* Log files, written by a thread of its own: a disk that hangs holds up the thread, and nobody else.
 *
 *   - jobs are done one after the other, in the order in which they were added;
 *   - what a file is to take waits in memory, FILE_WAITS_MAX of it, and FILES_WAIT_MAX of all files together. What
 *     comes beyond is dropped by whole lines and counted, and a line in the file says how many bytes, once the disk
 *     works again (logfile.h). Who asks queued_file_is_full() before it writes more loses nothing on a disk that is
 *     only slow;
 *   - a disk that has not answered for FILE_PATIENCE_MS is told of, and so is its return.
 * Everything here is for the loop's thread, but for file_job.work and queued_file_open_now(). The thread has no end:
 * the process has. */
#ifndef CRUN_LAUNCHER_FILE_THREAD_H
#define CRUN_LAUNCHER_FILE_THREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/output/process/logfile.h"

#define FILE_WAITS_MAX (1u << 20)
#define FILES_WAIT_MAX (64u << 20)
#define FILE_PATIENCE_MS 1000

struct err;
struct file_thread;
struct queued_file;

struct file_job {
    struct file_job *next;
    void (*work)(struct file_job *job); /* on the thread */
    void (*done)(struct file_job *job); /* afterwards, on the loop's thread; it may free the job, or add it again */
};

struct file_thread_options {
    void (*print)(void *arg, const char *text); /* a line for people */
    void (*moved)(void *arg);                   /* jobs were done */
    void *arg;
};

int file_thread_create(struct file_thread **ret, uv_loop_t *loop, const struct file_thread_options *o, struct err *e);
void file_thread_add(struct file_thread *t, struct file_job *job);
void file_thread_enter(struct file_thread *t, const char *path); /* in a job: what it is at from now on */

bool file_thread_is_idle(struct file_thread *t);
int64_t file_thread_still_ms(struct file_thread *t); /* how long it has been at what it does now; 0: it is idle */
uint64_t file_thread_waiting(struct file_thread *t); /* bytes */
uint64_t file_thread_lost(struct file_thread *t);    /* bytes that files did not take, in all */

/* A file that a job will open (queued_file_open_now); its path and limits are copied. NULL: out of memory. */
struct queued_file *queued_file_create(struct file_thread *t, const char *path, const struct logfile_limits *limits);
/* ERR_OUTPUT: it takes everything in silence then. */
int queued_file_open_now(struct queued_file *f, struct err *e);
void queued_file_write(struct queued_file *f, const char *data, size_t n);
bool queued_file_is_full(const struct queued_file *f); /* half of what may wait does */
void queued_file_close(struct queued_file *f);         /* once what waits is written; f is gone. NULL allowed */

#endif
