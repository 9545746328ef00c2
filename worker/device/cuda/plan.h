/* Inside of a plan of the cuda device; shared by the files of the plan (plan*.c, emit_*.c, run.c, access.c, ladder.c,
 * tune.c) and cuda.c.
 *
 * Planning: fuse.h marks ops that ride along with another one; emit*.c turns the rest, in order, into steps on buffers;
 * plan_memory.c places buffers by liveness and fills their addresses in. Running (run.c): inputs are staged on the copy
 * stream, then the steps are walked, or a captured graph of that walk is launched. Nothing is allocated after the plan
 * is made.
 *
 * Weights live as fp32 in the arena and as a copy of the products' type and layout, made by one KERNEL_PACK whenever
 * parameters changed; where parameters come and go (reads.c) by one before each use, and everything that a step reads
 * of parameters is such a copy, which lives no longer than it is used; weight gradients come out in the copy's form
 * and go into the reduce arena by KERNEL_UNPACK, a group of neighbours at a time, before ready() is called for them. */
#ifndef CRUN_WORKER_DEVICE_CUDA_PLAN_H
#define CRUN_WORKER_DEVICE_CUDA_PLAN_H

#include "common/base/err.h"
#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/dnn/dnn.h"
#include "worker/device/cuda/gpu/gpu.h"
#include "worker/device/cuda/ladder.h"
#include "worker/device/cuda/tell/first_runs.h"
#include "worker/device/device.h"
#include "worker/device/fold.h"
#include "worker/device/fuse.h"
#include "worker/device/host_common.h"
#include "worker/device/liveness.h"
#include "worker/program/program.h"

enum { NO_BUFFER = -1, STAGES = 2, VARIANTS_OF_SET = 8, ALIGN = 256 };
#define PLAN_GEMM_WORKSPACE ((size_t)32 << 20) /* what cuBLASLt is offered, as recommended for Hopper */

enum step_kind { STEP_KERNEL, STEP_DNN, STEP_GEMM, STEP_FILL, STEP_ALL_SUM, STEP_READY, STEP_GROUP };

union kernel_args {
#define X(id, type) type as_##id;
    KERNELS(X)
#undef X
};

/* Where a step takes a batch norm's sums from: settled at each run. `first` of from tells a convolution made them. */
struct bn_source {
    struct k_bn_from *from;
    const double *sums,
        *local; /* local: this rank's, where `sums` are summed over ranks; NULL: all ranks' are wanted */
};
enum { SOURCES_MAX = 4 };

struct step {
    enum step_kind kind;
    const char *label;
    char text[64]; /* of a label that is put together */
    int op;
    enum kernel kernel;
    union kernel_args args; /* STEP_KERNEL; `weights`, `labels` and such are those of the plan's own batch */
    struct gpu_dnn dnn;     /* STEP_DNN */
    struct gpu_gemm gemm;   /* STEP_GEMM */
    bool in_arena;          /* STEP_GEMM: its result is a gradient where it belongs: added to, if the run accumulates */
    bool adds;              /* STEP_GEMM: it adds to what is there in every run */
    bool of_arena;          /* STEP_GEMM: its weight is read where parameters lie */
    struct {                /* STEP_GROUP: that call of the plan's group; n elements of each rank's rows */
        enum op_call call;
        const void *in;
        void *out;
        size_t n;
        enum dtype type;
    } group;
    void *at;              /* FILL, ALL_SUM */
    double *keep;          /* ALL_SUM: where this rank's values go first, or NULL */
    size_t n;              /* FILL: bytes; ALL_SUM: doubles */
    bool always;           /* FILL: also where a run adds to what is there */
    size_t first, end;     /* READY: of the reduce arena */
    int table_at, entries; /* KERNEL_UNPACK: of the plan's table */
    int read;              /* it reads parameters that come and go: which of the plan's reads, from 1 on; 0: none */
    struct bn_source source[SOURCES_MAX];
    int nsources;
    bool gathers; /* done only where sums are gathered: see struct variant_key */
};

