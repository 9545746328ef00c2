/* Do ranks that train together ever wait for each other in a circle? What the host of a rank enqueues and waits for is
 * recorded, one rank after the other, over a GPU that is not there and collectives that only take notes. Then all
 * records are played against each other, with nothing but what CUDA, NCCL and gloo promise:
 *   host     goes through its record; waits for a stream or an event; a control collective holds it until all of the
 *            group's hosts are there, a control message until its sender's host has been there
 *   stream   in order; an event that it waits for has been recorded; a collective holds it until the same call of the
 *            communicator is at the head of a stream on every rank of the group; a message is such a call of its
 *            sender and its receiver, each with all they have to do with one another on a channel; those of a
 *            communicator's channel that were begun before one of them is waited for go on side by side. Kernels take
 *            no time
 *   graph    what was captured beside the launching stream runs on streams of its own
 *   first    a kernel is loaded when it is first launched, for which CUDA waits for all that is under way, as it may
 *            to make a graph; NCCL
 *            connects ranks at their first call of a kind, or first message one way, and holds each host until the
 *            others' have come to theirs
 * Whether records depend on what collectives give is not seen: hosts of this engine decide by counts of steps. */
#ifndef CRUN_TESTS_RANK_ORDER_H
#define CRUN_TESTS_RANK_ORDER_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/comm/comm.h"

struct device;
struct gpu;
struct err;

enum { ORDER_RANKS_MAX = 4 };

struct order_record;

struct order_record *order_record_create(void);
void order_record_destroy(struct order_record *r);

/* From now on what this GPU is asked for is noted in r. One record at a time. */
void order_watch_gpu(struct order_record *r, struct gpu *g);

/* A communicator of the ranks whose bits are set in `members`, as rank `rank` of the world: its results are as if all
 * others had what this one has; what it receives is zeros. id: tells it from others of the same ranks. Each device call
 * of a communicator waits for the one before it, on whatever stream that is, as NCCL's do. */
struct order_comm {
    struct comm base;
    struct order_record *record;
    struct device *device;
    unsigned members;
    int id;
};
void order_comm_init(struct order_comm *c, struct order_record *r, struct device *d, unsigned members, int rank,
                     int id);
int order_comm_rank(const struct order_comm *c); /* of the world */

/* one_queue: each rank's GPU does all that is enqueued one after another, as streams do that share a hardware queue;
 * else streams know nothing of each other. 0, or -EDEADLK with where each rank that goes no further stands, or -EPROTO:
 * ranks of a group call different things. */
int order_play(struct order_record *const *records, int ranks, bool one_queue, struct err *e);

#endif
