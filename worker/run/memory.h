/* What a rank's memory goes into. */
#ifndef CRUN_WORKER_MEMORY_H
#define CRUN_WORKER_MEMORY_H

#include <stddef.h>
#include <stdint.h>

struct session;

#define MEMORY_PARTS(X)                                                                                                \
    X(parameters, "parameters")     /* and running statistics */                                                       \
    X(gradients, "gradients")       /* with the sums that travel with them */                                          \
    X(optimizer, "optimizer")       /* momentum, second moments */                                                     \
    X(averages, "averages")         /* --ema */                                                                        \
    X(activations, "activations")   /* and their gradients: the plans of training and of evaluation */                 \
    X(weights, "weight copies")     /* in the layouts that kernels want */                                             \
    X(workspace, "workspace")       /* of kernels */                                                                   \
    X(batches, "batches of images") /* the loaders' rings */

struct memory_report { /* bytes */
#define X(field, text) int64_t field;
    MEMORY_PARTS(X)
#undef X
    int64_t resident_peak; /* of the process, everything in it */
    int64_t device_peak;   /* of the device's own memory; 0: it has none */
};

void memory_report(const struct session *s, struct memory_report *ret);
/* "parameters 44.6 MiB, gradients ..., " without what is empty; peaks where with_peak. Returns out. */
char *memory_text(const struct memory_report *r, int with_peak, char *out, size_t cap);

#endif
