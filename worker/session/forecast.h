/* What a run would come to, on every rank, without being one: the same model, ownership and plans, over address space
 * instead of memory (plan_options.forecast), and without peers. */
#ifndef CRUN_WORKER_FORECAST_H
#define CRUN_WORKER_FORECAST_H

#include "worker/parallel/layout.h"
#include "worker/session/memory.h"
#include "worker/session/traffic.h"

struct err;
struct train_config;

struct forecast_rank {
    struct layout_place place;
    struct memory_report memory; /* without the peaks */
    struct traffic traffic;      /* of a step */
};

struct forecast {
    struct layout layout;
    struct forecast_rank *ranks; /* layout_members() of them */
    size_t parameters;           /* that are trained, of the whole model */
    int classes;
    int part, parts; /* samples that go through the model at once on a rank, at most; parts of a step */
    int64_t steps;   /* of an epoch */
    size_t images;   /* of the training set */
    char device[160], precision[96];
    char *stages; /* lines, "stage 0: conv1 to layer2.1.relu"; empty where there are none */
};

/* Of a run of `world` ranks, local_world of them on each host. Opens the data sets and the device as rank 0 would; a
 * GPU's plans take its memory while they are counted. Errors as session_open_host(). */
int forecast_make(struct forecast *ret, const struct train_config *cfg, int world, int local_world, struct err *e);
void forecast_free(struct forecast *f);

#endif
