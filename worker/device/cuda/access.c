/* Tensors of a plan as doubles: tests and predict. */
#include <errno.h>
#include <stdlib.h>

#include "worker/device/cuda/plan.h"

static size_t logical_index(const struct view4 *v, int n, int c, int h, int w)
{
    return (((size_t)n * (size_t)v->c + (size_t)c) * (size_t)v->h + (size_t)h) * (size_t)v->w + (size_t)w;
}

static size_t stored_index(const struct view4 *v, int n, int c, int h, int w)
{
    if (!v->nhwc)
        return logical_index(v, n, c, h, w);
    return (((size_t)n * (size_t)v->h + (size_t)h) * (size_t)v->w + (size_t)w) * (size_t)v->c + (size_t)c;
}

/* Where the plan has an element of tensor t; v: its view. */
static size_t index_of(const struct cuda_plan *pl, int t, const struct view4 *v, int n, int c, int h, int w)
{
    if (pl->fold.conv >= 0 && t == pl->p->ops[0].out)
        fold_place(&pl->fold, &c, &h, &w);
    return stored_index(v, n, c, h, w);
}

static double element(const void *raw, enum dtype t, size_t i)
{
    if (t == DT_F16)
        return (double)f32_from_f16(((const uint16_t *)raw)[i]);
    if (t == DT_BF16)
        return (double)f32_from_bf16(((const uint16_t *)raw)[i]);
    return (double)((const float *)raw)[i];
}

static void set_element(void *raw, enum dtype t, size_t i, double x)
{
    if (t == DT_F16)
        ((uint16_t *)raw)[i] = f16_from_f32((float)x);
    else if (t == DT_BF16)
        ((uint16_t *)raw)[i] = bf16_from_f32((float)x);
    else
        ((float *)raw)[i] = (float)x;
}

/* Where tensor t is, and a host copy of its size. */
static int reach(struct cuda_plan *pl, int t, struct view4 *v, size_t *bytes, void **at, void **raw, struct err *e)
{
    if (t < 0 || t >= pl->p->ntensors || pl->value[t] == NO_BUFFER || !pl->buffers[pl->value[t]].keep)
        return err_set(e, -EINVAL, "tensor %d is not kept by this plan", t);
    *v = cuda_plan_view(pl, t);
    *bytes = (size_t)v->n * (size_t)v->c * (size_t)v->h * (size_t)v->w * dtype_size(v->type);
    *at = cuda_plan_at(pl, pl->value[t]);
    *raw = calloc(1, *bytes);
    return *raw ? 0 : err_set(e, -ENOMEM, "no memory for %zu bytes of a tensor", *bytes);
}

/* Walk over the logical elements of `rows` samples: those of padding are not among them. */
#define EACH(rows, x)                                                                                                  \
    for (int n = 0; n < (rows); n++)                                                                                   \
        for (int c = 0; c < (x).c; c++)                                                                                \
            for (int h = 0; h < (x).h; h++)                                                                            \
                for (int w = 0; w < (x).w; w++)

int cuda_plan_get(struct plan *plan, int t, double *out, struct err *e)
{
    struct cuda_plan *pl = (struct cuda_plan *)plan;
    struct device *d = &pl->cuda->base;
    struct view4 v;
    size_t bytes, i = 0;
    void *at, *raw;
    TRY(reach(pl, t, &v, &bytes, &at, &raw, e));
    int rc = d->ops->download(d, raw, at, bytes, e);
    if (rc == 0)
        EACH(v.n, pl->p->tensors[t])
    out[i++] = element(raw, v.type, index_of(pl, t, &v, n, c, h, w));
    free(raw);
    return rc;
}

int cuda_plan_put(struct plan *plan, int t, const double *in, struct err *e)
{
    struct cuda_plan *pl = (struct cuda_plan *)plan;
    struct device *d = &pl->cuda->base;
    struct view4 v;
    size_t bytes, i = 0;
    void *at, *raw;
    TRY(reach(pl, t, &v, &bytes, &at, &raw, e));
    EACH(v.n, pl->p->tensors[t])
    set_element(raw, v.type, index_of(pl, t, &v, n, c, h, w), in[i++]);
    int rc = d->ops->upload(d, at, raw, bytes, e);
    free(raw);
    return rc;
}
