/* Event files for TensorBoard: DIR/events.out.tfevents.<seconds>.<host>.<process>.<number>, scalars in the TFRecord
 * framing.
 *
 * Every process writes a file of its own and begins it with a session start at its first step: TensorBoard then drops
 * what older files of the folder say of that step and later ones, be they of the run before a restart or of one that
 * wrote here earlier. An evaluation of the step that a run goes on from may be there twice, with the same values. Each
 * call is one write(2), so that a killed run leaves
 * at most one torn record, which readers pass over. */
#ifndef CRUN_WORKER_REPORT_TENSORBOARD_H
#define CRUN_WORKER_REPORT_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct tensorboard;

/* dir is made if it is missing. first_step: steps done so far. ERR_OUTPUT names the path. */
int tensorboard_open(struct tensorboard **ret, const char *dir, int64_t first_step, struct err *e);
void tensorboard_close(struct tensorboard *t); /* NULL allowed */

struct tensorboard_scalar {
    const char *tag; /* "train/loss" */
    double value;    /* left out if it is not finite */
};

/* Scalars of one step. */
int tensorboard_add(struct tensorboard *t, int64_t step, const struct tensorboard_scalar *v, size_t n, struct err *e);
const char *tensorboard_path(const struct tensorboard *t);

#endif
