/* Places the buffers of a plan, so that two that live at the same time do not overlap. */
#include "worker/device/liveness.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"

static int by_size(const void *a, const void *b, void *buffers)
{
    const struct live_buffer *v = buffers;
    int i = *(const int *)a, j = *(const int *)b;
    return v[i].bytes != v[j].bytes ? (v[i].bytes < v[j].bytes ? 1 : -1) : i - j;
}

static size_t padded(size_t bytes, size_t align)
{
    return (bytes + align - 1) / align * align;
}

static bool overlap(const struct live_buffer *a, const struct live_buffer *b)
{
    return a->keep || b->keep || (a->first <= b->last && b->first <= a->last);
}

/* The lowest offset where buffer order[i] meets none of those placed before it. */
static size_t lowest(const struct live_buffer *v, const int *order, int i, size_t align)
{
    const struct live_buffer *b = &v[order[i]];
    size_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int k = 0; k < i; k++) {
            const struct live_buffer *o = &v[order[k]];
            const size_t end = o->offset + padded(o->bytes, align);
            if (overlap(b, o) && at < end && o->offset < at + padded(b->bytes, align)) {
                at = end;
                moved = true;
            }
        }
    }
    return at;
}

int liveness_place(struct live_buffer *v, int n, size_t align, size_t *ret_bytes, struct err *e)
{
    int *order = malloc(sizeof(int) * ((size_t)n + 1));
    size_t total = 0;
    if (!order)
        return err_set(e, -ENOMEM, "no memory for a plan of %d buffers", n);
    for (int i = 0; i < n; i++)
        order[i] = i;
    qsort_r(order, (size_t)n, sizeof(int), by_size, v);
    for (int i = 0; i < n; i++) {
        struct live_buffer *b = &v[order[i]];
        b->offset = lowest(v, order, i, align);
        const size_t end = b->offset + padded(b->bytes, align);
        total = end > total ? end : total;
    }
    free(order);
    *ret_bytes = total;
    return 0;
}
