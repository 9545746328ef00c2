/* Attention as cuDNN's flash attention engines know it: a graph of matrix products, pointwise operations and
 * reductions, which they match as a whole (cuDNN's documentation, "Fused Flash Attention fprop, bprop"). Queries, keys
 * and values are three views of one tensor, so that nothing is copied to take them apart.
 *
 *   forward    s = q k^T * scale [masked], p = exp(s - max) / sum, y = p v, lse = max + log(sum)
 *   backward   delta = sum of dy * y; p = exp(s - lse); dv = p^T dy; ds = p * (dy v^T - delta) * scale; dk = ds^T q,
 *              dq = ds k. Where heads share keys, dk and dv are sums over them
 * The two backward patterns differ in how dq is made: as a product at once, for which ds is stored, or added up in fp32
 * tensor by tensor. */
#include "worker/device/cuda/dnn/dnn_impl.h"

#include <math.h>

/* Unique ids of tensors that are bound, of scalars, and of what exists inside the graph only. */
enum { Q = 1, K, V, Y, DY, LSE, DELTA, DQ, DK, DV, SUMS, SCALE, ONE, LOWEST, INSIDE = 100 };
static const float MASKED = -1024.0f * 1024.0f * 1024.0f; /* a score that weighs nothing */

struct build {
    struct cudnn_parts *b;
    const struct cudnn_shape *s;
    cudnnDataType_t type;
    int64_t n, heads, kv, t, d;
    cudnnBackendDescriptor_t ops[32], scale;
    int nops;
    int64_t inside;
};

typedef cudnnBackendDescriptor_t node; /* a tensor, or an operation */

static void set_i64(struct build *g, node d, cudnnBackendAttributeName_t name, int64_t n, const int64_t *v)
{
    cudnn_set(g->b, d, name, CUDNN_TYPE_INT64, n, v);
}

static void set_node(struct build *g, node d, cudnnBackendAttributeName_t name, node v)
{
    if (v)
        cudnn_set(g->b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &v);
}

static void set_type(struct build *g, node d, cudnnBackendAttributeName_t name, cudnnDataType_t v)
{
    cudnn_set(g->b, d, name, CUDNN_TYPE_DATA_TYPE, 1, &v);
}

