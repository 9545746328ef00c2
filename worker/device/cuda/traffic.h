/* What a step of a plan moves and computes: the memory traffic and the arithmetic that its operation cannot do without,
 * by shapes alone. Caches may spare some of the reads, scratch memory of an engine adds to them. Pure. */
#ifndef CRUN_WORKER_DEVICE_CUDA_TRAFFIC_H
#define CRUN_WORKER_DEVICE_CUDA_TRAFFIC_H

struct cuda_plan;
struct step;

struct step_traffic {
    double read, written; /* bytes of device memory */
    double flop; /* of the model's convolutions and products, without zeros of padding and folding (device/fold.h) that
                  * are computed, too; else 0: what own kernels compute hides behind memory */
    double flop_fp32; /* of own kernels that arithmetic in fp32 may bound, not memory; else 0 */
    int nodes;        /* of the captured graph of a rank that is alone; engines count as one */
};

void cuda_step_traffic(const struct cuda_plan *pl, const struct step *s, struct step_traffic *ret);

#endif
