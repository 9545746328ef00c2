/* Starts the reductions of gradients, bucket by bucket, and waits for them. */
#include "worker/parallel/ddp_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "worker/comm/comm.h"
#include "worker/parallel/pages.h"
#include "worker/parallel/wire.h"

struct comm *ddp_group(const struct ddp *d, enum layout_group g)
{
    return d->groups[g] && d->groups[g]->world > 1 ? d->groups[g] : NULL;
}

static char *element(const struct ddp *d, size_t i)
{
    return d->reduce + i * dtype_size(d->real);
}

static int all_reduce(struct comm *c, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    return c->ops->all_reduce(c, COMM_GRADIENTS, buf, n, t, COMM_SUM, stream, e);
}

/* Gradients [first, first + n) become halves that a sum fits in; and halves at `from` such gradients. */
static int pack(struct ddp *d, size_t first, size_t n, float ranks, void *stream, struct err *e)
{
    if (d->async)
        return d->async->convert(d->device, stream, d->half, d->wire, element(d, first), d->real, n, 1 / ranks, e);
    wire_pack(d->half, d->reduce, first, n, d->real, d->wire, 1 / ranks);
    return 0;
}

static int unpack(struct ddp *d, size_t first, const void *from, size_t n, float ranks, void *stream, struct err *e)
{
    if (d->async)
        return d->async->convert(d->device, stream, element(d, first), d->real, from, d->wire, n, ranks, e);
    wire_unpack(d->reduce, from, first, n, d->real, d->wire, ranks);
    return 0;
}

/* Gradients [first, first + n) go as halves. */
static int reduce_half(struct ddp *d, struct comm *c, size_t first, size_t n, void *stream, struct err *e)
{
    TRY(pack(d, first, n, (float)c->world, stream, e));
    TRY(all_reduce(c, d->half, n, d->wire, stream, e));
    return unpack(d, first, d->half, n, (float)c->world, stream, e);
}

static void shed(const struct ddp *d, const struct ownership_piece *p)
{
    struct ownership_range gaps[OWNERSHIP_GAPS];
    int n;
    ownership_gaps(p, gaps, &n);
    for (int i = 0; i < n; i++)
        pages_drop(d->reduce, gaps[i].first * dtype_size(d->real), gaps[i].end * dtype_size(d->real));
}

/* The sums of this rank's part go to its second owner, and those that it is the second owner of come. */
static int share_with_second(struct ddp *d, struct comm *c, const struct ownership_piece *p, void *stream,
                             struct err *e)
{
    const size_t bytes = p->part * dtype_size(d->real);
    struct comm_request *all[2] = {NULL, NULL};
    if (p->distance == 0)
        return 0;
    int rc = c->ops->irecv(c, COMM_GRADIENTS, element(d, p->second.first), bytes,
                           (c->rank + c->world - p->distance) % c->world, stream, &all[0], e);
    if (rc == 0)
        rc = c->ops->isend(c, COMM_GRADIENTS, element(d, p->mine.first), bytes, (c->rank + p->distance) % c->world,
                           stream, &all[1], e);
    return comm_wait_all(all, 2, rc, e);
}

/* A rank's part becomes the sum where it lies. */
static int reduce_scatter(struct ddp *d, struct comm *c, const struct ownership_piece *p, void *stream, struct err *e)
{
    const float ranks = (float)c->world;
    uint16_t *half = d->half ? d->half + (p->mine.first - p->first) : NULL;
    if (half)
        TRY(pack(d, p->first, p->end - p->first, ranks, stream, e));
    TRY(c->ops->reduce_scatter(c, COMM_GRADIENTS, half ? (void *)d->half : element(d, p->first),
                               half ? (void *)half : element(d, p->mine.first), p->part, half ? d->wire : d->real,
                               COMM_SUM, stream, e));
    if (half)
        TRY(unpack(d, p->mine.first, half, p->part, ranks, stream, e));
    TRY(share_with_second(d, c, p, stream, e));
    if (d->sheds)
        shed(d, p);
    return 0;
}

