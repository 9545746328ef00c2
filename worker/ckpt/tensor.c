/* What a stored tensor looks like: its size, checked, and its shape as text. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "worker/ckpt/safetensors.h"

int ckpt_tensor_bytes(const struct ckpt_tensor *t, int64_t *ret)
{
    if ((unsigned)t->dtype > DT_U8 || t->ndim < 0 || t->ndim > CKPT_DIMS_MAX)
        return -EINVAL;
    int64_t bytes = (int64_t)dtype_size(t->dtype);
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(bytes, t->shape[i], &bytes))
            return -EINVAL;
    *ret = bytes;
    return 0;
}

int64_t ckpt_tensor_reals(const struct ckpt_tensor *t)
{
    int64_t bytes = 0;
    return t->dtype <= DT_F16 && ckpt_tensor_bytes(t, &bytes) == 0 ? bytes / (int64_t)dtype_size(t->dtype) : 0;
}

char *ckpt_tensor_shape(const struct ckpt_tensor *t, char *out, size_t cap)
{
    size_t at = (size_t)snprintf(out, cap, "%s [", (unsigned)t->dtype > DT_U8 ? "?" : dtype_name(t->dtype));
    for (int i = 0; i < t->ndim && i < CKPT_DIMS_MAX && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    if (at < cap)
        snprintf(out + at, cap - at, "]");
    return out;
}
