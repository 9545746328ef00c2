/* Convolutions and attention by cuDNN's backend (graph) API: one graph a shape and pattern, a plan chosen by
 * heuristics, by measurement, or taken from a cache.
 *
 * Works with no GPU (decision 0007): given the properties of a device as JSON, heuristics run and plans are
 * finalised; only execution and timing need the card.
 *
 * Patterns, and their tensor slots in the order of `pointers`:
 *   CONV            x, w -> y                          any type
 *   CONV_STATS      x, w -> y, sum, squares            fp16; sum and squares fp32 (1, K)
 *   SBR_CONV_STATS  x, scale, shift, w -> y, sum, sq   fp16; the convolution reads relu(x * scale + shift)
 *   DGRAD           dy, w -> dx
 *   WGRAD           x, dy -> dw                        dw of the type of x
 *   SBR_WGRAD       x, scale, shift, dy -> dw          fp16
 *   DGRAD_DRELU_BN  dy, w, x, mean, invstd, scale, shift -> dz, dscale, dbias, eq_a, eq_b, eq_c
 *                                                      fp16: dz = dgrad where relu was on; dx of the BN =
 *                                                      a * dz + b * x + c
 * and of cuBLASLt's matrix products, which are those of a convolution over single pixels, x (n, c), w (k, c), y (n, k):
 *   PRODUCT         x, w -> y                          any type; `out` is the result's, to which it may be added
 *   PRODUCT_DATA    dy, w -> dx
 *   PRODUCT_WEIGHT  dy, x -> dw
 * and of attention (dnn_sdpa.c), halves; x (n, t, (heads + 2 kv_heads) d) holds queries, keys and values of a position
 * (OP_ATTENTION); lse and delta are fp32 (n, heads, t):
 *   SDPA            x -> y, lse                        y (n, t, heads d), lse: logarithms of the sums of exp(score)
 *   SDPA_BWD        x, y, dy, lse -> delta, dx         delta: dy . y of each query and head. Repeats its bits; before
 *                                                      cuDNN 9.25 its workspace grows with n heads t^2
 *   SDPA_BWD_FAST   x, y, dy, lse -> delta, dx, sums   sums: fp32 (n, heads, t, d), zeros before: gradients of queries
 *                                                      are added up there in an order of their own
 * Fused patterns follow Jia et al., "Highly Scalable Deep Learning Training System", and NVIDIA's MLPerf ResNet; facts
 * in cuDNN's documentation. */
#ifndef CRUN_WORKER_DEVICE_CUDA_DNN_H
#define CRUN_WORKER_DEVICE_CUDA_DNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "worker/precision/dtype.h"

struct cudnn;
struct cudnn_plan;
struct err;

#define DNN_PATTERNS(X) /* id, name, slots, only fp16 */                                                               \
    X(DNN_CONV, "conv", 3, false)                                                                                      \
    X(DNN_CONV_STATS, "conv+stats", 5, true)                                                                           \
    X(DNN_SBR_CONV_STATS, "sbr+conv+stats", 7, true)                                                                   \
    X(DNN_DGRAD, "dgrad", 3, false)                                                                                    \
    X(DNN_WGRAD, "wgrad", 3, false)                                                                                    \
    X(DNN_SBR_WGRAD, "sbr+wgrad", 5, true)                                                                             \
    X(DNN_DGRAD_DRELU_BN, "dgrad+drelu+bn", 13, true)                                                                  \
    X(DNN_PRODUCT, "product", 3, false)                                                                                \
    X(DNN_PRODUCT_DATA, "product dgrad", 3, false)                                                                     \
    X(DNN_PRODUCT_WEIGHT, "product wgrad", 3, false)                                                                   \
    X(DNN_SDPA, "attention", 3, false)                                                                                 \
    X(DNN_SDPA_BWD, "attention_bwd", 6, false)                                                                         \
    X(DNN_SDPA_BWD_FAST, "attention_bwd of any order", 7, false)