int ddp_reduce_bucket(struct ddp *d, int k, void *stream, struct err *e)
{
    const struct ownership_piece *p = ownership_bucket(d->own, k);
    struct comm *c = ddp_group(d, p->group);
    size_t first = p->first, end = p->end + (k == d->buckets - 1 && !d->tail_stays ? d->n_tail : 0);
    if (!c)
        return 0;
    if (p->part)
        return reduce_scatter(d, c, p, stream, e);
    if (d->half && first < p->end) {
        TRY(reduce_half(d, c, first, p->end - first, stream, e));
        first = p->end;
    }
    return first < end ? all_reduce(c, element(d, first), end - first, d->real, stream, e) : 0;
}

int ddp_gather_piece(struct ddp *d, int k, const char *mine, char *to, struct err *e)
{
    const struct ownership_piece *p = &d->own->pieces[k];
    const size_t elem = dtype_size(d->real);
    struct comm *c = ddp_group(d, p->group);
    if (p->part == 0 || !c)
        return 0;
    return c->ops->all_gather(c, COMM_GRADIENTS, mine, to, p->part * elem, d->side, e);
}

int ddp_gather(struct ddp *d, void *arena, struct err *e)
{
    const size_t elem = dtype_size(d->real);
    char *at = arena;
    const bool cut = ownership_largest_part(d->own) > 0;
    TRY(cut ? ddp_fork(d, e) : 0);
    for (int k = 0; k < d->own->nbuckets; k++) {
        const struct ownership_piece *p = &d->own->pieces[k];
        TRY(ddp_gather_piece(d, k, at + p->mine.first * elem, at + p->first * elem, e));
    }
    return cut ? ddp_end(d, e) : 0;
}

static int tie_range(struct ddp *d, struct ownership_range r, struct err *e)
{
    void *stream = d->async ? d->async->compute(d->device) : NULL;
    return r.first < r.end
               ? all_reduce(ddp_group(d, LAYOUT_ENDS), element(d, r.first), r.end - r.first, d->real, stream, e)
               : 0;
}

int ddp_tie(struct ddp *d, struct err *e)
{
    if (!ddp_group(d, LAYOUT_ENDS))
        return 0;
    for (int k = 0; k < d->own->nbuckets; k++) {
        const struct ownership_piece *p = &d->own->pieces[k];
        TRY(p->tied ? tie_range(d, p->mine, e) : 0);
        TRY(p->tied ? tie_range(d, p->second, e) : 0);
    }
    return ddp_settle(d, e);
}

bool ddp_each_part(const struct ddp *d)
{
    return d->sheds;
}

/* n elements at `at` of the kept sums and `first` of the arena. */
static void keep_range(struct ddp *d, size_t at, size_t first, size_t n, bool begin, bool back)
{
    char *kept = d->kept + at * dtype_size(d->real), *now = element(d, first);
    for (size_t i = 0; i < n && !begin && d->real == DT_F64; i++)
        ((double *)(void *)kept)[i] += ((const double *)(void *)now)[i];
    for (size_t i = 0; i < n && !begin && d->real != DT_F64; i++)
        ((float *)(void *)kept)[i] += ((const float *)(void *)now)[i];
    if (begin || back)
        memcpy(begin ? kept : now, begin ? now : kept, n * dtype_size(d->real));
}

int ddp_keep(struct ddp *d, bool first, bool last, struct err *e)
{
    const size_t owned = ownership_elements(d->own, OWNERSHIP_GRADIENTS);
    if (!d->kept && !(d->kept = malloc((owned + d->n_tail) * dtype_size(d->real))))
        return err_set(e, -ENOMEM, "no memory for %zu gradients", owned);
    for (int k = 0; k < d->own->nowned && d->own->owned[k].first < d->own->n_train; k++) {
        const struct ownership_range *r = &d->own->owned[k];
        keep_range(d, r->kept, r->first, r->end - r->first, first, last);
    }
    if (!d->tail_apart)
        keep_range(d, owned, d->own->n_train, d->n_tail, first, last);
    return 0;
}

int ddp_confirm(struct ddp *d, struct err *e)
{
    struct comm *c = ddp_group(d, LAYOUT_ALL);
    return c ? c->ops->barrier(c, COMM_CONTROL, e) : 0;
}

int ddp_sum(struct ddp *d, enum layout_group g, double *v, size_t n, struct err *e)
{
    struct comm *c = ddp_group(d, g);
    return c ? c->ops->all_reduce(c, COMM_CONTROL, v, n, DT_F64, COMM_SUM, NULL, e) : 0;
}
