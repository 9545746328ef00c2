/* Everything that happens to the arenas after backward, a launch or two each, whatever the number of tensors. Nothing
 * here waits, but for the table of slices, which is made when they are first seen: all together, or one by one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/cuda/cuda.h"

static struct cuda *self(struct device *d)
{
    return (struct cuda *)d;
}

void cuda_update_close(struct cuda *c)
{
    struct update_table *t = &c->table;
    struct err ignored = {0}; /* of earlier work, which the next call that waits tells */
    if (t->device)            /* an update that reads the table may be under way */
        c->gpu->ops->stream_sync(c->gpu, c->compute, &ignored);
    cuda_give(c, t->device, t->bytes);
    free(t->slices);
    *t = (struct update_table){0};
}

static int chunks_of(size_t n)
{
    return (int)((n + KERNEL_CHUNK - 1) / KERNEL_CHUNK);
}

static void fill_table(const struct update_table *t, struct k_slice *slices, struct k_chunk *chunks)
{
    int k = 0;
    for (int i = 0; i < t->n; i++) {
        const struct update_slice *s = &t->slices[i];
        const size_t end = s->first + s->n;
        slices[i] = (struct k_slice){.first = s->first,
                                     .n = s->n,
                                     .skipped = s->skipped,
                                     .params_skipped = s->params_skipped,
                                     .weight_decay = s->weight_decay,
                                     .trust = s->trust,
                                     .chunk = k,
                                     .nchunks = chunks_of(s->n)};
        for (size_t at = s->first; at < end; at += KERNEL_CHUNK)
            chunks[k++] = (struct k_chunk){
                .first = at, .n = (int32_t)(end - at < KERNEL_CHUNK ? end - at : KERNEL_CHUNK), .slice = i};
    }
}

/* One block of device memory: slices and chunks, which the host writes, then partial sums and norms. */
static int make_table(struct cuda *c, struct update_table *t, struct err *e)
{
    const size_t slices = (size_t)t->n * sizeof(struct k_slice), chunks = (size_t)t->nchunks * sizeof(struct k_chunk),
                 partial = (size_t)t->nchunks * 2 * sizeof(double), norms = (size_t)t->n * 2 * sizeof(float);
    t->bytes = slices + chunks + partial + norms;
    char *host = calloc(1, slices + chunks);
    if (!host)
        return err_set(e, -ENOMEM, "no memory for a table of %d slices", t->n);
    fill_table(t, (struct k_slice *)(void *)host, (struct k_chunk *)(void *)(host + slices));
    int rc = cuda_take(c, t->bytes, &t->device, e);
    if (rc == 0)
        rc = c->base.ops->upload(&c->base, t->device, host, slices + chunks, e);
    free(host);
    TRY(rc);
    char *at = t->device;
    t->k_slices = (const void *)at;
    t->k_chunks = (const void *)(at + slices);
    t->partial = (void *)(at + slices + chunks);
    t->norms = (void *)(at + slices + chunks + partial);
    return 0;
}

/* That of these slices, from now on. */
static int table_of(struct cuda *c, const struct update_slice *slices, int n, struct err *e)
{
    struct update_table *t = &c->table;
    const size_t bytes = (size_t)n * sizeof *slices;
    if (t->device && t->n == n && memcmp(t->slices, slices, bytes) == 0)
        return 0;
    cuda_update_close(c);
    t->slices = malloc(bytes);
    if (!t->slices)
        return err_set(e, -ENOMEM, "no memory for a table of %d slices", n);
    memcpy(t->slices, slices, bytes);
    t->n = n;
    for (int i = 0; i < n; i++)
        t->nchunks += chunks_of(slices[i].n);
    return make_table(c, t, e);
}

static bool overlap(const struct update_slice *a, const struct update_slice *b)
{
    return a->first < b->first + b->n && b->first < a->first + a->n;
}

/* Of slices in the table. */
struct some_slices {
    int slice, nslices, chunk, nchunks;
};

/* Of slices that come one by one, step after step: each has its place in the table, which it joins when it is first
 * seen. Those that it overlaps are of a cut that is no more. */
static int place_of(struct cuda *c, const struct update_slice *one, struct some_slices *ret, struct err *e)
{
    struct update_table *t = &c->table;
    const int known = t->device ? t->n : 0;
    int n = 0, chunk = 0;
    for (int i = 0; i < known; i++) {
        ret->slice = i;
        ret->chunk = chunk;
        if (memcmp(&t->slices[i], one, sizeof *one) == 0)
            return 0;
        chunk += chunks_of(t->slices[i].n);
    }
    struct update_slice *all = malloc(((size_t)known + 1) * sizeof *all);
    if (!all)
        return err_set(e, -ENOMEM, "no memory for a table of %d slices", known + 1);
    ret->chunk = 0;
    for (int i = 0; i < known; i++)
        if (!overlap(&t->slices[i], one)) {
            ret->chunk += chunks_of(t->slices[i].n);
            all[n++] = t->slices[i];
        }
    ret->slice = n;
    all[n++] = *one;
    const int rc = table_of(c, all, n, e);
    free(all);
    return rc;
}