/* The engine that it runs; NULL: an own kernel, or what its library takes by itself. */
static inline struct cudnn_plan *cuda_step_plan(const struct step *s)
{
    return s->kind == STEP_DNN ? s->dnn.plan : s->kind == STEP_GEMM ? s->gemm.plan : NULL;
}

/* Where the address of a buffer must be filled in. */
struct patch {
    int buffer;
    size_t offset; /* bytes into the buffer */
    void **pointer;
};

/* A parameter's copies. */
struct weight {
    int copy, gradient;                  /* buffers, NO_BUFFER where the slice needs none */
    struct k_tensor form, gradient_form; /* shapes there; arena and copy are filled in later */
};

/* What steps of a batch norm leave for others: vectors of its channels, in three buffers: from the forward pass to the
 * backward pass, within the one, within the other. */
enum bn_part {
    BN_MEAN,
    BN_INVSTD,     /* (c) fp32 */
    BN_HALF_SCALE, /* (c) fp16, what prologues read */
    BN_HALF_SHIFT,
    BN_SCALE, /* forward: (c) fp32 */
    BN_SHIFT,
    BN_SUM, /* (c), that a convolution made */
    BN_SQUARES,
    BN_SUMS,     /* (2c + 1) doubles */
    BN_UNREAD_A, /* backward: (c), dgrad+drelu+bn writes them, and nobody reads them */
    BN_UNREAD_B,
    BN_UNREAD_K,
    BN_DBIAS, /* (c), that a convolution made */
    BN_DSCALE,
    BN_BWD_SUMS, /* (2c + 1) doubles */
    BN_LOCAL,    /* the same of this rank, where the others are sums over ranks */
    BN_PARTS
};
struct bn_state {                /* of a forward BN op */
    int c;                       /* 0: this plan has no such op */
    int params;                  /* buffer of scale and shift, where parameters come and go */
    int kept, forward, backward; /* buffers; NO_BUFFER: nobody has asked for one */
};

/* One way in which a plan can be run; a captured graph belongs to one. Where a convolution made a batch norm's sums,
 * they are used as they are, unless somebody must gather them first: because ranks add theirs, or to take out again
 * what samples of weight 0 put in. Ranks that belong together run alike: with hooks sums are always gathered. */
struct variant_key {
    bool accumulate, hooks, sums, gather; /* sums: hooks sum statistics over ranks */
    bool add_metrics, again;              /* as run_args */
    enum run_pass pass;
    int set;
    double smoothing;
};
struct variant {
    struct variant_key key;
    struct gpu_graph *graph;
    int runs; /* the first is walked: lazy set-up inside libraries must not be captured */
};

/* Steps [first, end) of a plan that a pass walks, and may capture; what comes in before them, and goes out behind them,
 * is where the caller says each time. NULL: nothing does. */
struct span {
    int first, end;
    struct step *in, *out;
};

struct cuda_plan {
    struct plan base;
    struct cuda *cuda;
    const struct program *p;
    struct plan_options o;
    struct host_ops ops;  /* those of a chunk; else first_op to end_op */
    int first_op, end_op; /* those between, of other chunks, are skipped */
    enum dtype type;      /* of activations; O1: fp32, also where their values are halves' (half_tensor()) */
    /* of what convolutions and linear layers read and write, and of weights' copies; O1: halves, else type */
    enum dtype product;
    enum dtype *types; /* per tensor: what it is stored as */
    bool calls;        /* a step calls the plan's group */
    bool nhwc;
    bool chains;        /* ops that work element by element are links of chains */
    struct fold fold;   /* its convolution is computed as fold.h says, and images lie so */
    int image_channels; /* of an image as it lies, zeros among them */
    float *params, *stats, *reduce;

