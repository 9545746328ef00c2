/* The first runs of a training plan in detail, a line each (log level info): what the host took to enqueue it, what the
 * batch took to the card, and what the card took. Each of them is waited for before the next is enqueued, so that they
 * are a little slower than what follows. */
#ifndef CRUN_WORKER_DEVICE_CUDA_TELL_FIRST_RUNS_H
#define CRUN_WORKER_DEVICE_CUDA_TELL_FIRST_RUNS_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct gpu_event;
struct watched;

enum first_mark { FIRST_COPY, FIRST_COPIED, FIRST_BEGIN, FIRST_END, FIRST_MARKS };

struct first_runs {
    struct gpu_event *at[FIRST_MARKS]; /* NULL before the first */
    int runs;                          /* so far */
    int64_t began_ns, enqueued_ns;
    bool on, pending; /* this run is one of them; the last is not logged yet */
};

/* Before anything of a run is enqueued; `wanted`: of a plan that trains. */
int first_runs_begin(struct first_runs *f, const struct watched *c, bool wanted, struct err *e);
int first_runs_mark(struct first_runs *f, const struct watched *c, enum first_mark m, struct err *e);
void first_runs_end(struct first_runs *f); /* all of it is enqueued */
void first_runs_close(struct first_runs *f, const struct watched *c);

#endif
