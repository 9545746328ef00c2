/* Pooling. */
#include "worker/device/cpu/kern/kern_set.h"

#define FAMILY "worker/device/cpu/kern/kern_pool.h"
#include "worker/device/cpu/kern/kern_each.h"

void KERN_OF_SET(maxpool)(const struct pool_job *j, enum store t, int threads)
{
    DISPATCH(maxpool, width_of(&j->vx), j, threads);
}

void KERN_OF_SET(maxpool_bwd)(const struct pool_job *j, enum store t, int threads)
{
    DISPATCH(maxpool_bwd, width_of(&j->vx), j, threads);
}

void KERN_OF_SET(avgpool)(const struct pool_job *j, enum store t, int threads)
{
    DISPATCH(avgpool, width_of(&j->vx), j, threads);
}

void KERN_OF_SET(avgpool_bwd)(const struct pool_job *j, enum store t, int threads)
{
    DISPATCH(avgpool_bwd, width_of(&j->vx), j, threads);
}
