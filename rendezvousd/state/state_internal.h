/* The inside of the state directory, shared by state_dir.c (directory, reading it), state_home.c (homes: what is to be
 * written of each), state_batch.c (batches, and the door to the process that writes them), state_process.c (that
 * process) and state_writer.c (what it does).
 *
 * A home with something to write is in dir->dirty, and while that is being written in dir->flying; it may be in both.
 * One batch flies at a time. */
#ifndef CRUN_RENDEZVOUSD_STATE_INTERNAL_H
#define CRUN_RENDEZVOUSD_STATE_INTERNAL_H

#include "common/rdzv/homes/home_wire.h"
#include "rendezvousd/state/state_dir.h"
#include "rendezvousd/state/state_process.h"
#include "rendezvousd/state/state_writer.h"

#define DIR_ID_MAX 64

/* name, what the file of a home is */
#define DIR_FILES(X)                                                                                                   \
    X(DIR_FOREIGN) /* not there, or an earlier daemon's: a whole file takes its place with the first decision */       \
    X(DIR_OURS)    /* all that stands is in it: what follows is appended */                                            \
    X(DIR_GOES)    /* is to be removed, and that is tried until it is done: forgotten, or it lacks decisions */        \
    X(DIR_GONE)    /* removed: nothing is kept, unless it is lost (rdzv_home.unlogged) and something whole comes */

enum dir_file {
#define X(name) name,
    DIR_FILES(X)
#undef X
};

struct dir_home {
    struct rdzv_home base;
    struct state_dir *dir;
    char id[DIR_ID_MAX + 1];
    bool listed; /* there is a file to load */
    enum dir_file file;
    uint32_t records; /* of the file */
    bool closed;      /* by its owner: freed when nothing is left to write or to remove */
    bool aside;       /* it is renamed instead of removed: somebody will want to look at it */
    bool refused;     /* it was reported that the file cannot be removed */
    /* to be written next */
    struct buf pending;
    bool pending_whole; /* it is a whole file */
    bool dirty;         /* in dir->dirty */
    /* in flight */
    enum dir_op flying_op;
    uint64_t flying_last; /* number of its last decision */
    int result;
    struct dir_home *prev, *next;             /* dir->homes */
    struct dir_home *dirty_prev, *dirty_next; /* dir->dirty */
    struct dir_home *fly_prev, *fly_next;     /* dir->flying */
};

struct state_dir {
    uv_loop_t *loop;
    char *path;          /* absolute */
    int dir_fd, jobs_fd; /* until logs are loaded, then -1 */
    char **ids;          /* of logs that are there, sorted; until they are loaded */
    size_t n_ids;
    struct dir_home *homes, *dirty, *flying;
    /* the door to the process that writes; one batch at a time */
    struct state_process own, *process; /* its own, or that of the directory which it is within */
    int fd;                             /* -1: there is none; the next batch opens one */
    uv_poll_t *poll;                    /* of fd */
    bool flies;                         /* a batch has no answer yet */
    struct buf batch;                   /* with its head in front */
    size_t sent;                        /* bytes of it */
    struct home_inbox answer;
    size_t damaged;    /* logs that were set aside */
    bool landing;      /* owners hear of it: what they append now flies next */
    uv_timer_t *retry; /* runs while logs are lost or could not be removed: then it is tried again */
    int64_t retry_ms;  /* until the next try after that; 0: the first is not made */
    bool ends;         /* what cannot be removed now stays */
};

/* state_dir.c: the text of its file, which is there */
int dir_read(struct dir_home *h, struct buf *ret, struct err *e);

/* state_home.c */
enum dir_op dir_op_(const struct dir_home *h); /* what its file needs now */
void dir_landed_(struct dir_home *h);          /* after flying_op, with h->result; h may be gone afterwards */
/* Try again what could not be: remove files, and write one lost log anew; if that can be, the others follow. */
void dir_retry_(struct state_dir *d);

/* state_batch.c */
int dir_enter_(struct state_dir *d);  /* have the directory locked. Blocks; -EBUSY: another daemon has it; -errno */
int dir_watch_(struct state_dir *d);  /* its door, from then on */
void dir_mark_(struct dir_home *h);   /* it is dirty: dir_start_() writes it, or the end of a landing */
void dir_start_(struct state_dir *d); /* write what is dirty, unless a batch flies */
void dir_retry_later_(struct state_dir *d);
/* Have it all written, and wait for that, at most so long; then let the process go. */
void dir_drain_(struct state_dir *d, int64_t most_ms);

#endif
