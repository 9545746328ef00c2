/* The 3.x C API: no operation descriptors, memory descriptors are opaque. */
#include <string.h>

#include "worker/device/cpu/dnnl_api.h"

dnnl_status_t api_desc_create(api_desc *ret, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type,
                              dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_create_with_tag(ret, ndims, dims, type, tag);
}

dnnl_status_t api_desc_strided(api_desc *ret, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type,
                               const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(ret, ndims, dims, type, strides);
}

dnnl_status_t api_desc_clone(api_desc *ret, api_const_desc d)
{
    return dnnl_memory_desc_clone(ret, d);
}

void api_desc_destroy(api_desc d)
{
    if (d)
        dnnl_memory_desc_destroy(d);
}

const dnnl_dim_t *api_desc_dims(api_const_desc d)
{
    static const dnnl_dims_t none;
    const dnnl_dims_t *dims;
    return dnnl_memory_desc_query(d, dnnl_query_dims, &dims) == dnnl_success ? *dims : none;
}

dnnl_status_t api_convolution(dnnl_primitive_desc_t *ret, dnnl_engine_t engine, const struct dnn_shape *s,
                              enum dnn_dir dir, const struct api_descs *d, dnnl_primitive_attr_t attr,
                              const_dnnl_primitive_desc_t hint, dnnl_alg_kind_t how)
{
    const dnnl_dims_t strides = {s->sh, s->sw}, dilates = {0, 0}, pad = {s->ph, s->pw};
    dnnl_dims_t end;
    api_end_padding(s, end);
    if (dir == DNN_FORWARD)
        return dnnl_convolution_forward_primitive_desc_create(ret, engine, api_forward_kind(s), how, d->src, d->weights,
                                                              d->bias, d->dst, strides, dilates, pad, end, attr);
    if (dir == DNN_BWD_DATA)
        return dnnl_convolution_backward_data_primitive_desc_create(ret, engine, how, d->src, d->weights, d->dst,
                                                                    strides, dilates, pad, end, hint, attr);
    return dnnl_convolution_backward_weights_primitive_desc_create(ret, engine, how, d->src, d->weights, d->bias,
                                                                   d->dst, strides, dilates, pad, end, hint, attr);
}

static bool is_brgemm(dnnl_primitive_desc_t d)
{
    const char *name = "";
    (void)dnnl_primitive_desc_query(d, dnnl_query_impl_info_str, 0, &name);
    return strncmp(name, "brg_matmul", 10) == 0;
}

/* brg_matmul (seen: 3.7) takes a matrix of one row or one column for dense, whatever its strides: another kernel does
 * those. */
dnnl_status_t api_matmul(dnnl_primitive_desc_t *ret, dnnl_engine_t engine, api_const_desc a, api_const_desc b,
                         api_const_desc bias, api_const_desc c, dnnl_primitive_attr_t attr)
{
    const dnnl_dim_t *dims = api_desc_dims(c);
    dnnl_status_t st = dnnl_matmul_primitive_desc_create(ret, engine, a, b, bias, c, attr);
    while (st == dnnl_success && (dims[0] == 1 || dims[1] == 1) && is_brgemm(*ret))
        st = dnnl_primitive_desc_next_impl(*ret);
    return st;
}

dnnl_status_t api_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
