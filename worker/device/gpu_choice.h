/* Which GPU a rank takes. Pure. */
#ifndef CRUN_WORKER_DEVICE_GPU_CHOICE_H
#define CRUN_WORKER_DEVICE_GPU_CHOICE_H

#include <stdbool.h>

struct err;

struct gpu_choice {
    int local_rank, local_world; /* of this machine; local_world 0: no rank among others, the first GPU */
    const char *list;            /* "0,2": one for each local rank; NULL: as many as there are, in turn */
    bool oversubscribe;          /* ranks may share a GPU */
};

/* Index among the `visible` GPUs, >= 1 (CUDA_VISIBLE_DEVICES has been applied). -ENODEV names both counts. */
int gpu_choose(const struct gpu_choice *c, int visible, int *ret_index, struct err *e);

#endif
