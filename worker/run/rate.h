/* The learning rate that the options of a run ask for. */
#ifndef CRUN_WORKER_RATE_H
#define CRUN_WORKER_RATE_H

#include <stdint.h>

#include "worker/optim/schedule.h"

struct train_config;

/* What --lr-scale multiplies the rate by. horovod and apex bring a scale of their own: ranks * parts of a batch, batch
 * / 256. */
double rate_scale(const struct train_config *cfg, int world);

/* steps_per_epoch, total: of today's batch. Epochs become whole steps. */
struct schedule rate_schedule(const struct train_config *cfg, int world, int64_t steps_per_epoch, int64_t total);

#endif
