/* The inside of the state directory, shared by rdzv_dir.c (directory, reading it), rdzv_dir_home.c (homes, batches) and
 * rdzv_dir_writer.c (the process that writes them). */
#ifndef CRUN_COMMON_RDZV_DIR_INTERNAL_H
#define CRUN_COMMON_RDZV_DIR_INTERNAL_H

#include "common/rdzv/homes/home_wire.h"
#include "common/rdzv/homes/rdzv_dir.h"

#define DIR_ID_MAX 64

struct dir_home {
    struct rdzv_home base;
    struct rdzv_dir *dir;
    char id[DIR_ID_MAX + 1];
    bool listed; /* there is a file to load */
    bool begun;  /* its file is ours: what follows may be appended */
    struct buf pending;
    bool rewrite;     /* `pending` is a whole file */
    uint32_t records; /* of the file */
    bool closed;      /* by its owner: it is freed when it has landed */
    bool goes;        /* its file, too */
    bool broken;      /* nothing can be kept any more */
    bool voided;      /* its file is to go: it may lack decisions that were announced */
    bool dirty;       /* in dir->dirty */
    /* in flight */
    bool flying_closed;
    uint64_t flying_last;
    int result;
    struct dir_home *prev, *next;             /* dir->homes */
    struct dir_home *dirty_prev, *dirty_next; /* dir->dirty */
    struct dir_home *fly_prev, *fly_next;     /* dir->flying */
};

struct rdzv_dir {
    uv_loop_t *loop;
    char *path;                   /* absolute */
    int dir_fd, jobs_fd, lock_fd; /* until logs are loaded, then -1 */
    struct dir_home *homes, *dirty, *flying;
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

/* rdzv_dir.c: the text of its file, which is there */
int dir_read(struct dir_home *h, struct buf *ret, struct err *e);

/* rdzv_dir_home.c */
int dir_writer_open(struct rdzv_dir *d, struct err *e);
/* Have it all written, and wait for that, at most so long; then let the process go. */
void dir_drain(struct rdzv_dir *d, int64_t most_ms);

#endif
