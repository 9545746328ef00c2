/* Inside of a plan of the cpu device; shared by cpu.c, plan*.c, emit_*.c and steps*.c.
 *
 * Planning: fuse.h marks ops that ride along with another one; emit_*.c turns the rest, in order, into steps and gives
 * every tensor a layout and a buffer; plan_memory.c then places buffers (liveness.h), fills their addresses into the
 * steps (patches) and is ready. Running: refresh weight copies if parameters changed, then call step after step.
 * Nothing is allocated. */
#ifndef CRUN_WORKER_DEVICE_CPU_PLAN_H
#define CRUN_WORKER_DEVICE_CPU_PLAN_H

#include <stdint.h>
#include <stdio.h>

#include "common/base/err.h"
#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/dnnl_wrap.h"
#include "worker/device/cpu/kern/kern.h"
#include "worker/device/cpu/kern/layout.h"
#include "worker/device/cpu/product.h"
#include "worker/device/device.h"
#include "worker/device/fuse.h"
#include "worker/device/host_common.h"
#include "worker/device/liveness.h"
#include "worker/program/program.h"

struct cpu {
    struct device base;
    struct dnn *dnn;
    const struct kern *kern;
    int threads;
    int lanes; /* block of tensors whose layout nobody else chose */
    bool native_bf16, amx;
};

struct cpu_plan;
struct step;
typedef int step_fn(struct cpu_plan *pl, struct step *s, struct err *e);
typedef int emit_fn(struct cpu_plan *pl, int op, struct err *e);

enum { NO_BUFFER = -1 };

/* Where the address of a buffer must be filled in: a pointer, or an argument of a oneDNN kernel. */
struct patch {
    int buffer;
    void **pointer;
    struct dnn_kernel *kernel;
    enum dnn_slot slot;
};

/* A tensor's place; buffer is NO_BUFFER until an op makes or needs it. alt: its copy in a second layout. */
struct value {
    struct layout layout;
    enum store store;
    int buffer;
    int alt_block, alt_buffer;
    int cast_block, cast_buffer; /* its copy as a half, for convolutions */
};

/* Of a forward BN op, read again by its backward op. Arrays are padded to whole channel groups. */
struct bn_state {
    int channels; /* padded */
    float *mean, *invstd, *scale, *beta, *k1, *k2;
    double *sums; /* 2 * padded channels */
    double *wire; /* 2 * C + 1: what all_sum sees */
    double count; /* elements per channel behind the statistics, over all ranks */
};

/* mean, invstd, scale, beta and count of a bn_state. */
struct bn_kept {
    float *values;
    double count;
};

/* A copy of a weight in a layout that a kernel wants. */
struct weight_copy {
    struct dnn_kernel *reorder;
    const struct dnn_kernel *user;
    int param, buffer;
    float *at; /* rounded in place if bf16 is emulated */
    size_t count;
};

struct step {
    step_fn *run;
    const char *label;
    int op;
    int read, reads; /* 1 + which of the plan's reads of parameters it does first, and how many; 0: none */
    double seconds;  /* spent so far */
    struct dnn_kernel *kernel;
    struct dnn_kernel *reorder, *reorder_add; /* parameter gradients: into the arena, or added to it; of a linear layer
                                               * the product itself writes or (reorder_add) adds */
    enum store store;
    void *out; /* emulation: what was written unrounded, rounded to `store` afterwards */
    size_t count;
    struct bn_state *bn;
    float *bias;
    union {
        struct {
            struct bn_stats_job stats;
            struct bn_apply_job apply;
        } bn_fwd;
        struct {
            struct bn_bwd_sums_job sums;
            struct bn_bwd_apply_job apply;
        } bn_bwd;
        struct norm_job norm;
        struct norm_bwd_job norm_bwd;
        struct chain_job chain;
        struct {
            const struct attention *of;
            const void *x, *dy; /* dy: backward */
            void *y;            /* dx: backward */
            float *lse;         /* (n, heads, positions) */
        } attention;
        struct groups_job groups;
        struct groups_param_job groups_param;
        struct pool_job pool;
        struct input_job input;
        struct {
            struct dnn_shape shape;
            const void *from;
            void *to;
        } rows; /* of pixels: product.h */
        struct {
            const float *table; /* (positions, d): cosines, then sines */
            const void *x;
            void *y;
        } rope;
        struct {
            struct head *of;
            const void *x;
            const float *labels; /* (rows, LABEL_N) of a group; else NULL */
            float *z;            /* a block of logits */
            void *dz, *dx;       /* of the backward pass; dz may be z */
            void *rounded;       /* as linear.rounded */
        } head;
        struct {
            const void *a, *b;
            void *y;
            bool relu;
        } add;
        struct {
            const float *logits;
            void *dlogits;
        } xent;
        struct group_job { /* rows of tensors, plain (n, c) */
            const void *a, *b;
            void *y;
            float *wide; /* of SCATTER, a sum that becomes bf16; else NULL */
        } group;
        struct {
            void *x, *dy;
            void *rounded; /* where the step makes halves of its weights itself; else NULL */
        } linear;
    };
};

