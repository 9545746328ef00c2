/* Kernels are primitives with their memory objects, for both C APIs (dnnl_api.h). */
#include "worker/device/cpu/dnnl_wrap.h"

#include <dnnl_debug.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/cpu/dnnl_api.h"

struct dnn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

struct dnn_kernel {
    struct dnn *dnn;
    struct dnn_shape shape;
    enum dnn_dir dir;
    bool product; /* of matrices: the rows of activations are pixels */
    bool matmul;  /* of dnn_matmul_create(): `shape` has no more than the bias */
    int block[DNN_SLOTS];
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    api_desc md[DNN_SLOTS];
    api_desc filter; /* its weights as reorders see them; NULL: as md[DNN_WEIGHTS] */
    dnnl_memory_t memory[DNN_SLOTS];
    int arg[DNN_SLOTS]; /* DNNL_ARG_..., 0 where the kernel has no such argument */
    dnnl_exec_arg_t args[DNN_SLOTS];
    int nargs;
};

static int fail(struct err *e, dnnl_status_t s, const char *what)
{
    int code = s == dnnl_out_of_memory ? -ENOMEM : s == dnnl_unimplemented ? -ENOTSUP : -EIO;
    return err_set(e, code, "oneDNN: %s: %s", what, dnnl_status2str(s));
}

#define DNN_TRY(expr, what)                                                                                            \
    do {                                                                                                               \
        dnnl_status_t status_ = (expr);                                                                                \
        if (status_ != dnnl_success)                                                                                   \
            return fail(e, status_, what);                                                                             \
    } while (0)

static dnnl_data_type_t data_type(enum dtype t)
{
    return t == DT_BF16 ? dnnl_bf16 : dnnl_f32;
}

int dnn_open(struct dnn **ret, struct err *e)
{
    struct dnn *d = calloc(1, sizeof(*d));
    if (!d)
        return err_set(e, -ENOMEM, "out of memory");
    dnnl_status_t s = dnnl_engine_create(&d->engine, dnnl_cpu, 0);
    if (s == dnnl_success)
        s = dnnl_stream_create(&d->stream, d->engine, dnnl_stream_default_flags);
    if (s != dnnl_success) {
        dnn_close(d);
        return fail(e, s, "open the processor's engine");
    }
    *ret = d;
    return 0;
}

void dnn_close(struct dnn *d)
{
    if (!d)
        return;
    if (d->stream)
        dnnl_stream_destroy(d->stream);
    if (d->engine)
        dnnl_engine_destroy(d->engine);
    free(d);
}

void dnn_describe(char *version, size_t version_cap, char *isa, size_t isa_cap)
{
    const dnnl_version_t *v = dnnl_version();
    snprintf(version, version_cap, "%d.%d.%d", v->major, v->minor, v->patch);
    const char *name = dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa());
    snprintf(isa, isa_cap, "%s", strncmp(name, "cpu_isa_", 8) == 0 ? name + 8 : name);
}

/* Values of dnnl_cpu_isa_t are sets of bits: a richer instruction set contains the poorer ones. */
static bool isa_has(dnnl_cpu_isa_t isa)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)isa) == (unsigned)isa;
}

int dnn_lanes(void)
{
    return isa_has(dnnl_cpu_isa_avx512_core) ? 16 : 8;
}

bool dnn_has_amx(void)
{
    return isa_has(dnnl_cpu_isa_avx512_core_amx);
}

bool dnn_native_bf16(struct dnn *d)
{
    if (!isa_has(dnnl_cpu_isa_avx512_core_bf16))
        return false;
    const struct dnn_shape s = {.training = true,
                                .n = 2,
                                .c = 64,
                                .h = 8,
                                .w = 8,
                                .k = 64,
                                .oh = 8,
                                .ow = 8,
                                .kh = 3,
                                .kw = 3,
                                .sh = 1,
                                .sw = 1,
                                .ph = 1,
                                .pw = 1,
                                .src_type = DT_BF16,
                                .dst_type = DT_BF16};
    struct dnn_kernel *k[3] = {0};
    bool yes = true;
    for (int dir = DNN_FORWARD; yes && dir <= DNN_BWD_WEIGHTS; dir++)
        yes = dnn_kernel_create(d, &s, (enum dnn_dir)dir, LAYOUT_ANY, LAYOUT_ANY, k[0], &k[dir], NULL) == 0 &&
              !dnn_reference(k[dir]);
    for (int i = 0; i < 3; i++)
        dnn_kernel_destroy(k[i]);
    return yes;
}

