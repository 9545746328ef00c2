/* One training step: the page that everything else serves. */
#ifndef CRUN_WORKER_STEP_H
#define CRUN_WORKER_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/precision/precision.h"

struct ddp;
struct err;
struct loader;
struct optimizer;
struct plan;
struct stage;
struct state;
struct trace;

struct step_result { /* sums over the global batch, equal on all ranks */
    bool done;       /* false: nothing yet, all else is 0 */
    double lr;       /* of that step */
    double loss, top1, top5, count;
    double stop;   /* ranks that want to stop */
    double save;   /* ranks that want to save; 0 without saves_together */
    double waited; /* ranks that wait for the network; 0 without tells_waits */
    double bad;    /* samples that could not be decoded */
    /* a gradient overflowed: nothing changed, but the loss scale. Sums are 0 if the loss overflowed, too */
    bool skipped;
    double grad_norm;          /* of the gradient, before it is clipped; 0: nobody looked */
    int64_t wait_ns, total_ns; /* of this rank: for data; in all */
    /* Likewise, on devices that do not go on by themselves: until the first gradient is there, until the last one is,
     * both without waits for other ranks; these; the update. */
    int64_t forward_ns, backward_ns, others_ns, update_ns;
};

/* A step that has been summed, where the host waits for each: what it takes to do the rest of it, in this round or
 * in the next. The sums themselves are in the state's reduce arena until the next step begins. */
struct step_rest {
    enum step_reached {
        STEP_REACHED_NOTHING, /* or all: there is no such step */
        STEP_REACHED_SUMS,    /* they are whole, and nothing has been changed */
        STEP_REACHED_UPDATE   /* what this rank updates is that after the step; what others update need not be */
    } reached;
    double lr, grad_scale;
    int64_t updates;         /* with it */
    struct loss_scale scale; /* after it */
    struct step_result result;
};

struct step {
    struct state *state;   /* all borrowed */
    struct loader *loader; /* NULL: a stage before this one loads */
    struct plan *plan;
    struct stage *stage; /* instead of a plan: this rank's stage of a pipeline; NULL: there is none */
    struct ddp *ddp;
    const struct optimizer *optimizer;
    const struct trace *trace; /* NULL: none */
    int parts; /* >= 1: the batch goes through the plan in so many parts, whose gradients are added up before they are reduced */
    int part;                   /* samples of one: the batch of the plan */
    int stride;                 /* rows of a batch from one to the next: others' are behind it (plan_options.others) */
    uint64_t seed;              /* of what is dropped */
    double smoothing;           /* of labels */
    const float *class_weights; /* of the loss; NULL: all are 1 */
    int64_t ignored;            /* a label that does not count; where there is one: */
    float *weights;             /* (parts * stride), of the step's own; else NULL */
    struct precision precision;
    double grad_batch;   /* labels of a step: what precision_grad_scale() divides by */
    bool saves_together; /* a checkpoint is a matter of all ranks: they tell one another who wants one */
    bool tells_waits;    /* ranks tell one another that they wait for the network */
    bool waits;          /* this one does */
    bool confirms;       /* no rank changes anything before all have their sums: what one has done all can do */
    bool lockstep;       /* the host waits for each step of a device that goes on by itself, too (ddp_options.waits) */
    bool check;          /* see that gradients are finite before they are used, in every step */
    /* Between the sums of a step and its update, where the host waits for each; NULL: nobody wants it. */
    int (*before_update)(void *arg, struct err *e);
    void *arg;
    int64_t updates;      /* done so far, since the moments were zero: Adam's count */
    int64_t moments_from; /* steps of the run that were done before they were zero */
    struct step_rest rest;

    struct step_ahead {   /* devices that go on by themselves (device_ops.async), not in lockstep; all-zero at first */
        bool guarded;     /* the device has the loss scale */
        bool outstanding; /* a step is enqueued whose result has not been returned */
        int slot;         /* of its result */
        struct step_sent {
            double lr;
            int64_t wait_ns, began_ns;
        } sent, behind;   /* behind: of the one in the other slot */
        bool has_behind;  /* only while the outstanding one is waited for, or after that failed */
        bool halfway;     /* what changes the state is being enqueued, or that failed */
        int64_t taken_ns; /* when the last result came */
    } ahead;
};

struct step_wishes { /* of this rank, for after the step */
    bool stop, save;
};

/* Next batch, forward, backward with the all-reduce beside it, update.
 *
 * A device that goes on by itself, where it is not in lockstep, is only given the step, and *ret is of the one before
 * (none: done is false): so it always has one to do, and the host never waits for the last. Whether a step counts is
 * then decided on the device by the same rule, and state.loss_scale follows results. The results below come one step
 * late; state and positions agree after train_catch_up().
 *
 * Returns 0; ERR_DIVERGED naming a tensor if the loss, or with fp16 a gradient, is not a number and the loss scale is
 * not why (nothing is updated then); the errors of loader, device and collectives. */
int train_step(struct step *t, double lr, struct step_wishes w, struct step_result *ret, struct err *e);

/* The rest of a step whose sums are whole, in two parts: first what takes nobody else, then with all ranks (those that
 * have nothing left of it call ddp_gather()). */
int train_update_rest(struct step *t, struct err *e);
int train_finish_rest(struct step *t, struct err *e);

/* The result of the step that is outstanding, if one is. */
int train_catch_up(struct step *t, struct step_result *ret, struct err *e);

/* After a failure, once nothing that is enqueued waits for others: results of steps whose sums were whole, which the
 * device has done; what was torn has not been. Then none is outstanding, and the state is that after them. -EIO or the
 * device's error: nobody knows what the state is. */
enum { STEP_SENT_MOST = 2 };
int train_drain(struct step *t, struct step_result ret[STEP_SENT_MOST], int *ret_n, struct err *e);

/* By how many steps results come late: 0 or 1, the same on all ranks. */
int train_lag(const struct step *t);

#endif
