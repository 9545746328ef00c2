/* Batch normalisation, forward. */
#include "worker/device/cpu/kern/kern_set.h"

#define FAMILY "worker/device/cpu/kern/kern_bn.h"
#include "worker/device/cpu/kern/kern_each.h"

void KERN_OF_SET(bn_stats)(const struct bn_stats_job *j, enum store t, int threads)
{
    DISPATCH(bn_stats, width_of(&j->v), j, threads);
}

void KERN_OF_SET(bn_apply)(const struct bn_apply_job *j, enum store t, int threads)
{
    DISPATCH(bn_apply, width_of(&j->v), j, threads);
}
