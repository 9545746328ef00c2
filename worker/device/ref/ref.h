/* The reference device, inside.
 *
 * Plain C in double precision: the truth that other devices are compared with, so it is written to be seen to be right.
 * Every tensor of the slice has memory of its own, every op runs as its definition says. Values lie as (c, N, h, w),
 * channel first, so that a convolution is one matrix product over all samples and a channel's statistics one run of
 * memory. Every result element is computed by one thread in one order: the number of threads changes no bit. Asked for
 * halves it rounds each value once, when it is stored as one: the yardstick of fp16 and bf16. */
#ifndef CRUN_WORKER_DEVICE_REF_H
#define CRUN_WORKER_DEVICE_REF_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/device/device.h"
#include "worker/device/host_common.h"
#include "worker/program/program.h"

#define REF_PRAGMA(x) _Pragma(#x)
#ifdef _OPENMP
#define PARALLEL_FOR REF_PRAGMA(omp parallel for num_threads(threads) schedule(static)) /* reads the variable `threads` */
#else
#define PARALLEL_FOR (void)threads;
#endif

/* What a BN's forward op leaves for its backward op. */
struct bn_saved {
    double *mean, *inv_std; /* (C) */
    double elements;        /* per channel, over all ranks that share statistics */
};

/* What lives from a forward pass to its backward pass. Gradients of activations are shared by all sets. */
struct ref_set {
    double **value;
    struct bn_saved *saved;
};

struct rounding;

struct ref_plan {
    struct plan base;
    const struct program *p;
    int threads, n; /* batch */
    bool training;
    struct host_ops ops;
    struct plan_options o; /* for what has no field of its own here */
    double *params, *stats, *reduce;
    struct ref_set *sets; /* (nsets), of activations */
    int nsets;
    double **value;         /* per tensor (c, N, h, w), of the set in use; NULL: not touched by the plan */
    struct bn_saved *saved; /* per op, of the set in use; of BN ops only */
    double *col;            /* unfolded windows of some samples, col_cap elements */
    size_t col_cap;
    double *scratch;                /* two sums a channel and a count; the logits of a sample; scores of a query */
    const struct plan_group *group; /* NULL: a rank alone */
    double *exchange;               /* rows of all ranks of the group, each rank's by themselves */
    size_t row_first, row_end;      /* samples that gradients of parameters are summed over; 0, 0: all */
    struct rounding *rounding;      /* NULL: nothing is rounded to halves */
    size_t workspace;               /* elements of col, scratch and exchange */
    const struct plan_needs *needs; /* of the pass that runs; NULL: parameters are always there */
    bool forecast;                  /* memory is counted and not taken: `nothing` stands for it */
    double nothing;
};

typedef int ref_kernel(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e);

/* A kernel for each kind, ref_<word of ops.def>: a kind without one does not link. Convolutions and linear layers share
 * theirs. */
#define ref_conv ref_product
#define ref_linear ref_product
#define ref_conv_bwd_data ref_product_bwd_data
#define ref_linear_bwd_data ref_product_bwd_data
#define ref_conv_bwd_param ref_product_bwd_param
#define ref_linear_bwd_param ref_product_bwd_param
#define X(kind, word, ...) ref_kernel ref_##word;
#include "worker/program/ops.def"
#undef X

/* round.c: a plan that computes in halves, by rounding what they would hold (device/half.h). */
int ref_rounding_create(struct ref_plan *pl, const struct plan_options *o, struct err *e);
void ref_rounding_destroy(struct rounding *r);
int ref_rounded(struct ref_plan *pl, ref_kernel *kernel, const struct op *op, const struct run_args *a, struct err *e);

/* Elements of col that the op would like: all it unfolds, within a limit. 0: it unfolds nothing. */
size_t ref_col_elements(const struct ref_plan *pl, const struct op *op);

/* Elements of scratch that attention takes. 0: op is something else. */
size_t ref_attention_elements(const struct ref_plan *pl, const struct op *op);

/* simple.c: what rows have summed up, to the metrics of the arena. */
void ref_give_metrics(struct ref_plan *pl, const double sums[METRIC_N], const struct run_args *a);

/* head.c: elements of scratch that the logits of a block of rows take. 0: op is something else. */
size_t ref_head_elements(const struct ref_plan *pl, const struct op *op);

/* Samples of tensor t: this rank's, or those of the group. */
static inline size_t ref_samples(const struct ref_plan *pl, int t)
{
    return (size_t)pl->n * (size_t)pl->p->tensors[t].ranks;
}

/* Elements of tensor t over the whole batch. */
static inline size_t ref_elements(const struct ref_plan *pl, int t)
{
    const struct tensor *s = &pl->p->tensors[t];
    return ref_samples(pl, t) * (size_t)s->c * (size_t)s->h * (size_t)s->w;
}

/* Elements of one channel of one sample. */
static inline size_t ref_plane(const struct ref_plan *pl, int t)
{
    return (size_t)pl->p->tensors[t].h * (size_t)pl->p->tensors[t].w;
}

static inline const double *ref_param(const struct ref_plan *pl, int param)
{
    return pl->params + pl->p->params[param].offset;
}

static inline double *ref_gradient(const struct ref_plan *pl, int param)
{
    return pl->reduce + pl->p->params[param].offset;
}

/* c[i * ldc + j] (+)= sum over k of a[i * a_row + k * a_col] * b[k * b_row + j * b_col], i < m, j < n. */
struct matrix {
    const double *at;
    size_t row, col; /* strides */
};
void ref_gemm(int threads, size_t m, size_t n, size_t depth, struct matrix a, struct matrix b, double *c, size_t ldc,
              bool add);

#endif