enum cudnn_pattern {
#define X(id, name, slots, half) id,
    DNN_PATTERNS(X)
#undef X
        DNN_PATTERN_COUNT
};
#define DNN_SLOTS_MAX 13
#define DNN_GRAPHS DNN_PRODUCT /* patterns before this one are of convolutions */

/* Of the forward convolution, whichever direction is asked for. Attention: n; c: of a head; h: positions; k: heads;
 * groups: those of keys and of values; causal; w, r, s and strides are 1. */
struct cudnn_shape {
    int n, c, h, w, k, r, s;
    int stride[2], pad[2]; /* of h, of w */
    enum dtype type;       /* of x, w, y and their gradients: DT_F32, DT_F16, DT_BF16; sums in fp32 */
    bool nhwc;             /* else NCHW with KCRS weights */
    bool tf32;             /* DT_F32: tensor cores with TF32 operands allowed */
    enum dtype out;        /* products: of the result; else unused */
    bool add;              /* products: to what the result holds */
    int groups;            /* convolutions: of channels; 0: they are one */
    bool causal;           /* attention: to positions up to a query's own */
};

/* One of cuBLASLt's ways to compute a product. */
struct dnn_algo {
    uint64_t opaque[8]; /* cublasLtMatmulAlgo_t: means the same to the same version of it */
    size_t workspace;   /* bytes that it wants */
    bool atomic;        /* it adds up in place what several blocks made */
    char name[96];      /* "lt66{tile=20,...}" */
};

struct cudnn_options {
    const char *props_json; /* the target device, borrowed during cudnn_open(); NULL: CUDA device `index` */
    int index;
    size_t workspace_limit; /* bytes a plan may ask for; 0: no limit */
    /* NULL: none. A file a graph, in a folder for this device, CUDA and cuDNN */
    const char *cache_dir;
    bool deterministic; /* leave out engines that are noted as not deterministic; who proves one looks for more */
};

int cudnn_open(struct cudnn **ret, const struct cudnn_options *o, struct err *e);
void cudnn_close(struct cudnn *d);
bool cudnn_deterministic(const struct cudnn *d); /* as it was opened */
int cudnn_version(void);                         /* 91900 */
/* Properties of the device as cuDNN writes them, malloc'ed: props_json of another machine. */
int cudnn_properties(struct cudnn *d, char **ret, struct err *e);

/* The plan of a graph: from memory, from the cache, else the heuristics' first that can be finalised within the limit
 * (modes A, B, then fallback); of a product what is known alone. -ENOTSUP: no engine has it, or it is barred; *e names
 * pattern and shape. Borrowed until cudnn_close(). */
int cudnn_find(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, struct cudnn_plan **ret,
               struct err *e);

/* Candidates in the heuristics' order, at most cap, without those that are barred; each must be chosen with
 * cudnn_choose(), barred, or is freed with cudnn_close(). -ENOTSUP: there is none. */
int cudnn_candidates(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, struct cudnn_plan **ret,
                     int cap, int *ret_n, struct err *e);
/* A candidate for a product, as cuBLASLt names it. *ret NULL: it is barred. Else as above. */
int cudnn_product_candidate(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s,
                            const struct dnn_algo *a, struct cudnn_plan **ret, struct err *e);
const struct dnn_algo *cudnn_plan_algo(const struct cudnn_plan *p); /* of a product's plan */
/* This one from now on; into the cache, with the time that it took (microseconds, 0: not measured). */
void cudnn_choose(struct cudnn *d, struct cudnn_plan *p, double us);

enum cudnn_pattern cudnn_plan_pattern(const struct cudnn_plan *p);
bool cudnn_plan_measured(
    const struct cudnn_plan *p); /* chosen by time: here, when the cache was written, or before the checkpoint */
