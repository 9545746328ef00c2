/* A GPU that is not there: struct gpu_ops on the processor. Own kernels are the real ones, emulated (cuda_emulation.h);
 * convolutions and products are plain loops. Work is queued and runs late and out of order where CUDA allows it
 * (fake_queue.h): device memory is plain memory, but who looks at it waits first. Memory is filled with NaN patterns
 * when it is taken. Calls are counted, so that tests can say what a step must not do; work when it is enqueued, that of
 * a graph when it is launched. */
#ifndef CRUN_TESTS_FAKE_GPU_H
#define CRUN_TESTS_FAKE_GPU_H

#include "worker/device/cuda/gpu/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fake_counts {
    long allocs, frees, host_allocs, host_frees, syncs, copies_in, copies_out, kernels, dnns, gemms, captures, graphs,
        graphs_closed, launches;
    long by_kernel[KERNEL_COUNT];
    long urgent;           /* streams that were opened as such */
    long events;           /* open now */
    size_t bytes;          /* taken now */
    const void *copied_in; /* where the last copy from the host of more than 128 bytes read */
};

/* How an engine may err. */
#define FAKE_WRONGS(X)                                                                                                 \
    X(FAKE_RIGHT)                                                                                                      \
    X(FAKE_NO_TAIL)  /* the last sample (filters: the last output channel) is never written */                         \
    X(FAKE_CHANNEL)  /* the last channel is that before it */                                                          \
    X(FAKE_COARSE)   /* stored with four bits less */                                                                  \
    X(FAKE_SCALED)   /* all of it is 1 % too large */                                                                  \
    X(FAKE_INFINITE) /* one element is */                                                                              \
    X(FAKE_SUM)      /* sums are those of half of it */                                                                \
    X(FAKE_BIT)      /* the last bit of one element is the other */                                                    \
    X(FAKE_SUM_BIT)  /* that of one sum of squares, or gradient of a shift, is */
enum fake_wrong {
#define X(id) id,
    FAKE_WRONGS(X)
#undef X
        FAKE_WRONG_COUNT
};

enum { FAKE_ALGOS = 4 }; /* for each product; the second leaves the order of sums to chance */

struct fake_options {
    size_t memory; /* bytes, 0: a lot */
    bool idle;     /* work is counted, not done, and memory is never touched: planning of what would not fit here */
    struct fake_counts *at_close; /* NULL: nobody wants them */
    /* What running this graph with its plan answers (0, -ENOTSUP, ...), and how many milliseconds those between two
     * events took, given the last that ran, NULL: a kernel. NULL: 0; 1 ms. */
    int (*dnn)(void *ctx, const struct gpu_dnn *d);
    float (*cudnn_ms)(void *ctx, const struct cudnn_plan *last);
    enum fake_wrong (*wrong)(void *ctx, const struct gpu_dnn *d); /* what this engine computes. NULL: what it should */
    void *ctx;
    uint64_t seed;      /* of the order in which work runs; CRUN_TEST_SEED is added */
    bool lazy;          /* nothing runs before somebody waits for it, whatever the seed */
    bool no_graph_runs; /* whatever is launched as a graph fails */
    int number;         /* which GPU of the machine: its UUID is made of it */
    bool fatal;         /* a graph that fails takes the card with it: whoever waits for it afterwards fails, too */
};

int fake_gpu_open(struct gpu **ret, const struct fake_options *o);
/* The next launch of this kernel fails. */
void fake_gpu_fail_next(struct gpu *g, enum kernel k);
/* The next capture comes to nothing. */
void fake_gpu_fail_capture(struct gpu *g);
const struct fake_counts *fake_gpu_counts(const struct gpu *g);
/* What a stream (native handle; NULL: every stream) was given has happened. Counts as no sync. */
void fake_gpu_wait(struct gpu *g, void *stream);
/* Of what is queued only the copies from the host run, as far as they wait for nothing else; their number. */
int fake_gpu_copy_ahead(struct gpu *g);

#ifdef __cplusplus
}
#endif

#endif
