/* Collectives over values whose results are known without a second collective: small whole numbers, whose sums are
 * exact in every type for up to 85 ranks (bf16 holds whole numbers up to 256); products are of ones and twos. */
#ifndef CRUN_WORKER_COMM_KNOWN_H
#define CRUN_WORKER_COMM_KNOWN_H

#include <stddef.h>

#include "worker/comm/comm.h"

enum { KNOWN_WORLD_MAX = 85 };

#define KNOWN_CALLS(X) /* id, name */                                                                                  \
    X(KNOWN_ALL_REDUCE, "all_reduce")                                                                                  \
    X(KNOWN_ALL_GATHER, "all_gather")                                                                                  \
    X(KNOWN_REDUCE_SCATTER, "reduce_scatter")                                                                          \
    X(KNOWN_BROADCAST, "broadcast")                                                                                    \
    X(KNOWN_REDUCE, "reduce")                                                                                          \
    X(KNOWN_GATHER, "gather")                                                                                          \
    X(KNOWN_SCATTER, "scatter")                                                                                        \
    X(KNOWN_SENDRECV, "sendrecv") /* every rank to the next one, and from the one before */

enum known_call {
#define X(id, name) id,
    KNOWN_CALLS(X)
#undef X
        KNOWN_CALL_COUNT
};

struct known {
    enum known_call call;
    enum dtype type; /* DT_F32, DT_F64, DT_BF16, DT_F16 or DT_I64 */
    enum comm_op op; /* of reductions */
    int rank, world, root;
    size_t n;    /* elements that the whole is made of; of parts that are equal: a multiple of world */
    bool uneven; /* parts grow with the rank; the first may be empty */
};

const char *known_call_name(enum known_call c);
bool known_reduces(enum known_call c);
bool known_has_root(enum known_call c);
bool known_has_parts(enum known_call c); /* is the whole divided among the ranks? */
bool known_in_place(enum known_call c);  /* the result is where the input was */
size_t known_in(const struct known *k);  /* elements that a rank passes */
size_t known_out(const struct known *k); /* and gets */

void known_fill(const struct known *k, void *in); /* (known_in) */
/* The call itself, on this rank. out: not looked at where the result is in place. */
int known_run(const struct known *k, struct comm *c, enum comm_channel ch, void *in, void *out, void *stream,
              struct err *e);
/* How many of the known_out elements are not what they must be. */
size_t known_wrong(const struct known *k, const void *out);

/* Bytes over a link for each byte of the whole, so that times of worlds of different sizes compare: nccl-tests' busbw /
 * algbw. */
double known_bus_factor(enum known_call c, int world);

#endif
