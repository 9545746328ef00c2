/* Collectives behind one vtable: local (world of one, or ranks as threads), gloo (CPU), nccl (in the cuda module).
 *
 * COMM_CONTROL carries host memory and its calls block, in every communicator: what ranks tell each other about files,
 * metrics and the end. Where gradients lie on a GPU the other channels carry its memory: nccl enqueues on a stream,
 * gloo stages them through page-locked memory (staged.c; the way to run several ranks on one GPU). Either has a gloo
 * communicator beside it for COMM_CONTROL (beside.c).
 *
 * A communicator has CHANNELS independent orders: calls on one channel happen in call order on every rank; calls on
 * different channels may overlap (from different threads). All ranks must make the same calls with the same sizes on a
 * channel. Every call has the communicator's deadline and can be aborted from any thread; after a failure the
 * communicator is unusable: close it (and open the next one under another name: keys of the store are not reused). A
 * rank that fails, aborts or closes in the middle of a call makes the others' calls fail within moments.
 * Sums are taken in an order that depends on world and size only, so all ranks hold equal bits.
 *
 * Messages between two ranks (isend, irecv, send) go beside the collectives: those of one sender to one receiver on one
 * channel are received in the order in which they were sent, whatever the order of the waits. Who else is alive does
 * not matter to them. Both ranks pass the same size; where they do not, receiving fails: at once, or at the deadline.
 *
 * A group is a communicator of its own over some ranks of another (comm_group): data, tensor and pipeline groups. */
#ifndef CRUN_WORKER_COMM_H
#define CRUN_WORKER_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/precision/dtype.h"

struct comm;
struct comm_kin;
struct comm_ops;
struct comm_request;
struct device;
struct err;
struct store;

enum comm_op { COMM_SUM, COMM_MAX, COMM_MIN, COMM_PROD };
enum comm_channel { COMM_CONTROL, COMM_GRADIENTS, COMM_STATISTICS, COMM_CHANNELS };

struct comm_options {
    int rank, world;
    struct store *store; /* bootstrap: used during open only; keys under "comm/<name>/" */
    /* instead of store: the communicator over whose COMM_CONTROL the ranks meet, and their ranks in it (world, in the
     * order of the new ones); used during open only. comm_group() fills them in. */
    struct comm *through;
    const int *ranks;
    const char *name;   /* distinguishes communicators of one store, "world" */
    int64_t timeout_ms; /* of open and of every call; > 0 */
    /* Readable: open is given up (-ECANCELED) where it waits for connections, also those of groups of this one; for
     * poll(2) alone, borrowed until it is closed. 0: nobody does. */
    int cancel_fd;
    /* local address to bind and advertise; NULL: loopback if all ranks are local, else by route */
    const char *bind_addr;
    bool shares_device;    /* other ranks may compute on the very same one; else that is refused (device_ops.uuid) */
    struct device *device; /* its memory is what GRADIENTS and STATISTICS carry (device_ops.async); NULL: host memory */
    const struct comm_ops *nccl; /* of the cuda module; NULL: there is none */
};

struct comm_ops {
    const char *name; /* "local", "gloo", "nccl" */
    /* calls block; else they are enqueued on `stream`, a native handle, and the buffers are device memory */
    bool host_buffers;
    int (*open)(struct comm **ret, const struct comm_options *o, struct err *e);
    void (*close)(struct comm *c);

    /* From any thread, any number of times: calls in progress and to come fail with -ECANCELED at once; the other
     * ranks' calls fail with -ECONNRESET. */
    void (*abort)(struct comm *c);

