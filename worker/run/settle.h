/* After a round that broke: the ranks that are left are after step k or k + 1, newcomers have nothing. All become what
 * the furthest is. A step that one rank has applied was complete: its sums held every rank's part.
 *
 * The state goes from a rank that has it to each that does not, a piece at a time, as messages; no file is touched. */
#ifndef CRUN_WORKER_SETTLE_H
#define CRUN_WORKER_SETTLE_H

#include <stdbool.h>

#include "worker/precision/loss_scale.h"
#include "worker/run/step.h"
#include "worker/snapshot/snapshot.h"

struct comm;
struct err;
struct state;

struct settled {
    struct position at;
    struct loss_scale scale;
    double epoch_bad;
    struct step_result last; /* that led to `at` */
};

/* All ranks, each with what it has: *has, and *s then. 1: *s and the state are those of the furthest; 0: nobody has
 * any. The state is whole on every rank (no layout that cuts it). *has is false while the state is being overwritten:
 * if that fails it is undefined. */
int settle(struct state *state, struct comm *c, bool *has, struct settled *s, struct err *e);

#endif
