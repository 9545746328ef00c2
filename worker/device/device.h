/* A device plans programs and runs them. Three of them: ref (plain C, double, the truth), cpu (oneDNN), cuda (a
 * module).
 *
 * Memory of a device is reached through its ops only (host devices: plain memory). All calls from the training thread
 * unless stated. Functions with `stream` semantics do not exist here: a device has one compute order, and hooks get its
 * stream.
 *
 *   program (program.h), arenas -> plan() -> a plan for one batch size
 *   batch -> run(): forward, loss, backward; hooks tell which gradients are final -> reduce arena (sums over samples)
 *   -> somebody sums it over all ranks (worker/parallel) -> update(), update_stats(): params, moments, statistics
 *
 * Shared by devices: fuse.h (ops that ride along), liveness.h (who lives when), half.h (which values are halves),
 * mix.h (erasing and mixing of pictures), drop.h (which elements are dropped), update_rule.h, rules.h (updates),
 * host_common.h. */
#ifndef CRUN_WORKER_DEVICE_H
#define CRUN_WORKER_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/choice.h"
#include "worker/device/batch_mix.h"
#include "worker/device/gpu_choice.h"
#include "worker/device/loss_rule.h"
#include "worker/device/update_rule.h"
#include "worker/precision/dtype.h"
#include "worker/precision/loss_scale.h"
#include "worker/program/input.h"

struct err;
struct program;
struct plan_range; /* program.h */
struct program_chunk;
struct device;
struct plan;

struct device_options {
    int threads; /* compute threads, >= 1 (host devices) */
    int index;   /* which GPU; device_open() sets it by the choice below */
    struct gpu_choice choice;
    struct gpu_options {
        bool eager;             /* launch kernel by kernel, capture no graph */
        bool tune;              /* time cuDNN's candidates for every convolution */
        double tune_seconds;    /* in all; 0: no limit */
        bool (*stopping)(void); /* once it says so nothing more is timed; NULL: never */
        bool tf32;              /* fp32 convolutions and products may round operands to TF32 */
        bool check;             /* wait after each step of a plan, and look at what it wrote */
        bool fused;             /* cuDNN's fused patterns where it has them */
        bool deterministic;     /* equal runs give equal bits */
        bool fast_attention;    /* its backward pass in halves may add up in any order */
        size_t workspace_limit; /* bytes a convolution may take as scratch, 0: no limit */
        const char *cache_dir;  /* of tuned choices; NULL: none */
    } gpu;
};

/* One batch in host memory: n rows, each a sample of what the model reads (struct input); n is the plan's batch.
 * Borrowed until run() returns. */
struct batch {
    const void
        *rows; /* (n + plan_options.others, input_row_bytes()); NULL in the parts of a model that do not read it */
    const int32_t *labels; /* (n, input_row_labels()), 0..classes-1; anything where the weight is 0 */
    const float *weights;  /* (n), 0 or 1 */
    /* (n) their numbers in the data set, of padding BATCH_PADDING; NULL: not known, as long as nothing is dropped */
    const uint32_t *samples;
    /* (n + plan_options.others) of pictures; NULL: none is erased or mixed. Needs plan_options.mixes. */
    const struct batch_mix *mix;
    /* rows are memory of device_async.host_alloc(): the device reads them itself, and run() returns once it has. Else
     * a device with streams makes a copy first. */
    bool locked;
};

#define BATCH_PADDING UINT32_MAX

/* The same batch from row `first` on. */
struct batch batch_at(const struct batch *b, const struct input *in, size_t first);

