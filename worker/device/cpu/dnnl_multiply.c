#include <dnnl.h>
#include <dnnl_debug.h>
#include <errno.h>

#include "common/base/err.h"
#include "worker/device/cpu/dnnl_wrap.h"

int dnn_multiply(size_t m, size_t n, size_t k, const float *a, bool a_columns, const float *b, bool b_columns,
                 float beta, float *c, struct err *e)
{
    const dnnl_dim_t rows = (dnnl_dim_t)m, columns = (dnnl_dim_t)n, depth = (dnnl_dim_t)k;
    const dnnl_status_t s = dnnl_sgemm(a_columns ? 'T' : 'N', b_columns ? 'T' : 'N', rows, columns, depth, 1.0f, a,
                                       a_columns ? rows : depth, b, b_columns ? depth : columns, beta, c, columns);
    return s == dnnl_success ? 0 : err_set(e, -EIO, "oneDNN: product of matrices: %s", dnnl_status2str(s));
}