static struct k_update k_update_of(struct cuda *c, const struct update *u, const struct some_slices *n, void *params,
                                   const void *grads, void *momentum, const void *count)
{
    return (struct k_update){.u = *u,
                             .lr = (float)u->lr,
                             .step = (int32_t)u->step,
                             .slices = c->table.k_slices,
                             .chunks = c->table.k_chunks + n->chunk,
                             .nchunks = n->nchunks,
                             .params = params,
                             .momentum = momentum,
                             .second = u->second,
                             .grads = grads,
                             .count = count,
                             .scaler = cuda_guard(c),
                             .norms = c->table.norms};
}

/* Of weights, and of gradients or of LAMB's directions. */
static int norms(struct cuda *c, const struct k_update *u, const struct some_slices *n, struct err *e)
{
    struct k_lars_norms k = {.u = *u,
                             .slice = n->slice,
                             .nslices = n->nslices,
                             .chunk = n->chunk,
                             .nchunks = n->nchunks,
                             .partial = c->table.partial,
                             .norms = c->table.norms};
    k.u.chunks = c->table.k_chunks;
    k.u.norms = NULL; /* they are made */
    return c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_LARS_NORMS, &k, e);
}

static int update_slices(struct cuda *c, const struct update *u, const struct some_slices *n, bool trusts, void *params,
                         const void *grads, void *momentum, const void *count, struct err *e)
{
    struct gpu *g = c->gpu;
    const struct k_update k = k_update_of(c, u, n, params, grads, momentum, count);
    if (trusts && (u->rule == UPDATE_LARS || u->rule == UPDATE_LAMB))
        TRY(norms(c, &k, n, e));
    if (u->measure)
        return g->ops->copy(g, c->compute, u->measure, c->table.norms + 2 * n->slice + 1, sizeof(float), e);
    return g->ops->kernel(g, c->compute, KERNEL_UPDATE, &k, e);
}

int cuda_update_all(struct device *d, const struct update *u, const struct update_slice *slices, int n, void *params,
                    const void *grads, void *momentum, const void *count, struct err *e)
{
    struct cuda *c = self(d);
    if (n == 0)
        return 0;
    TRY(table_of(c, slices, n, e));
    const struct some_slices all = {.nslices = n, .nchunks = c->table.nchunks};
    return update_slices(c, u, &all, true, params, grads, momentum, count, e);
}

int cuda_update(struct device *d, const struct update *u, void *params, const void *grads, void *momentum,
                const void *count, struct err *e)
{
    struct cuda *c = self(d);
    struct some_slices of = {.nslices = 1, .nchunks = chunks_of(u->n)};
    const struct update_slice one = {.first = u->first,
                                     .n = u->n,
                                     .weight_decay = u->weight_decay,
                                     .trust = u->measure ? 0 : u->trust, /* as when it is updated by rates */
                                     .skipped = u->skipped,
                                     .params_skipped = u->params_skipped};
    TRY(place_of(c, &one, &of, e));
    return update_slices(c, u, &of, u->trust > 0, params, grads, momentum, count, e);
}

int cuda_grad_norm(struct device *d, const void *grads, size_t n, double grad_mul, const void *count, void *norm,
                   struct err *e)
{
    struct cuda *c = self(d);
    const struct k_norm k = {.n = n,
                             .x = grads,
                             .count = count,
                             .scaler = count ? cuda_guard(c) : NULL,
                             .mul = (float)grad_mul,
                             .out = norm,
                             .partial = c->partial};
    return c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_NORM, &k, e);
}

int cuda_blend(struct device *d, void *to, const void *from, size_t n, double weight, struct err *e)
{
    struct cuda *c = self(d);
    const struct k_blend k = {.n = n, .to = to, .from = from, .scaler = cuda_guard(c), .weight = (float)weight};
    return c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_BLEND, &k, e);
}

int cuda_round(struct device *d, void *x, size_t n, enum dtype t, struct err *e)
{
    struct cuda *c = self(d);
    const struct k_round k = {.n = n, .x = x, .to = t};
    if (t != DT_F16 && t != DT_BF16)
        return 0;
    return n ? c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_ROUND, &k, e) : 0;
}

int cuda_update_stats(struct device *d, void *stats, const void *sums, size_t n, double momentum, const void *count,
                      struct err *e)
{
    struct cuda *c = self(d);
    const struct k_blend k = {
        .n = n, .to = stats, .from = sums, .count = count, .scaler = cuda_guard(c), .weight = (float)momentum};
    return c->gpu->ops->kernel(c->gpu, c->compute, KERNEL_BLEND, &k, e);
}
