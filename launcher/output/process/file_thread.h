/* Does jobs on files in a thread of its own, so that a disk that hangs blocks only this thread.
 *
 *   - jobs are done one after the other, in the order in which they were added;
 *   - a disk that has not answered for FILE_PATIENCE_MS is reported, and so is when it answers again;
 *   - the thread has its own descriptor table, without those of the process: so sockets, pipes and consoles that others
 *     wait for are closed when the process ends, even if the kernel still blocks the thread.
 * Everything here is for the loop's thread, except file_job.work and file_thread_enter(). The thread starts with the
 * first job, and runs as long as the process. */
#ifndef CRUN_LAUNCHER_FILE_THREAD_H
#define CRUN_LAUNCHER_FILE_THREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define FILE_PATIENCE_MS 1000

struct err;
struct file_thread;

struct file_job {
    struct file_job *next;
    void (*work)(struct file_job *job); /* on the thread */
    void (*done)(struct file_job *job); /* called afterwards on the loop's thread; may free the job, or add it again */
};

struct amount {
    uint64_t bytes, lines;
};

struct file_thread_options {
    const char *disk;                           /* "the disk of the log files" */
    const char *meanwhile;                      /* for people: what happens to the bytes that the thread should write */
    void (*print)(void *arg, const char *text); /* a line for people */
    void (*moved)(void *arg);                   /* jobs were done */
    void *arg;
};

int file_thread_create(struct file_thread **ret, uv_loop_t *loop, const struct file_thread_options *o, struct err *e);
void file_thread_add(struct file_thread *t, struct file_job *job);
/* to be called in a job: the path that it works on from now on */
void file_thread_enter(struct file_thread *t, const char *path);

bool file_thread_is_idle(struct file_thread *t);
bool file_threads_are_idle(void);                    /* all of them */
int64_t file_thread_still_ms(struct file_thread *t); /* how long the present operation has taken; 0: it is idle */
const char *file_thread_at(struct file_thread *t, char *out, size_t cap); /* the path that it works on; returns out */

#endif
