/* Collectives behind one vtable: local (world of one, or ranks as threads), gloo (CPU), nccl (in the cuda module).
 *
 * A communicator has CHANNELS independent orders: calls on one channel happen in call order on every rank; calls on different channels
 * may overlap (from different threads). All ranks must make the same calls with the same sizes on a channel.
 * Every call has the communicator's deadline and can be aborted from any thread; after a failure the communicator is
 * unusable: close it (and open the next one under another name: keys of the store are not reused). A rank that fails, aborts or closes
 * in the middle of a call makes the others' calls fail within moments.
 * Sums are taken in an order that depends on world and size only, so all ranks hold equal bits. */
#ifndef CRUN_WORKER_COMM_H
#define CRUN_WORKER_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/dtype.h"

struct err;
struct store;
struct comm;

enum comm_op { COMM_SUM, COMM_MAX, COMM_MIN };
enum comm_channel { COMM_CONTROL, COMM_GRADIENTS, COMM_STATISTICS, COMM_CHANNELS };

struct comm_options {
    int rank, world;
    struct store *store; /* bootstrap: used during open only; keys under "comm/<name>/" */
    const char *name;    /* distinguishes communicators of one store, "world" */
    int64_t timeout_ms;  /* of open and of every call; > 0 */
    const char
        *bind_addr; /* local address to bind and advertise; NULL: loopback if all ranks are local, else by route */
};

struct comm_ops {
    const char *name;  /* "local", "gloo", "nccl" */
    bool host_buffers; /* buffers are host memory and calls block; else they are enqueued on `stream` */
    int (*open)(struct comm **ret, const struct comm_options *o, struct err *e);
    void (*close)(struct comm *c);

    /* From any thread, any number of times: calls in progress and to come fail with -ECANCELED at once; the other ranks' calls
     * fail with -ECONNRESET. */
    void (*abort)(struct comm *c);

    /* In place over n elements. DT_F32, DT_F64, DT_BF16 and DT_F16 (sums in fp32, rounded at most once per rank), DT_I64; else -EINVAL.
     * Maxima and minima with a NaN among the inputs are unspecified, but equal on all ranks. n = 0 does nothing. */
    int (*all_reduce)(struct comm *c, enum comm_channel ch, void *buf, size_t n, enum dtype t, enum comm_op op,
                      void *stream, struct err *e);
    int (*broadcast)(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int root, void *stream,
                     struct err *e);
    /* out: world * bytes, in rank order. */
    int (*all_gather)(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t bytes, void *stream,
                      struct err *e);
    /* in: world * n elements; out: n elements, the sum of everybody's slice `rank`; the two do not overlap. */
    int (*reduce_scatter)(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n, enum dtype t,
                          void *stream, struct err *e);
    int (*barrier)(struct comm *c, enum comm_channel ch, struct err *e);
};

struct comm {
    const struct comm_ops *ops; /* first member of every backend's struct */
    int rank, world;
};

extern const struct comm_ops comm_local_ops, comm_gloo_ops;

/* By name: "local", "gloo", "auto" (local for a world of one, else gloo). Errors: -ETIMEDOUT names the ranks that did not come,
 * -ECONNRESET the peer that went, -EINVAL an unknown name, with the list. */
int comm_open(struct comm **ret, const char *name, const struct comm_options *o, struct err *e);

/* Ranks as threads of one process (tests): opens `world` communicators that meet each other. ret: array of world.
 * Each is closed by itself. */
int comm_local_open_threads(struct comm **ret, int world, int64_t timeout_ms, struct err *e);

#endif
