/* Convolutions in groups of channels. */
#include "worker/device/cpu/kern/groups.h"
#include "worker/device/cpu/kern/kern_set.h"

#define FAMILY "worker/device/cpu/kern/kern_groups.h"
#include "worker/device/cpu/kern/kern_each.h"

void KERN_OF_SET(groups)(const struct groups_job *j, enum store t, int threads)
{
    DISPATCH(groups, ANY_WIDTH, j, threads);
}

void KERN_OF_SET(groups_param)(const struct groups_param_job *j, enum store t, int threads)
{
    DISPATCH(groups_param, ANY_WIDTH, j, threads);
}
