/* Silent corruption: found by comparing replicas, mended by a rollback, its culprit named by the replay.
 *
 *   compared, kept                                  compared: they differ
 *   step v ------ v+1 ---- v+2 ---- ... ----------- step k
 *      ^  h(v+1)   h(v+2)                             |      h: hash of the weights before the update of a step, the
 *      '----------------------------------------------'         rank's own, sent to nobody
 *      '- h'(v+1) - h'(v+2) - ... ------------------- k, compared again, kept
 *
 * All ranks go back to what was kept and do the same steps again, which are the same bit for bit. Where a rank's hashes
 * of the first time leave those of the replay, something was wrong with what it had: whoever leaves them first is the
 * culprit. A bit that flips in weights, moments or reduced sums spoils one rank's weights, and the other ranks' only
 * one update later, by way of the sums: so it is one rank that is first, also of two. A flip after the last update is
 * found in the hashes of whole arenas at step k. What all hashes of steps come to is compared at step k, too: with
 * --zero 1 and 2 weights are handed out anew in each step, and a copy that was spoilt is a good one again by then.
 *
 * Not seen: a gradient that was wrong before it was reduced. It is in the sums of all ranks, which stay equal. A loss
 * that gives it away (doubt) is done again, too: if all ranks leave the replay at the same step, it is mended, and
 * nobody can be named. A device that goes on by itself (device_ops.async) has no hashes of steps: there the ranks that
 * most others are unlike are named.
 *
 * Memory: a copy of the state. */
#ifndef CRUN_WORKER_VERIFY_H
#define CRUN_WORKER_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/run/settle.h"
#include "worker/state/replicas.h"

struct comm;
struct err;
struct state;
struct verify;

/* s: borrowed, whole or cut by --zero 1 or 2. Takes the memory. */
int verify_open(struct verify **ret, struct state *s, struct err *e);
void verify_close(struct verify *v); /* NULL allowed */

/* The state is that of *at, and equal on all ranks: a rollback leads here. */
int verify_keep(struct verify *v, const struct settled *at, struct err *e);

/* Nothing but the position has changed since (an epoch has ended). */
void verify_moved(struct verify *v, const struct position *at);

/* In each step, before its update: the hash. -ENOMEM. */
int verify_step(struct verify *v, struct err *e);

/* The step that a replay leads to; -1: this is none. It ends with verify_check(). */
int64_t verify_until(const struct verify *v);

enum verify_why {
    VERIFY_DUE,     /* compare */
    VERIFY_SPIKE,   /* a loss is not believed: go back whatever replicas say */
    VERIFY_DIVERGED /* likewise: the step that follows came to no number, and its sums are there */
};

enum verify_outcome {
    VERIFY_GOOD,  /* equal: kept */
    VERIFY_BACK,  /* they differ: *at and the state are what was kept */
    VERIFY_MENDED /* a replay has come to its end, and replicas are equal: kept */
};

struct verify_finding {
    char differs[160]; /* BACK: "parameters of rank 2 are not those of rank 0" */
    /* MENDED: */
    int culprits;  /* ranks that left the replay first; 0: none did */
    bool everyone; /* all ranks did, at once: nobody can be named, and culprits is 0 */
    int rank;      /* the first culprit */
    bool is_mine;  /* this rank is one */
    int64_t step;  /* before whose update its weights were others already; beyond the replay: only at its end */
    enum replicas_arena arena; /* what was wrong at the end of the first run, where the step is beyond the replay */
};

/* All ranks, the state is of *at. Where a replay differs at its end for the third time: ERR_MISMATCH. */
int verify_check(struct verify *v, struct comm *c, struct settled *at, enum verify_why why, enum verify_outcome *ret,
                 struct verify_finding *f, struct err *e);

#endif