/* --- layouts */

/* 8 channels in one block of 8, or 16 of 16, are nChw8c or nChw16c and NHWC at once. oneDNN takes these for different
 * layouts, and its kernels want both tensors to be blocked or both to be NHWC. */
static bool is_ambiguous(int block, int c)
{
    return block == c && (block == 8 || block == 16);
}

static bool is_nhwc(int block, int c)
{
    return block == c && block != LAYOUT_PLAIN && !is_ambiguous(block, c);
}

/* nhwc: call it so where it is that, too. */
static dnnl_status_t act_desc(api_desc *md, int n, int c, int h, int w, int block, bool nhwc, enum dtype t)
{
    const dnnl_dims_t dims = {n, c, h, w};
    dnnl_format_tag_t tag;
    if (block == LAYOUT_ANY)
        tag = dnnl_format_tag_any;
    else if (block == LAYOUT_PLAIN)
        tag = dnnl_nchw;
    else if (is_nhwc(block, c) || (nhwc && block == c))
        tag = dnnl_nhwc;
    else if (block == 8)
        tag = dnnl_nChw8c;
    else if (block == 16)
        tag = dnnl_nChw16c;
    else
        return dnnl_invalid_arguments;
    return api_desc_create(md, 4, dims, data_type(t), tag);
}

/* Which block is this? LAYOUT_ANY if the layout is none of ours. */
static int block_of(api_const_desc md, enum dtype t)
{
    const dnnl_dim_t *dims = api_desc_dims(md);
    int n = (int)dims[0], c = (int)dims[1], h = (int)dims[2], w = (int)dims[3];
    const struct {
        int block;
        bool nhwc;
    } candidates[] = {{16, false}, {8, false}, {LAYOUT_PLAIN, false}, {c, true}};
    for (size_t i = 0; i < sizeof(candidates) / sizeof(candidates[0]); i++) {
        api_desc own;
        if (act_desc(&own, n, c, h, w, candidates[i].block, candidates[i].nhwc, t) != dnnl_success)
            continue;
        bool same = dnnl_memory_desc_equal(own, md);
        api_desc_destroy(own);
        if (same)
            return candidates[i].block;
    }
    return LAYOUT_ANY;
}

static dnnl_status_t weights_desc(api_desc *md, const struct dnn_shape *s, enum dtype t, bool plain)
{
    const dnnl_dims_t dims = {s->k, s->c, s->kh, s->kw};
    return api_desc_create(md, 4, dims, data_type(t), plain ? dnnl_oihw : dnnl_format_tag_any);
}

/* --- creating */

static const int arg_of[3][DNN_SLOTS] = {
    [DNN_FORWARD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD},
    [DNN_BWD_DATA] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, 0, DNNL_ARG_DIFF_DST, DNNL_ARG_SCRATCHPAD},
    [DNN_BWD_WEIGHTS] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_DST,
                         DNNL_ARG_SCRATCHPAD},
};
static const dnnl_query_t query_of[3][DNN_SLOTS] = {
    [DNN_FORWARD] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_weights_md, dnnl_query_dst_md,
                     dnnl_query_scratchpad_md},
    [DNN_BWD_DATA] = {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_undef, dnnl_query_diff_dst_md,
                      dnnl_query_scratchpad_md},
    [DNN_BWD_WEIGHTS] = {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_weights_md,
                         dnnl_query_diff_dst_md, dnnl_query_scratchpad_md},
};

/* A product takes the same tensors as other arguments:
 * dw (k,i) = dy^T (k,p) . x (p,i), dx (p,i) = dy (p,k) . w (k,i). */
