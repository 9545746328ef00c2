/* Shared by step.c, where the host looks at every step, and step_ahead.c, where it does not. */
#ifndef CRUN_WORKER_STEP_IMPL_H
#define CRUN_WORKER_STEP_IMPL_H

#include "worker/program/program.h"
#include "worker/run/step.h"

struct loader_batch;

/* Forward and backward, part after part; buckets leave as they fill in the last one. */
int step_run(struct step *t, const struct loader_batch *batch, struct err *e);
/* Update everything; counts the update. */
int step_update(struct step *t, double lr, struct err *e);

/* Device memory: a metric of the reduce arena. */
void *step_metric(const struct step *t, int metric);
/* Are gradients looked at? Then *ret_norm is where their norm will be. */
int step_norm(struct step *t, double grad_scale, const void **ret_norm, struct err *e);

/* What the metrics of a step say; the rest of its result is 0. */
struct step_result step_result_of(const double m[METRIC_N]);

int step_ahead(struct step *t, double lr, int stop, struct step_result *ret, struct err *e);

#endif
