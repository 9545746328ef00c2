/* The state that training changes: the arenas of program.h in device memory, and their named tensors; what is checked
 * about it over all ranks.
 *
 *   seed -> state_init(): initial values -> step: reduce (sums over all ranks) -> optim/update.h: params, moments,
 *   statistics, averages; version counts it -> plans refresh their copies
 *
 * snapshot/ brings it to the host and into checkpoints. replicas.h compares it between ranks, divergence.h says which
 * tensor is not a number, choices.h keeps what the device chose by timing. */
#ifndef CRUN_WORKER_STATE_H
#define CRUN_WORKER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/precision/dtype.h"
#include "worker/precision/loss_scale.h"

struct device;
struct err;
struct ownership;
struct program;

struct state {
    struct device *device;         /* borrowed */
    const struct program *program; /* borrowed: of this rank's stage */
    const struct program *whole; /* borrowed: of the model that it is a stage of; the same where there are no stages */
    const struct ownership *own; /* borrowed: what of the arenas this rank keeps and updates */
    enum dtype real;             /* of all arenas */
    void *params;     /* (program_params()); where parameters are cut, what this rank owns (ownership_place()) */
    void *momentum;   /* (n_moments) */
    void *second;     /* (n_moments), Adam's second moments, or NULL */
    size_t n_moments; /* elements: ownership_elements() */
    void *ema_params, *ema_stats; /* as params and stats: moving averages of both, or NULL */
    void *norm;                   /* METRIC_NORM of reduce: goes where the metrics go */
    void *stats;                  /* (program_statistics()) */
    void *reduce;                 /* (n_reduce) */
    size_t reserved;              /* bytes of address space that all arenas share (a forecast); else 0 */
    struct loss_scale loss_scale; /* 1 from state_init() on; the run says what it wants, a checkpoint what it was */
    uint64_t version;             /* grows whenever params or stats change: run_args.params_version */
};

struct state_options {
    uint64_t seed;
    bool second, ema;            /* which optional arenas there are */
    const struct program *whole; /* NULL: the program is the whole model */
};

/* Allocate what `own` says this rank keeps and fill it with the initial values of `seed`; moments are 0, averages equal
 * what they average. On failure nothing stays allocated. */
int state_init(struct state *s, struct device *d, const struct program *p, const struct ownership *own,
               const struct state_options *o, struct err *e);
/* Sizes alone: no arena is there, and nothing is to be finished. */
void state_measure(struct state *s, struct device *d, const struct program *p, const struct ownership *own,
                   const struct state_options *o);
/* The same sizes without memory: arenas are addresses for plans that are never run (plan_options.forecast). */
int state_forecast(struct state *s, struct device *d, const struct program *p, const struct ownership *own,
                   const struct state_options *o, struct err *e);
void state_finish(struct state *s);

/* A state of the same run for another place, of a program whose parameters differ in their padding at most: what every
 * rank has whole is s's memory (but for sums, where parameters are padded otherwise), of the rest *ret has its own,
 * all 0. For reshard(). On failure nothing stays allocated. */
int state_divide(struct state *ret, const struct state *s, const struct program *p, const struct ownership *own,
                 struct err *e);
/* But for memory that `other` has, too. */
void state_finish_but(struct state *s, const struct state *other);

/* After state_init(), whatever has become of it: initial values of `seed` again, moments 0, another version. */
int state_reset(struct state *s, uint64_t seed, struct err *e);

/* What training goes on from: all but the sums of a step. */
struct state_arena {
    void *at; /* device memory; NULL: there is none */
    size_t n; /* elements */
};
enum { STATE_ARENAS = 6 };
/* Parameters, momentum, second moments, running statistics, averages of parameters and of statistics: whole, or what
 * this rank keeps of the moments; not for a state whose parameters are cut. */
void state_arenas(const struct state *s, struct state_arena ret[STATE_ARENAS]);

/* Do pages of the reduce arena come and go, as nobody keeps all gradients? Then its memory is less than its size. */
bool state_sheds(const struct state *s);

/* Bytes of `elements` elements of an arena. */
size_t state_bytes(const struct state *s, size_t elements);

/* Where a metric is in the reduce arena: device memory. */
void *state_metric(const struct state *s, int metric);
/* Metrics of the reduce arena (METRIC_N doubles) to and from the host. */
int state_get_metrics(struct state *s, double *out, struct err *e);
int state_set_metric(struct state *s, int metric, double value, struct err *e);
int state_set_metrics(struct state *s, const double *v, struct err *e);

#endif