struct plan_block {
    void *at;
    size_t reserved; /* bytes of address space alone (plan_options.forecast); 0: memory */
};

struct cpu_plan {
    struct plan base;
    struct cpu *cpu;
    const struct program *p;
    struct plan_options o;
    struct host_ops ops;
    int forward_steps, forward_reads; /* those before are of the forward pass; of a chunk */
    enum store store;                 /* of activations */
    bool by_positions;                /* channels of a position lie side by side, unless options say otherwise */
    float *params, *stats, *reduce;

    struct fused *fused;         /* per op */
    int *readers;                /* per tensor, of all ops that this kind of plan could run */
    struct value *values;        /* per tensor */
    struct dnn_kernel **forward; /* per op: kernel of a convolution, a hint for its backward ops */
    struct bn_state *bns;        /* per op */
    int *index_buffer;           /* per op: which elements won in max pooling; what softmax has divided by */

    struct live_buffer *buffers;
    struct patch *patches;
    struct step **steps;
    struct dnn_kernel **kernels; /* all that must be destroyed */
    struct weight_copy *weights;
    struct plan_range *reads;  /* of parameters, by steps; where plan_options.needs wants to know */
    struct plan_block *blocks; /* what lives as long as the plan */
    struct attention **attentions;
    int nattentions;
    size_t cap_attentions;
    int nbuffers, npatches, nsteps, nkernels, nweights, nreads, nblocks;
    size_t unused; /* bytes of large blocks, which take memory once the plan runs */
    size_t cap_buffers, cap_patches, cap_steps, cap_kernels, cap_weights, cap_reads, cap_blocks;
    void **rounded;       /* per parameter: its values as halves, for products of linear layers; else NULL */
    size_t rounded_bytes; /* of them */
    size_t scratch_bytes, partial_doubles, plane_floats;
    double *partial;
    float *plane;
    double *metrics; /* (batch * labels of a sample, METRIC_N) */
    char *memory;    /* shared_bytes, and set_bytes for each set of activations */
    size_t memory_bytes, shared_bytes, set_bytes;
    bool *of_set; /* per buffer: lives from the forward to the backward pass; NULL: there is one set, which is shared */
    int set;      /* in use: the one that steps point to */
    struct bn_kept *kept; /* (sets * nops): what forward passes of each set have left; NULL: there is one set */

    const struct run_args *args; /* while running */
    double weight_sum;           /* samples that count in this batch */
    double refresh_seconds;
    long runs;
    uint64_t version;
    bool fresh; /* weight copies are those of `version` */
};

/* plan.c: building blocks. All return a negative code with *e set on failure. */
int cpu_plan_block(struct cpu_plan *pl, size_t bytes, void **ret, struct err *e); /* zeroed */
/* What only a run writes to: address space where none will come. */
int cpu_plan_run_block(struct cpu_plan *pl, size_t bytes, void **ret, struct err *e);
int cpu_plan_buffer(struct cpu_plan *pl, size_t bytes, struct err *e); /* index */
int cpu_plan_step(struct cpu_plan *pl, step_fn *run, const char *label, int op, struct step **ret, struct err *e);
int cpu_plan_kernel(struct cpu_plan *pl, struct dnn_kernel *k, struct err *e); /* takes it over, also on failure */
/* The last step uses the buffer: through a pointer that it holds, or as a kernel's argument. */
int cpu_plan_use(struct cpu_plan *pl, int buffer, const void *pointer_to_pointer, struct err *e);
int cpu_plan_use_kernel(struct cpu_plan *pl, int buffer, struct dnn_kernel *k, enum dnn_slot s, struct err *e);
/* The last step reads elements [first, end) of the parameters, and what it was said to read before: nothing else
 * may. */
