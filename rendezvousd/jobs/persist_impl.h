/* The inside of the state directory, shared by persist.c (directory), persist_load.c, persist_commit.c (batches)
 * and persist_writer.c (the process that writes them). */
#ifndef CRUN_RENDEZVOUSD_PERSIST_IMPL_H
#define CRUN_RENDEZVOUSD_PERSIST_IMPL_H

#include "common/base/buf.h"
#include "common/rdzv/homes/home_wire.h"
#include "rendezvousd/jobs/persist.h"

#define PERSIST_ID_MAX 64

enum log_fate { LOG_LIVES, LOG_CLOSES, LOG_GOES }; /* GOES: with its file */

struct persist_log {
    struct persist *p;
    char id[PERSIST_ID_MAX + 1];
    struct buf pending;
    bool rewrite; /* `pending` is a whole file */
    uint64_t last, durable;
    uint64_t offset; /* records before the file's first one */
    size_t appended, base;
    enum log_fate fate;
    bool broken;
    bool voided; /* its file is to go, for it may say less than was told */
    bool dirty;  /* in p->dirty */
    void (*on_durable)(void *arg);
    void *arg;
    /* in flight */
    bool flies;
    enum log_fate flying_fate;
    uint64_t flying_last;
    int result;
    struct persist_log *prev, *next;             /* p->logs */
    struct persist_log *dirty_prev, *dirty_next; /* p->dirty */
    struct persist_log *fly_prev, *fly_next;     /* p->flying */
};

struct persist {
    uv_loop_t *loop;
    char *dir;                    /* absolute */
    int dir_fd, jobs_fd, lock_fd; /* until logs are loaded, then -1 */
    struct persist_log *logs, *dirty, *flying;
    /* the process that writes; one batch at a time */
    pid_t writer;
    int fd;           /* to it; -1: there is none, and no log can be kept */
    uv_poll_t *poll;  /* of fd */
    bool flies;       /* a batch has no answer yet */
    struct buf batch; /* with its head in front */
    size_t sent;      /* bytes of it */
    struct home_inbox answer;
    size_t damaged; /* logs that were set aside */
    bool landing;   /* owners hear of it: what they append now flies next */
};

/* persist.c */
bool persist_good_id_(const char *id);
int persist_add_log_(struct persist *p, const char *id, struct persist_log **ret, struct err *e);
void persist_close_fds_(struct persist *p);

/* persist_commit.c */
void persist_touch_(struct persist_log *l); /* it has something to write */
int persist_writer_open_(struct persist *p, struct err *e);
/* Have it all written, and wait for that, at most so long; then let the process go. */
void persist_drain_(struct persist *p, int64_t most_ms);

#endif
