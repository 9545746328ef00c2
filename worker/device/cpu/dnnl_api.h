/* What differs between the C APIs of oneDNN 2.x (operation descriptors, memory descriptors by value) and 3.x (neither),
 * behind one set of calls; dnnl_api2.c or dnnl_api3.c is compiled. Everything else of the library is called alike in
 * both. For dnnl_wrap.c only. */
#ifndef CRUN_WORKER_DEVICE_CPU_DNNL_API_H
#define CRUN_WORKER_DEVICE_CPU_DNNL_API_H

#include <dnnl.h>

#include "worker/device/cpu/dnnl_wrap.h"

#if DNNL_VERSION_MAJOR == 2
typedef dnnl_memory_desc_t *api_desc; /* on the heap */
typedef const dnnl_memory_desc_t *api_const_desc;
#else
typedef dnnl_memory_desc_t api_desc; /* a pointer to what nobody sees */
typedef const_dnnl_memory_desc_t api_const_desc;
#endif

/* Descriptors of one operation's tensors; bias is NULL where there is none. */
struct api_descs {
    api_desc src, weights, bias, dst;
};

/* *ret is the caller's, for api_desc_destroy(), which takes NULL. */
dnnl_status_t api_desc_create(api_desc *ret, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type,
                              dnnl_format_tag_t tag);
dnnl_status_t api_desc_strided(api_desc *ret, int ndims, const dnnl_dims_t dims, dnnl_data_type_t type,
                               const dnnl_dims_t strides);
dnnl_status_t api_desc_clone(api_desc *ret, api_const_desc d);
void api_desc_destroy(api_desc d);
const dnnl_dim_t *api_desc_dims(api_const_desc d); /* borrowed from d */

/* hint: of the forward operation, for backward ones. how: dnnl_convolution_direct or dnnl_convolution_winograd. */
dnnl_status_t api_convolution(dnnl_primitive_desc_t *ret, dnnl_engine_t engine, const struct dnn_shape *s,
                              enum dnn_dir dir, const struct api_descs *d, dnnl_primitive_attr_t attr,
                              const_dnnl_primitive_desc_t hint, dnnl_alg_kind_t how);
/* c (m,n) = a (m,k) . b (k,n) + bias (1,n), NULL: none */
dnnl_status_t api_matmul(dnnl_primitive_desc_t *ret, dnnl_engine_t engine, api_const_desc a, api_const_desc b,
                         api_const_desc bias, api_const_desc c, dnnl_primitive_attr_t attr);
/* y = f(x) + y */
dnnl_status_t api_append_sum(dnnl_post_ops_t ops);

/* Padding at the ends that makes the output as large as the shape says. */
static inline void api_end_padding(const struct dnn_shape *s, dnnl_dims_t ret)
{
    ret[0] = (s->oh - 1) * s->sh + s->kh - s->h - s->ph;
    ret[1] = (s->ow - 1) * s->sw + s->kw - s->w - s->pw;
}

static inline dnnl_prop_kind_t api_forward_kind(const struct dnn_shape *s)
{
    return s->training ? dnnl_forward_training : dnnl_forward_inference;
}

#endif