static const int product_arg_of[3][DNN_SLOTS] = {
    [DNN_BWD_DATA] = {DNNL_ARG_DST, DNNL_ARG_WEIGHTS, 0, DNNL_ARG_SRC, DNNL_ARG_SCRATCHPAD},
    [DNN_BWD_WEIGHTS] = {DNNL_ARG_WEIGHTS, DNNL_ARG_DST, 0, DNNL_ARG_SRC, DNNL_ARG_SCRATCHPAD},
};
static const dnnl_query_t product_query_of[3][DNN_SLOTS] = {
    [DNN_BWD_DATA] = {dnnl_query_dst_md, dnnl_query_weights_md, dnnl_query_undef, dnnl_query_src_md,
                      dnnl_query_scratchpad_md},
    [DNN_BWD_WEIGHTS] = {dnnl_query_weights_md, dnnl_query_dst_md, dnnl_query_undef, dnnl_query_src_md,
                         dnnl_query_scratchpad_md},
};

static int make_descs(const struct dnn_shape *s, enum dnn_dir dir, int src_block, int dst_block, bool nhwc,
                      struct api_descs *m, struct err *e)
{
    enum dtype weights_type = dir == DNN_BWD_WEIGHTS ? DT_F32 : s->src_type;
    const dnnl_dims_t bias = {s->k};
    DNN_TRY(act_desc(&m->src, s->n, s->c, s->h, s->w, src_block, nhwc, s->src_type), "describe x");
    DNN_TRY(act_desc(&m->dst, s->n, s->k, s->oh, s->ow, dst_block, nhwc, s->dst_type), "describe y");
    DNN_TRY(weights_desc(&m->weights, s, weights_type, false), "describe weights");
    if (s->bias && dir != DNN_BWD_DATA)
        DNN_TRY(api_desc_create(&m->bias, 1, bias, dnnl_f32, dnnl_a), "describe bias");
    return 0;
}

static int scratch_attr(dnnl_primitive_attr_t *ret, bool add, struct err *e)
{
    dnnl_primitive_attr_t attr;
    DNN_TRY(dnnl_primitive_attr_create(&attr), "attributes");
    dnnl_status_t s = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (s == dnnl_success) /* fp32 is fp32, whatever the environment or a later version prefers */
        s = dnnl_primitive_attr_set_fpmath_mode(attr, dnnl_fpmath_mode_strict);
    if (s == dnnl_success && add) {
        dnnl_post_ops_t ops;
        s = dnnl_post_ops_create(&ops);
        if (s == dnnl_success) {
            s = api_append_sum(ops);
            if (s == dnnl_success)
                s = dnnl_primitive_attr_set_post_ops(attr, ops);
            dnnl_post_ops_destroy(ops);
        }
    }
    if (s != dnnl_success) {
        dnnl_primitive_attr_destroy(attr);
        return fail(e, s, "attributes");
    }
    *ret = attr;
    return 0;
}

static struct dnn_kernel *kernel_alloc(struct dnn *d)
{
    struct dnn_kernel *k = calloc(1, sizeof(*k));
    if (k)
        k->dnn = d;
    return k;
}

/* Take the memory descriptors and layouts that oneDNN chose. */
static int kernel_query(struct dnn_kernel *k, struct err *e)
{
    const int *arg = k->product ? product_arg_of[k->dir] : arg_of[k->dir];
    const dnnl_query_t *query = k->product ? product_query_of[k->dir] : query_of[k->dir];
    for (int s = 0; s < DNN_SLOTS; s++) {
        if (!arg[s] || (s == DNN_BIAS && !k->shape.bias))
            continue;
        api_const_desc md = dnnl_primitive_desc_query_md(k->desc, query[s], s == DNN_BIAS);
        if (!md || dnnl_memory_desc_get_size(md) == 0)
            continue;
        DNN_TRY(api_desc_clone(&k->md[s], md), "describe an operand");
        k->arg[s] = arg[s];
        if (k->matmul || (s != DNN_SRC && s != DNN_DST)) {
            k->block[s] = LAYOUT_PLAIN;
            continue;
        }
        if (k->product) {
            k->block[s] = s == DNN_SRC ? k->shape.c : k->shape.k;
            continue;
        }
        k->block[s] = block_of(md, s == DNN_SRC ? k->shape.src_type : k->shape.dst_type);
        if (k->block[s] == LAYOUT_ANY)
            return err_set(e, -ENOTSUP, "oneDNN chose a layout of activations that the other kernels do not know");
    }
    return 0;
}

