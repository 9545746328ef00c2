/* After a round that broke: the ranks that are left are after step k or k + 1, newcomers have nothing. All become what
 * the furthest is. A step that one rank has applied was complete: its sums held every rank's part.
 *
 *   everybody tells where it stands; the furthest counts
 *   sums whole, not applied      does the rest of the step from them
 *   new, or behind               is given the state by ranks that have it, as messages (state/hand_over.h)
 *   ZeRO 1 and 2                 parameters are handed out once more: a rank may have had some of them
 *
 * Where the number of ranks has changed and parts were cut for the old one, whoever has sums does the rest of the step
 * as a rank of the old layout; then each element goes to its new owners (state/reshard.h).
 *
 * Where each rank applies to its own part only what all ranks have sums of (step.confirms), nobody is behind the
 * furthest without its sums; where each has the whole state, whoever is behind is given it. */
#ifndef CRUN_WORKER_SETTLE_H
#define CRUN_WORKER_SETTLE_H

#include <stdbool.h>

#include "worker/precision/loss_scale.h"
#include "worker/run/step.h"
#include "worker/snapshot/snapshot.h"

struct comm;
struct err;
struct holdings;

struct settled {
    struct position at;
    struct loss_scale scale;
    double epoch_bad;
    struct step_result last; /* that led to `at` */
};

/* A step is done: `at` is behind it, and has its sums. */
void settled_advance(struct position *at, const struct step_result *res);

/* All ranks of c, each with what it has: *has, and *s then; t: its state, optimizer, ddp, and what is left of a step.
 * h: what of it there is; NULL: t->state, which is sure.
 * 1: *s and t->state are those of the furthest; 0: nobody has any, or a part of it is lost, as a line says where
 * `tells`. *has is false while the state is being overwritten: if that fails it is undefined. Where *has, *s is the
 * state's, also after a failure: of one that moves, that of the holding. */
int settle(struct step *t, struct comm *c, bool tells, bool *has, struct settled *s, struct holdings *h, struct err *e);

#endif
