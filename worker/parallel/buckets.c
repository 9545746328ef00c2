#include <errno.h>

#include "worker/parallel/ddp.h"

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Gradients of the last bucket: a small one like the first, if there is more than one bucket's worth. */
static size_t last_size(size_t left, size_t first)
{
    return left > first ? first : left;
}

int ddp_buckets(size_t n_train, size_t n_tail, size_t elem_bytes, size_t first_bytes, size_t bytes, size_t *ends,
                int cap, int *ret_n)
{
    size_t first = first_bytes / elem_bytes, most = bytes / elem_bytes;
    if (first == 0 || most == 0)
        return -EINVAL;
    int n = 0;
    size_t at = min_size(first, n_train);
    size_t middle_end = n_train - last_size(n_train - at, first);
    if (n_train > at) {
        while (true) {
            if (n == cap)
                return -ENOSPC;
            ends[n++] = at;
            if (at == middle_end)
                break;
            at += min_size(most, middle_end - at);
        }
    }
    if (n_train + n_tail > 0) {
        if (n == cap)
            return -ENOSPC;
        ends[n++] = n_train + n_tail;
    }
    *ret_n = n;
    return 0;
}
