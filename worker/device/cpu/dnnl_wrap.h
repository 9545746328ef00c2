/* oneDNN (2.x or 3.x) behind a narrow door.
 *
 * A kernel is a primitive with its memory objects. Convolutions are asked for by shape, direction and the blocks of
 * their activations (LAYOUT_ANY: oneDNN chooses); weights always take the layout that oneDNN likes best, and reorder
 * kernels carry them from and to the plain fp32 arenas. Products of matrices take theirs as they lie. Scratch memory is
 * the caller's. Binding allocates, running does not. */
#ifndef CRUN_WORKER_DEVICE_CPU_DNNL_WRAP_H
#define CRUN_WORKER_DEVICE_CPU_DNNL_WRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/device/cpu/kern/layout.h"
#include "worker/precision/dtype.h"

struct err;
struct dnn;
struct dnn_kernel;

enum dnn_dir { DNN_FORWARD, DNN_BWD_DATA, DNN_BWD_WEIGHTS };
enum dnn_slot { DNN_SRC, DNN_WEIGHTS, DNN_BIAS, DNN_DST, DNN_SCRATCH, DNN_SLOTS };

/* y (n,k,oh,ow) of x (n,c,h,w). In a backward kernel SRC, WEIGHTS, BIAS and DST stand for the gradient where that is
 * what it writes or reads. */
struct dnn_shape {
    bool bias, training;
    int n, c, h, w, k, oh, ow;
    int kh, kw, sh, sw, ph, pw;
    enum dtype src_type,
        dst_type; /* DT_F32 or DT_BF16; weights are src_type, their gradients and those of biases fp32 */
};

int dnn_open(struct dnn **ret, struct err *e);
void dnn_close(struct dnn *d);
/* "2.6.3", and the instruction set that oneDNN will use: "avx512_core_bf16". */
void dnn_describe(char *version, size_t version_cap, char *isa, size_t isa_cap);
/* Vector width in floats that the layouts of this instruction set use: 16 or 8. */
int dnn_lanes(void);
/* oneDNN uses AMX units. */
bool dnn_has_amx(void);
/* The processor multiplies bf16 numbers itself and oneDNN has kernels for it, in all three directions. */
bool dnn_native_bf16(struct dnn *d);

/* fwd: the forward kernel of the same shape, a hint that backward kernels need. -ENOTSUP: no kernel for these
 * layouts. */
int dnn_kernel_create(struct dnn *d, const struct dnn_shape *s, enum dnn_dir dir, int src_block, int dst_block,
                      const struct dnn_kernel *fwd, struct dnn_kernel **ret, struct err *e);
/* The same of NHWC tensors as one product of matrices, backward and without a bias. SRC is x unfolded (product.h): a
 * row of kh * kw * c numbers for each pixel of the output; by data kh = kw = 1. -ENOTSUP: there is none. */
int dnn_product_create(struct dnn *d, const struct dnn_shape *s, enum dnn_dir dir, struct dnn_kernel **ret,
                       struct err *e);
/* c (m,n) = a (m,k) . b (k,n), + bias (n) and + what is there, where asked for. Strides are those of memory, in
 * elements: from row to row, from column to column; one of the two is 1. SRC is a, WEIGHTS b, DST c; BIAS is fp32. */
struct dnn_matmul {
    int64_t m, n, k;
    int64_t a[2], b[2], c[2];
    bool bias, add;
    bool packs;         /* b is read as oneDNN likes it best, of dnn_bytes(); dnn_matmul_pack_create() */
    enum dtype in, out; /* DT_F32 or DT_BF16: of a and b; of c, fp32 where it is added to */
};
int dnn_matmul_create(struct dnn *d, const struct dnn_matmul *m, struct dnn_kernel **ret, struct err *e);
/* From b as p's strides say (SRC) to what product k of a p that packs reads (DST). */
int dnn_matmul_pack_create(struct dnn *d, const struct dnn_matmul *p, const struct dnn_kernel *k,
                           struct dnn_kernel **ret, struct err *e);
int dnn_reorder_create(struct dnn *d, const struct layout *from, enum dtype from_type, const struct layout *to,
                       enum dtype to_type, struct dnn_kernel **ret, struct err *e);
/* Between kernel k's weights (DST where to_plain, else SRC is plain) and a plain fp32 arena. add: sum into the
 * destination. */
int dnn_weights_reorder_create(struct dnn *d, const struct dnn_kernel *k, bool to_plain, bool add,
                               struct dnn_kernel **ret, struct err *e);
void dnn_kernel_destroy(struct dnn_kernel *k);

int dnn_block(const struct dnn_kernel *k, enum dnn_slot s);    /* of SRC or DST: as in struct layout */
size_t dnn_bytes(const struct dnn_kernel *k, enum dnn_slot s); /* 0 where there is nothing to bind */
bool dnn_reference(const struct dnn_kernel *k);                /* a slow fall-back implementation */
const char *dnn_implementation(const struct dnn_kernel *k);
bool dnn_same_weights(const struct dnn_kernel *a, const struct dnn_kernel *b); /* one copy of the weights serves both */

int dnn_bind(struct dnn_kernel *k, enum dnn_slot s, void *memory, struct err *e);
int dnn_run(const struct dnn_kernel *k, struct err *e);

#endif