static void free_descs(struct api_descs *m)
{
    api_desc_destroy(m->src);
    api_desc_destroy(m->weights);
    api_desc_destroy(m->bias);
    api_desc_destroy(m->dst);
}

static int kernel_finish(struct dnn_kernel *k, struct err *e)
{
    DNN_TRY(dnnl_primitive_create(&k->primitive, k->desc), "create a primitive");
    return 0;
}

/* The end of making k, which is described unless rc < 0. Frees m, and k where it fails. */
static int kernel_complete(struct dnn_kernel *k, struct api_descs *m, int rc, struct dnn_kernel **ret, struct err *e)
{
    rc = rc < 0 ? rc : kernel_query(k, e);
    rc = rc < 0 ? rc : kernel_finish(k, e);
    free_descs(m);
    if (rc < 0)
        dnn_kernel_destroy(k);
    else
        *ret = k;
    return rc;
}

/* Gradients of weights by Winograd's minimal filtering: Lavin, Gray, "Fast Algorithms for Convolutional Neural
 * Networks", arXiv 1509.09308. F(4x4, 3x3) has a quarter of the multiplications, but larger rounding errors. Here they
 * end in one gradient; in the other two directions layer after layer would amplify them, so those stay direct. With
 * fewer than some 32 tiles of the output, or 32 channels, transforms cost more than they save. */
static bool winograd_pays(const struct dnn_kernel *k)
{
    const struct dnn_shape *s = &k->shape;
    const int tiles = s->n * ((s->oh + 3) / 4) * ((s->ow + 3) / 4);
    return k->dir == DNN_BWD_WEIGHTS && s->kh == 3 && s->kw == 3 && s->sh == 1 && s->sw == 1 && s->src_type == DT_F32 &&
           tiles >= 32 && s->c >= 32 && s->k >= 32;
}

static dnnl_status_t describe_convolution(struct dnn_kernel *k, const struct api_descs *m, dnnl_primitive_attr_t attr,
                                          const_dnnl_primitive_desc_t hint)
{
    const struct dnn_shape *s = &k->shape;
    dnnl_engine_t engine = k->dnn->engine;
    if (winograd_pays(k) && api_convolution(&k->desc, engine, s, k->dir, m, attr, hint, dnnl_convolution_winograd) ==
                                dnnl_success) /* only some instruction sets and layouts have it */
        return dnnl_success;
    return api_convolution(&k->desc, engine, s, k->dir, m, attr, hint, dnnl_convolution_direct);
}

/* The primitive descriptor, which is the kernel's also where this fails. */
static int describe(struct dnn_kernel *k, const struct api_descs *m, const struct dnn_kernel *fwd, struct err *e)
{
    dnnl_primitive_attr_t attr;
    TRY(scratch_attr(&attr, false, e));
    const_dnnl_primitive_desc_t hint = k->dir == DNN_FORWARD ? NULL : fwd->desc;
    const dnnl_status_t st = describe_convolution(k, m, attr, hint);
    dnnl_primitive_attr_destroy(attr);
    return st == dnnl_success ? 0 : fail(e, st, "convolution");
}

static int kernel_create(struct dnn *d, const struct dnn_shape *s, enum dnn_dir dir, int src_block, int dst_block,
                         bool nhwc, const struct dnn_kernel *fwd, struct dnn_kernel **ret, struct err *e)
{
    struct api_descs m = {0};
    struct dnn_kernel *k = kernel_alloc(d);
    if (!k)
        return err_set(e, -ENOMEM, "out of memory");
    k->shape = *s;
    k->dir = dir;
    int rc = make_descs(s, dir, src_block, dst_block, nhwc, &m, e);
    rc = rc < 0 ? rc : describe(k, &m, fwd, e);
    return kernel_complete(k, &m, rc, ret, e);
}

