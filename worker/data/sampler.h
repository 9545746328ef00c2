/* Which samples make up a step: pure functions (D8), the same for every world size.
 *
 * Step k of an epoch takes perm(seed, epoch)[kB, min((k+1)B, n)); with m its size, rank r of W takes [floor(rm/W), floor((r+1)m/W)) of it. */
#ifndef CRUN_WORKER_SAMPLER_H
#define CRUN_WORKER_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

/* A permutation of 0..n-1 (Fisher-Yates on Philox) into out; shuffle == 0: the identity. */
void sampler_permutation(uint64_t seed, uint64_t epoch, int shuffle, size_t n, uint32_t *out);

/* Who takes which sample of an epoch. */
enum sampler_kind { SAMPLER_GLOBAL, SAMPLER_DISTRIBUTED, SAMPLER_SHARDED };
#define SAMPLER_CHOICES "global|distributed|sharded" /* in the order of enum sampler_kind */

int64_t sampler_steps(size_t n, size_t batch); /* steps per epoch: ceil(n / batch) */

struct slice {
    size_t first, count; /* into the permutation */
};
struct slice sampler_slice(size_t n, size_t batch, int64_t step, int rank, int world);

/* Largest share of a rank: ceil(batch / world). The batch of the plan. */
size_t sampler_share(size_t batch, int world);

#endif