struct run_hooks {
    void *ctx;
    /* Sum n elements over all ranks in place (synchronised BN, forward and backward). NULL: statistics of this rank
     * alone. Called in the same order on every rank. stream: the device's compute stream, NULL on host devices, which
     * it blocks. */
    int (*all_sum)(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e);
    /* Elements [first, end) of the reduce arena are final for this run. Ranges are given once each, in ascending order
     * for gradients. NULL: nobody wants to know. On host devices it may wait until gradients
     * before these have been reduced. */
    int (*ready)(void *ctx, size_t first, size_t end, void *stream, struct err *e);
    /* They act on the host, when they are called: the run must not be captured. */
    bool on_host;
    /* A device that captures a run as a graph calls the two above while it captures, then captured(); each later launch
     * of that graph does again what they had enqueued, and is announced by replayed(). NULL: not announced. */
    int (*captured)(void *ctx, void *stream, struct err *e);
    int (*replayed)(void *ctx, void *stream, struct err *e);
    /* The capture came to nothing: what they had enqueued into it is gone, and the run begins once more. */
    void (*dropped)(void *ctx);
};

/* What ops over a group of ranks call (program.h). The ranks of the group make the same calls with the same sizes, in
 * the same order. stream: the device's compute stream, NULL on host devices, which they block. */
struct plan_group {
    void *ctx;
    bool on_host;     /* as struct run_hooks': they act when they are called */
    int ranks, index; /* of the group, and which of them this one is */
    /* in: n elements; out: ranks * n, everybody's in the order of ranks. */
    int (*gather)(void *ctx, const void *in, void *out, size_t n, enum dtype t, void *stream, struct err *e);
    /* in: ranks * n elements; out: n, this rank's part of the sum. They do not overlap. */
    int (*scatter)(void *ctx, const void *in, void *out, size_t n, enum dtype t, void *stream, struct err *e);
    /* In place. */
    int (*sum)(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e);
    int (*max)(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e);
};

/* For parameters that are not in memory all the time (ZeRO 3). Training thread. */
struct plan_needs {
    void *ctx;
    /* While a plan is made, once: what a run of it reads of the parameters, read after read. Borrowed. */
    int (*order)(void *ctx, const struct plan_range *reads, int n, struct err *e);
    /* Before read k, each in its turn: waits until it is there. And after it. The ranks make the same calls. On a
     * device with streams what it computes from then on waits, not the host. */
    int (*need)(void *ctx, int k, struct err *e);
    void (*release)(void *ctx, int k);
    /* Where element reads[k].first is then, from order() on. NULL: where it always is, in the arena. */
    const void *(*at)(void *ctx, int k);
    bool on_host; /* as struct run_hooks' */
};

/* A step of a plan that has been run. */
struct run_span {
    const char *label;        /* what is done: "conv_bwd_data", "bn+relu" */
    const char *kernel;       /* what does it: "jit:avx512_core", an engine of cuDNN; NULL: the label says all */
    int op;                   /* index in the program */
    int64_t start_ns, end_ns; /* as clock_ns() */
    double bytes, flop; /* that it cannot do without: memory traffic, arithmetic of products; 0: not known, or none */
};

/* For those who draw what a plan spends its time on. Called on the training thread after each step of the plan, or
 * after all of them. */
struct run_trace {
    void *ctx;
    void (*op)(void *ctx, const struct run_span *s);
};

/* Where halves are used when plan_options.compute is DT_F16 or DT_BF16; device/half.h says it value by value. */
enum half_rule {
    HALF_STORED,  /* all activations are */
    HALF_OPERANDS /* operands and results of convolutions and linear layers only */
};

/* How activations lie in memory. */
#define MEMORY_FORMATS(X)                                                                                              \
    X(MEMORY_AUTO, "auto") /* as the device likes best: its own blocks */                                              \
    X(MEMORY_NCHW, "nchw")                                                                                             \
    X(MEMORY_NHWC, "nhwc") /* channels last */
enum memory_format { MEMORY_FORMATS(CHOICE_ID) };

