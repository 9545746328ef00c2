/* --virtual-local-rank: every worker has LOCAL_RANK=0 and sees one device. */
#ifndef CRUN_LAUNCHER_VIRTUAL_RANK_H
#define CRUN_LAUNCHER_VIRTUAL_RANK_H

struct err;

struct virtual_rank {
    char cuda[160], hip[160]; /* "CUDA_VISIBLE_DEVICES=...", "HIP_VISIBLE_DEVICES=..." or "" */
};

/* The device for the local rank in this process's own HIP_VISIBLE_DEVICES or, without it, CUDA_VISIBLE_DEVICES; the
 * local rank itself if neither is set. ERR_USAGE: the list is too short. */
int virtual_rank_device(int local_rank, struct virtual_rank *ret, struct err *e);

#endif
