/* Builds operation graphs of cuDNN's backend API. */
#include "worker/device/cuda/dnn/dnn_graph.h"

#include <errno.h>
#include <stdbool.h>

#include "common/base/err.h"

enum { VIRTUAL = 100 }; /* unique ids of tensors that exist inside a graph only begin here */

int cudnn_fail(struct err *e, cudnnStatus_t status, const char *what)
{
    int category = CUDNN_STATUS_CATEGORY(status), rc = -EIO;
    if (category == CUDNN_STATUS_NOT_SUPPORTED)
        rc = -ENOTSUP;
    if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        rc = -ENOMEM;
    return err_set(e, rc, "cuDNN: %s: %s", what, cudnnGetErrorString(status));
}

void cudnn_parts_close(struct cudnn_parts *b)
{
    while (b->n > 0)
        cudnnBackendDestroyDescriptor(b->all[--b->n]);
}

static void check(struct cudnn_parts *b, cudnnStatus_t status)
{
    if (b->rc == 0 && status != CUDNN_STATUS_SUCCESS)
        b->rc = cudnn_fail(b->e, status, b->what);
}

cudnnBackendDescriptor_t cudnn_make(struct cudnn_parts *b, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;
    if (b->rc == 0 && b->n == DNN_PARTS_MAX)
        b->rc = err_set(b->e, -E2BIG, "cuDNN: %s: more than %d descriptors", b->what, DNN_PARTS_MAX);
    if (b->rc < 0)
        return NULL;
    check(b, cudnnBackendCreateDescriptor(type, &d));
    if (b->rc == 0)
        b->all[b->n++] = d;
    return d;
}

void cudnn_set(struct cudnn_parts *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (b->rc == 0)
        check(b, cudnnBackendSetAttribute(d, name, type, count, values));
}

void cudnn_seal(struct cudnn_parts *b, cudnnBackendDescriptor_t d)
{
    if (b->rc == 0)
        check(b, cudnnBackendFinalize(d));
}

static void set_i64(struct cudnn_parts *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, int64_t n,
                    const int64_t *v)
{
    cudnn_set(b, d, name, CUDNN_TYPE_INT64, n, v);
}

static void set_desc(struct cudnn_parts *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnBackendDescriptor_t v)
{
    cudnn_set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &v);
}

static void set_type(struct cudnn_parts *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnDataType_t v)
{
    cudnn_set(b, d, name, CUDNN_TYPE_DATA_TYPE, 1, &v);
}

