/* The order of work on the streams of a GPU that is not there, with nothing but what CUDA promises: a stream's work one
 * after the other; what waits for an event after what the event was recorded behind; the launch of a graph after the
 * stream's work and the launch before, its parts by what their capture recorded. Work is queued until somebody waits
 * for it. What may run then runs in an order of chance, by the seed, so that what nobody ordered comes out of order.
 * Any thread may call. */
#ifndef CRUN_TESTS_FAKE_QUEUE_H
#define CRUN_TESTS_FAKE_QUEUE_H

#include "worker/device/cuda/gpu/gpu.h"

enum work_kind { WORK_JOIN, WORK_KERNEL, WORK_DNN, WORK_GEMM, WORK_COPY, WORK_COPY_IN, WORK_FILL };

struct work {
    enum work_kind kind; /* WORK_JOIN: nothing is done */
    enum kernel kernel;
    char args[512];
    struct gpu_dnn dnn;
    int wrong; /* enum fake_wrong */
    struct gpu_gemm gemm;
    void *to;
    const void *from; /* read when the work runs */
    void *own;        /* malloc'ed; freed after the work, NULL: nothing is to be */
    size_t bytes;
    int byte;
};

struct node { /* of a graph */
    struct work w;
    int after[2]; /* nodes; -1: none */
};
struct gpu_graph {
    struct node *all;
    int n, cap;
    int last;           /* of the stream whose capture it was; -1: nothing was captured */
    struct op *running; /* last of the launch before */
};

struct fake_queue;
typedef int fake_run_fn(void *ctx, const struct work *w, struct err *e);

/* lazy: nothing runs before somebody waits for it. Even seeds are, too. */
struct fake_queue *fake_queue_open(uint64_t seed, bool lazy, fake_run_fn *run, void *ctx);
void fake_queue_close(struct fake_queue *q); /* what is queued is dropped */

struct gpu_stream *fake_queue_stream(struct fake_queue *q);
void fake_queue_stream_close(struct fake_queue *q, struct gpu_stream *s); /* its work is still done */
struct gpu_event *fake_queue_event(void);
void fake_queue_event_close(struct fake_queue *q, struct gpu_event *v);

/* Takes w->own. Recorded instead where s is captured. */
void fake_queue_put(struct fake_queue *q, struct gpu_stream *s, const struct work *w);
bool fake_queue_captured(const struct gpu_stream *s);
void fake_queue_record(struct fake_queue *q, struct gpu_event *v, struct gpu_stream *s);
/* s waits. -EIO for what CUDA refuses in captures and after them. */
int fake_queue_wait(struct fake_queue *q, struct gpu_event *v, struct gpu_stream *s, struct err *e);

/* The host waits: for a stream, for an event, for everything. The error of what ran since the queue was opened. */
int fake_queue_sync(struct fake_queue *q, struct gpu_stream *s, struct err *e);
int fake_queue_sync_event(struct fake_queue *q, struct gpu_event *v, struct err *e);
int fake_queue_finish(struct fake_queue *q, struct err *e);
/* All work of a kind that waits for no work of another; its number. */
int fake_queue_run_ahead(struct fake_queue *q, enum work_kind kind);
bool fake_queue_happened(struct fake_queue *q, const struct gpu_event *v);
/* Does queued work copy from or to this host memory? */
bool fake_queue_uses(struct fake_queue *q, const void *host, size_t bytes);

/* Is a capture of this thread under way, or is s (NULL: none) part of another's? Captures are their threads' own, as
 * cudaStreamCaptureModeThreadLocal has it; there is one at a time. */
bool fake_queue_capturing(struct fake_queue *q, const struct gpu_stream *s);
void fake_queue_capture_begin(struct fake_queue *q, struct gpu_stream *s);
/* *ret also with an error: work that s did not wait for. */
int fake_queue_capture_end(struct fake_queue *q, struct gpu_stream *s, struct gpu_graph **ret, struct err *e);
void fake_queue_launch(struct fake_queue *q, struct gpu_graph *x, struct gpu_stream *s);
void fake_queue_graph_close(struct fake_queue *q, struct gpu_graph *x);

#endif
