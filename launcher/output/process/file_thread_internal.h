/* What file_thread.c and queued_file.c share; for them alone. */
#ifndef CRUN_LAUNCHER_FILE_THREAD_INTERNAL_H
#define CRUN_LAUNCHER_FILE_THREAD_INTERNAL_H

#include <pthread.h>

#include "launcher/output/process/file_thread.h"

struct watch;

struct file_thread {
    struct file_thread_options o;
    bool is_started;
    pthread_mutex_t lock; /* of what follows, up to the loop's own */
    pthread_cond_t more;
    struct file_job *first, *last; /* to do */
    struct file_job *done, *done_last;
    char at[256];        /* the file that it is at */
    int64_t since_ms;    /* that it is at it; 0: idle */
    uint64_t lost;       /* bytes */
    struct amount waits; /* in queued files */
    int wake_fd;         /* to the loop: jobs are done; all that the thread has of the process's descriptors */
    /* the loop's own */
    struct watch *wake;
    uv_timer_t look;
    bool is_reported; /* that it hangs */
    int64_t reported_ms;
    uint64_t reported_lost;
};

#endif
