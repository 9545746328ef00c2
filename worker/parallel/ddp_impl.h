/* Inside of ddp.h: ddp.c says when a bucket goes, ddp_reduce.c what becomes of it. */
#ifndef CRUN_WORKER_DDP_IMPL_H
#define CRUN_WORKER_DDP_IMPL_H

#include <pthread.h>

#include "common/base/err.h"
#include "worker/parallel/ddp.h"

/* For the communication thread: reduce bucket `piece`; or gather it (`to` is not NULL). */
struct ddp_job {
    int piece;
    const char *mine;
    char *to;
};

struct ddp {
    struct comm *groups[LAYOUT_GROUPS];
    const struct ownership *own;
    char *reduce;
    size_t n_tail;
    enum dtype real, wire;
    uint16_t *half; /* a bucket's gradients on their way, where the arena is; NULL where wire is real */
    bool sheds;     /* pages of gradients that others own are given back */
    size_t window;  /* elements that may wait for it; then backward waits */
    char *kept;     /* sums of the parts so far: what this rank owns, and the tail; NULL: not yet */
    struct run_hooks hooks, idle;
    struct device *device; /* NULL: the arena is host memory, and so is half */
    const struct device_async *async;
    void *side;                    /* communication stream */
    bool waits;                    /* for what is enqueued */
    const struct ddp_watch *watch; /* NULL: nobody */
    int buckets;                   /* pieces, and the tail if it goes by itself */

    bool tail_apart; /* training thread: the tail goes once a step, whatever parts are reduced before */
    bool tail_stays; /* not with this run's gradients */
    bool active;     /* training thread: this run's gradients are reduced */
    size_t ready_to; /* training thread: gradients below are final */
    void *stream;    /* training thread: of the last ready() */

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* the rest */
    pthread_cond_t change;
    struct ddp_job *jobs; /* of the communication thread; those asked - served of them that come last are to be done */
    size_t njobs, cap_jobs;
    uint64_t asked, served; /* jobs so far */
    int complete, done;     /* buckets of this step */
    int captured;           /* buckets that the last captured run took along */
    bool leaving;
    struct err failed; /* code 0: none */
    struct ddp_stats stats;
};

/* The communication stream goes on from here of the compute stream; or the other way round. Nothing on host devices. */
int ddp_fork(struct ddp *d, struct err *e);
int ddp_join(struct ddp *d, struct err *e);
/* ddp_join(), and where it is to be waited for: how that went which was enqueued so far. */
int ddp_end(struct ddp *d, struct err *e);
int ddp_settle(struct ddp *d, struct err *e); /* waits for it, if that is wanted */

/* Sum bucket k (ownership_bucket()) over its group, the tail with the last one.
 * Blocks, or is enqueued on stream; any one thread. */
int ddp_reduce_bucket(struct ddp *d, int k, void *stream, struct err *e);
/* Piece k comes to `to`; mine: this rank's part of it, in its place in `to` or apart from it. */
int ddp_gather_piece(struct ddp *d, int k, const char *mine, char *to, struct err *e);

#endif
