/* Pictures, or tokens, made up on the spot, to measure everything but reading: noise that depends on the sample alone,
 * label of a picture = sample mod classes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/data/image/rng.h"
#include "worker/data/sets/dataset_impl.h"

#define TRAIN_SAMPLES 1281167 /* ImageNet's */
#define TEST_SAMPLES 50000

struct null_set {
    struct dataset base; /* first */
    int size;
};

static int null_read(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e)
{
    const int size = ((const struct null_set *)d)->size;
    const size_t n = (size_t)size * (size_t)size * 3, room = (n + 7) / 8 * 8;
    if (buf_printf(data, "P6\n%d %d\n255\n", size, size) < 0 || buf_reserve(data, room + 1) < 0)
        return err_set(e, -ENOMEM, "no memory for a picture of %zu bytes", n);
    struct rng r = rng_stream(0, RNG_NULL, i, 0);
    for (size_t at = 0; at < n; at += 8) {
        const uint64_t v = rng_u64(&r);
        memcpy(data->data + data->len + at, &v, 8);
    }
    data->len += n;
    *label = (int)(i % (size_t)d->classes);
    return 0;
}

static int null_read_tokens(struct dataset *d, size_t i, int32_t *tokens, int32_t *labels, struct err *e)
{
    struct rng r = rng_stream(0, RNG_NULL, i, 0);
    (void)e;
    for (int k = 0; k < d->length; k++) {
        tokens[k] = (int32_t)rng_below(&r, (uint64_t)d->classes);
        labels[k > 0 ? k - 1 : d->length - 1] = tokens[k];
    }
    return 0;
}

static const char *null_sample_name(struct dataset *d, size_t i)
{
    static _Thread_local char name[48];
    snprintf(name, sizeof name, "made-up sample %zu", i);
    return name;
}

static void null_close(struct dataset *d)
{
    dataset_free_classes(d);
    free(d);
}

static const struct dataset_ops null_ops = {
    .name = "null",
    .read = null_read,
    .read_tokens = null_read_tokens,
    .sample_name = null_sample_name,
    .close = null_close,
};

int dataset_open_null(struct dataset **ret, const struct dataset_options *o, struct err *e)
{
    struct null_set *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, -ENOMEM, "no memory for a data set");
    s->base.ops = &null_ops;
    s->base.n = o->null_samples ? o->null_samples : o->testing ? TEST_SAMPLES : TRAIN_SAMPLES;
    s->base.length = o->length;
    s->base.classes = o->vocabulary;
    s->size = o->null_size > 0 ? o->null_size : 224;
    int n = o->class_names ? o->classes : o->num_labels > 0 ? o->num_labels : 1000;
    int rc = o->length ? 0 : dataset_set_classes(&s->base, o->class_names, n, e);
    if (rc < 0)
        null_close(&s->base);
    else
        *ret = &s->base;
    return rc;
}
