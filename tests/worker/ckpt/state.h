/* A small training state whose every value follows from its step, so that what is read can be checked whole. */
#ifndef CRUN_TESTS_CKPT_STATE_H
#define CRUN_TESTS_CKPT_STATE_H

#include <stdint.h>

#include "worker/ckpt/ckpt.h"

#define STATE_MODEL 4
#define STATE_TRAIN 2
#define STATE_LARGE 60000 /* elements of the largest tensor */

struct state {
    struct ckpt_tensor model[STATE_MODEL], train[STATE_TRAIN];
};

struct state *state_make(int64_t step); /* freed by state_free() */
void state_free(struct state *s);
int state_save(const char *dir, int64_t step, int keep, struct err *e); /* ckpt_save() of state_make(step) */
/* The checkpoint of `step` is complete and holds state_make(step); else the case fails. */
void state_check(const char *dir, int64_t step);

#endif
