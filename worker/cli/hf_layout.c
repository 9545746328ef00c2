/* Each tensor by itself: its name says what it is, the shapes how many rows are queries. */
#include "worker/cli/hf_layout.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/ckpt/safetensors.h"
#include "worker/weights/foreign.h"

static void *data_of(const struct ckpt_tensor *t)
{
    return (void *)(uintptr_t)t->data;
}

static int transpose(struct ckpt_tensor *t, struct err *e)
{
    const size_t rows = (size_t)t->shape[0], columns = (size_t)t->shape[1], size = dtype_size(t->dtype);
    const char *from = t->data;
    char *to = malloc(rows * columns * size + 1);
    if (!to)
        return err_errno(e, ENOMEM, "tensor '%s'", t->name);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            memcpy(to + (c * rows + r) * size, from + (r * columns + c) * size, size);
    free(data_of(t));
    t->data = to;
    t->shape[0] = (int64_t)columns;
    t->shape[1] = (int64_t)rows;
    return 0;
}

/* Are the matrices (out, in), as here? */
static bool is_ours(const struct ckpt_tensor *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (t[i].ndim == 2 && foreign_is_first_conv1d(t[i].name))
            return t[i].shape[0] > t[i].shape[1];
    return false;
}

/* Rows [first, first + rows) of t as a tensor of its own. */
static int part_of(const struct ckpt_tensor *t, char letter, int64_t first, int64_t rows, struct ckpt_tensor *ret,
                   struct err *e)
{
    const char *at = strstr(t->name, "qkv_proj.");
    const size_t row = (size_t)t->shape[1] * dtype_size(t->dtype);
    char *data = malloc((size_t)rows * row + 1);
    if (!data)
        return err_errno(e, ENOMEM, "tensor '%s'", t->name);
    memcpy(data, (const char *)t->data + (size_t)first * row, (size_t)rows * row);
    *ret = *t;
    ret->shape[0] = rows;
    ret->data = data;
    snprintf(ret->name, sizeof ret->name, "%.*s%c%s", (int)(at - t->name), t->name, letter, at + strlen("qkv"));
    return 0;
}

/* Tensor i becomes three, two of them at the end of the list. Queries have as many rows as columns. */
static int split(struct ckpt_tensor *list, size_t i, size_t *n, struct err *e)
{
    const struct ckpt_tensor whole = list[i];
    const int64_t q = whole.ndim == 2 ? whole.shape[1] : 0, k = whole.ndim == 2 ? (whole.shape[0] - q) / 2 : 0;
    if (k < 1 || q + 2 * k != whole.shape[0])
        return err_set(e, ERR_MISMATCH, "tensor '%s' does not hold queries, keys and values", whole.name);
    for (int part = 1; part < 3; part++) {
        TRY(part_of(&whole, part == 1 ? 'k' : 'v', part == 1 ? q : q + k, k, &list[*n], e));
        ++*n;
    }
    TRY(part_of(&whole, 'q', 0, q, &list[i], e));
    free(data_of(&whole));
    return 0;
}

int hf_layout(struct ckpt_tensor **list, size_t *n, struct err *e)
{
    const size_t had = *n;
    const bool ours = is_ours(*list, had);
    struct ckpt_tensor *more = realloc(*list, (3 * had + 1) * sizeof *more);
    if (!more)
        return err_errno(e, ENOMEM, "a list of %zu tensors", 3 * had);
    *list = more;
    for (size_t i = 0; i < had; i++) {
        if (ours && more[i].ndim == 2 && foreign_is_conv1d(more[i].name))
            TRY(transpose(&more[i], e));
        if (strstr(more[i].name, ".self_attn.qkv_proj."))
            TRY(split(more, i, n, e));
    }
    return 0;
}