    struct fused *fused;
    struct rung *rungs;   /* per op */
    int *readers, *value; /* per tensor; value: buffer or NO_BUFFER */
    int *operand; /* per tensor: its copy in the products' type, likewise; unused where that is the type it has */
    struct bn_state *bns;   /* per op */
    int *index_buffer;      /* per op: max pooling's; the mask of a ReLU that another op does; attention's logarithms; a
                        * table of angles */
    struct weight *weights; /* per parameter */
    struct live_buffer *buffers;
    struct patch *patches;
    struct step **steps;
    int nbuffers, npatches, nsteps;
    size_t cap_buffers, cap_patches, cap_steps;
    /* reads.c: what steps read of parameters that come and go, of the forward pass of a chunk first; and what they copy
     * of it */
    struct plan_range *reads;
    int nreads, forward_reads;
    struct read_copy {
        struct k_tensor form; /* copy: a buffer's number until cuda_plan_place() */
        int read;
        size_t first; /* element of the arena */
    } * copies;
    int ncopies;
    size_t cap_reads, cap_copies;
    struct span spans[RUN_BACKWARD + 1]; /* of each pass that the plan has */
    size_t pending_first, pending_end;   /* gradients written since the last group, while emitting */
    int *pending;
    int npending;
    int unpacks; /* the last step that unpacks gradients, -1: none */

    void *memory; /* all buffers; with sets: those that they share, then each set */
    bool *of_set; /* per buffer: it lives from the forward to the backward pass; NULL: there is one set */
    size_t shared_bytes, set_bytes;
    int set; /* whose addresses the steps have */
    size_t memory_bytes, workspace_bytes, partial_doubles, counters, fixed_bytes;
    void *workspace;
    double *partial; /* of sums: (partial_doubles), and behind them their counters */
    char *fixed;     /* what does not depend on the steps; the batch lies first in it */
    float *zeros;    /* as many as the widest tensor has channels */
    struct k_tensor *host_table,
        *table; /* groups of KERNEL_UNPACK, then the weights of KERNEL_PACK; table: device memory */
    int ntable, npack, pack_at,
        copies_at; /* npack weights from pack_at on; from copies_at on what reads copy, set by set */
    size_t cap_table;
    size_t pack_elements;
    float *grad_scale; /* device */
    float *samples;    /* (rows that have a label, 4) */

    uint8_t *images; /* device: what the steps read; or tokens, i32 */
    int32_t *labels; /* -1: the row counts nowhere */
    float *sample_weights;
    uint32_t *numbers;     /* of the samples, in the data set */
    struct batch_mix *mix; /* NULL: the plan mixes nothing */
    struct k_draw *draw;   /* what is dropped */
    struct stage {
        char *host; /* page-locked copy of one batch */
        void *device;
        struct gpu_event *filled, *emptied;
        bool used;
    } stage[STAGES];
    int next_stage;
    size_t stage_bytes, labels_at, weights_at, numbers_at, mix_at, draw_at;

    struct gpu_event **marks; /* (nsteps + 1) of a traced run, NULL before the first */
    struct variant *variants; /* at most cuda_plan_variants() */
    int nvariants;
    struct first_runs first;
    int walked; /* the step that was enqueued last */
    uint64_t version;
    bool fresh;
    bool fell;                  /* tune.c */
    enum seams_allowed allowed; /* rungs */
    double scale_now;           /* what *grad_scale holds */
};

/* plan.c: building blocks. */
int cuda_plan_buffer(struct cuda_plan *pl, size_t bytes, bool keep, struct err *e); /* index */
int cuda_plan_step(struct cuda_plan *pl, enum step_kind kind, const char *label, int op, struct step **ret,
                   struct err *e);