int dnn_kernel_create(struct dnn *d, const struct dnn_shape *s, enum dnn_dir dir, int src_block, int dst_block,
                      const struct dnn_kernel *fwd, struct dnn_kernel **ret, struct err *e)
{
    const bool nhwc = is_nhwc(src_block, s->c) || is_nhwc(dst_block, s->k);
    const bool unsure = !nhwc && (is_ambiguous(src_block, s->c) || is_ambiguous(dst_block, s->k));
    struct dnn_kernel *other;
    int rc = kernel_create(d, s, dir, src_block, dst_block, nhwc, fwd, ret, e);
    if (!unsure || (rc < 0 && rc != -ENOTSUP) || (rc == 0 && !dnn_reference(*ret)))
        return rc;
    if (kernel_create(d, s, dir, src_block, dst_block, true, fwd, &other, NULL) < 0)
        return rc;
    if (rc == 0)
        dnn_kernel_destroy(*ret);
    *ret = other;
    return 0;
}

/* --- products of matrices */

/* One row of activations for each pixel of the output, channels last; rows of x have what the window sees, pixel after
 * pixel. */
static int product_descs(const struct dnn_shape *s, enum dnn_dir dir, struct api_descs *m, struct err *e)
{
    const bool weights = dir == DNN_BWD_WEIGHTS;
    const dnnl_dim_t pixels = (dnnl_dim_t)s->n * s->oh * s->ow, inputs = (dnnl_dim_t)s->kh * s->kw * s->c;
    const dnnl_dims_t x = {pixels, inputs}, y = {pixels, s->k}, y_t = {s->k, pixels}, w = {s->k, inputs};
    DNN_TRY(api_desc_create(&m->src, 2, x, data_type(s->src_type), dnnl_ab), "describe x");
    DNN_TRY(api_desc_create(&m->dst, 2, weights ? y_t : y, data_type(s->dst_type), weights ? dnnl_ba : dnnl_ab),
            "describe y");
    DNN_TRY(api_desc_create(&m->weights, 2, w, data_type(weights ? DT_F32 : s->src_type),
                            weights ? dnnl_ab : dnnl_format_tag_any),
            "describe weights");
    return 0;
}

/* c = a . b + bias (NULL: none), or added to what is there. */
static int describe_product(struct dnn_kernel *k, api_const_desc a, api_const_desc b, api_const_desc bias,
                            api_const_desc c, bool add, struct err *e)
{
    dnnl_primitive_attr_t attr;
    TRY(scratch_attr(&attr, add, e));
    const dnnl_status_t st = api_matmul(&k->desc, k->dnn->engine, a, b, bias, c, attr);
    dnnl_primitive_attr_destroy(attr);
    return st == dnnl_success ? 0 : fail(e, st, "product of matrices");
}

/* (k, kh * kw * c) is a filter (k,kh,kw,c). */
static int describe_filter(struct dnn_kernel *k, struct err *e)
{
    const struct dnn_shape *s = &k->shape;
    const dnnl_dims_t dims = {s->k, s->c, s->kh, s->kw};
    if (s->kh * s->kw > 1)
        DNN_TRY(api_desc_create(&k->filter, 4, dims, dnnl_f32, dnnl_ohwi), "describe weights");
    return 0;
}

int dnn_product_create(struct dnn *d, const struct dnn_shape *s, enum dnn_dir dir, struct dnn_kernel **ret,
                       struct err *e)
{
    struct api_descs m = {0};
    if (s->bias || dir == DNN_FORWARD || (dir == DNN_BWD_DATA && (s->kh * s->kw > 1 || s->ph || s->pw)))
        return err_set(e, -ENOTSUP, "no product of matrices takes the place of this kernel");
    struct dnn_kernel *k = kernel_alloc(d);
    if (!k)
        return err_set(e, -ENOMEM, "out of memory");
    k->shape = *s;
    k->dir = dir;
    k->product = true;
    int rc = product_descs(s, dir, &m, e);
    rc = rc < 0 ? rc : describe_filter(k, e);
    if (rc == 0)
        rc = dir == DNN_BWD_WEIGHTS ? describe_product(k, m.dst, m.src, NULL, m.weights, false, e)
                                    : describe_product(k, m.dst, m.weights, NULL, m.src, false, e);
    return kernel_complete(k, &m, rc, ret, e);
}

