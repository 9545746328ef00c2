/* Data parallelism: the reduce arena (program.h) is summed over the ranks in buckets while backward still runs.
 *
 * A bucket is a piece of the arena (ownership.h), which says over which group it is summed. Gradients lie in backward
 * order, so bucket k is complete before bucket k+1. A bucket whose last element is ready goes to one communication
 * thread (host backends) or to the communication stream (nccl), in order. A piece that is cut is reduce-scattered:
 * this rank's part of it becomes the sum, the rest is left as anything; where parts have second owners, their sums go
 * on to these. The tail (statistics, metrics) is summed over the batch group, with the last bucket where that is, too.
 *
 *   ddp_begin(d, last_micro_batch);      backward calls ready() on the training thread
 *   run(plan, {.hooks = ddp_hooks(d)})   -> bucket k complete -> communication thread reduces it
 *   write the tail (metrics, stop flag)
 *   ddp_wait(d)                          -> the last bucket and the tail go, wait for all
 *
 * Where gradients are cut (ZeRO 2) on a host device, what is left as anything is given back to the system: its pages
 * are gone until backward writes there again, and backward waits where more than two buckets have not been reduced. So
 * the arena is address space, and memory is what this rank owns and a few buckets. A step of several parts reduces each
 * of them, and ddp_keep() adds them up. A device with streams keeps the whole arena, and reduces the last part alone.
 *
 * Where parameters are cut, too (ZeRO 3, residency.h), the same thread gathers them piece by piece, in the order in
 * which all was asked for: gathers between buckets.
 *
 * On a device with streams (device_ops.async) nobody waits where collectives are enqueued (nccl):
 *
 *   compute        backward ....... | ready: event          tail |------. join | update
 *   communication                   '-> bucket 0, bucket 1, ... -'-> last bucket
 *
 * A run that is captured as a graph takes its buckets into the graph; when that is launched again they count as
 * reduced, and only the last bucket, which the tail is in, is enqueued each time. Where collectives block (gloo,
 * staged) the communication thread works on the communication stream, and runs are not captured. */
#ifndef CRUN_WORKER_DDP_H
#define CRUN_WORKER_DDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/device/device.h"
#include "worker/parallel/ownership.h"

struct comm;
struct ddp;
struct err;

enum { DDP_WATCH_STATISTICS = -1, DDP_WATCH_GATHER = -2 };

/* Who wants to know when reductions ran, times as clock_ns(). bucket: or DDP_WATCH_*. own_thread: not on the training
 * thread. */
struct ddp_watch {
    void *ctx;
    void (*reduced)(void *ctx, int bucket, bool own_thread, int64_t start_ns, int64_t end_ns);
};

struct ddp_options {
    bool sync_bn;          /* give devices the all_sum hook */
    struct device *device; /* where the arena is, borrowed; NULL: host memory */
    /* what gradients travel as: `real`, or DT_F16, DT_BF16: then divided by the ranks first, so that their sum fits */
    enum dtype wire;
    /* On a device with streams, too, ddp_wait() and ddp_gather() return when all is there, or how it failed. */
    bool waits;
};

/* groups: the communicators of this rank's groups, by enum layout_group; NULL: not needed, or nobody else is in it. own
 * says which are needed. reduce: the arena (own->n_train gradients, then n_tail statistics and metrics) of element type
 * `real`. All borrowed. Starts the communication thread. -EINVAL: a group that is needed is not there. */
int ddp_create(struct ddp **ret, struct comm *const groups[LAYOUT_GROUPS], const struct ownership *own, void *reduce,
               size_t n_tail, enum dtype real, const struct ddp_options *o, struct err *e);
void ddp_destroy(struct ddp *d); /* joins the thread; abort the communicator first if calls may hang */

/* Before the first ddp_begin(); borrowed until ddp_destroy(). */
void ddp_set_watch(struct ddp *d, const struct ddp_watch *w);

/* Hooks to pass to run(); valid until ddp_destroy(). For a rank alone they cost nothing. */
const struct run_hooks *ddp_hooks(struct ddp *d);

/* The same for a run of which nothing is reduced but statistics: all parts of a step but the last. */
const struct run_hooks *ddp_idle_hooks(struct ddp *d);

