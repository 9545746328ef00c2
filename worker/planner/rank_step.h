/* What a rank does in a step, as actions of simulate.h: from a forecast's session (session/forecast.h), the times of
 * its operations, and the network. It follows run/step.c, parallel/stage.c and parallel/ddp.h: what these do in which
 * order, this says what it takes. */
#ifndef CRUN_WORKER_RANK_STEP_H
#define CRUN_WORKER_RANK_STEP_H

#include <stdbool.h>

#include "worker/planner/network.h"
#include "worker/planner/op_times.h"
#include "worker/planner/simulate.h"

struct err;
struct session;

/* Numbers of op_times_get() that a step asks for: seconds a byte copied; a byte of a page that comes back; an element
 * updated; an image loaded. */
#define RANK_STEP_COPY "copy"
#define RANK_STEP_PAGE "page"
#define RANK_STEP_UPDATE "update"
#define RANK_STEP_LOAD "load"

/* The load of a session's program, as a run would plan it; borrows *plan. */
struct plan_options;
struct op_load rank_step_load(const struct session *s, struct plan_options *plan);

/* Of a rank that is the first of its stage. */
int rank_step(struct actor *ret, const struct session *s, const struct op_times *t, const struct network *n,
              struct err *e);

#endif