static int matmul_descs(const struct dnn_matmul *p, struct api_descs *m, struct err *e)
{
    const dnnl_dims_t a = {p->m, p->k}, b = {p->k, p->n}, c = {p->m, p->n}, bias = {1, p->n};
    const dnnl_dims_t a_by = {p->a[0], p->a[1]}, b_by = {p->b[0], p->b[1]}, c_by = {p->c[0], p->c[1]};
    DNN_TRY(api_desc_strided(&m->src, 2, a, data_type(p->in), a_by), "describe a matrix");
    if (p->packs)
        DNN_TRY(api_desc_create(&m->weights, 2, b, data_type(p->in), dnnl_format_tag_any), "describe a matrix");
    else
        DNN_TRY(api_desc_strided(&m->weights, 2, b, data_type(p->in), b_by), "describe a matrix");
    DNN_TRY(api_desc_strided(&m->dst, 2, c, data_type(p->out), c_by), "describe a matrix");
    if (p->bias)
        DNN_TRY(api_desc_create(&m->bias, 2, bias, dnnl_f32, dnnl_ab), "describe a bias");
    return 0;
}

int dnn_matmul_create(struct dnn *d, const struct dnn_matmul *p, struct dnn_kernel **ret, struct err *e)
{
    struct api_descs m = {0};
    struct dnn_kernel *k = kernel_alloc(d);
    if (!k)
        return err_set(e, -ENOMEM, "out of memory");
    k->matmul = true;
    k->dir = DNN_FORWARD;
    k->shape.bias = p->bias;
    int rc = matmul_descs(p, &m, e);
    rc = rc < 0 ? rc : describe_product(k, m.src, m.weights, m.bias, m.dst, p->add, e);
    return kernel_complete(k, &m, rc, ret, e);
}

/* --- reorders */

/* Takes over from and to, also on failure. */
static int reorder_create(struct dnn *d, api_desc from, api_desc to, bool add, struct dnn_kernel **ret, struct err *e)
{
    dnnl_primitive_attr_t attr;
    struct dnn_kernel *k = kernel_alloc(d);
    if (!k) {
        api_desc_destroy(from);
        api_desc_destroy(to);
        return err_set(e, -ENOMEM, "out of memory");
    }
    k->md[DNN_SRC] = from;
    k->md[DNN_DST] = to;
    int rc = scratch_attr(&attr, add, e);
    if (rc < 0)
        goto failed;
    dnnl_status_t st = dnnl_reorder_primitive_desc_create(&k->desc, from, d->engine, to, d->engine, attr);
    dnnl_primitive_attr_destroy(attr);
    if (st != dnnl_success) {
        rc = fail(e, st, "reorder");
        goto failed;
    }
    k->arg[DNN_SRC] = DNNL_ARG_FROM;
    k->arg[DNN_DST] = DNNL_ARG_TO;
    api_const_desc scratch = dnnl_primitive_desc_query_md(k->desc, dnnl_query_scratchpad_md, 0);
    if (scratch && dnnl_memory_desc_get_size(scratch) > 0) {
        st = api_desc_clone(&k->md[DNN_SCRATCH], scratch);
        if (st != dnnl_success) {
            rc = fail(e, st, "describe an operand");
            goto failed;
        }
        k->arg[DNN_SCRATCH] = DNNL_ARG_SCRATCHPAD;
    }
    TRY_GOTO(rc, kernel_finish(k, e), failed);
    *ret = k;
    return 0;
failed:
    dnn_kernel_destroy(k);
    return rc;
}

int dnn_reorder_create(struct dnn *d, const struct layout *from, enum dtype from_type, const struct layout *to,
                       enum dtype to_type, struct dnn_kernel **ret, struct err *e)
{
    api_desc a, b;
    DNN_TRY(act_desc(&a, from->n, from->c, from->h, from->w, from->b, false, from_type), "describe x");
    dnnl_status_t s = act_desc(&b, to->n, to->c, to->h, to->w, to->b, false, to_type);
    if (s != dnnl_success) {
        api_desc_destroy(a);
        return fail(e, s, "describe y");
    }
    return reorder_create(d, a, b, false, ret, e);
}

