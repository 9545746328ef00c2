/* Serves the samples of a block of raw pictures in memory. */
#include "worker/data/sets/raw_set.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"

static size_t picture_bytes(const struct raw_set *r)
{
    return (size_t)r->w * (size_t)r->h * (size_t)r->c;
}

/* As PPM or PGM: what image_decode() takes. */
static int raw_read(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e)
{
    const struct raw_set *r = (const struct raw_set *)d;
    const size_t n = picture_bytes(r), plane = (size_t)r->w * (size_t)r->h, c = (size_t)r->c;
    const uint8_t *px = r->px + i * n;
    if (buf_printf(data, "P%c\n%d %d\n255\n", r->c == 3 ? '6' : '5', r->w, r->h) < 0 || buf_reserve(data, n + 1) < 0)
        return err_set(e, -ENOMEM, "no memory for a picture of %zu bytes", n);
    uint8_t *dst = (uint8_t *)data->data + data->len;
    if (r->planar)
        for (size_t k = 0; k < n; k++)
            dst[k] = px[k % c * plane + k / c];
    else
        memcpy(dst, px, n);
    dst[n] = '\0';
    data->len += n;
    *label = r->labels[i];
    return dataset_check_label(d, *label, e);
}

static int raw_label(struct dataset *d, size_t i)
{
    return ((const struct raw_set *)d)->labels[i];
}

static const char *raw_sample_name(struct dataset *d, size_t i)
{
    static _Thread_local char name[64];
    snprintf(name, sizeof name, "%s picture %zu", ((const struct raw_set *)d)->what, i);
    return name;
}

static void raw_close(struct dataset *d)
{
    struct raw_set *r = (struct raw_set *)d;
    dataset_free_classes(d);
    free(r->px);
    free(r->labels);
    free(r);
}

static const struct dataset_ops raw_ops = {
    .name = "raw",
    .read = raw_read,
    .label = raw_label,
    .sample_name = raw_sample_name,
    .close = raw_close,
};

struct raw_set *raw_set_create(const char *what)
{
    struct raw_set *r = calloc(1, sizeof *r);
    if (r) {
        r->base.ops = &raw_ops;
        r->what = what;
    }
    return r;
}

int raw_set_reserve(struct raw_set *r, size_t more, struct err *e)
{
    const size_t n = r->base.n + more;
    uint8_t *px = realloc(r->px, n * picture_bytes(r) + 1);
    r->px = px ? px : r->px;
    uint8_t *labels = px ? realloc(r->labels, n + 1) : NULL;
    r->labels = labels ? labels : r->labels;
    return labels ? 0 : err_set(e, -ENOMEM, "no memory for %zu pictures of %s", n, r->what);
}

int raw_set_check(struct raw_set *r, const struct dataset_options *o, char *const *own_names, int own, struct err *e)
{
    if (r->base.n == 0)
        return err_set(e, ERR_DATA, "a %s set without pictures", r->what);
    if (o->class_names && o->classes != own)
        return err_set(e, ERR_DATA, "%s has %d classes, the training data %d", r->what, own, o->classes);
    for (size_t i = 0; i < r->base.n; i++)
        if (r->labels[i] >= own)
            return err_set(e, ERR_DATA, "picture %zu of %s has label %d (expected 0 to %d)", i, r->what, r->labels[i],
                           own - 1);
    return dataset_set_classes(&r->base, own_names, own, e);
}
