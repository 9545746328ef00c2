/* What the stages of a pipeline do, in which order. Pure: no I/O, no clock.
 *
 * The model is cut into stages * chunks parts; part p is chunk p / stages of stage p % stages. A step's micro-batches
 * go forward through all parts and then backward; a stage does one thing at a time, action after action.
 *
 *   gpipe         all forward, then all backward                     3 stages, 4 micro-batches
 *   1f1b          as few forward as keep the others busy, then a     0  F0 F1 F2 F3 .  .  .. B0 B1 B2 B3     gpipe
 *                 backward after each forward: a stage keeps at      0  F0 F1 F2 .  .  B0 F3 B1 .  B2 .. B3  1f1b
 *                 most stages - stage micro-batches                  1  .  F0 F1 .  B0 F2 B1 F3 B2 .. B3
 *   interleaved   1f1b with several chunks a stage, in groups of     2  .  .  F0 B0 F1 B1 F2 B2 F3 B3
 *                 `stages` micro-batches: idle time falls to 1 / chunks, messages are `chunks` times as many
 *
 * Backward passes of a part come in the order of its forward passes, so that gradients are added up in the same order
 * as on one rank. Messages between two stages are received in the order in which they are sent, activations and
 * gradients each by themselves.
 *
 * Y. Huang et al., "GPipe", arXiv 1811.06965; D. Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training"
 * (1F1B), arXiv 2006.09503, and "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
 * (interleaved), arXiv 2104.04473. */
#ifndef CRUN_WORKER_PIPELINE_H
#define CRUN_WORKER_PIPELINE_H

#include <stdbool.h>

#include "common/base/choice.h"

struct err;

#define PIPELINE_KINDS(X)                                                                                              \
    X(PIPELINE_GPIPE, "gpipe")                                                                                         \
    X(PIPELINE_1F1B, "1f1b")                                                                                           \
    X(PIPELINE_INTERLEAVED, "interleaved")
enum pipeline_kind { PIPELINE_KINDS(CHOICE_ID) };

struct pipeline {
    enum pipeline_kind kind;
    int stages, micro_batches; /* >= 1 */
    int chunks;                /* parts of the model that a stage has; 1 but for interleaved */
    int trains_from;           /* the first part that is trained: those before it are sent no gradients */
};

/* ERR_USAGE: a number below 1; chunks of gpipe or 1f1b; interleaved with one stage, or with micro-batches that are no
 * multiple of the stages. */
int pipeline_check(const struct pipeline *p, struct err *e);

struct pipeline_action {
    bool backward;
    int chunk, micro_batch;
    /* The stages that its input comes from and its result goes to: activations, or backward gradients of them. -1: none
     * (the first part reads images, the last one has the loss; below what is trained there are no gradients). */
    int from, to;
};

int pipeline_actions(const struct pipeline *p); /* of each stage: 2 * micro_batches * chunks */
/* The i-th action of a stage. */
struct pipeline_action pipeline_action(const struct pipeline *p, int stage, int i);

/* Micro-batches that have gone forward through a chunk of a stage and not yet backward: at most. Sets of activations
 * are used in turn: micro-batch m has set m % pipeline_live(). */
int pipeline_live(const struct pipeline *p, int stage, int chunk);

/* The part of the model that a stage's chunk is. */
int pipeline_part(const struct pipeline *p, int stage, int chunk);

/* When a stage begins to receive, where that is enqueued on a device and may hold up all that is enqueued behind it, as
 * streams that share a hardware queue do, or a host that waits for all that is under way. All stages have messages in
 * one order: that of their sending if a forward pass took one unit of time, a backward pass two and a message none; of
 * what is sent at once the lower stage's comes first. Before a stage sends or needs a message it has begun to receive
 * all that come before it in this order. So the first message that is not through never has anything before it that
 * waits for a later one, and no circle comes about. */
struct pipeline_ask {
    int action; /* receives the message */
    int before; /* the action at whose beginning it is asked for: this one or an earlier one */
};
/* What a stage receives, in the order in which it asks for it. ret: (pipeline_actions()). Their number, or -ENOMEM. */
int pipeline_asks(const struct pipeline *p, int stage, struct pipeline_ask *ret, struct err *e);
/* Messages of a chunk one way that have been asked for and are in use, at most. kept: activations are until the
 * backward pass of their micro-batch, not its forward pass. */
int pipeline_asked(const struct pipeline *p, int stage, const struct pipeline_ask *asks, int n, int chunk,
                   bool backward, bool kept);

#endif
