/* Checkpoints of a training run: what is in them, and how every rank comes back from one. snapshot_writer.h saves them.
 *
 * model.safetensors: parameters and running statistics under torchvision's names (and num_batches_tracked).
 * train.safetensors: "momentum.<name>"; with adam "second.<name>", with --ema "ema.<name>". manifest "meta": struct
 * position and what must not change (architecture, classes, seed).
 *
 * On resume the newest complete checkpoint that any rank can see wins; its rank reads it once and deals it out, so that
 * node-local disks work. Ranks need nothing but the communicator. */
#ifndef CRUN_WORKER_SNAPSHOT_H
#define CRUN_WORKER_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/data/loader/sampler.h"

struct comm;
struct err;
struct program;
struct state;
struct train_config;

/* Where a run stands between two steps; equal on all ranks. */
struct position {
    int64_t updates;     /* steps done since the beginning: names the checkpoint */
    int64_t epoch, step; /* in progress: steps of it done; step == steps per epoch: its end is still to be handled */
    double epoch_loss, epoch_top1, epoch_count, epoch_seconds; /* sums over the epoch so far */
    double seconds;                                            /* training time so far */
    double lr;                                                 /* of the last step; -1: not known */
    /* the best score of an evaluation (eval_score()), of checkpoint step-<best_updates> (0: none yet). Where that could
     * not be saved, only ranks that write know until all agree after the next evaluation (run/saver.h). */
    double best_top1;
    int64_t best_updates;
    /* --early-stop: the best score so far, whether or not it was saved; evaluations since then that were no better; and
     * the updates after which the last of them was (0: none yet). */
    double peak;
    int64_t stale, judged;
    int64_t moments_from;             /* updates without those left out, where the optimizer's moments were last zero */
    int64_t rate_workers, rate_batch; /* ranks, and their batch, when training began: what rates follow (run/rate.h) */
};

struct snapshot_identity {          /* what a checkpoint and a run must share, and what is noted */
    const struct train_config *cfg; /* options of which differences are logged */
    const char *arch, *model;       /* its name, its text */
    char *const *classes;
    int nclasses;
    int64_t num_labels, seed;      /* num_labels: outputs of the model */
    int64_t image_size, channels;  /* of pictures; 0: it reads tokens */
    int64_t sequence_length;       /* of tokens; 0: it reads pictures */
    int64_t batch, world, threads; /* differences are logged, not refused */
    const char *device, *amp, *optimizer;
    /* of the job that writes: a restart without --resume auto goes on from its own checkpoints only */
    const char *run_id;
    int64_t train_images, test_images;
    struct sampler order;          /* of training: how long an epoch is */
    bool evaluate;                 /* nothing is trained: the seed may differ */
    const struct program *program; /* whose mean and deviation of pictures are noted */
};

struct snapshot_source {
    const char *path;
    const char *run_id; /* checkpoints of another job are passed over; NULL: any will do */
    bool exact; /* path is what a user named (see ckpt_locate()) and must be there; else a folder that may be empty */
};

/* All ranks. Returns 1 and fills state and *at if there was a checkpoint, 0 if none (nothing touched; ERR_USAGE if
 * exact). A damaged one is skipped, and logged by the rank that read it; where all are, or one was named, that is
 * ERR_CORRUPT, naming tensor and file, and the state is undefined. ERR_MISMATCH names both values if it belongs to
 * another architecture, class map or seed. Differences that are taken (batch, world, threads, device, rates, epochs)
 * are logged as warnings on rank 0. -ECANCELED: another rank failed and says why. */
int snapshot_resume(struct state *s, struct comm *c, const struct snapshot_source *from,
                    const struct snapshot_identity *id, struct position *at, struct err *e);

/* All ranks: the step of the newest checkpoint that any rank can see, -1: there is none. */
int snapshot_newest(struct comm *c, const struct snapshot_source *from, int64_t *ret_step, struct err *e);

#endif
