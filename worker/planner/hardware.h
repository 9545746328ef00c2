/* Machines that are not here, by published figures (hardware.def): what their operations and transfers take.
 *
 *   seconds of an operation = max(flop / peak flop/s, bytes / memory bytes/s) / efficiency
 *
 * Operations that ride along with another one (device/fuse.h) take nothing. The efficiency of a row is what makes
 * ResNet-50 on one GPU take as long as was published for one GPU; nothing else is fitted. It holds for arithmetic,
 * memory and links alike. Host, loader and start-up take nothing. An all-reduce goes by trees or by halving and
 * doubling, as NCCL and Gloo do over many ranks: network.h, `halving`. */
#ifndef CRUN_WORKER_HARDWARE_H
#define CRUN_WORKER_HARDWARE_H

#include <stdbool.h>

#include "worker/planner/op_times.h"
#include "worker/precision/dtype.h"

struct err;
struct network;

enum hardware_id {
#define X(id, ...) id,
#include "worker/planner/hardware.def"
#undef X
    HARDWARE_KINDS
};

struct hardware {
    const char *name, *text;
    double fp32, half, memory; /* peaks, 1/s: flop, flop, bytes; half: of 16-bit products, fp32's where it has none */
    int sms, gpus;             /* of a GPU; of a node */
    double link;               /* bytes a second that a GPU sends inside of its node */
    int channels;              /* multiprocessors that a call of a group keeps busy */
    double network, trip;      /* between nodes: bytes a second of a node; seconds */
    double efficiency;         /* of all of these */
    double rate;               /* images/s that it was fitted to, of one GPU of `fitted`, in parts of `batch` */
    int batch;
    enum dtype dtype; /* of that */
    const char *fitted;
};

int hardware_gpus(enum hardware_id id); /* of a node */

/* Row `id`; fits its efficiency. -ENOMEM. */
int hardware_open(struct hardware *ret, enum hardware_id id, struct err *e);

/* Put down all operations of *l, and the numbers that a step asks for (rank_step.h). -ENOMEM. */
int hardware_times(const struct hardware *h, struct op_times *t, const struct op_load *l, struct err *e);

/* Links inside of a node and between nodes. threads: of a rank, for which one GPU stands: calls of a group take the
 * share of them that their channels are of its multiprocessors. */
void hardware_network(const struct hardware *h, int threads, struct network *ret);

#endif
