/* The learning rate that the options of a run ask for. */
#ifndef CRUN_WORKER_RATE_H
#define CRUN_WORKER_RATE_H

#include <stdint.h>

#include "worker/optim/schedule.h"

struct train_config;

/* Ranks that a rate counts which follows them: as many as training began with, for the batch that it began with; a
 * larger batch counts as more ranks. So ranks that come or go change no rate while the batch stays. */
double rate_workers(const struct train_config *cfg, int64_t workers, int64_t batch);

/* parts: that a batch was cut into when training began (--accumulate, or fewer). steps_per_epoch, total: of today's
 * batch. Epochs become whole steps. horovod and apex bring a scale of their own instead of --lr-scale: ranks * parts,
 * batch / 256. */
struct schedule rate_schedule(const struct train_config *cfg, double workers, int parts, int64_t steps_per_epoch,
                              int64_t total);

/* Steps that averages are copies for (--ema-every): those of the epochs that warm-up has some of. */
int64_t rate_copied(const struct schedule *s, int64_t steps_per_epoch);

#endif
