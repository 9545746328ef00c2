/* The 2.x C API: operation descriptor -> primitive descriptor. */
#include "worker/device/cpu/dnnl_api.h"

#include <stdlib.h>

dnnl_status_t api_desc_create(api_desc *ret, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type,
                              dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t md;
    dnnl_status_t s = dnnl_memory_desc_init_by_tag(&md, ndims, dims, type, tag);
    return s == dnnl_success ? api_desc_clone(ret, &md) : s;
}

dnnl_status_t api_desc_strided(api_desc *ret, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type,
                               const dnnl_dims_t strides)
{
    dnnl_memory_desc_t md;
    dnnl_status_t s = dnnl_memory_desc_init_by_strides(&md, ndims, dims, type, strides);
    return s == dnnl_success ? api_desc_clone(ret, &md) : s;
}

dnnl_status_t api_desc_clone(api_desc *ret, api_const_desc d)
{
    dnnl_memory_desc_t *copy = malloc(sizeof(*copy));
    if (!copy)
        return dnnl_out_of_memory;
    *copy = *d;
    *ret = copy;
    return dnnl_success;
}

void api_desc_destroy(api_desc d)
{
    free(d);
}

const dnnl_dim_t *api_desc_dims(api_const_desc d)
{
    return d->dims;
}

dnnl_status_t api_convolution(dnnl_primitive_desc_t *ret, dnnl_engine_t engine, const struct dnn_shape *s,
                              enum dnn_dir dir, const struct api_descs *d, dnnl_primitive_attr_t attr,
                              const_dnnl_primitive_desc_t hint, dnnl_alg_kind_t how)
{
    const dnnl_dims_t strides = {s->sh, s->sw}, pad = {s->ph, s->pw};
    dnnl_convolution_desc_t op;
    dnnl_dims_t end;
    dnnl_status_t st;
    api_end_padding(s, end);
    if (dir == DNN_FORWARD)
        st = dnnl_convolution_forward_desc_init(&op, api_forward_kind(s), how, d->src, d->weights, d->bias, d->dst,
                                                strides, pad, end);
    else if (dir == DNN_BWD_DATA)
        st = dnnl_convolution_backward_data_desc_init(&op, how, d->src, d->weights, d->dst, strides, pad, end);
    else
        st = dnnl_convolution_backward_weights_desc_init(&op, how, d->src, d->weights, d->bias, d->dst, strides, pad,
                                                         end);
    return st == dnnl_success ? dnnl_primitive_desc_create(ret, &op, attr, engine, hint) : st;
}

dnnl_status_t api_matmul(dnnl_primitive_desc_t *ret, dnnl_engine_t engine, api_const_desc a, api_const_desc b,
                         api_const_desc bias, api_const_desc c, dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t op;
    dnnl_status_t st = dnnl_matmul_desc_init(&op, a, b, bias, c);
    return st == dnnl_success ? dnnl_primitive_desc_create(ret, &op, attr, engine, NULL) : st;
}

dnnl_status_t api_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}
