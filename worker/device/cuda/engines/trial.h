/* One of cuDNN's engines for a graph, or of cuBLASLt's algorithms for a product, on trial: noted as tried, run once on
 * inputs of chance, compared with what it ought to give (prove.h), timed; with --deterministic run again, to the same
 * bits. What fails or errs is barred; what takes the process with it, by the next one (cudnn_trial_begin()). */
#ifndef CRUN_WORKER_DEVICE_CUDA_ENGINES_TRIAL_H
#define CRUN_WORKER_DEVICE_CUDA_ENGINES_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/device/cuda/engines/prove.h"

struct trial {
    struct cuda_plan *pl;
    struct gpu_event *from, *to;
    void *workspace; /* device memory */
    size_t workspace_bytes;
    struct prover prover;
    int64_t began_ns;
    int engines, barred; /* so far */
    bool restless;       /* the engine tried last gave other bits when it ran again */
};

/* Close it whether or not it could be opened. */
int trial_open(struct trial *t, struct cuda_plan *pl, struct err *e);
void trial_close(struct trial *t);

/* As much workspace as the largest of n plans needs. -ENOMEM. */
int trial_workspace(struct trial *t, struct cudnn_plan *const *all, int n, struct err *e);

/* Tries d->plan; d's inputs are there (prove_begin()), and its workspace. ret_us: NULL, or its time; 0 where there is
 * none left for that. 0; or why it does not do: it is barred then, but for want of memory, which may be there the next
 * time. *ret_lost: it failed, and so does the card in everything. Waits for the card. */
int trial_engine(struct trial *t, const struct gpu_dnn *d, double *ret_us, bool *ret_lost, struct err *why);

#endif
