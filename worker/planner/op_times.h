/* How long operations take on this device, by what they are: kind, name, shapes, rows of a batch. Measured by running
 * programs, or the stages of one, on made-up images; asked for by the forecasts of plans that have the same operations.
 * Numbers that are not of an operation (a byte copied, an element updated) have names of their own.
 *
 * All times are processor time of one rank, taken while others of the node do the same, as they will in the run. */
#ifndef CRUN_WORKER_OP_TIMES_H
#define CRUN_WORKER_OP_TIMES_H

#include <stdbool.h>
#include <stddef.h>

struct device;
struct err;
struct op_times;
struct plan_options;
struct program;
struct program_chunk;

int op_times_create(struct op_times **ret, struct err *e);
void op_times_destroy(struct op_times *t);

/* What a program is measured as. plan: as a run would make it (session_plan()); batch, compute, format and
 * fresh_weights count. */
struct op_load {
    const struct program *program;
    const struct plan_options *plan;
};

/* Is every operation of it known? */
bool op_times_know(const struct op_times *t, const struct op_load *l);

/* Make plans of it, of one chunk after the other where it has chunks, and run each `rounds` times after a first one;
 * what is kept of an operation is the median. Memory: the program's parameters and gradients, and a plan with one set
 * of activations. pause: called before each plan runs, so that ranks run side by side; may fail. -ENOTSUP: a device
 * whose operations are not timed (one with streams). */
enum { OP_ROUNDS_MAX = 25 }; /* more are not run */
struct op_pause {
    void *ctx;
    int (*pause)(void *ctx, struct err *e);
};
int op_times_measure(struct op_times *t, struct device *d, const struct op_load *l, int rounds,
                     const struct op_pause *p, struct err *e);

/* Its operations count as known from now on: somebody else measures them. */
void op_times_claim(struct op_times *t, const struct op_load *l);

/* Seconds of operation `op`; 0 for one that is not known, or that another takes along. */
double op_times_of(const struct op_times *t, const struct op_load *l, int op);
/* What a chunk takes beside its operations: its boundaries, forward and backward. */
double op_times_boundary(const struct op_times *t, const struct op_load *l, const struct program_chunk *c,
                         bool backward);
/* Copies of weights that are made anew after an update, where they are kept; of a chunk, or of all (NULL). */
double op_times_refresh(const struct op_times *t, const struct op_load *l, const struct program_chunk *c);

/* Numbers with names. */
void op_times_set(struct op_times *t, const char *name, double value);
bool op_times_get(const struct op_times *t, const char *name, double *ret);

/* All that is known as text, a line each, malloc'ed; and back, added to what is known. */
int op_times_text(const struct op_times *t, char **ret, struct err *e);
int op_times_read(struct op_times *t, const char *text, struct err *e);

#endif