int cpu_plan_read(struct cpu_plan *pl, size_t first, size_t end, struct err *e);
int cpu_plan_read_param(struct cpu_plan *pl, int param, struct err *e);
/* Weights of a kernel: an existing copy in that layout, or a new one; where none is kept, one that a step of `op` makes
 * for the next step. Returns its buffer. */
int cpu_plan_weights(struct cpu_plan *pl, struct dnn_kernel *k, int param, int op, struct err *e);
/* The block that plan_options.format prescribes for a tensor; LAYOUT_ANY where it leaves the choice. */
int cpu_plan_format(const struct cpu_plan *pl, int t);
/* Make sure that tensor t has a place; where it has none yet it gets this block. */
int cpu_plan_value(struct cpu_plan *pl, int t, int block, struct err *e);
/* Buffer with tensor t in this block: its own, or a copy that a step makes. */
int cpu_plan_in_block(struct cpu_plan *pl, int op, int t, int block, struct err *e);
/* The same for an operand of a convolution or linear layer, which where halves are computed in is one. */
int cpu_plan_operand(struct cpu_plan *pl, int op, int t, int block, struct err *e);
struct layout cpu_plan_layout(const struct cpu_plan *pl, int t, int block);
size_t store_size(enum store s);
enum dtype store_type(enum store s);

/* emit_own.c: for those who emit ops with kernels of their own. The layout of tensor t; where it has none yet, that of
 * a neighbour, or else the device's favourite. */
int cpu_plan_block_for(struct cpu_plan *pl, int t, int like);
/* Give t a place (where it has none) and return the buffer of it in this block; NO_BUFFER for no tensor. */
int cpu_plan_settle(struct cpu_plan *pl, int op, int t, int block, struct err *e);
/* The last step reaches the buffer, if there is one, through this pointer. */
int cpu_plan_reach(struct cpu_plan *pl, int buffer, const void *pointer_to_pointer, struct err *e);
int cpu_plan_read_op(struct cpu_plan *pl, int op, struct err *e); /* the last step reads the parameters of op */

emit_fn cpu_plan_emit;                              /* emit_own.c: any, by its kind */
emit_fn cpu_plan_emit_norm, cpu_plan_emit_norm_bwd; /* rows.c */
emit_fn cpu_plan_emit_chain;                        /* chain.c: of one op, or of all that fuse.h has put together */
emit_fn cpu_plan_emit_positions;                    /* positions.c */
emit_fn cpu_plan_emit_attention;                    /* attention.c */
emit_fn cpu_plan_emit_tokens;                       /* tokens.c */
emit_fn cpu_plan_emit_head;                         /* head.c */
void cpu_plan_close_attentions(struct cpu_plan *pl);
emit_fn cpu_plan_emit_groups, cpu_plan_emit_groups_param; /* groups.c: of conv with groups, forward and by data */
emit_fn cpu_plan_emit_conv, cpu_plan_emit_conv_bwd_data, cpu_plan_emit_conv_bwd_param; /* emit_dnn.c */
emit_fn cpu_plan_emit_linear, cpu_plan_emit_linear_bwd_param; /* linear.c: forward and by data; by weights */
/* The block that a forward convolution wants to read. */
int cpu_plan_conv_source_block(struct cpu_plan *pl, int op, struct err *e);
/* emit_product.c: copies around products of matrices. The buffer of x, NHWC, unfolded, which a step makes for the next
 * one alone, or x itself; and rows of pixels to tensor dx. */
int cpu_plan_unfolded(struct cpu_plan *pl, int op, const struct dnn_shape *s, int x, struct err *e);
int cpu_plan_spread(struct cpu_plan *pl, int op, const struct dnn_shape *s, int rows, struct err *e);
void cpu_plan_round_weights(struct cpu_plan *pl); /* refreshes pl->rounded */
/* linear.c: kernel k of the last step reads the weight where it lies: in the arena, or in a copy of halves that is
 * kept. Else in one that the step makes (cpu_plan_round_weight()) in *buffer, NO_BUFFER before the first use. */
int cpu_plan_weight(struct cpu_plan *pl, int param, struct dnn_kernel *k, enum dnn_slot slot, int *buffer,
                    struct err *e);
