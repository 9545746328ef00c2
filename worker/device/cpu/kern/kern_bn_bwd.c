/* Batch normalisation, backward. */
#include "worker/device/cpu/kern/kern_set.h"

#define FAMILY "worker/device/cpu/kern/kern_bn_bwd.h"
#include "worker/device/cpu/kern/kern_each.h"

void KERN_OF_SET(bn_bwd_sums)(const struct bn_bwd_sums_job *j, enum store t, int threads)
{
    DISPATCH(bn_bwd_sums, width_of(&j->v), j, threads);
}

void KERN_OF_SET(bn_bwd_apply)(const struct bn_bwd_apply_job *j, enum store t, int threads)
{
    DISPATCH(bn_bwd_apply, width_of(&j->v), j, threads);
}