struct plan_options {
    int batch;          /* N >= 1 */
    int others;         /* rows behind those of a batch, which are partners of rows of it alone (batch_mix) */
    bool mixes;         /* batches may be erased and mixed */
    bool training;      /* false: forward ops only, BN by running statistics, no gradients */
    enum dtype compute; /* DT_F64 (ref), DT_F32, or a half: DT_BF16, DT_F16 */
    bool emulate; /* halves by rounding what would be stored as one; arithmetic is the arena's (fp32, ref: fp64) */
    enum half_rule half;
    bool half_bn;              /* scale and shift of batch norm, too */
    struct loss_rule loss;     /* of XENT; of HEAD it is plain */
    enum memory_format format; /* -ENOTSUP where the device has only its own (ref) */
    bool keep_all;             /* no fusion across ops, every tensor readable: tests */
    bool fresh_weights;        /* parameters change between any two runs: copies of weights need not be kept, and a
                                      host device makes each where it is used, in memory that others use, too */
    bool forecast;             /* for plan_memory() alone: host devices take address space instead of memory, and
                                      must not run it */
    /* Asked before a host device takes a block of so many bytes, some MiB or more, for the plan; what it returns below
     * 0 is the error of plan(). before: bytes of the plan's blocks so far that take memory only once it runs. NULL:
     * nobody is asked. */
    int (*room)(const void *ctx, size_t before, size_t bytes, struct err *e);
    const void *room_ctx;
    int first_op, end_op; /* slice of the program; 0, 0: all (of the forward part if !training) */
    /* One of the parts of a model that the program is, borrowed, instead of a slice; NULL: none. Its forward and
     * backward passes are runs of their own. */
    const struct program_chunk *chunk;
    int sets; /* of activations, which live from a forward pass to the backward pass; 0: one. chunk alone */
    void *params, *stats, *reduce; /* arenas (program.h), device memory, bound for the life of the plan */
    /* of the program's group, borrowed for the life of the plan; NULL: it has none */
    const struct plan_group *group;
    /* of params, borrowed for the life of the plan; NULL: they are always there. With it no copy of a weight is kept.
     * Of a chunk: of its forward pass. */
    const struct plan_needs *needs;
    const struct plan_needs *needs_back; /* of the backward pass of a chunk; there where needs is */
};

enum run_pass { RUN_BOTH, RUN_FORWARD, RUN_BACKWARD };

/* What goes into a chunk and comes out of it (program_chunk): rows (N, c, h, w) of device_boundary_type(), the device's
 * memory; NULL where the chunk has no such tensor. */
struct run_boundary {
    const void *in; /* forward: `in`; backward: `d_out` */
    void *out;      /* forward: `out`; backward: `d_in` */
};

struct run_args {
    struct batch batch;
    double grad_scale;             /* multiplies dlogits; 1 if in doubt */
    double smoothing;              /* of labels, 0..1, in the loss and its gradient */
    uint64_t seed, step;           /* of training, and how many steps were done before: what is dropped (drop.h) */
    bool accumulate;               /* add to gradients, statistics and metrics instead of replacing them */
    bool add_metrics;              /* add to metrics, whatever accumulate says */
    enum run_pass pass;            /* of a chunk: one of them; else RUN_BOTH */
    int set;                       /* of activations: a backward pass finds in it what the forward pass has left */
    bool again;                    /* forward for the second time: statistics, metrics and the boundary have gone out */
    struct run_boundary boundary;  /* of a chunk */
    uint64_t params_version;       /* changes whenever params or stats do: the plan refreshes its own copies */
    const struct run_hooks *hooks; /* NULL: none */
    const struct run_trace *trace; /* NULL: none */
};

struct plan_memory {                        /* bytes */
    size_t activations, weights, workspace; /* tensors; copies of weights in other layouts; scratch of kernels */
};

struct device_verdict { /* on a step: judge() */
    struct loss_scale scale_after;
    bool skipped, hopeless; /* nothing was changed; and nothing will be any more */
    bool torn;              /* nothing was changed, the loss scale neither: tear() came first */
};

/* What a device offers whose work goes on while the host goes on: streams for collectives, and steps that the host does
 * not look at before the next is enqueued. Streams are native handles (cudaStream_t), as hooks get them. Training
 * thread, but where it says otherwise. */
