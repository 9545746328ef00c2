#include "worker/snapshot/stored.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/ckpt/ckpt.h"
#include "worker/ckpt/weights.h"

static int read_checkpoint(struct stored *s, size_t tensor, int64_t at, size_t n, void *dst, struct err *e)
{
    const size_t size = slices_size(s->slices, tensor);
    return ckpt_read_part(s->ckpt, tensor < s->slices->n_model ? "model" : "train", &s->slices->tensors[tensor],
                          at * (int64_t)size, n * size, dst, &s->crc, e);
}

struct stored stored_checkpoint(struct ckpt *c, const struct slices *s)
{
    return (struct stored){.read = read_checkpoint, .slices = s, .ckpt = c};
}

static int read_whole(struct stored *s, size_t tensor, struct err *e)
{
    const struct ckpt_tensor *want = &s->slices->tensors[tensor];
    size_t i;
    free(s->whole);
    s->whole = NULL;
    if (!weights_find(s->weights, want->name, &i))
        return err_set(e, ERR_MISMATCH, "it has no tensor '%s'", want->name);
    s->whole = malloc((size_t)slices_count(s->slices, tensor) * slices_size(s->slices, tensor));
    if (!s->whole)
        return err_errno(e, ENOMEM, "tensor '%s'", want->name);
    return weights_read_real(s->weights, i, want->dtype, s->whole, e);
}

static int read_weights(struct stored *s, size_t tensor, int64_t at, size_t n, void *dst, struct err *e)
{
    const size_t size = slices_size(s->slices, tensor);
    if (at == 0)
        TRY(read_whole(s, tensor, e));
    memcpy(dst, (const char *)s->whole + (size_t)at * size, n * size);
    return 0;
}

struct stored stored_weights(struct weights *w, const struct slices *s)
{
    return (struct stored){.read = read_weights, .slices = s, .weights = w};
}

void stored_finish(struct stored *s)
{
    free(s->whole);
    s->whole = NULL;
}
