/* When replicas are compared and losses doubted, and what is reported of it: the policy around verify.h.
 *
 * Compared every --check-replicas steps, at the end of an epoch, before a stop and before a checkpoint: none holds a
 * state that was not compared. A loss is doubted that is no number, or lies far above those before it: the steps are
 * done again, and if they come to the same bits, it is believed. Where ranks hold only parts of the model that
 * others do not have in memory (stages, tensor groups, --zero 3) replicas are compared, and a difference ends the
 * run. */
#ifndef CRUN_WORKER_GUARD_H
#define CRUN_WORKER_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/run/verify.h"

struct err;
struct position;
struct state;
struct train_config;

enum { GUARD_LOSSES = 64, GUARD_LEAST = 32 /* fewer are no measure */ };

struct guard {
    int64_t every;         /* 0: nothing is compared */
    double deviations;     /* 0: any loss is believed */
    struct verify *verify; /* NULL: what differs ends the run */
    bool asks;             /* ranks tell one another that they want to save */
    bool spiked;           /* the last step's loss is doubted */
    int64_t compared;      /* the state is that after so many updates, and was */
    int64_t hopeless;      /* no number came after so many updates, and that is doubted no more; -1: none */
    int64_t steps[GUARD_LOSSES];
    double losses[GUARD_LOSSES];
};

/* Before the first step of a round; what there was of an earlier one is closed. tells: log what cannot be
 * compared. */
int guard_open(struct guard *g, const struct train_config *cfg, struct state *s, int world, bool tells, struct err *e);
void guard_close(struct guard *g);

/* The loss of a step that is done (a mean over samples). */
void guard_loss(struct guard *g, int64_t step, double loss);
/* Is v far above the n others (it sorts them)? Pure. */
bool guard_is_spike(double *others, size_t n, double v, double deviations);

/* Is it time, after the step that led to `at`? saves: some rank wants to save; ends: an epoch or the run. */
bool guard_due(const struct guard *g, const struct position *at, bool saves, bool ends);
/* May a checkpoint be saved of this state? */
bool guard_allows(const struct guard *g, const struct position *at);
/* The step after `at` has come to no number: is that to be doubted? Once. */
bool guard_doubts(struct guard *g, const struct position *at);

/* A line for people about a replay that is over. */
const char *guard_text(const struct verify_finding *f, int64_t from, int64_t to, char *out, size_t cap);

#endif