struct device_async {
    int (*open)(struct device *d, void **ret_stream, struct err *e);
    void (*close)(struct device *d, void *stream);
    void *(*compute)(struct device *d); /* where run(), update() and their like enqueue */
    /* What is enqueued on `after` from now on happens after what was enqueued on `before` up to now. Captured with
     * them. */
    int (*order)(struct device *d, void *before, void *after, struct err *e);
    /* The same in two calls: what is enqueued on a stream after follow() happens after what was enqueued on another one
     * before the last mark(); without one nothing is waited for. */
    int (*event_open)(struct device *d, void **ret, struct err *e);
    void (*event_close)(struct device *d, void *event); /* NULL allowed */
    int (*mark)(struct device *d, void *event, void *stream, struct err *e);
    int (*follow)(struct device *d, void *event, void *stream, struct err *e);
    /* out = in * mul, n elements, enqueued. Halves to and from the type of arenas. */
    int (*convert)(struct device *d, void *stream, void *out, enum dtype to, const void *in, enum dtype from, size_t n,
                   double mul, struct err *e);

    /* Page-locked host memory, and copies that are enqueued. Any thread that has called attach(). */
    int (*attach)(struct device *d, struct err *e);
    int (*host_alloc)(struct device *d, size_t bytes, void **ret, struct err *e);
    void (*host_release)(struct device *d, void *p);
    int (*copy_in)(struct device *d, void *stream, void *to, const void *host, size_t bytes, struct err *e);
    int (*copy_out)(struct device *d, void *stream, void *host, const void *from, size_t bytes, struct err *e);
    int (*copy)(struct device *d, void *stream, void *to, const void *from, size_t bytes, struct err *e); /* within */
    int (*sync)(struct device *d, void *stream, struct err *e); /* the host waits */

    /* Loss scaling on the device (worker/precision/loss_scale.h is the rule). From guard() on run() multiplies its
     * grad_scale by the scale, grad_norm() and update() divide by it, and update(), blend() and update_stats() do
     * nothing once the last judge() found a loss or norm that is not finite; update.step counts the skipped steps, too.
     * *s: the scale to begin with; NULL: no more of it. */
    int (*guard)(struct device *d, const struct loss_scale *s, struct err *e);
    int (*judge)(struct device *d, const void *loss, const void *norm, struct err *e); /* norm: NULL: not looked at */
    int (*store)(struct device *d, void *to, double value, struct err *e);             /* an element of an arena */
    /* Send n <= 16 elements of an arena and the verdict to the host, slot 0 or 1; take() waits for that slot alone. */
    int (*post)(struct device *d, int slot, const void *from, int n, struct err *e);
    int (*take)(struct device *d, int slot, double *ret, int n, struct device_verdict *v, struct err *e);

    /* true: collectives are about to be ended from outside, and sums of theirs may not be whole: no step that is judged
     * behind one of them changes anything. false: from now on they are whole again; nothing is under way then. Any
     * thread. */
    void (*tear)(struct device *d, bool torn);
    /* Of a plan: its graphs are closed, once all that was launched has happened, and captured anew: for who closes what
     * the hooks have called in them. */
    void (*uncapture)(struct plan *pl);
};

struct device_ops {
    const char *name; /* "ref", "cpu", "cuda" */
    enum dtype real;  /* type of arenas */
    int (*open)(struct device **ret, const struct device_options *o, struct err *e);
    void (*close)(struct device *d);

    /* Zeroed, 64-byte aligned device memory. -ENOMEM names the size. */
    int (*alloc)(struct device *d, size_t bytes, void **ret, struct err *e);
    void (*release)(struct device *d, void *p);
    int (*upload)(struct device *d, void *dst, const void *src, size_t bytes, struct err *e);
    int (*download)(struct device *d, void *dst, const void *src, size_t bytes, struct err *e);
    int (*sync)(struct device *d, struct err *e); /* everything issued so far has happened */
    /* Bytes of memory of its own that were taken through it, plans' included: now, and at most. NULL: it has none but
     * the process'. */
    void (*memory)(struct device *d, size_t *ret_now, size_t *ret_peak);

