/* The inside of the state directory, shared by persist.c (directory, loading) and persist_commit.c (writing). */
#ifndef CRUN_RENDEZVOUSD_PERSIST_IMPL_H
#define CRUN_RENDEZVOUSD_PERSIST_IMPL_H

#include "common/base/buf.h"
#include "rendezvousd/jobs/persist.h"

#define PERSIST_ID_MAX 64

enum log_fate { LOG_LIVES, LOG_CLOSES, LOG_GOES }; /* GOES: with its file */

/* `fd` and `making` are the writing thread's while the log is in flight; all else is the loop thread's. */
struct persist_log {
    struct persist *p;
    char id[PERSIST_ID_MAX + 1];
    int fd; /* -1: not open yet */
    struct buf pending;
    bool rewrite; /* `pending` is a whole file */
    uint64_t last, durable;
    uint64_t offset; /* records before the file's first one */
    size_t appended, base;
    enum log_fate fate;
    bool broken;
    bool dirty; /* in p->dirty */
    void (*on_durable)(void *arg);
    void *arg;
    /* in flight */
    bool flies;
    struct buf flying;
    bool flying_rewrite;
    enum log_fate flying_fate;
    uint64_t flying_last;
    int result;
    struct persist_log *prev, *next;             /* p->logs */
    struct persist_log *dirty_prev, *dirty_next; /* p->dirty */
    struct persist_log *fly_prev, *fly_next;     /* p->flying */
};

struct persist_work {
    uv_work_t work;
    uv_sem_t done;     /* the thread is ready with it */
    struct persist *p; /* NULL: nobody waits for the callback any more */
};

struct persist {
    uv_loop_t *loop;
    int dir_fd, jobs_fd, lock_fd;
    struct persist_log *logs, *dirty, *flying;
    struct persist_work *work; /* NULL: nothing is being written */
    size_t damaged;            /* logs that were set aside */
    bool landing;              /* owners hear of it: what they append now flies next */
};

/* persist_commit.c */
void persist_touch_(struct persist_log *l); /* it has something to write */
void persist_drain_(struct persist *p);     /* write it all here and now */
void persist_file_name_(const struct persist_log *l, char *out, size_t cap, const char *suffix);

#endif
