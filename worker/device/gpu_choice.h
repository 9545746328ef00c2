/* Which GPU a rank takes, and that no two ranks take the same one. Pure.
 *
 * How many GPUs a rank sees does not tell how many its machine has: a launcher, Slurm or a container may show each rank
 * one of its own. So a rank takes one of those that it sees (gpu_choose), and once the ranks have met they compare what
 * they took (gpu_check_taken; worker/comm/peers.h brings the records together). */
#ifndef CRUN_WORKER_DEVICE_GPU_CHOICE_H
#define CRUN_WORKER_DEVICE_GPU_CHOICE_H

struct err;

struct gpu_choice {
    int local_rank;   /* of this machine, >= 0 */
    const char *list; /* "0,2": one for each local rank; NULL: those that are visible, in turn */
};

/* Index among the `visible` GPUs, >= 1 (CUDA_VISIBLE_DEVICES has been applied). -ENODEV: the list names one beyond
 * them. */
int gpu_choose(const struct gpu_choice *c, int visible, int *ret_index, struct err *e);

/* What a rank computes on. Words; borrowed. */
struct gpu_taken {
    const char *machine; /* equal for ranks of one machine, in containers too */
    const char *gpu;     /* UUID of a GPU or of a MIG instance; NULL: none, or one that it may share */
};

/* ranks[world]. -ENODEV: two of them are on one GPU of one machine; names both, the GPU, and what to do. */
int gpu_check_taken(const struct gpu_taken *ranks, int world, struct err *e);

#endif