/* The last step reaches `buffer` through this pointer that it holds. NO_BUFFER: nothing to do. */
int cuda_plan_use(struct cuda_plan *pl, int buffer, size_t offset, const void *pointer_to_pointer, struct err *e);
int cuda_plan_use_bn(struct cuda_plan *pl, int bn, enum bn_part part, const void *pointer_to_pointer, struct err *e);
int cuda_plan_value(struct cuda_plan *pl, int tensor, struct err *e); /* its buffer, made where it has none */
void cuda_plan_need_sums(struct cuda_plan *pl, size_t doubles, size_t counters); /* partial ones, for a step */
void cuda_plan_need_partial(struct cuda_plan *pl, const struct view4 *v);        /* for the sums of such a view */
struct view4 cuda_plan_view(const struct cuda_plan *pl, int tensor);
size_t cuda_plan_elements(const struct cuda_plan *pl, int tensor);      /* of its view: channels of padding count */
struct cudnn_shape cuda_plan_shape(const struct cuda_plan *pl, int op); /* of the forward convolution behind op */
/* Buffers of a parameter of this op in the form that the op wants. The gradient is unpacked with the next group. */
int cuda_plan_weight_copy(struct cuda_plan *pl, int op, int param, struct err *e);
int cuda_plan_vector_copy(struct cuda_plan *pl, int op, int param, enum dtype type, struct err *e); /* flat */
int cuda_plan_weight_gradient(struct cuda_plan *pl, int op, int param, enum dtype type, struct err *e);
int cuda_plan_gradients_ready(struct cuda_plan *pl, int op,
                              struct err *e); /* of this op; unpacks and tells when a group is full */
int cuda_plan_flush(struct cuda_plan *pl, int op, struct err *e);
size_t cuda_plan_form_elements(const struct k_tensor *t);

/* emit*.c. emit_kernel, emit_use: a step of an own kernel; its last one reads or writes a tensor (-1: none) through
 * this pointer. */
int emit_kernel(struct cuda_plan *pl, enum kernel k, const char *label, int op, struct step **ret, struct err *e);
int emit_use(struct cuda_plan *pl, int tensor, const void *pointer_to_pointer, struct err *e);
typedef int emit_fn(struct cuda_plan *pl, int op, struct err *e);
emit_fn emit_op;                                          /* emit_own.c: any, by its kind */
emit_fn emit_bn, emit_bn_pool, emit_bn_mean, emit_bn_bwd; /* emit_bn.c: BN with what rides along; last of these ops */
emit_fn emit_conv, emit_conv_bwd_data, emit_conv_bwd_param, emit_linear, emit_linear_bwd_data, emit_linear_bwd_param;
emit_fn emit_group_conv;                                    /* emit_groups.c: all three passes */
bool emit_is_own_group(const struct cuda_plan *pl, int op); /* a convolution in groups that cuDNN does not do */
/* emit_product.c: the buffer that a product reads a tensor from, in the products' type; that it writes one to, and what
 * brings that into the tensor's own. */
int emit_operand(struct cuda_plan *pl, int op, int tensor, struct err *e);
int emit_result(struct cuda_plan *pl, int tensor, struct err *e);
int emit_written(struct cuda_plan *pl, int op, int tensor, int written, struct err *e);
/* A product's operands: buffers, and so many bytes into them. What m has an address of already lies in an arena. */
struct operand {
    int buffer;
    size_t at;
};
int emit_gemm(struct cuda_plan *pl, int op, const struct gpu_gemm *m, struct operand a, struct operand b,
              struct operand c, struct err *e);
emit_fn emit_norm, emit_norm_bwd, emit_chain, emit_scale_bwd, emit_sequence; /* emit_rows.c */
/* Tensor t (-1: NO_BUFFER) as values of this type: the buffer where it is, or of a copy. */
int emit_as_type(struct cuda_plan *pl, int op, int tensor, enum dtype type, struct err *e);
emit_fn emit_attention, emit_attention_bwd;                       /* emit_attention.c */
bool emit_is_chained(const struct cuda_plan *pl, enum op_kind k); /* emit_chain() does it */
void emit_part_chains(struct cuda_plan *pl);                      /* after fuse_chains() */
emit_fn emit_columns, emit_combined, emit_scatter, emit_bias_op, emit_bias_bwd, emit_labels, emit_numbers;
/* emit_group.c, as those: a call of the plan's group that reads buffer a, n elements of each rank's rows, and writes
 * buffer b, which may be a where all are combined. */
