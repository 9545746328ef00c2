/* A training run of test_exact.c's network over made-up images, ranks as threads: 20 losses and the final
 * parameters. */
#ifndef CRUN_TESTS_EXACT_RUN_H
#define CRUN_TESTS_EXACT_RUN_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/worker/run/exact_points.h"
#include "worker/pipeline/pipeline.h"

struct program;
struct step_rig;

enum { EXACT_STEPS = 20 };

struct exact_outcome {
    double loss[EXACT_STEPS];
    double *params; /* whole ones, one behind the other, then running statistics; averages of all of them behind it */
    size_t n;
};

struct exact_run {
    struct point p;
    int world, tensor, zero, parts; /* what of the point the reference does not share */
    bool sync;
    bool positions;           /* the network: exact_positions() instead of exact_net() */
    bool text, tied;          /* or exact_text() */
    const char *frozen;       /* factors of its parameters' rates, of which those of 0 are frozen; NULL: none */
    bool still;               /* rates of 0 and gradients all the same, instead of frozen ones */
    struct pipeline pipeline; /* stages 0: none */
    bool recompute;
    const char *device; /* NULL: "ref" */
    /* Does something wrong on purpose, on each rank, before the first step; with something of the rank's to keep it in.
     * NULL: all is right, and replicas are compared. */
    void (*mutate)(struct step_rig *rig, void *kept, int mutant);
    int mutant;
};

struct exact_run exact_point(const struct point *p);
/* One process with the point's micro-batches; where statistics are each rank's own, with as many as ranks make of
 * them. */
struct exact_run exact_reference(const struct point *p);

/* The outcome's params are malloc'ed. Fails the test where a rank fails. */
void exact_train(const struct exact_run *r, struct exact_outcome *out);
/* The same where ranks may fail: how many did; the first one's error text. */
int exact_try(const struct exact_run *r, struct exact_outcome *out, char *text, size_t cap);

/* The largest |difference| / max(1, |value|), of losses and values. */
double exact_distance(const struct exact_outcome *got, const struct exact_outcome *want);

#endif
