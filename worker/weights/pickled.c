/* Tensors that a pickle names, and the storages that hold their elements. */
#include <stdbool.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/weights/pickle_read.h"

#define EXPAND_MAX 64
#define EXPAND_FREE ((int64_t)1 << 20) /* bytes that are taken whatever they are made of */

int pickle_check_sizes(const struct pickle *p, int64_t file_bytes, const char *path, struct err *e)
{
    int64_t all = 0, bytes, stored, most;
    if (__builtin_mul_overflow(file_bytes, EXPAND_MAX, &most))
        most = INT64_MAX;
    for (size_t i = 0; i < p->n; i++) {
        const struct pickled_tensor *t = &p->t[i];
        TRY(ckpt_tensor_bytes(&t->t, &bytes));
        if (__builtin_mul_overflow(t->storage_count, EXPAND_MAX * (int64_t)dtype_size(t->t.dtype), &stored))
            stored = INT64_MAX;
        if (bytes > EXPAND_FREE && bytes > stored)
            return err_set(e, ERR_REFUSED,
                           "%s: tensor '%s' of %lld bytes is more than %d times as large as its storage of %lld "
                           "elements",
                           path, t->t.name, (long long)bytes, EXPAND_MAX, (long long)t->storage_count);
        if (__builtin_add_overflow(all, bytes, &all) || (all > EXPAND_FREE && all > most))
            return err_set(e, ERR_REFUSED, "%s: its tensors are more than %d times as large as the file", path,
                           EXPAND_MAX);
    }
    return 0;
}

static bool is_contiguous(const struct pickled_tensor *p)
{
    int64_t stride = 1;
    for (int d = p->t.ndim - 1; d >= 0; stride *= p->t.shape[d--])
        if (p->t.shape[d] != 1 && p->stride[d] != stride)
            return false;
    return true;
}

int pickled_copy(const struct pickled_tensor *p, const char *storage, size_t stored, void *dst, const char *path,
                 struct err *e)
{
    const size_t size = dtype_size(p->t.dtype);
    int64_t bytes, at[CKPT_DIMS_MAX] = {0};
    size_t want;
    if (__builtin_mul_overflow((size_t)p->storage_count, size, &want))
        return err_set(e, ERR_CORRUPT, "%s: storage '%s' is too large", path, p->storage);
    if (stored < want) /* every tensor says for itself how large its storage is, also where several share one */
        return err_set(e, ERR_CORRUPT, "%s: storage '%s' of tensor '%s' has %zu bytes instead of %zu", path, p->storage,
                       p->t.name, stored, want);
    TRY(ckpt_tensor_bytes(&p->t, &bytes));
    if (bytes == 0)
        return 0;
    if (is_contiguous(p)) {
        memcpy(dst, storage + (size_t)p->offset * size, (size_t)bytes);
        return 0;
    }
    for (size_t k = 0; k < (size_t)bytes / size; k++) {
        int64_t from = p->offset;
        for (int d = 0; d < p->t.ndim; d++)
            from += at[d] * p->stride[d];
        memcpy((char *)dst + k * size, storage + (size_t)from * size, size);
        for (int d = p->t.ndim - 1; d >= 0 && ++at[d] == p->t.shape[d]; d--)
            at[d] = 0;
    }
    return 0;
}
