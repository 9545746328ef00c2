/* A host that waits for the GPU for long says so: what it waits for, what was enqueued last, and what the streams are
 * at. One thread a device, started with the first run; it looks twice a period, and asks CUDA only after it has said
 * the rest, for CUDA may not answer then. */
#ifndef CRUN_WORKER_DEVICE_CUDA_TELL_WATCH_H
#define CRUN_WORKER_DEVICE_CUDA_TELL_WATCH_H

#include <stdint.h>

struct err;
struct gpu;
struct gpu_stream;
struct watch;

/* What it asks. */
struct watched {
    struct gpu *gpu;
    struct gpu_stream *compute, *copy;
};

enum { WATCH_PERIOD_MS = 30000 };

/* period_ms: after so long it speaks, and again after as long once more. */
int watch_open(struct watch **ret, const struct watched *c, int64_t period_ms, struct err *e);
void watch_close(struct watch *w); /* joins the thread; NULL allowed */

/* Around a wait of the host; `what` is a literal. One may lie within another: the inner one counts. Training thread; w
 * NULL: nobody watches. */
void watch_wait(struct watch *w, const char *what);
/* Likewise around what should be over at once, but may wait in CUDA for all that is under way. No stream is asked about
 * then: it may be one that is captured, and a question would end that. */
void watch_call(struct watch *w, const char *what);
void watch_done(struct watch *w);
/* What was enqueued last: label (a literal), number of the run. Training thread. */
void watch_note(struct watch *w, const char *label, int op, uint64_t run);

#endif
