/* The state that training changes: the arenas of program.h in device memory, and their named tensors. */
#ifndef CRUN_WORKER_STATE_H
#define CRUN_WORKER_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "worker/dtype.h"

struct device;
struct err;
struct program;

struct state {
    struct device *device;         /* borrowed */
    const struct program *program; /* borrowed */
    enum dtype real;               /* of all arenas */
    void *params, *momentum;       /* (n_train) */
    void *stats;                   /* (n_stats) */
    void *reduce;                  /* (n_reduce) */
    uint64_t version;              /* grows whenever params or stats change: run_args.params_version */
};

/* Allocate and fill with the initial values of `seed`; momentum is 0. On failure nothing stays allocated. */
int state_init(struct state *s, struct device *d, const struct program *p, uint64_t seed, struct err *e);
void state_finish(struct state *s);

/* Bytes of `elements` elements of an arena. */
size_t state_bytes(const struct state *s, size_t elements);

/* Metrics of the reduce arena (METRIC_N doubles) to and from the host. */
int state_get_metrics(struct state *s, double *out, struct err *e);
int state_set_metric(struct state *s, int metric, double value, struct err *e);

#endif
