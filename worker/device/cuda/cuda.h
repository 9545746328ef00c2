/* The cuda device: struct device_ops over gpu.h. It plans on the host and never sees a CUDA type.
 *
 *   program -> plan.c: fused ops (fuse.h, ladder.c) -> emit_product.c: cuDNN and cuBLASLt; emit_own.c: own kernels
 *   -> plan_memory.c: memory by liveness -> engines/tune.c: engines that run, and which is fastest
 *   batch -> run.c: page-locked stage -> copy stream -> steps, or the captured graph of them, on the compute stream
 *   gradients -> ready(): side streams (async.c) reduce them -> update.c: a launch or two for all parameters
 *   metrics, verdict on the step -> async.c: posted to page-locked memory, taken by the host a step later
 *
 * Rooms below: engines/ proves and times engines, dnn/ plans cuDNN's graphs, kern/ has the own kernels, gpu/ is the one
 * file that calls CUDA. */
#ifndef CRUN_WORKER_DEVICE_CUDA_CUDA_H
#define CRUN_WORKER_DEVICE_CUDA_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/device/cuda/gpu/gpu.h"
#include "worker/device/cuda/tell/watch.h"
#include "worker/device/device.h"

struct cudnn;

enum { CUDA_SIDE_STREAMS = 8, CUDA_POSTS = 2 };

struct cuda {
    struct device base;
    struct gpu *gpu;
    struct cudnn *dnn; /* NULL where the gpu is not a real one: then no plan is looked for (tests) */
    struct gpu_info info;
    struct gpu_stream *compute, *copy;
    struct gpu_event *moment; /* for joins of streams that are used up at once */
    struct cuda_options {
        bool graphs;            /* capture steps and launch them as a graph */
        bool tune;              /* time the candidates of every convolution; never where bits must repeat */
        double tune_seconds;    /* in all; 0: no limit */
        bool (*stopping)(void); /* as gpu_options' */
        bool tf32;              /* fp32 convolutions and products may round operands to TF32 */
        bool check;             /* walk, wait after each step and look at what it wrote */
        bool fused_patterns;    /* cuDNN's conv+stats and its kin, where there are plans */
        bool fast_attention;    /* backward by cuDNN's engine that does not repeat its bits */
        size_t workspace_limit; /* bytes, 0: none */
    } options;
    int64_t tuned_ns;    /* of tune_seconds */
    int64_t tell_ms;     /* between lines about that, 0: five seconds */
    double *partial;     /* device memory (KERNEL_NORM_PARTIAL) */
    double *bad;         /* check.c: likewise, (KERNEL_BAD_BLOCKS, 2); NULL before the first */
    struct watch *watch; /* NULL before the first run */
    int64_t watch_ms;    /* its period, 0: WATCH_PERIOD_MS */
    uint64_t runs;
    size_t bytes, peak; /* of device memory taken through this device */
    struct cuda_block { /* what device_ops.alloc() gave out: its sizes */
        void *at;
        size_t bytes;
        struct cuda_block *next;
    } * blocks;

    /* update.c: of the slices that were updated last */
    struct update_table {
        struct update_slice *slices; /* malloc'ed, as the caller gave them */
        int n, nchunks;
        void *device; /* all of the rest; NULL: no table yet */
        size_t bytes;
        const struct k_slice *k_slices;
        const struct k_chunk *k_chunks;
        double *partial;
        float *norms;
    } table;

    /* async.c */
    struct gpu_stream *side[CUDA_SIDE_STREAMS];
    struct k_scaler_state *scaler; /* device memory */
    bool guarded;                  /* scaler is in force */
    _Atomic int32_t *torn;         /* page-locked, which KERNEL_SCALER reads; any thread */
    struct cuda_post *posts;       /* page-locked (CUDA_POSTS) */
    struct gpu_event *posted[CUDA_POSTS];
};

/* What a step sends to the host. */
struct cuda_post {
    float values[16];
    struct k_scaler_state scaler;
};

extern const struct device_ops device_cuda_ops;

/* What the options of every device mean to this one. */
void cuda_options_from(const struct device_options *o, struct cuda_options *ret, struct cudnn_options *ret_dnn);

/* A device on this gpu, which it takes over also on failure. dnn likewise; NULL: see above. */
int cuda_open_on(struct device **ret, struct gpu *g, struct cudnn *dnn, const struct cuda_options *o, struct err *e);

extern const struct device_async cuda_async;
int cuda_async_open(struct cuda *c, struct err *e);
void cuda_async_close(struct cuda *c);
/* What update kernels obey: NULL where nobody guards. */
const struct k_scaler_state *cuda_guard(const struct cuda *c);

/* update.c: device_ops of these names */
int cuda_update(struct device *d, const struct update *u, void *params, const void *grads, void *momentum,
                const void *count, struct err *e);
int cuda_update_all(struct device *d, const struct update *u, const struct update_slice *slices, int n, void *params,
                    const void *grads, void *momentum, const void *count, struct err *e);
int cuda_grad_norm(struct device *d, const void *grads, size_t n, double grad_mul, const void *count, void *norm,
                   struct err *e);
int cuda_blend(struct device *d, void *to, const void *from, size_t n, double weight, struct err *e);
int cuda_round(struct device *d, void *x, size_t n, enum dtype t, struct err *e);
int cuda_update_stats(struct device *d, void *stats, const void *sums, size_t n, double momentum, const void *count,
                      struct err *e);
void cuda_update_close(struct cuda *c);

struct watched cuda_watched(const struct cuda *c);

/* Zeroed device memory; counts. -ENOMEM names the sizes. */
int cuda_take(struct cuda *c, size_t bytes, void **ret, struct err *e);
void cuda_give(struct cuda *c, void *p, size_t bytes);

#endif