    /* In place over n elements. DT_F32, DT_F64, DT_BF16 and DT_F16 (sums in fp32, rounded at most once per rank),
     * DT_I64; else -EINVAL. Maxima and minima with a NaN among the inputs are unspecified, but equal on all ranks. n =
     * 0 does nothing. */
    int (*all_reduce)(struct comm *c, enum comm_channel ch, void *buf, size_t n, enum dtype t, enum comm_op op,
                      void *stream, struct err *e);
    /* in: n elements; out, of root alone (others: NULL): n elements, may be in. */
    int (*reduce)(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n, enum dtype t,
                  enum comm_op op, int root, void *stream, struct err *e);
    int (*broadcast)(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int root, void *stream,
                     struct err *e);
    /* out: world * bytes, in rank order. in may be its place in out. */
    int (*all_gather)(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t bytes, void *stream,
                      struct err *e);
    /* bytes[world]: of each rank, 0 too. in: bytes[rank]; out: everybody's, in rank order without gaps. in may be its
     * place in out. */
    int (*all_gather_v)(struct comm *c, enum comm_channel ch, const void *in, void *out, const size_t *bytes,
                        void *stream, struct err *e);
    /* in: world * n elements; out: n elements, everybody's slice `rank` combined. out may be that slice of in. */
    int (*reduce_scatter)(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n, enum dtype t,
                          enum comm_op op, void *stream, struct err *e);
    /* counts[world]: elements of each slice, 0 too. in: all slices, in rank order without gaps; out: counts[rank]. */
    int (*reduce_scatter_v)(struct comm *c, enum comm_channel ch, const void *in, void *out, const size_t *counts,
                            enum dtype t, enum comm_op op, void *stream, struct err *e);
    int (*barrier)(struct comm *c, enum comm_channel ch, struct err *e);

    /* Messages. peer may be the rank itself; bytes = 0 does nothing. Begun at once; buf is the call's until comm_wait()
     * returns. Every request is waited for, in any order, before close(): also after a failure or an abort. Two ranks
     * that both send first go on. On a stream the messages of a channel are enqueued by the first wait: that is their
     * place among the collectives, for all ranks alike. */
    int (*isend)(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                 struct comm_request **ret, struct err *e);
    int (*irecv)(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int peer, void *stream,
                 struct comm_request **ret, struct err *e);
    int (*wait)(struct comm_request *r, struct err *e);
    /* Does not wait for the receiver: the bytes are copied, so that ranks which all send first go on, whatever the
     * size. That they are not received by the deadline fails a later call; close() waits for them to be. On a stream
     * (host_buffers false) nothing is copied, and the stream waits for the receiver. */
    int (*send)(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                struct err *e);

    /* Where calls are only enqueued: 0, or how what was enqueued before has failed. NULL: errors come with the call.
     * Any thread. */
    int (*check)(struct comm *c, struct err *e);
    /* Memory that calls of this channel will often be about, until reclaim() or close(): registered where that saves
     * copies. Reclaimed before it is freed, once everything that was enqueued about it has happened. NULL: of no
     * use. */
    void (*lend)(struct comm *c, enum comm_channel ch, void *buf, size_t bytes);
    void (*reclaim)(struct comm *c, enum comm_channel ch, void *buf);
    /* comm_sent(). NULL: not known. */
    int64_t (*sent)(const struct comm *c, enum comm_channel ch);
};

struct comm {
    const struct comm_ops *ops; /* first member of every backend's struct */
    int rank, world;
    struct comm_kin *kin; /* the groups that were opened from it (kin.h) */
};

struct comm_request {
    struct comm *comm; /* first member of every backend's struct */
};

extern const struct comm_ops comm_local_ops, comm_gloo_ops;
extern const struct comm_ops comm_nccl_ops; /* in the cuda module */

/* By name: "local", "gloo", "nccl", "auto" (local for a world of one; else nccl where there are a device with streams
 * and NCCL, else gloo). Errors: -ETIMEDOUT names the ranks that did not come, -ECONNRESET the peer that went, -EINVAL
 * an unknown name, with the list, -ENOTSUP what is missing. */
int comm_open(struct comm **ret, const char *name, const struct comm_options *o, struct err *e);

