/* All that a training step needs, over made-up images. */
#ifndef CRUN_TESTS_STEP_RIG_H
#define CRUN_TESTS_STEP_RIG_H

#include "worker/device/device.h"
#include "worker/optim/update.h"
#include "worker/parallel/ownership.h"
#include "worker/pipeline/pipeline.h"
#include "worker/precision/precision.h"
#include "worker/program/program.h"
#include "worker/run/step.h"
#include "worker/state/state.h"

struct comm;

struct step_rig_options {
    struct optimizer optimizer;
    struct precision precision; /* and the loss scale to begin with */
    int batch, steps;           /* images of a step, over all ranks; steps there are images for */
    int short_by;               /* images that the last step lacks */
    int parts;                  /* of a step */
    bool sync_bn;
    double smoothing;         /* of labels */
    int zero;                 /* level of ZeRO */
    bool seconds;             /* its parts have second owners */
    int tensor;               /* ranks of a tensor group, whose program p is; 0: 1 */
    struct pipeline pipeline; /* stages 0 or 1: none; its micro-batches are `parts` */
    bool recompute;
    size_t bucket_bytes;        /* 0: as by default; the first and the last are of an eighth */
    bool emulate;               /* computes in halves, emulated; else in what the state is made of */
    struct comm *const *groups; /* (LAYOUT_GROUPS), borrowed; NULL: opened from the communicator */
    struct comm *const *edges;  /* (2), groups_open_edges(), borrowed with groups */
    bool native;                /* computes in halves, as the device has them */
    /* What the plan is given in place of these; NULL: these */
    const struct plan_needs *(*wrap)(const struct plan_needs *needs);
};

struct step_rig {
    struct step step;
    struct ownership own;
    struct state state;
    struct program *program; /* of this rank's stage */
    struct program *whole;   /* NULL: that is the whole model */
    int trains_from;         /* of a pipeline */
    struct dataset *set;
    struct loader *loader;
    struct plan *plan;
    struct stage *stage;
    struct ddp *ddp;
    struct optimizer optimizer;
    struct comm *comm, *groups[LAYOUT_GROUPS], *edges[2];
    bool borrows_groups;
    struct plan_group group; /* the tensor group */
    struct residency *needs; /* of the plan, with --zero 3 */
};

/* d and comm are borrowed, p is taken over. A failure is the test's end: nothing is given back. */
int step_rig_open(struct step_rig *r, struct device *d, struct program *p, struct comm *comm,
                  const struct step_rig_options *o, struct err *e);
void step_rig_close(struct step_rig *r);

#endif
