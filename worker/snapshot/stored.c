/* Reads tensors of a checkpoint or of other weights, piece by piece. */
#include "worker/snapshot/stored.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/ckpt/ckpt.h"
#include "worker/snapshot/positions.h"
#include "worker/state/state.h"
#include "worker/weights/weights.h"

static const char *file_of(const struct slices *s, size_t tensor)
{
    return tensor < s->n_model ? "model" : "train";
}

bool stored_is_resampled(const struct slices *s, size_t tensor, const struct ckpt_tensor *have, struct positions *ret)
{
    return positions_fit(s->state->whole, &s->tensors[tensor], have, ret);
}

/* NULL: there is none. */
static const struct ckpt_tensor *find_stored(struct ckpt *c, const struct slices *s, size_t tensor)
{
    struct safetensors *f = ckpt_file(c, file_of(s, tensor));
    const int i = safetensors_find(f, s->tensors[tensor].name);
    return i < 0 ? NULL : safetensors_at(f, (size_t)i);
}

int stored_check(struct ckpt *c, const struct slices *s, size_t tensor, struct err *e)
{
    const struct ckpt_tensor *have = find_stored(c, s, tensor), *want = &s->tensors[tensor];
    struct positions g;
    const int rc = ckpt_has(c, file_of(s, tensor), want, e);
    if (rc != ERR_MISMATCH || have->dtype != want->dtype || !stored_is_resampled(s, tensor, have, &g))
        return rc;
    log_warn("resume", "'%s' is resampled from %d x %d to %d x %d positions", want->name, g.from_h, g.from_w, g.to_h,
             g.to_w);
    return 0;
}

bool stored_has_moments(struct ckpt *c, const struct slices *s)
{
    for (size_t i = s->n_model; i < s->n; i++)
        if (s->kinds[i] == SLICES_MOMENTS && !find_stored(c, s, i))
            return false;
    return true;
}

/* *from, malloc'ed, of another size, becomes the tensor. */
static int resample(const struct stored *s, size_t tensor, const struct positions *g, void **from, struct err *e)
{
    const struct slices *v = s->slices;
    void *to = malloc((size_t)slices_count(v, tensor) * slices_size(v, tensor));
    if (!to)
        return err_errno(e, ENOMEM, "tensor '%s'", v->tensors[tensor].name);
    positions_resample(g, v->kinds[tensor] != SLICES_MOMENTS, v->tensors[tensor].dtype, *from, to);
    free(*from);
    *from = to;
    return 0;
}

/* A table of another size, whole; s->whole NULL: it is none. */
static int read_table(struct stored *s, size_t tensor, struct err *e)
{
    const struct ckpt_tensor *have = find_stored(s->ckpt, s->slices, tensor);
    struct positions g;
    int64_t bytes;
    free(s->whole);
    s->whole = NULL;
    if (!have || !stored_is_resampled(s->slices, tensor, have, &g))
        return 0;
    TRY(ckpt_tensor_bytes(have, &bytes));
    if (!(s->whole = malloc((size_t)bytes)))
        return err_errno(e, ENOMEM, "tensor '%s'", have->name);
    TRY(ckpt_read(s->ckpt, file_of(s->slices, tensor), have, s->whole, e));
    return resample(s, tensor, &g, &s->whole, e);
}

static int read_checkpoint(struct stored *s, size_t tensor, int64_t at, size_t n, void *dst, struct err *e)
{
    const size_t size = slices_size(s->slices, tensor);
    if (at == 0)
        TRY(read_table(s, tensor, e));
    if (!s->whole)
        return ckpt_read_part(s->ckpt, file_of(s->slices, tensor), &s->slices->tensors[tensor], at * (int64_t)size,
                              n * size, dst, &s->crc, e);
    memcpy(dst, (const char *)s->whole + (size_t)at * size, n * size);
    return 0;
}

struct stored stored_checkpoint(struct ckpt *c, const struct slices *s)
{
    return (struct stored){.read = read_checkpoint, .slices = s, .ckpt = c};
}

/* Training and evaluation would blame the learning rate for it. */
static int check_finite(const struct stored *s, size_t tensor, size_t n, struct err *e)
{
    const bool wide = s->slices->tensors[tensor].dtype == DT_F64;
    for (size_t k = 0; k < n; k++)
        if (!isfinite(wide ? ((const double *)s->whole)[k] : (double)((const float *)s->whole)[k]))
            return err_set(e, ERR_CORRUPT,
                           "%s: the weights are not finite: element %zu of '%s' is nan or inf; get the file again, or "
                           "save the model before it diverged",
                           s->path, k, s->slices->tensors[tensor].name);
    return 0;
}

static int read_whole(struct stored *s, size_t tensor, struct err *e)
{
    const struct ckpt_tensor *want = &s->slices->tensors[tensor], *have;
    struct positions g;
    size_t i;
    free(s->whole);
    s->whole = NULL;
    if (!(have = weights_find(s->weights, want->name, &i)))
        return err_set(e, ERR_MISMATCH, "it has no tensor '%s'", want->name);
    const bool resampled = stored_is_resampled(s->slices, tensor, have, &g);
    const int64_t n =
        resampled ? (g.extra + (int64_t)g.from_h * g.from_w) * g.channels : slices_count(s->slices, tensor);
    s->whole = malloc((size_t)n * slices_size(s->slices, tensor));
    if (!s->whole)
        return err_errno(e, ENOMEM, "tensor '%s'", want->name);
    TRY(weights_read_real(s->weights, i, want->dtype, s->whole, e));
    TRY(check_finite(s, tensor, (size_t)n, e));
    return resampled ? resample(s, tensor, &g, &s->whole, e) : 0;
}

static int read_weights(struct stored *s, size_t tensor, int64_t at, size_t n, void *dst, struct err *e)
{
    const size_t size = slices_size(s->slices, tensor);
    if (at == 0)
        TRY(read_whole(s, tensor, e));
    memcpy(dst, (const char *)s->whole + (size_t)at * size, n * size);
    return 0;
}

struct stored stored_weights(struct weights *w, const struct slices *s, const char *path)
{
    return (struct stored){.read = read_weights, .slices = s, .weights = w, .path = path};
}

void stored_finish(struct stored *s)
{
    free(s->whole);
    s->whole = NULL;
}