    /* -ENOTSUP names the op and type that this device cannot do. */
    int (*plan)(struct device *d, const struct program *p, const struct plan_options *o, struct plan **ret,
                struct err *e);
    void (*plan_close)(struct plan *pl);
    void (*plan_memory)(const struct plan *pl, struct plan_memory *ret); /* NULL: not known */
    int (*run)(struct plan *pl, const struct run_args *a, struct err *e);
    /* What the next run with these parameters (run_args.params_version) begins with: copies of weights. For a caller
     * that has nothing else to do meanwhile; a run makes those that are not made. NULL: none are. */
    int (*prepare)(struct plan *pl, uint64_t params_version, struct err *e);

    /* Tests and `predict`: a tensor's values as logical NCHW doubles, n = ranks*N*c*h*w. get needs keep_all, except for
     * program.logits. */
    int (*get)(struct plan *pl, int tensor, double *out, struct err *e);
    int (*put)(struct plan *pl, int tensor, const double *in, struct err *e);

    int (*update)(struct device *d, const struct update *u, void *params, const void *grads, void *momentum,
                  const void *count, struct err *e);
    /* update() of every slice, what a slice has taking the place of what *u has; slices do not overlap. NULL: it would
     * be no faster. */
    int (*update_all)(struct device *d, const struct update *u, const struct update_slice *slices, int n, void *params,
                      const void *grads, void *momentum, const void *count, struct err *e);
    /* *norm (device memory, one element) = L2 norm of grads[0..n) * grad_mul / *count; 0 where the count is 0.
     * count NULL: of elements that are no gradients: divided by nothing, nor by guard()'s scale. */
    int (*grad_norm)(struct device *d, const void *grads, size_t n, double grad_mul, const void *count, void *norm,
                     struct err *e);
    /* to = (1 - weight) * to + weight * from, n elements. */
    int (*blend)(struct device *d, void *to, const void *from, size_t n, double weight, struct err *e);
    /* Every element becomes the nearest value of type t (a half), too large ones infinity. */
    int (*round)(struct device *d, void *x, size_t n, enum dtype t, struct err *e);
    /* stats = (1 - momentum) * stats + momentum * sums / *count, n elements; as above a count of 0 changes nothing. */
    int (*update_stats)(struct device *d, void *stats, const void *sums, size_t n, double momentum, const void *count,
                        struct err *e);

    /* One line for the log: instruction set, library version, what is emulated. */
    int (*describe)(struct device *d, char *out, size_t cap);
    /* UUID of what it computes on, a GPU or a MIG instance: the same in all processes that compute on it. "": not
     * known. The device's. NULL: a host device, which ranks share. */
    const char *(*uuid)(const struct device *d);
    bool (*native)(struct device *d, enum dtype compute,
                   enum half_rule half); /* plans it without plan_options.emulate */
    /* What plans chose by timing, as JSON (malloc'ed), and back before planning. NULL: nothing is chosen so. */
    int (*choices)(struct device *d, char **ret, struct err *e);
    int (*choose)(struct device *d, const char *json, struct err *e);
    const struct device_async *async; /* NULL: every call has done its work when it returns */
};

struct device {
    const struct device_ops *ops; /* first member of every device's struct */
};
struct plan {
    const struct device_ops *ops;
};

extern const struct device_ops device_ref_ops, device_cpu_ops;

/* What goes into and out of chunks of a plan with these options: halves where it stores them as such, else `real`,
 * which arenas are of. */
static inline enum dtype device_boundary_type(const struct plan_options *o, enum dtype real)
{
    const bool half = o->compute == DT_F16 || o->compute == DT_BF16;
    return half && !o->emulate && o->half == HALF_STORED ? o->compute : real;
}

/* By name: "ref", "cpu", "cuda", or "auto" (cuda where a device is there, else cpu). -EINVAL with the list; -ENODEV in
 * one sentence. */
int device_open(struct device **ret, const char *name, const struct device_options *o, struct err *e);

#endif