/* Id 0: one that exists inside the graph only. */
static node tensor(struct build *g, int64_t id, cudnnDataType_t type, const int64_t dim[4], const int64_t stride[4])
{
    const int64_t align = 16, uid = id ? id : g->inside++;
    const bool inside = id == 0, by_value = id >= SCALE;
    node d = cudnn_make(g->b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_type(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set_i64(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, 4, dim);
    set_i64(g, d, CUDNN_ATTR_TENSOR_STRIDES, 4, stride);
    set_i64(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 1, &uid);
    set_i64(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1, &align);
    cudnn_set(g->b, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inside);
    cudnn_set(g->b, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    cudnn_seal(g->b, d);
    return d;
}

static node scalar(struct build *g, int64_t id)
{
    const int64_t one[4] = {1, 1, 1, 1};
    return tensor(g, id, CUDNN_DATA_FLOAT, one, one);
}

/* (n, heads, t, d) of rows (n, t, width); turned: (n, heads, d, t) of the same memory. */
static node head_rows(struct build *g, int64_t id, cudnnDataType_t type, int64_t heads, int64_t width, bool turned)
{
    const int64_t dim[4] = {g->n, heads, turned ? g->d : g->t, turned ? g->t : g->d},
                  stride[4] = {g->t * width, g->d, turned ? 1 : width, turned ? width : 1};
    return tensor(g, id, type, dim, stride);
}

static node of_x(struct build *g, int64_t id, int64_t heads, bool turned)
{
    return head_rows(g, id, g->type, heads, (g->heads + 2 * g->kv) * g->d, turned);
}

static node of_y(struct build *g, int64_t id)
{
    return head_rows(g, id, g->type, g->heads, g->heads * g->d, false);
}

/* (n, heads, rows, columns), one behind the other. */
static node packed(struct build *g, int64_t id, cudnnDataType_t type, int64_t rows, int64_t columns)
{
    const int64_t dim[4] = {g->n, g->heads, rows, columns},
                  stride[4] = {g->heads * rows * columns, rows * columns, columns, 1};
    return tensor(g, id, type, dim, stride);
}

static node scores(struct build *g, cudnnDataType_t type)
{
    return packed(g, 0, type, g->t, g->t);
}

static node of_rows(struct build *g, int64_t id)
{
    return packed(g, id, CUDNN_DATA_FLOAT, g->t, 1);
}

static void add_op(struct build *g, node d)
{
    cudnn_seal(g->b, d);
    if (g->b->rc == 0)
        g->ops[g->nops++] = d;
}

/* y = mode(x[, second[, third]]), which is returned. axis < 0: none. */
static node pointwise_on(struct build *g, cudnnPointwiseMode_t mode, cudnnDataType_t in, int64_t axis, node x,
                         node second, node third, node y)
{
    node p = cudnn_make(g->b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnn_set(g->b, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(g, p, CUDNN_ATTR_POINTWISE_MATH_PREC, in);
    if (axis >= 0)
        set_i64(g, p, CUDNN_ATTR_POINTWISE_AXIS, 1, &axis);
    cudnn_seal(g->b, p);
    node d = cudnn_make(g->b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_node(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    set_node(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_node(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, second);
    set_node(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, third);
    set_node(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(g, d);
    return y;
}

static node pointwise(struct build *g, cudnnPointwiseMode_t mode, node x, node second, node y)
{
    return pointwise_on(g, mode, CUDNN_DATA_FLOAT, -1, x, second, NULL, y);
}

static node matmul(struct build *g, node a, node b, node c)
{
    node m = cudnn_make(g->b, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_type(g, m, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    cudnn_seal(g->b, m);
    node d = cudnn_make(g->b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_node(g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, m);
    set_node(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_node(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_node(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    add_op(g, d);
    return c;
}

static node reduce(struct build *g, cudnnReduceTensorOp_t how, node x, node y)
{
    node r = cudnn_make(g->b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnn_set(g->b, r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    set_type(g, r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    cudnn_seal(g->b, r);
    node d = cudnn_make(g->b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_node(g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, r);
    set_node(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_node(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(g, d);
    return y;
}

static node reshape(struct build *g, node x, node y)
{
    node d = cudnn_make(g->b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_node(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_node(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(g, d);
    return y;
}

/* Scores of keys behind a query's own position become the lowest. */
static node masked(struct build *g, node s)
{
    if (!g->s->causal)
        return s;
    node row = pointwise_on(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 2, s, NULL, NULL,
                            scores(g, CUDNN_DATA_INT32)),
         column = pointwise_on(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 3, s, NULL, NULL,
                               scores(g, CUDNN_DATA_INT32)),
         seen = pointwise_on(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, row, column, NULL,
                             scores(g, CUDNN_DATA_BOOLEAN));
    return pointwise_on(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, s, scalar(g, LOWEST), seen,
                        scores(g, CUDNN_DATA_FLOAT));
}

static node scaled(struct build *g, node s)
{
    return pointwise(g, CUDNN_POINTWISE_MUL, s, g->scale, scores(g, CUDNN_DATA_FLOAT));
}

static void forward(struct build *g)
{
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    node q = of_x(g, Q, g->heads, false), k = of_x(g, K, g->kv, true), v = of_x(g, V, g->kv, false);
    g->scale = scalar(g, SCALE);
    node s = masked(g, scaled(g, matmul(g, q, k, scores(g, f32))));
    node most = reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, of_rows(g, 0));
    node e = pointwise(g, CUDNN_POINTWISE_SUB, s, most, scores(g, f32));
    e = pointwise(g, CUDNN_POINTWISE_EXP, e, NULL, scores(g, f32));
    node sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, of_rows(g, 0));
    node log = pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL, of_rows(g, 0));
    pointwise(g, CUDNN_POINTWISE_ADD, most, log, of_rows(g, LSE));
    node p = pointwise(g, CUDNN_POINTWISE_DIV, e, sum, scores(g, g->type));
    matmul(g, p, v, of_y(g, Y));
}

/* a^T b of each head, into the heads of keys: rows of `out`. a (n, heads, t, t) */
static void into_keys(struct build *g, node a, node b, int64_t out)
{
    const int64_t dim[4] = {g->n, g->heads, g->t, g->t}, stride[4] = {g->heads * g->t * g->t, g->t * g->t, 1, g->t};
    node turned = reshape(g, a, tensor(g, 0, g->type, dim, stride)), to = of_x(g, out, g->kv, false);
    if (g->heads == g->kv)
        matmul(g, turned, b, to);
    else
        reduce(g, CUDNN_REDUCE_TENSOR_ADD, matmul(g, turned, b, packed(g, 0, g->type, g->t, g->d)), to);
}

static void backward(struct build *g, bool fast)
{
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    const int64_t width = (g->heads + 2 * g->kv) * g->d, dim[4] = {g->n, g->kv, g->t, g->d},
                  stride[4] = {g->t * width, g->d, width, 1};
    node q = of_x(g, Q, g->heads, false), k = of_x(g, K, g->kv, true), v = of_x(g, V, g->kv, true);
    node y = of_y(g, Y), dy = of_y(g, DY), lse = of_rows(g, LSE);
    g->scale = scalar(g, SCALE);
    node both = pointwise(g, CUDNN_POINTWISE_MUL, dy, y, packed(g, 0, f32, g->t, g->d));
    node sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, both, of_rows(g, 0));
    node delta = pointwise(g, CUDNN_POINTWISE_MUL, sum, scalar(g, ONE), of_rows(g, DELTA));
    node s = scaled(g, matmul(g, q, k, scores(g, f32)));
    s = masked(g, pointwise(g, CUDNN_POINTWISE_SUB, s, lse, scores(g, f32)));
    node p = pointwise(g, CUDNN_POINTWISE_EXP, s, NULL, scores(g, f32));
    into_keys(g, p, dy, DV);
    node dp = matmul(g, dy, v, scores(g, f32));
    node ds = pointwise(g, CUDNN_POINTWISE_SUB, dp, delta, scores(g, f32));
    ds = scaled(g, pointwise(g, CUDNN_POINTWISE_MUL, ds, p, scores(g, f32)));
    into_keys(g, ds, q, DK);
    node rows = reshape(g, k, tensor(g, 0, g->type, dim, stride)), dq = of_x(g, DQ, g->heads, false);
    if (fast)
        pointwise(g, CUDNN_POINTWISE_IDENTITY, matmul(g, ds, rows, packed(g, SUMS, f32, g->t, g->d)), NULL, dq);
    else
        matmul(g, ds, rows, dq);
}

int cudnn_sdpa_build(struct cudnn_parts *b, enum cudnn_pattern p, const struct cudnn_shape *s,
                     cudnnBackendDescriptor_t *ret)
{
    struct build g = {.b = b,
                      .s = s,
                      .type = s->type == DT_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16,
                      .n = s->n,
                      .heads = s->k,
                      .kv = s->groups,
                      .t = s->h,
                      .d = s->c,
                      .inside = INSIDE};
    if (p == DNN_SDPA)
        forward(&g);
    else
        backward(&g, p == DNN_SDPA_BWD_FAST);
    cudnnBackendDescriptor_t graph = cudnn_make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnn_set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g.nops, g.ops);
    cudnn_seal(b, graph);
    if (b->rc == 0)
        *ret = graph;
    return b->rc;
}

/* --- running */

struct pack {
    int64_t *ids;
    void **at;
    int n;
};

static void bind(struct pack *p, int64_t id, void *at)
{
    p->ids[p->n] = id;
    p->at[p->n++] = at;
}

/* Queries, keys and values, or their gradients: elements of a row of x. */
static void bind_parts(struct pack *p, const struct cudnn_shape *s, int64_t first, void *x)
{
    const size_t size = dtype_size(s->type), head = (size_t)s->c * size;
    bind(p, first, x);
    bind(p, first + 1, (char *)x + (size_t)s->k * head);
    bind(p, first + 2, (char *)x + (size_t)(s->k + s->groups) * head);
}

int cudnn_sdpa_bind(struct cudnn_plan *p, void *const *slots, int64_t ids[DNN_BOUND_MAX], void *at[DNN_BOUND_MAX])
{
    struct pack all = {ids, at, 0};
    p->scalars[0] = (float)(1 / sqrt((double)p->shape.c));
    p->scalars[1] = 1;
    p->scalars[2] = MASKED;
    bind_parts(&all, &p->shape, Q, slots[0]);
    bind(&all, Y, slots[1]);
    if (p->pattern == DNN_SDPA) {
        bind(&all, LSE, slots[2]);
    } else {
        bind(&all, DY, slots[2]);
        bind(&all, LSE, slots[3]);
        bind(&all, DELTA, slots[4]);
        bind_parts(&all, &p->shape, DQ, slots[5]);
        bind(&all, ONE, &p->scalars[1]);
    }
    if (p->pattern == DNN_SDPA_BWD_FAST)
        bind(&all, SUMS, slots[6]);
    bind(&all, SCALE, &p->scalars[0]);
    if (p->shape.causal)
        bind(&all, LOWEST, &p->scalars[2]);
    return all.n;
}
