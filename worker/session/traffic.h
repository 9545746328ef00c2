/* What a rank sends to others in a step, by the bandwidth-optimal algorithms (ring): of n ranks and B bytes an
 * all-reduce sends 2 (n - 1) / n B, a reduce-scatter or an all-gather of B in all (n - 1) / n B. Counted from the
 * program and the ownership, without a communicator. Headers, a few numbers a step (norms, metrics on the control
 * channel) and messages too small for a ring are not in it. */
#ifndef CRUN_WORKER_TRAFFIC_H
#define CRUN_WORKER_TRAFFIC_H

#include <stdint.h>

struct session;

#define TRAFFIC_KINDS(X)                                                                                               \
    X(gradients, "gradients") /* all-reduce, or reduce-scatter (ZeRO), with the statistics and metrics behind them */  \
    X(parameters, "parameters") /* all-gather of what was updated (ZeRO), or is read (ZeRO 3) */                       \
    X(layer, "split layer")     /* features, labels, maxima, sums: operations over the tensor group */                 \
    X(statistics, "batch norm") /* --sync-bn */                                                                        \
    X(stages, "other stages")   /* activations, gradients of them, labels */

struct traffic_part {
    int64_t calls, bytes;
};

struct traffic {
#define X(kind, text) struct traffic_part kind;
    TRAFFIC_KINDS(X)
#undef X
};

/* Of a session whose program, ownership, precision and batch are known. */
void traffic_of_step(const struct session *s, struct traffic *ret);
int64_t traffic_bytes(const struct traffic *t); /* in sum */

#endif
