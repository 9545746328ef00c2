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

/* What all forecasts of a machine share: the data sets and the device, as rank 0 of a run with cfg's would open them. A
 * GPU's plans take its memory while they are counted. Errors as session_open_host(). */
struct forecast_base;
int forecast_open(struct forecast_base **ret, const struct train_config *cfg, int world, int local_world,
                  struct err *e);
void forecast_close(struct forecast_base *b);
struct session;
const struct session *forecast_session(const struct forecast_base *b); /* with data sets, device and precision */

/* Who looks at the session of one rank of each program and share of a batch, while it is there: plans are counted, not
 * run. */
struct forecast_visit {
    void *ctx;
    int (*rank)(void *ctx, struct session *s, struct err *e);
};

/* Of a run of `world` ranks, local_world of them on each host. cfg: data and device are those of the base. visit: NULL:
 * nobody. */
int forecast_on(struct forecast *ret, struct forecast_base *b, const struct train_config *cfg,
                const struct forecast_visit *visit, struct err *e);
/* All of it, once. */
int forecast_make(struct forecast *ret, const struct train_config *cfg, int world, int local_world, struct err *e);
void forecast_free(struct forecast *f);

#endif
