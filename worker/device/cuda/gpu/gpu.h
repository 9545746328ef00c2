/* What the cuda device asks of a GPU: memory, streams, events, captured graphs, own kernels, cuDNN plans and matrix
 * products.
 *
 * Everything above this table (planning, liveness, buckets, capture decisions, loss scale) is plain C that never sees a
 * CUDA type; so it is tested against a table that records its calls (tests/worker/device/cuda/fake_gpu.h). gpu_cuda.c
 * is the real one.
 *
 * Calls that take a stream enqueue and return; their pointers are device memory unless called host. Errors: -ENODEV,
 * -ENOMEM (names the size and what is free), -EIO with CUDA's own name and text for everything else; an error of work
 * already enqueued comes back from a later call. One thread a stream; captures, launches and allocations of device
 * memory on one thread. */
#ifndef CRUN_WORKER_DEVICE_CUDA_GPU_H
#define CRUN_WORKER_DEVICE_CUDA_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/device/cuda/dnn/dnn.h"
#include "worker/device/cuda/kern/kernels.h"
#include "worker/precision/dtype.h"

struct err;
struct gpu;
struct gpu_event;
struct gpu_graph;
struct gpu_stream;

enum { GPU_UUID_BYTES = 41 }; /* GPU- or MIG-, 8-4-4-4-12 digits and a NUL */

struct gpu_info {
    char name[128];
    char uuid[GPU_UUID_BYTES]; /* of the MIG instance where it is one; "": not known */
    int capability;            /* 90: compute capability 9.0 */
    size_t memory;             /* bytes */
    int runtime, driver, dnn;  /* versions as the libraries number them: 13000, 91900 */
};

/* What a product does on the way: adds a bias (n), of C's type, to each row of the result; sums the rows of A, which is
 * stored (k, m), in fp32: the gradient of a bias (m). */
enum gemm_epilogue { GEMM_PLAIN, GEMM_BIAS, GEMM_BIAS_GRADIENT };

/* One product, of a fully connected layer or a 1x1 convolution: row-major C (m, n) = alpha * op(A) * op(B) [+ C]. */
struct gpu_gemm {
    enum dtype in, out; /* of A and B; of C. Sums in fp32; DT_F32 in TF32 where allowed */
    bool tf32;
    bool trans_a, trans_b; /* A is stored (k, m), B (n, k) */
    int64_t m, n, k;
    int64_t a_row, c_row; /* elements from one row of A, as it is stored, or of C, to the next; 0: as many as it has */
    bool repeats;         /* where no plan is given: no algorithm that leaves the order of sums to chance */
    const void *a, *b;
    void *c;
    float alpha;
    bool add; /* to what C holds */
    enum gemm_epilogue epilogue;
    void *bias;              /* what is added, or written; NULL: GEMM_PLAIN */
    struct cudnn_plan *plan; /* which of cuBLASLt's algorithms; NULL: the first that it names */
};

/* A cuDNN graph with its tensors. workspace: at least what the plan says. */
struct gpu_dnn {
    enum cudnn_pattern pattern;
    struct cudnn_shape shape;
    struct cudnn_plan *plan; /* NULL where the gpu is not a real one */
    void *slot[DNN_SLOTS_MAX];
};

struct gpu_ops {
    const char *name;
    void (*close)(struct gpu *g);
    int (*attach)(struct gpu *g,
                  struct err *e); /* once in every thread but the one that opened it, before its first call */
    int (*info)(struct gpu *g, struct gpu_info *ret, struct err *e);
    /* One line a fact: versions built with and found, driver, UUID, clocks, power. What cannot be had is left out. */
    void (*details)(struct gpu *g, char *out, size_t cap);
    int (*memory)(struct gpu *g, size_t *ret_free, size_t *ret_total, struct err *e);