static cudnnDataType_t data_type(enum dtype t)
{
    return t == DT_F16 ? CUDNN_DATA_HALF : t == DT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

/* Logical (n, c, h, w), or a filter's (k, c, r, s). */
static cudnnBackendDescriptor_t tensor(struct cudnn_parts *b, int64_t uid, cudnnDataType_t type, const int64_t dim[4],
                                       bool nhwc)
{
    const int64_t c = dim[1], h = dim[2], w = dim[3];
    const int64_t last[4] = {c * h * w, 1, w * c, c}, first[4] = {c * h * w, h * w, w, 1};
    const int64_t align = 16;
    const bool inside = uid >= VIRTUAL;
    cudnnBackendDescriptor_t d = cudnn_make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_type(b, d, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set_i64(b, d, CUDNN_ATTR_TENSOR_DIMENSIONS, 4, dim);
    set_i64(b, d, CUDNN_ATTR_TENSOR_STRIDES, 4, nhwc ? last : first);
    set_i64(b, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 1, &uid);
    set_i64(b, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1, &align);
    cudnn_set(b, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inside);
    cudnn_seal(b, d);
    return d;
}

/* What a graph is made of while it is built. */
struct build {
    struct cudnn_parts *b;
    const struct cudnn_shape *s;
    cudnnDataType_t type;
    int64_t x[4], w[4], y[4];
    cudnnBackendDescriptor_t ops[12];
    int nops;
    int64_t inside; /* next unique id of a virtual tensor */
};

static cudnnBackendDescriptor_t slot(struct build *g, int i, cudnnDataType_t type, const int64_t dim[4])
{
    return tensor(g->b, i + 1, type, dim, g->s->nhwc);
}

static cudnnBackendDescriptor_t virtual(struct build *g, const int64_t dim[4])
{
    return tensor(g->b, g->inside++, CUDNN_DATA_FLOAT, dim, g->s->nhwc);
}

static cudnnBackendDescriptor_t channels(struct build *g, int i, cudnnDataType_t type, int64_t c)
{
    return slot(g, i, type, (const int64_t[4]){1, c, 1, 1});
}

static void add_op(struct build *g, cudnnBackendDescriptor_t d)
{
    cudnn_seal(g->b, d);
    g->ops[g->nops++] = d;
}

static cudnnBackendDescriptor_t convolution(struct build *g)
{
    struct cudnn_parts *b = g->b;
    const int64_t two = 2, pad[2] = {g->s->pad[0], g->s->pad[1]}, stride[2] = {g->s->stride[0], g->s->stride[1]},
                  one[2] = {1, 1};
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnBackendDescriptor_t d = cudnn_make(b, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set_type(b, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set_i64(b, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 1, &two);
    set_i64(b, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 2, pad);
    set_i64(b, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 2, pad);
    set_i64(b, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 2, stride);
    set_i64(b, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, 2, one);
    cudnn_seal(b, d);
    return d;
}

enum direction { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };
static const struct {
    cudnnBackendDescriptorType_t op;
    cudnnBackendAttributeName_t conv, x, w, y, alpha, beta;
} directions[] = {
    [FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [BACKWARD_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [BACKWARD_FILTER] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

/* The factors are of the type that is computed in: a double would be taken, and its first half read as a float, 0. */
static void op_conv(struct build *g, enum direction way, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t w,
                    cudnnBackendDescriptor_t y)
{
    const float one = 1, zero = 0;
    cudnnBackendDescriptor_t conv = convolution(g), d = cudnn_make(g->b, directions[way].op);
    set_desc(g->b, d, directions[way].conv, conv);
    set_desc(g->b, d, directions[way].x, x);
    set_desc(g->b, d, directions[way].w, w);
    set_desc(g->b, d, directions[way].y, y);
    cudnn_set(g->b, d, directions[way].alpha, CUDNN_TYPE_FLOAT, 1, &one);
    cudnn_set(g->b, d, directions[way].beta, CUDNN_TYPE_FLOAT, 1, &zero);
    add_op(g, d);
}

/* y = mode(x, second). RELU_BWD: y = dx, second = dy. b NULL: one operand. */
static void op_pointwise(struct build *g, cudnnPointwiseMode_t mode, cudnnBackendDescriptor_t x,
                         cudnnBackendDescriptor_t second, cudnnBackendDescriptor_t y)
{
    struct cudnn_parts *b = g->b;
    const bool backward = mode == CUDNN_POINTWISE_RELU_BWD;
    cudnnBackendDescriptor_t p = cudnn_make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnn_set(b, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(b, p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
    cudnn_seal(b, p);
    cudnnBackendDescriptor_t d = cudnn_make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(b, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    set_desc(b, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (second)
        set_desc(b, d, backward ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC : CUDNN_ATTR_OPERATION_POINTWISE_BDESC, second);
    set_desc(b, d, backward ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC : CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(g, d);
}

static void op_stats(struct build *g, cudnnBackendDescriptor_t y, cudnnBackendDescriptor_t sum,
                     cudnnBackendDescriptor_t squares)
{
    struct cudnn_parts *b = g->b;
    const cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
    cudnnBackendDescriptor_t d = cudnn_make(b, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
    cudnn_set(b, d, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode);
    set_type(b, d, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT);
    set_desc(b, d, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, y);
    set_desc(b, d, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sum);
    set_desc(b, d, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, squares);
    add_op(g, d);
}

/* relu(x * scale + shift), with scale and shift in slots `at` and `at + 1`. */
static cudnnBackendDescriptor_t prologue(struct build *g, cudnnBackendDescriptor_t x, int at)
{
    cudnnBackendDescriptor_t scale = channels(g, at, g->type, g->x[1]), shift = channels(g, at + 1, g->type, g->x[1]);
    cudnnBackendDescriptor_t scaled = virtual(g, g->x), shifted = virtual(g, g->x), active = virtual(g, g->x);
    op_pointwise(g, CUDNN_POINTWISE_MUL, x, scale, scaled);
    op_pointwise(g, CUDNN_POINTWISE_ADD, scaled, shift, shifted);
    op_pointwise(g, CUDNN_POINTWISE_RELU_FWD, shifted, NULL, active);
    return active;
}

static void conv_with_stats(struct build *g, cudnnBackendDescriptor_t x, int at)
{
    cudnnBackendDescriptor_t w = slot(g, at, g->type, g->w), y = slot(g, at + 1, g->type, g->y);
    op_conv(g, FORWARD, x, w, y);
    op_stats(g, y, channels(g, at + 2, CUDNN_DATA_FLOAT, g->y[1]), channels(g, at + 3, CUDNN_DATA_FLOAT, g->y[1]));
}

/* dgrad, then through the ReLU of the BN whose output the convolution had read, then that BN's weights. */
static void dgrad_drelu_bn(struct build *g)
{
    const int64_t c = g->x[1];
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    struct cudnn_parts *b = g->b;
    cudnnBackendDescriptor_t dy = slot(g, 0, g->type, g->y), w = slot(g, 1, g->type, g->w),
                             x = slot(g, 2, g->type, g->x);
    cudnnBackendDescriptor_t mean = channels(g, 3, f32, c), invstd = channels(g, 4, f32, c),
                             scale = channels(g, 5, f32, c), shift = channels(g, 6, f32, c);
    cudnnBackendDescriptor_t dx = virtual(g, g->x), centred = virtual(g, g->x), unit = virtual(g, g->x),
                             scaled = virtual(g, g->x), active = virtual(g, g->x), dz = slot(g, 7, g->type, g->x);
    op_conv(g, BACKWARD_DATA, dx, w, dy);
    op_pointwise(g, CUDNN_POINTWISE_SUB, x, mean, centred);
    op_pointwise(g, CUDNN_POINTWISE_MUL, centred, invstd, unit);
    op_pointwise(g, CUDNN_POINTWISE_MUL, unit, scale, scaled);
    op_pointwise(g, CUDNN_POINTWISE_ADD, scaled, shift, active);
    op_pointwise(g, CUDNN_POINTWISE_RELU_BWD, active, dx, dz);
    cudnnBackendDescriptor_t d = cudnn_make(b, CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
    set_type(b, d, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, f32);
    set_desc(b, d, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, x);
    set_desc(b, d, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, mean);
    set_desc(b, d, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, invstd);
    set_desc(b, d, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, scale);
    set_desc(b, d, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, dz);
    set_desc(b, d, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, channels(g, 8, f32, c));
    set_desc(b, d, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, channels(g, 9, f32, c));
    set_desc(b, d, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, channels(g, 10, f32, c));
    set_desc(b, d, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, channels(g, 11, f32, c));
    set_desc(b, d, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, channels(g, 12, f32, c));
    add_op(g, d);
}

static void emit(struct build *g, enum cudnn_pattern p)
{
    switch (p) {
    case DNN_CONV:
        op_conv(g, FORWARD, slot(g, 0, g->type, g->x), slot(g, 1, g->type, g->w), slot(g, 2, g->type, g->y));
        break;
    case DNN_CONV_STATS:
        conv_with_stats(g, slot(g, 0, g->type, g->x), 1);
        break;
    case DNN_SBR_CONV_STATS:
        conv_with_stats(g, prologue(g, slot(g, 0, g->type, g->x), 1), 3);
        break;
    case DNN_DGRAD:
        op_conv(g, BACKWARD_DATA, slot(g, 2, g->type, g->x), slot(g, 1, g->type, g->w), slot(g, 0, g->type, g->y));
        break;
    case DNN_WGRAD:
        op_conv(g, BACKWARD_FILTER, slot(g, 0, g->type, g->x), slot(g, 2, g->type, g->w), slot(g, 1, g->type, g->y));
        break;
    case DNN_SBR_WGRAD:
        op_conv(g, BACKWARD_FILTER, prologue(g, slot(g, 0, g->type, g->x), 1), slot(g, 4, g->type, g->w),
                slot(g, 3, g->type, g->y));
        break;
    case DNN_DGRAD_DRELU_BN:
        dgrad_drelu_bn(g);
        break;
    default: /* a product is none of cuDNN's, attention has a file of its own */
        break;
    }
}

int cudnn_graph_build(struct cudnn_parts *b, enum cudnn_pattern p, const struct cudnn_shape *s,
                      cudnnBackendDescriptor_t *ret)
{
    if (cudnn_pattern_attention(p))
        return cudnn_sdpa_build(b, p, s, ret);
    const int oh = (s->h + 2 * s->pad[0] - s->r) / s->stride[0] + 1,
              ow = (s->w + 2 * s->pad[1] - s->s) / s->stride[1] + 1;
    struct build g = {.b = b,
                      .s = s,
                      .type = data_type(s->type),
                      .x = {s->n, s->c, s->h, s->w},
                      .w = {s->k, s->groups > 1 ? s->c / s->groups : s->c, s->r, s->s},
                      .y = {s->n, s->k, oh, ow},
                      .inside = VIRTUAL};
    emit(&g, p);
    cudnnBackendDescriptor_t graph = cudnn_make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnn_set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g.nops, g.ops);
    cudnn_seal(b, graph);
    if (b->rc == 0)
        *ret = graph;
    return b->rc;
}