/* Before run(): this step's gradients will be reduced (false: an accumulation step, nothing is sent). What was begun
 * ends with ddp_wait(), or with ddp_destroy() if run() failed: then the ranks are out of step. */
void ddp_begin(struct ddp *d, bool reduce);

/* Before ddp_begin(): while later parts of the step still add to the tail it does not go with this part's gradients,
 * and ddp_keep() leaves it alone. For steps that call it for each part they reduce. */
void ddp_hold_tail(struct ddp *d, bool hold);

/* Are gradients reduced in every part of a step (ddp_begin(d, true), run() without accumulate), as nobody has all of
 * them at once? Then, after ddp_wait(), each part is kept; with the last one sums of all parts take its place: of what
 * this rank owns, and of the tail. Training thread. -ENOMEM. */
bool ddp_each_part(const struct ddp *d);
int ddp_keep(struct ddp *d, bool first, bool last, struct err *e);

/* After run(): the tail (statistics, metrics, whatever the step put there) is final; wait until everything is reduced.
 * Returns the first error of any bucket, now and ever after: -ECANCELED after abort, -ETIMEDOUT, -ECONNRESET; each
 * collective's deadline bounds the wait. After ddp_begin(d, false): 0 at once.
 * Where collectives are enqueued and not waited for (ddp_options.waits): what the device computes from now on sees the
 * sums; errors show in ddp_check(). */
int ddp_wait(struct ddp *d, struct err *e);

/* Sums of what two stages are tied by become those of both (ownership.h). When all parts of a step have been reduced;
 * elsewhere, and where nothing is tied: nothing, at once. As ddp_wait(). */
int ddp_tie(struct ddp *d, struct err *e);

/* What each rank owns of an arena of n_train elements of type `real` goes to all that hold copies: all-gathers of the
 * pieces that are cut (ownership.h); where none is: nothing, at once. On a device with streams what is computed from
 * now on sees them, or they are waited for. Training thread, between ddp_wait() and ddp_begin(). */
int ddp_gather(struct ddp *d, void *arena, struct err *e);

/* A piece comes to `to`, all of it; mine: this rank's part, in its place in `to` or apart from it. On the communication
 * thread, behind what has been asked for so far. *ticket: for ddp_fetched(), which waits until it has come; or for
 * the error that any of it had. On a device with streams `to` is written once what is computed so far has been; where
 * collectives are enqueued nobody waits: `event` (device_async) is marked behind it. Training thread. */
struct ddp_fetch {
    int piece;
    const void *mine;
    void *to;
    void *event; /* NULL: a device without streams */
};
int ddp_fetch(struct ddp *d, const struct ddp_fetch *f, uint64_t *ticket, struct err *e);
int ddp_fetched(struct ddp *d, uint64_t ticket, struct err *e);
bool ddp_blocks(const struct ddp *d); /* collectives act on the host, when they are called */

/* The communicator of a group that others are in; else NULL. Borrowed. */
struct comm *ddp_group(const struct ddp *d, enum layout_group g);

/* All ranks have got here: when it returns 0, the sums that each has waited for are there on every rank, whether or not
 * it returns 0 there. Training thread, between ddp_wait() and ddp_begin(). */
int ddp_confirm(struct ddp *d, struct err *e);

/* v[0..n) becomes its sum over a group of this rank's. Training thread, between ddp_wait() and ddp_begin(). */
int ddp_sum(struct ddp *d, enum layout_group g, double *v, size_t n, struct err *e);

/* How anything that was enqueued has failed, or 0. Before a step, and before results are believed. */
int ddp_check(struct ddp *d, struct err *e);

struct ddp_stats {
    int buckets;           /* of a step; 0 for a rank alone */
    int64_t comm_ns;       /* time spent on buckets and pieces, sum over steps (host backends) */
    int64_t exposed_ns;    /* time the training thread waited in ddp_wait(), ddp_fetched() */
    int64_t statistics_ns; /* time the training thread spent in all_sum */
    int64_t first_ns;      /* when the first gradients of the last run were final; clock_ns() */
};
void ddp_stats(const struct ddp *d, struct ddp_stats *ret);

#endif