int emit_call(struct cuda_plan *pl, int op, enum op_call call, size_t n, enum dtype type, int a, int b, struct err *e);
int emit_part(struct cuda_plan *pl, int op, enum kernel k, struct err *e); /* of a loss over parts of the logits */
emit_fn emit_tokens, emit_embed, emit_embed_bwd, emit_rope, emit_xent, emit_head; /* emit_tokens.c */
int emit_metrics(struct cuda_plan *pl, int op, int rows, struct err *e); /* the sums of what pl->samples has of rows */
/* The op's copy of the weights of classes, if there are any: through this pointer that its last step holds. */
int emit_class_weights(struct cuda_plan *pl, int op, const float **pointer, struct err *e);
bool emit_is_loss(enum op_kind k); /* it may read them */
/* Of angles, of weights of classes: buffers are where they will be. */
int cuda_plan_fill_tables(struct cuda_plan *pl, struct err *e);
/* emit_product.c: the gradient of a vector, sums of dy over all but channels; y = x + the vector. x and y are of one
 * type, and may be one buffer. */
int emit_vector_gradient(struct cuda_plan *pl, int op, int param, int dy, struct err *e);
int emit_vector(struct cuda_plan *pl, int op, int param, int x, int y, enum dtype type, struct err *e);
int emit_convert(struct cuda_plan *pl, int op, const char *label, struct k_convert how, int from, int to,
                 struct err *e); /* buffers */

/* chunk.c: parts of a model (program_chunk). The steps of a pass, between what comes in and what goes out. */
int chunk_emit(struct cuda_plan *pl, struct err *e);
int cuda_plan_sets(const struct cuda_plan *pl);
int cuda_plan_variants(const struct cuda_plan *pl);   /* that are kept: of each pass and set */
int chunk_place(struct cuda_plan *pl, struct err *e); /* buffers of several sets */
char *cuda_plan_at(const struct cuda_plan *pl, int buffer);
void chunk_use_set(struct cuda_plan *pl, int set); /* steps have its addresses from now on */
/* What comes in, or goes out, is at `rows`; enqueued. */
int chunk_cross(struct cuda_plan *pl, struct step *s, const void *rows, struct err *e);

/* reads.c: parameters that come and go (plan_options.needs). The last step reads parameters [first, end) of the arena
 * where *pointer_to_pointer will be, NULL: by way of its copies. */
int reads_add(struct cuda_plan *pl, size_t first, size_t end, struct err *e);
/* A step that copies `param` into a form; its buffer. */
int reads_copy(struct cuda_plan *pl, int op, int param, const struct k_tensor *form, struct err *e);
/* A parameter (-1: none) that is read as it lies, flat and wide: before the step that reads it a copy of it, where
 * parameters come and go (else *ret NO_BUFFER); then the last step reads it through this pointer. */
int emit_read(struct cuda_plan *pl, int op, int param, int *ret, struct err *e);
int emit_use_read(struct cuda_plan *pl, int param, int copy, const void *pointer_to_pointer, struct err *e);
/* Before a step of this batch norm: its scale and shift into pl->bns[bn].params. Once a pass; else nothing. */
int reads_copy_bn(struct cuda_plan *pl, int bn, struct err *e);
int reads_tell(struct cuda_plan *pl, struct err *e);                         /* all of them are known */
const float *reads_at(const struct cuda_plan *pl, int read, size_t element); /* where it will be */
/* A step between need() and release(), where it reads parameters that come and go. */
int reads_run_step(struct cuda_plan *pl, struct step *s, const struct variant_key *v, const struct run_hooks *h,
                   struct err *e);