    int (*alloc)(struct gpu *g, size_t bytes, void **ret, struct err *e); /* 256-byte aligned, not zeroed */
    void (*release)(struct gpu *g, void *p);
    int (*host_alloc)(struct gpu *g, size_t bytes, void **ret, struct err *e); /* page-locked */
    void (*host_release)(struct gpu *g, void *p);

    int (*stream_open)(struct gpu *g, bool urgent, struct gpu_stream **ret,
                       struct err *e); /* urgent: above the others */
    void (*stream_close)(struct gpu *g, struct gpu_stream *s);
    void *(*stream_native)(struct gpu_stream *s); /* cudaStream_t, for NCCL */
    int (*stream_sync)(struct gpu *g, struct gpu_stream *s, struct err *e);
    /* 0: all its work has happened; -EAGAIN: not yet. Any thread that has called attach(). */
    int (*stream_query)(struct gpu *g, struct gpu_stream *s, struct err *e);
    int (*event_open)(struct gpu *g, bool timed, struct gpu_event **ret, struct err *e);
    void (*event_close)(struct gpu *g, struct gpu_event *v);
    int (*event_record)(struct gpu *g, struct gpu_event *v, struct gpu_stream *s, struct err *e);
    int (*event_wait)(struct gpu *g, struct gpu_event *v, struct gpu_stream *s,
                      struct err *e);                                     /* s waits, the host does not */
    int (*event_sync)(struct gpu *g, struct gpu_event *v, struct err *e); /* the host waits */
    int (*event_ms)(struct gpu *g, struct gpu_event *from, struct gpu_event *to, float *ret, struct err *e);

    int (*copy_in)(struct gpu *g, struct gpu_stream *s, void *to, const void *host, size_t bytes, struct err *e);
    int (*copy_out)(struct gpu *g, struct gpu_stream *s, void *host, const void *from, size_t bytes, struct err *e);
    int (*copy)(struct gpu *g, struct gpu_stream *s, void *to, const void *from, size_t bytes, struct err *e);
    int (*fill)(struct gpu *g, struct gpu_stream *s, void *to, int byte, size_t bytes, struct err *e);

    /* Between begin and end calls on s (and on streams that wait for its events) are recorded instead of run; no
     * allocation, no sync. After an error in between capture_end() must still be called; it then returns the error and
     * no graph. */
    int (*capture_begin)(struct gpu *g, struct gpu_stream *s, struct err *e);
    int (*capture_end)(struct gpu *g, struct gpu_stream *s, struct gpu_graph **ret, struct err *e);
    int (*graph_launch)(struct gpu *g, struct gpu_graph *x, struct gpu_stream *s, struct err *e);
    void (*graph_close)(struct gpu *g, struct gpu_graph *x);

    int (*kernel)(struct gpu *g, struct gpu_stream *s, enum kernel k, const void *args,
                  struct err *e); /* struct of kernels.h */
    int (*dnn)(struct gpu *g, struct gpu_stream *s, const struct gpu_dnn *d, void *workspace, struct err *e);
    int (*gemm)(struct gpu *g, struct gpu_stream *s, const struct gpu_gemm *m, void *workspace, size_t workspace_bytes,
                struct err *e);
    /* Algorithms for a product, at most cap, those first that cuBLASLt thinks are fastest. deterministic: none that
     * leaves the order of sums to chance. Pointers of m are not looked at. */
    int (*gemm_algos)(struct gpu *g, const struct gpu_gemm *m, size_t workspace_bytes, bool deterministic,
                      struct dnn_algo *ret, int cap, int *ret_n, struct err *e);
};

struct gpu {
    const struct gpu_ops *ops; /* first member of every implementation's struct */
};

/* Number of devices that this process may use (CUDA_VISIBLE_DEVICES honoured), without creating a context. 0 if there
 * is no driver: *e says what is missing. */
int gpu_count(struct err *e);
/* Device `index` of the visible ones. -ENODEV in one sentence. */
int gpu_open(struct gpu **ret, int index, struct err *e);

#endif