int dnn_weights_reorder_create(struct dnn *d, const struct dnn_kernel *k, bool to_plain, bool add,
                               struct dnn_kernel **ret, struct err *e)
{
    api_desc plain, own;
    const dnnl_dims_t matrix = {k->shape.k, k->shape.c};
    if (k->product && !k->filter)
        DNN_TRY(api_desc_create(&plain, 2, matrix, dnnl_f32, dnnl_ab), "describe weights");
    else
        DNN_TRY(weights_desc(&plain, &k->shape, DT_F32, true), "describe weights");
    dnnl_status_t s = api_desc_clone(&own, k->filter ? k->filter : k->md[DNN_WEIGHTS]);
    if (s != dnnl_success) {
        api_desc_destroy(plain);
        return fail(e, s, "describe weights");
    }
    return reorder_create(d, to_plain ? own : plain, to_plain ? plain : own, add, ret, e);
}

int dnn_matmul_pack_create(struct dnn *d, const struct dnn_matmul *p, const struct dnn_kernel *k,
                           struct dnn_kernel **ret, struct err *e)
{
    const dnnl_dims_t b = {p->k, p->n}, b_by = {p->b[0], p->b[1]};
    api_desc plain, own;
    DNN_TRY(api_desc_strided(&plain, 2, b, data_type(p->in), b_by), "describe a matrix");
    const dnnl_status_t s = api_desc_clone(&own, k->md[DNN_WEIGHTS]);
    if (s != dnnl_success) {
        api_desc_destroy(plain);
        return fail(e, s, "describe a matrix");
    }
    return reorder_create(d, plain, own, false, ret, e);
}

void dnn_kernel_destroy(struct dnn_kernel *k)
{
    if (!k)
        return;
    for (int s = 0; s < DNN_SLOTS; s++)
        if (k->memory[s])
            dnnl_memory_destroy(k->memory[s]);
    for (int s = 0; s < DNN_SLOTS; s++)
        api_desc_destroy(k->md[s]);
    api_desc_destroy(k->filter);
    if (k->primitive)
        dnnl_primitive_destroy(k->primitive);
    if (k->desc)
        dnnl_primitive_desc_destroy(k->desc);
    free(k);
}

/* --- asking */

int dnn_block(const struct dnn_kernel *k, enum dnn_slot s)
{
    return k->block[s];
}

size_t dnn_bytes(const struct dnn_kernel *k, enum dnn_slot s)
{
    return k->arg[s] ? dnnl_memory_desc_get_size(k->md[s]) : 0;
}

const char *dnn_implementation(const struct dnn_kernel *k)
{
    const char *name = NULL;
    dnnl_primitive_desc_query(k->desc, dnnl_query_impl_info_str, 0, &name);
    return name ? name : "?";
}

bool dnn_reference(const struct dnn_kernel *k)
{
    const char *name = dnn_implementation(k);
    return strncmp(name, "ref", 3) == 0 || strstr(name, "gemm:ref") || strstr(name, "simple");
}

bool dnn_same_weights(const struct dnn_kernel *a, const struct dnn_kernel *b)
{
    return dnnl_memory_desc_equal(a->md[DNN_WEIGHTS], b->md[DNN_WEIGHTS]);
}

/* --- running */

int dnn_bind(struct dnn_kernel *k, enum dnn_slot s, void *memory, struct err *e)
{
    if (!k->arg[s])
        return 0;
    if (k->memory[s]) {
        DNN_TRY(dnnl_memory_set_data_handle(k->memory[s], memory), "bind memory");
        return 0;
    }
    DNN_TRY(dnnl_memory_create(&k->memory[s], k->md[s], k->dnn->engine, memory), "bind memory");
    k->args[k->nargs++] = (dnnl_exec_arg_t){k->arg[s], k->memory[s]};
    return 0;
}

int dnn_run(const struct dnn_kernel *k, struct err *e)
{
    DNN_TRY(dnnl_primitive_execute(k->primitive, k->dnn->stream, k->nargs, k->args), "execute");
    return 0;
}