/* Scale (which 0) or shift (1) of a batch norm, wherever it is: the last step reads it. */
int cuda_plan_use_factor(struct cuda_plan *pl, int bn, int which, const void *pointer_to_pointer, struct err *e);

/* plan.c: steps of ops [first, end). */
int cuda_plan_emit(struct cuda_plan *pl, int first, int end, struct err *e);
int cuda_plan_emit_clear(struct cuda_plan *pl, struct err *e);

/* plan_memory.c. Fixed: what does not depend on the steps (the batch, flags), so that steps can point at it. */
int cuda_plan_fixed(struct cuda_plan *pl, struct err *e);
int cuda_plan_place(struct cuda_plan *pl, struct err *e);
void cuda_plan_memory(const struct plan *plan, struct plan_memory *ret); /* device_ops.plan_memory */
void cuda_plan_release(struct cuda_plan *pl);
void cuda_plan_uncapture(struct plan *plan); /* device_async.uncapture */
/* Which tensors take most of the memory, for a message: "layer1.0.conv1 205 MiB, ..." */
void cuda_plan_tenants(const struct cuda_plan *pl, char *out, size_t cap);

/* engines/tune.c: prove and time candidates for every graph that has not been measured, and prove what is kept from
 * before; after cuda_plan_place() has filled in the buffers, which it writes over. Sets pl->fell where a fused graph
 * has no engine that runs: then the plan must be made anew, one rung down. */
int tune_plan(struct cuda_plan *pl, struct err *e);
/* Is there time left for --autotune, of which some has passed since began_ns (0: none)? Not where the process is to
 * stop. */
bool tune_may_time(const struct cuda *c, int64_t began_ns);
/* engines/tune_product.c: as cudnn_candidates(), of a product. */
enum { PRODUCT_ALGOS = 8 };
int product_candidates(struct cuda *c, const struct gpu_dnn *d, struct cudnn_plan **ret, int cap, int *ret_n,
                       struct err *e);
/* What a step's product reads of parameters, and writes of gradients, elsewhere: d's slots are changed. -ENOMEM. */
struct product_memory {
    void *at[2];
    size_t bytes[2];
    int n;
};
int product_lend(struct cuda *c, const struct step *s, struct gpu_dnn *d, struct product_memory *ret, struct err *e);
void product_give(struct cuda *c, struct product_memory *m);
/* Of a plan that is made: its graphs and their engines, and 64 bits of all of them, so that two runs can be compared.
 * The log alone. */
void tune_tell(const struct cuda_plan *pl);

/* stage.c: enqueue the batch's way to the card. let_go: pictures that were sent from where they are may change from now
 * on; waits for their copy, while the steps before are still computed. whole: every sample counts. */
int stage_send(struct cuda_plan *pl, const struct run_args *a, struct err *e);
int stage_let_go(struct cuda_plan *pl, const struct batch *b, enum run_pass pass, struct err *e);
bool stage_whole(const struct cuda_plan *pl, const struct batch *b);
size_t stage_rows_bytes(const struct cuda_plan *pl); /* of a batch; 0 where no step of the plan reads them */

/* run.c */
int cuda_plan_run_step(struct cuda_plan *pl, struct step *s, const struct variant_key *v, const struct run_hooks *h,
                       struct err *e);
int cuda_plan_run(struct plan *plan, const struct run_args *a, struct err *e);

int cuda_plan_create(struct device *d, const struct program *p, const struct plan_options *o, struct plan **ret,
                     struct err *e);
void cuda_plan_close(struct plan *plan);
int cuda_plan_get(struct plan *plan, int tensor, double *out, struct err *e);
int cuda_plan_put(struct plan *plan, int tensor, const double *in, struct err *e);

#endif
