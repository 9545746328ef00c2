/* The inside of the state directory, shared by state_dir.c (directory, reading it), state_home.c (homes: what must be
 * written for each), state_batch.c (batches, and the connection, *door*, to the process that writes them),
 * state_process.c (that process) and state_writer.c (what it does).
 *
 * A home with something to write is in dir->dirty; while that is being written, in dir->flying; it may be in both.
 * One batch is under way (*flies*) at a time. */
#ifndef CRUN_RENDEZVOUSD_STATE_INTERNAL_H
#define CRUN_RENDEZVOUSD_STATE_INTERNAL_H

#include "common/rdzv/homes/home_wire.h"
#include "rendezvousd/state/state_dir.h"
#include "rendezvousd/state/state_process.h"
#include "rendezvousd/state/state_writer.h"

#define DIR_ID_MAX 64

/* name, state of a home's file */
#define DIR_FILES(X)                                                                                                   \
    X(DIR_FOREIGN) /* missing, or an earlier daemon's: the first decision replaces it by a whole file */               \
    X(DIR_OURS)    /* contains all that is stored: further texts are appended */                                       \
    X(DIR_GOES)    /* must be removed, because it is forgotten or lacks decisions; tried until it succeeds */          \
    X(DIR_GONE)    /* removed: nothing more is stored, except a whole log after a loss (rdzv_home.unlogged) */

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
    bool closed;      /* closed by its owner: freed when nothing is left to write or remove */
    bool aside;       /* rename the file instead of removing it, for inspection */
    bool refused;     /* it has been printed that the file cannot be removed */
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
    char **ids;          /* names of the existing logs, sorted; until they are loaded */
    size_t n_ids;
    struct dir_home *homes, *dirty, *flying;
    /* the connection (door) to the process that writes; one batch at a time */
    struct state_process own, *process; /* its own process, or that of the directory in which it is */
    int fd;                             /* -1: not connected; the next batch opens a door */
    uv_poll_t *poll;                    /* of fd */
    bool flies;                         /* a batch has no answer yet */
    struct buf batch;                   /* with its head in front */
    size_t sent;                        /* bytes of it */
    struct home_inbox answer;
    size_t damaged;    /* logs that were set aside */
    bool landing;      /* owners are being told of a landed batch: what they append now goes into the next one */
    uv_timer_t *retry; /* runs while logs are lost, or could not be removed, to try again */
    int64_t retry_ms;  /* ms until the next try; 0: none was made yet */
    bool ends;         /* files that cannot be removed now stay */
};

/* state_dir.c: read the text of its file, which exists */
int dir_read(struct dir_home *h, struct buf *ret, struct err *e);

/* state_home.c */
enum dir_op dir_op_(const struct dir_home *h); /* what its file needs now */
void dir_landed_(struct dir_home *h);          /* called after flying_op, with h->result; h may be freed by it */
/* Try again: remove files, and write one lost log anew; if that succeeds, the others follow. */
void dir_retry_(struct state_dir *d);

/* state_batch.c */
/* have the writing process lock the directory. Blocks; -EBUSY: another daemon has it; -errno */
int dir_enter_(struct state_dir *d);
int dir_watch_(struct state_dir *d);  /* its door, from then on */
void dir_mark_(struct dir_home *h);   /* mark it dirty: dir_start_() writes it, or the end of the present batch does */
void dir_start_(struct state_dir *d); /* write what is dirty, unless a batch is under way */
void dir_retry_later_(struct state_dir *d);
/* Have everything written, wait for that for most_ms at most, then release the process. */
void dir_drain_(struct state_dir *d, int64_t most_ms);

#endif