/* A communicator over n ranks of `parent`, this one among them: `ranks` in parent's numbering, ascending; ranks[i] is
 * rank i of the group. o->device, o->nccl: as parent was opened; or device NULL, where all channels are to carry host
 * memory: over parent's backend, or gloo where that is nccl. o->timeout_ms is the group's; o->name is what errors call
 * it; the rest of o is not looked at. A group of one is free. All of its ranks call this, in the same order
 * where they open several; nobody else need to. They meet over parent's COMM_CONTROL: a rank that does not come fails
 * parent, too. Abort of parent aborts the group as well, not the other way round; each is closed by itself, in any
 * order. -EINVAL: a list that is not ascending, not of parent or without this rank; a parent that neither comm_open(),
 * comm_group() nor comm_local_open_threads() gave. */
int comm_group(struct comm **ret, struct comm *parent, const struct comm_options *o, const int *ranks, int n,
               struct err *e);

/* Until the message is received, or sent and the buffer free again; on a stream: until that is enqueued, for the whole
 * channel in one go. Frees r, whatever the result; NULL is waited for already. -ECONNRESET: the peer went, named;
 * -ETIMEDOUT. */
int comm_wait(struct comm_request *r, struct err *e);

/* All n, also after one has failed, so that their buffers are the caller's again. rc: how what was before went; it, or
 * the first failure, is returned. */
int comm_wait_all(struct comm_request **all, int n, int rc, struct err *e);

/* Begin to receive and wait. */
int comm_recv(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int peer, void *stream, struct err *e);

/* bytes[world] of all ranks to root, and from there, in rank order without gaps. all: root's; NULL elsewhere. part:
 * bytes[rank]; the two do not overlap. Messages of the channel: in order with it. */
int comm_gather(struct comm *c, enum comm_channel ch, const void *part, void *all, const size_t *bytes, int root,
                void *stream, struct err *e);
int comm_scatter(struct comm *c, enum comm_channel ch, const void *all, void *part, const size_t *bytes, int root,
                 void *stream, struct err *e);

/* Bytes that this rank has sent to others on a channel so far, as the kernel counts them: headers of the transport are
 * in it, those of TCP are not. -1: the backend does not know (nccl; ranks as threads). Any thread. */
int64_t comm_sent(const struct comm *c, enum comm_channel ch);

/* For backends: -EINVAL for a root that there is not. */
int comm_root_check(const struct comm *c, int root, struct err *e);

/* all_gather and reduce_scatter of every backend: the calls for uneven parts, with equal ones. */
int comm_all_gather_equal(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t bytes, void *stream,
                          struct err *e);
int comm_reduce_scatter_equal(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n, enum dtype t,
                              enum comm_op op, void *stream, struct err *e);

/* What `root` has loaded, or that it failed (rc), for all ranks: 0, and *text is root's (malloc'ed on the others); else
 * root returns rc and leaves *e alone, the others -ECANCELED: "rank 0 could not load <what>". text NULL: only how it
 * went. */
int comm_share(struct comm *c, int root, int rc, const char *what, char **text, struct err *e);

/* Control on one communicator, all else on the other, both taken over: also on failure, when they are closed. */
int comm_beside(struct comm **ret, struct comm *control, struct comm *device, struct err *e);

/* Device memory over a communicator for host memory: copied out to page-locked memory on the caller's stream, reduced,
 * copied back, all of it waited for. COMM_CONTROL is host's. Takes host over, also on failure. */
int comm_staged(struct comm **ret, struct comm *host, struct device *d, struct err *e);

/* All-reduces of GRADIENTS and STATISTICS go node by node from COMM_HIERARCHY_BYTES on: sums inside of each node, of
 * these between the nodes, each rank with a part of them, and inside again; the rest goes over `all` as it is. node: of
 * this rank, any number. *ret: `all` itself where it lies on one node, or has no two ranks on one. o: as `all` was
 * opened. All ranks call it together. owned: `all` is closed with it; on failure it stays open. -ENOTSUP: memory of a
 * device with streams. */
enum { COMM_HIERARCHY_BYTES = 64 << 10 };
int comm_hierarchy(struct comm **ret, struct comm *all, const struct comm_options *o, int node, bool owned,
                   struct err *e);

/* Ranks as threads of one process (tests): opens `world` communicators that meet each other. ret: array of world.
 * Each is closed by itself. */
int comm_local_open_threads(struct comm **ret, int world, int64_t timeout_ms, struct err *e);

#endif
