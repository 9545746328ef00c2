/* Ranks as threads that load and save a state which they share: some of its parameters by rows or by columns. */
#ifndef CRUN_TESTS_DEAL_RIG_H
#define CRUN_TESTS_DEAL_RIG_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "worker/parallel/layout.h"

struct comm;

enum { RANKS_MAX = 8, STEP = 7 }; /* STEP: of every checkpoint */

struct job {
    struct layout layout;
    int64_t trunk;           /* rows of five of the one parameter that every rank has */
    const char *load, *save; /* folders; NULL: no */
    bool copied;             /* from a copy, as a save in the background does */
    bool all_write;          /* every rank to a folder of its own, <save>.<rank> */
    const char *infinite;    /* a tensor that gets an infinity before it is saved; NULL: none */
    pthread_barrier_t *barrier;
};

struct rank {
    const struct job *job;
    struct comm *comm;
    int rc, reading, saving;
    struct err e;
};

struct layout layout_of(int data, int tensor, int zero);

/* Each rank makes its state, loads, saves, as the job says; ranks[world] tell what came of it. */
void job_begin(const struct job *job, struct rank *ranks, pthread_t *threads);
void job_end(const struct job *job, struct rank *ranks, pthread_t *threads);
void job_do(const struct job *job, struct rank *ranks); /* both */
void job_must(const struct job *job);                   /* a failure is the case's */

#endif
