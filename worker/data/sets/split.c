/* Divides a set into what is trained on and what is held out. */
#include "worker/data/sets/split.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/data/image/rng.h"
#include "worker/data/sets/dataset.h"

struct whole {
    struct dataset *d;
    int parts; /* that are not closed */
};

struct part {
    struct dataset base;
    struct dataset_ops ops;
    struct whole *whole;
    uint32_t *at; /* (n): numbers in the whole, rising */
};

static struct dataset *whole_of(struct dataset *d, size_t *i)
{
    const struct part *p = (const struct part *)d;
    *i = p->at[*i];
    return p->whole->d;
}

static int part_read(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e)
{
    struct dataset *w = whole_of(d, &i);
    return w->ops->read(w, i, data, label, e);
}

static int part_read_tokens(struct dataset *d, size_t i, int32_t *tokens, int32_t *labels, struct err *e)
{
    struct dataset *w = whole_of(d, &i);
    return w->ops->read_tokens(w, i, tokens, labels, e);
}

static int part_label(struct dataset *d, size_t i)
{
    struct dataset *w = whole_of(d, &i);
    return w->ops->label(w, i);
}

static const char *part_sample_name(struct dataset *d, size_t i)
{
    struct dataset *w = whole_of(d, &i);
    return w->ops->sample_name(w, i);
}

static void part_close(struct dataset *d)
{
    struct part *p = (struct part *)d;
    struct whole *w = p->whole;
    free(p->at);
    free(d->shard_ends);
    free(p);
    if (--w->parts > 0)
        return;
    dataset_close(w->d);
    free(w);
}

/* FNV-1a */
static uint64_t hash(const char *text)
{
    uint64_t h = 14695981039346656037u;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        h = (h ^ *c) * 1099511628211u;
    return h;
}

static bool is_held(struct dataset *d, size_t i, const char *root, double share, uint64_t seed)
{
    const char *name = d->ops->sample_name(d, i);
    const size_t n = strlen(root);
    name += strncmp(name, root, n) == 0 ? n : 0;
    struct rng r = rng_stream(seed, RNG_SPLIT, hash(name + strspn(name, "/")), 0);
    return rng_unit(&r) < share;
}

/* Of a set in shards: those that have a sample left. */
static int part_shards(struct part *p, const struct dataset *whole, struct err *e)
{
    if (!whole->shard_ends)
        return 0;
    p->base.shard_ends = calloc((size_t)whole->n_shards, sizeof *p->base.shard_ends);
    if (!p->base.shard_ends)
        return err_errno(e, ENOMEM, "%d shards", whole->n_shards);
    size_t i = 0;
    for (int k = 0; k < whole->n_shards; k++) {
        const size_t first = i;
        while (i < p->base.n && p->at[i] < whole->shard_ends[k])
            i++;
        if (i > first)
            p->base.shard_ends[p->base.n_shards++] = (uint32_t)i;
    }
    return 0;
}

/* The n samples that are held, or are not. */
static int make_part(struct part **ret, struct whole *w, const bool *held, bool which, size_t n, struct err *e)
{
    struct part *p = calloc(1, sizeof *p);
    uint32_t *at = malloc((n + 1) * sizeof *at);
    if (!p || !at) {
        free(p);
        free(at);
        return err_errno(e, ENOMEM, "a part of a data set");
    }
    *p = (struct part){.base = *w->d, .whole = w, .at = at};
    p->ops = (struct dataset_ops){.name = w->d->ops->name,
                                  .read = part_read,
                                  .read_tokens = w->d->ops->read_tokens ? part_read_tokens : NULL,
                                  .label = w->d->ops->label ? part_label : NULL,
                                  .sample_name = part_sample_name,
                                  .close = part_close};
    p->base.ops = &p->ops;
    p->base.n = 0;
    p->base.shard_ends = NULL;
    p->base.n_shards = 0;
    for (size_t i = 0; i < w->d->n; i++)
        if (held[i] == which)
            at[p->base.n++] = (uint32_t)i;
    w->parts++;
    *ret = p;
    return part_shards(p, w->d, e);
}

/* Is there something left to train on of each class? */
static int check_classes(struct dataset *train, double share, struct err *e)
{
    if (!train->ops->label || train->length)
        return 0;
    bool *seen = calloc((size_t)train->classes + 1, sizeof *seen);
    if (!seen)
        return err_errno(e, ENOMEM, "%d classes", train->classes);
    for (size_t i = 0; i < train->n; i++) {
        const int label = train->ops->label(train, i);
        if (label >= 0 && label < train->classes)
            seen[label] = true;
    }
    int lost = 0;
    while (lost < train->classes && seen[lost])
        lost++;
    free(seen);
    if (lost == train->classes)
        return 0;
    return err_set(e, ERR_DATA, "--val-split %g leaves no sample of class %d (%s) to train on: hold less out", share,
                   lost, train->class_names ? train->class_names[lost] : "?");
}

static size_t choose(struct dataset *d, const char *root, double share, uint64_t seed, bool *held)
{
    size_t n = 0;
    for (size_t i = 0; i < d->n; i++)
        n += held[i] = is_held(d, i, root, share, seed);
    return n;
}

int dataset_split(struct dataset *whole, const char *root, double share, uint64_t seed, struct dataset **ret_train,
                  struct dataset **ret_held, struct err *e)
{
    struct part *train = NULL, *out = NULL;
    struct whole *w = calloc(1, sizeof *w);
    bool *held = calloc(whole->n + 1, sizeof *held);
    int rc = w && held ? 0 : err_errno(e, ENOMEM, "parts of a data set");
    const size_t n = rc == 0 ? choose(whole, root, share, seed, held) : 0;
    if (rc == 0 && (n == 0 || n == whole->n))
        rc = err_set(e, ERR_DATA, "--val-split %g holds out %zu of the %zu samples of %s: more data, or another share",
                     share, n, whole->n, root);
    if (rc == 0) {
        w->d = whole;
        rc = make_part(&train, w, held, false, whole->n - n, e);
    }
    rc = rc == 0 ? make_part(&out, w, held, true, n, e) : rc;
    rc = rc == 0 ? check_classes(&train->base, share, e) : rc;
    free(held);
    if (rc == 0) {
        out->base.left_out = NULL; /* told once */
        *ret_train = &train->base;
        *ret_held = &out->base;
        return 0;
    }
    if (train || out)
        w->parts++; /* the caller closes the whole */
    if (train)
        part_close(&train->base);
    if (out)
        part_close(&out->base);
    free(w);
    return rc;
}
