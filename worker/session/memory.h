/* What a rank's memory goes into. */
#ifndef CRUN_WORKER_MEMORY_H
#define CRUN_WORKER_MEMORY_H

#include <stddef.h>
#include <stdint.h>

struct session;

#define MEMORY_PARTS(X)                                                                                                \
    X(parameters, "parameters")      /* and running statistics */                                                      \
    X(gathered, "gathered")          /* parameters of others, at most (ZeRO 3) */                                      \
    X(gradients, "gradients")        /* with the sums that travel with them */                                         \
    X(optimizer, "optimizer")        /* momentum, second moments */                                                    \
    X(averages, "averages")          /* --ema */                                                                       \
    X(activations, "activations")    /* and their gradients: the plans of training and of evaluation */                \
    X(weights, "weight copies")      /* in the layouts that kernels want */                                            \
    X(workspace, "workspace")        /* of kernels */                                                                  \
    X(batches, "batches of samples") /* the loaders' rings */                                                          \
    X(kept, "copies in memory")      /* of the node, which outlives a process (--memory-checkpoints) */

/* Where --mem-report looks. */
#define MEM_POINTS(X)                                                                                                  \
    X(MEM_BEGIN, "begin")        /* nothing of the run is open yet */                                                  \
    X(MEM_MODEL, "model")        /* parameters, gradients, optimizer */                                                \
    X(MEM_COMM, "communicators") /* and buckets */                                                                     \
    X(MEM_PLANS, "plans")        /* activations, loaders: before the first step */                                     \
    X(MEM_STEP, "first step")    /* after it */                                                                        \
    X(MEM_NOW, "now")            /* when the table is made */

enum mem_point {
#define X(id, name) id,
    MEM_POINTS(X)
#undef X
        MEM_POINTS_N
};

struct mem_marks {
    int64_t held[MEM_POINTS_N]; /* bytes */
    int64_t sent;               /* by the last step; -1: not known */
};

/* Parameters, gradients, moments and averages of this rank, in bytes; s->state is measured at least. */
int64_t memory_of_state(const struct session *s);

struct memory_report { /* bytes */
#define X(field, text) int64_t field;
    MEMORY_PARTS(X)
#undef X
    int64_t resident_peak; /* of the process, everything in it */
    int64_t device_peak;   /* of the device's own memory; 0: it has none */
};

/* Of a session whose state and plans are open, or forecast. */
void memory_report(const struct session *s, struct memory_report *ret);
int64_t memory_planned(const struct memory_report *r); /* the parts in sum */
/* "parameters 44.6 MiB, gradients ..., " without what is empty; peaks where with_peak. Returns out. */
char *memory_text(const struct memory_report *r, int with_peak, char *out, size_t cap);

/* --mem-report: note how much memory is held now, the process' own or the device's where it has some, in s->mem. */
void memory_mark(struct session *s, enum mem_point p);

#endif
