/* How a convolution in groups is cut: what kern_groups.h and groups.c share.
 *
 * Vectors lie along the written channels. For a vector of them the rows of x that a row of y sees are in a ring of
 * floats: for each of the `read` channels of a group a plane, in which every lane has the value that its channel
 * multiplies, padded on both sides. So the inner loop knows neither padding nor types nor groups. */
#ifndef CRUN_WORKER_DEVICE_CPU_GROUPS_H
#define CRUN_WORKER_DEVICE_CPU_GROUPS_H

#include "worker/device/cpu/kern/kern.h"

enum { GROUPS_BLOCK = 8 }; /* pixels of a row of y that are summed side by side */

static inline int groups_vectors(const struct groups_job *j, int lanes)
{
    return (j->k + lanes - 1) / lanes;
}

/* Pixels of a row of the ring: all that whole blocks read. */
static inline int groups_width(const struct groups_job *j)
{
    const int blocks = (j->ow + GROUPS_BLOCK - 1) / GROUPS_BLOCK;
    return (blocks * GROUPS_BLOCK - 1) * j->step + j->kw;
}

static inline size_t groups_ring(const struct groups_job *j, int lanes)
{
    return (size_t)(j->kh * j->read) * (size_t)groups_width(j) * (size_t)lanes;
}

/* Of one vector of channels: its weights and its bias. */
static inline size_t groups_sums(const struct groups_job *j, int lanes)
{
    return (size_t)(j->kh * j->kw * j->read + 1) * (size_t)lanes;
}

/* A row of dy, and one block more. */
static inline size_t groups_line(const struct groups_job *j, int lanes)
{
    return (size_t)(j->ow + GROUPS_BLOCK) * (size_t)lanes;
}

/* Into how many parts of the batch gradients of weights are cut, for work for all threads. */
static inline int groups_parts(const struct groups_job *j, int lanes, int threads)
{
    const int vectors = groups_vectors(j, lanes), want = (2 * threads + vectors - 1) / vectors;
    if (vectors % threads == 0)
        return 1;
    return want < j->n ? want : j->n;
}

#endif