bool cudnn_plan_kept(const struct cudnn_plan *p); /* measured, or chosen before the checkpoint without being timed */
double cudnn_plan_us(const struct cudnn_plan *p); /* 0: not measured */
size_t cudnn_plan_workspace(const struct cudnn_plan *p);
const char *cudnn_plan_name(const struct cudnn_plan *p); /* engine and its knobs: "eng34{k2=13,...}" */
bool cudnn_plan_ran(const struct cudnn_plan *p);         /* on this device, in this process: what was kept has yet to */
void cudnn_plan_set_ran(struct cudnn_plan *p);           /* one that is chosen */

/* This engine is never a candidate for its graph again: it fails, or computes something else. Kept as choices are: in
 * the list of a checkpoint, and, if it is lasting, in the cache. p stays valid. */
void cudnn_bar_engine(struct cudnn *d, struct cudnn_plan *p, const char *why, bool lasting);

/* A fused graph is left out, although plans can be made, or a product is left to cuBLASLt's own choice: cudnn_find()
 * answers -ENOTSUP with this reason from now on. Kept likewise. slower: what lies below it takes less time; else no
 * engine of it runs. */
int cudnn_bar(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, bool slower, const char *why,
              bool lasting, struct err *e);

/* Of a chosen plan of a fused graph: it was measured that what lies below takes more time. Kept as choices are. */
void cudnn_settle(struct cudnn *d, struct cudnn_plan *p);
bool cudnn_plan_settled(const struct cudnn_plan *p);

/* Around a trial of an engine: what is tried stands in the cache's folder in between, so that an engine that takes the
 * process with it is barred by the next cudnn_open() there. Nothing where there is no cache. */
void cudnn_trial_begin(struct cudnn *d, const struct cudnn_plan *p);
void cudnn_trial_end(struct cudnn *d);

const char *cudnn_plan_choice(const struct cudnn_plan *p); /* JSON of engine and knobs, valid until cudnn_close() */

/* All that is known of graphs and engines, as text (malloc'ed): what a checkpoint keeps so that a resumed run takes the
 * same plans, and what one rank tells the others. And back: what cannot be had on this device or with this cuDNN is an
 * error that names the graph; all else is taken up. */
int cudnn_export(const struct cudnn *d, char **ret, struct err *e);
int cudnn_import(struct cudnn *d, const char *json, struct err *e);

/* cudnnHandle_t with its stream set; returns cudnnStatus_t as int. */
int cudnn_execute(struct cudnn_plan *p, void *handle, void *const *pointers, void *workspace);

/* The error that such a status means. */
int cudnn_failed(const struct cudnn_plan *p, int status, struct err *e);

const char *cudnn_pattern_name(enum cudnn_pattern p);
int cudnn_pattern_slots(enum cudnn_pattern p);
bool cudnn_pattern_fused(enum cudnn_pattern p); /* more than a convolution: own kernels do what it does, too */
static inline bool cudnn_pattern_product(enum cudnn_pattern p)
{
    return p >= DNN_PRODUCT && p <= DNN_PRODUCT_WEIGHT;
}
static inline bool cudnn_pattern_attention(enum cudnn_pattern p)
{
    return p >= DNN_SDPA;
}
static inline bool cudnn_pattern_attention_bwd(enum cudnn_pattern p)
{
    return p > DNN_SDPA;
}
/* Configurations of engines that the heuristics name for a graph, whether or not a plan of one can be finalised: plans
 * of attention cannot where there is no driver. */
int cudnn_offers(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, int *ret, struct err *e);
/* Do they make the same graph, for the same pattern? */
bool cudnn_same_shape(const struct cudnn_shape *x, const struct cudnn_shape *y);
/* "conv n32 c64 56x56 k64 3x3/1+1 F16 nhwc", "product dgrad n100352 c256 k64 F16 added to F16" */
void cudnn_describe(enum cudnn_pattern p, const struct cudnn_shape *s, char *out, size_t cap);

#endif