void cpu_plan_round_weight(const struct cpu_plan *pl, int param, void *to);

/* plan_memory.c: give every buffer its memory; then the scratch memory that steps share. */
int cpu_plan_place(struct cpu_plan *pl, struct err *e);
int cpu_plan_shared_memory(struct cpu_plan *pl, struct err *e);

/* plan_access.c, plan_memory.c: parts of a model (program_chunk). */
int cpu_plan_emit_boundary(struct cpu_plan *pl, enum run_pass pass, bool in, struct err *e);
int cpu_plan_keep_bn(struct cpu_plan *pl, struct err *e);
int cpu_plan_sets(const struct cpu_plan *pl);
/* Steps point to this set from now on; after a forward pass: what it has left stays for the backward pass. */
int cpu_plan_use_set(struct cpu_plan *pl, const struct run_args *a, struct err *e);
void cpu_plan_leave_set(struct cpu_plan *pl, const struct run_args *a);

/* rows.c: an error where only one of both tensors is stored as bf16; < 0: none, which goes with any. */
int cpu_plan_same_stores(const struct cpu_plan *pl, int op, int t, int other, struct err *e);
/* The memory that steps share has room for sums over rows of c: kern_sums() doubles and floats, and the results. */
void cpu_plan_need_sums(struct cpu_plan *pl, int c);
/* Sums of gradients into the arena, or added to it; param < 0: there is none. */
void cpu_plan_give_sums(struct cpu_plan *pl, int param, const double *sums);

char *cpu_plan_at(const struct cpu_plan *pl, int buffer); /* its memory, of the set in use */
int cpu_plan_patch(struct cpu_plan *pl, const struct patch *p, struct err *e);

/* Gradients of a parameter are final. */
int cpu_plan_ready(struct cpu_plan *pl, int op, struct err *e);

step_fn cpu_step_dnn, cpu_step_param_gradient, cpu_step_input, cpu_step_add, cpu_step_relu_bwd; /* steps.c */
step_fn cpu_step_norm, cpu_step_norm_bwd, cpu_step_chain, cpu_step_groups, cpu_step_groups_param, cpu_step_attention;
step_fn cpu_step_maxpool, cpu_step_maxpool_bwd, cpu_step_avgpool, cpu_step_avgpool_bwd;
step_fn cpu_step_bn_train, cpu_step_bn_eval, cpu_step_bn_bwd;                         /* steps_bn.c */
step_fn cpu_step_linear, cpu_step_linear_bwd_param, cpu_step_bias, cpu_step_bias_bwd; /* linear.c */
emit_fn cpu_plan_emit_bias_bwd;
step_fn cpu_step_gather, cpu_step_scatter, cpu_step_sum, cpu_step_max, cpu_step_slice, cpu_step_pad; /* steps_group.c */
step_fn cpu_step_labels, cpu_step_numbers, cpu_step_xent_top, cpu_step_xent_sums, cpu_step_xent_parts,
    cpu_step_xent_parts_bwd;                             /* steps_split.c */
step_fn cpu_step_xent, cpu_step_xent_bwd;                /* steps_xent.c */
step_fn cpu_step_head;                                   /* head.c */
void cpu_give_metrics(struct cpu_plan *pl, size_t rows); /* those of pl->metrics, in their order */
/* dlogits of one row z[0..k), of classes [first, first + k): all, or (part) some of them. t: its classes. out may be
 * z. */
void cpu_row_gradient(const struct cpu_plan *pl, enum store store, bool part, const float *z, int k, int first,
                      double lse, struct host_target t, void *out);

/* plan.c and plan_access.c: members of device_cpu_ops. */
int cpu_plan_create(struct device *d, const struct program *p, const struct plan_options *o, struct plan **ret,
                    struct err *e);
void cpu_plan_close(struct plan *plan);
void cpu_plan_memory(const struct plan *plan, struct plan_memory *ret);
int cpu_plan_prepare(struct plan *plan, uint64_t params_version, struct err *e);
int cpu_plan_run(struct plan *plan, const struct run_args *a, struct err *e);
int cpu_plan_get(struct plan *plan, int tensor, double *out, struct err *e);
int cpu_plan_put(struct plan *plan, int tensor, const double *in, struct err *e);

#endif
