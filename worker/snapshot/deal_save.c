/* A save: the writer of files asks for piece after piece; each piece is a chunk here, and all ranks go through the
 * chunks in the same order. For each of them a rank sends what it saves of it to the writers that do not hold all of
 * the tensor, and a writer takes what the others send.
 *
 * Who is behind is waited for, never the other way round: a rank is at most two chunks ahead of the slowest that takes
 * from it, and that one lacks nothing that others have not begun to send.
 *
 * What goes wrong: a file (the rest is taken and dropped), a message or a copy from the device (the communicator is
 * aborted, so that nobody waits: what is written then is not complete and goes). */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/snapshot/deal_impl.h"

static bool lacks(const struct deal *d, int rank, size_t tensor)
{
    return !exchange_whole(&d->x, rank, (int)tensor, slices_count(d->slices, tensor));
}

/* Does this rank send what it saves of the tensor to anybody? */
static bool is_sent(const struct deal *d, const bool *writers, size_t tensor)
{
    for (int r = 0; r < d->world; r++)
        if (r != d->rank && writers[r] && lacks(d, r, tensor))
            return true;
    return false;
}

void deal_wanted(const struct deal *d, const bool *writers, bool *wanted)
{
    for (size_t i = 0; i < d->slices->n_held; i++) {
        const struct piece *p = &d->slices->held[i].piece;
        const size_t tensor = (size_t)p->tensor;
        const bool written = writers[d->rank] && (p->saved || !lacks(d, d->rank, tensor));
        wanted[i] = written || (p->saved && is_sent(d, writers, tensor));
    }
}

void deal_abandon(struct deal *d)
{
    d->broken = d->comm != NULL;
    if (d->comm)
        d->comm->ops->abort(d->comm);
}

static int fail(struct deal *d, int rc)
{
    deal_abandon(d);
    return rc;
}

/* --- sending */

/* This slice's part of the chunk to every writer that lacks the tensor. */
static int send_slice(struct deal *d, struct slot *s, const struct chunk *c, const struct slice *v, struct err *e)
{
    const size_t size = slices_size(d->slices, c->tensor);
    int64_t first;
    const int64_t n = piece_range(&v->piece, c->first, c->first + c->n, &first);
    const void *values;
    if (n == 0 || !v->piece.saved)
        return 0;
    if (v->memory && v->copied == SIZE_MAX)
        TRY(deal_room(&s->room, e));
    TRY(slices_get(d->slices, v, first, n, s->room ? s->room + s->used : NULL, &values, e));
    s->used += (size_t)n * size;
    for (int r = 0; r < d->world; r++) {
        struct comm_request **request;
        if (r == d->rank || !d->writers[r] || !lacks(d, r, c->tensor))
            continue;
        TRY(deal_request(s, &request, e));
        TRY(d->comm->ops->isend(d->comm, COMM_CONTROL, values, (size_t)n * size, r, NULL, request, e));
    }
    return 0;
}

static int give(struct deal *d, struct err *e)
{
    struct slot *s = &d->give[d->turn];
    const struct chunk c = d->given;
    size_t n;
    deal_advance(&d->given);
    d->turn = !d->turn;
    if (!is_sent(d, d->writers, c.tensor))
        return 0;
    TRY(deal_wait(s, 0, e)); /* of two turns ago */
    const struct slice *v = deal_own(d, c.tensor, &n);
    for (size_t i = 0; i < n; i++)
        TRY(send_slice(d, s, &c, &v[i], e));
    return 0;
}

/* --- taking */

/* Of everybody's pieces of the chunk but this rank's, in the order of messages. fn: with where it is in the slot. */
typedef int piece_fn(struct deal *d, struct slot *s, const struct chunk *c, int rank, const struct piece *p, char *at,
                     size_t bytes, struct err *e);

static int each_message(struct deal *d, struct slot *s, const struct chunk *c, piece_fn *fn, struct err *e)
{
    char *at = s->room;
    for (int r = 0; r < d->world; r++) {
        size_t n;
        const struct piece *p = exchange_of(&d->x, r, (int)c->tensor, &n);
        for (size_t i = 0; i < n && r != d->rank; i++) {
            int64_t first;
            const size_t bytes =
                (size_t)piece_range(&p[i], c->first, c->first + c->n, &first) * slices_size(d->slices, c->tensor);
            if (bytes == 0 || !p[i].saved)
                continue;
            TRY(fn(d, s, c, r, &p[i], at, bytes, e));
            at += bytes;
        }
    }
    return 0;
}

static int begin_message(struct deal *d, struct slot *s, const struct chunk *c, int rank, const struct piece *p,
                         char *at, size_t bytes, struct err *e)
{
    struct comm_request **request;
    (void)c;
    (void)p;
    TRY(deal_request(s, &request, e));
    return d->comm->ops->irecv(d->comm, COMM_CONTROL, at, bytes, rank, NULL, request, e);
}

static int place_message(struct deal *d, struct slot *s, const struct chunk *c, int rank, const struct piece *p,
                         char *at, size_t bytes, struct err *e)
{
    (void)s;
    (void)rank;
    (void)bytes;
    (void)e;
    deal_scatter(p, c, slices_size(d->slices, c->tensor), at, d->piece);
    return 0;
}

/* Begin to receive a chunk that others have parts of. */
static int post(struct deal *d, struct slot *s, const struct chunk *c, struct err *e)
{
    if (!lacks(d, d->rank, c->tensor))
        return 0;
    TRY(deal_room(&s->room, e));
    return each_message(d, s, c, begin_message, e);
}

/* What this rank itself saves of the chunk (all: whatever it holds of it). *ret: the chunk, if that is all of it. */
static int place_own(struct deal *d, const struct chunk *c, bool all, const void **ret, struct err *e)
{
    size_t n;
    const struct slice *v = deal_own(d, c->tensor, &n);
    for (size_t i = 0; i < n; i++) {
        int64_t first;
        const void *values;
        const int64_t count = piece_range(&v[i].piece, c->first, c->first + c->n, &first);
        if (count == 0 || !(all || v[i].piece.saved))
            continue;
        TRY(slices_get(d->slices, &v[i], first, count, d->room, &values, e));
        if (count == c->n) {
            *ret = values;
            return 0;
        }
        deal_scatter(&v[i].piece, c, slices_size(d->slices, c->tensor), values, d->piece);
    }
    return 0;
}

/* The chunk after this one is on its way while this one is written. */
static int take(struct deal *d, const void **ret, struct err *e)
{
    struct slot *s = &d->take[0], *next = &d->take[1];
    deal_settle(d->slices, NULL, &d->taken);
    const struct chunk c = d->taken;
    TRY(deal_room(&d->piece, e));
    TRY(deal_room(&d->room, e));
    if (!d->posted)
        TRY(post(d, s, &c, e));
    deal_advance(&d->taken);
    d->posted = deal_settle(d->slices, NULL, &d->taken);
    if (d->posted)
        TRY(post(d, next, &d->taken, e));
    const bool all = !lacks(d, d->rank, c.tensor);
    TRY(deal_wait(s, 0, e));
    *ret = d->piece;
    if (!all)
        TRY(each_message(d, s, &c, place_message, e));
    TRY(place_own(d, &c, all, ret, e));
    const struct slot swap = *s;
    *s = *next;
    *next = swap;
    return 0;
}

/* One chunk: *ret is it, on a rank that writes. */
static int deal_chunk(struct deal *d, const void **ret, struct err *e)
{
    int rc = give(d, e);
    if (rc == 0 && d->writers[d->rank])
        rc = take(d, ret, e);
    return rc < 0 ? fail(d, rc) : 0;
}

static int source_bytes(const struct ckpt_source *source, const struct ckpt_tensor *t, int64_t at, size_t n,
                        const void **ret, struct err *e)
{
    struct deal *d = (struct deal *)(uintptr_t)((const char *)source - offsetof(struct deal, source));
    const size_t tensor = (size_t)(t - d->slices->tensors), size = slices_size(d->slices, tensor);
    const bool more = !d->broken && deal_settle(d->slices, NULL, &d->given);
    assert(d->broken || (more && d->given.tensor == tensor && d->given.first == at / (int64_t)size &&
                         (size_t)d->given.n * size == n));
    return more ? deal_chunk(d, ret, e) : err_set(e, -ECONNRESET, "what other ranks save does not come");
}

void deal_set_source(struct deal *d)
{
    d->source.bytes = source_bytes;
    for (size_t i = 0; i < d->slices->n; i++)
        d->slices->tensors[i].source = &d->source;
}

/* --- beginning and end */

/* After a blow-up the loss is still a number for one step while the state is not: parameters, or a running variance,
 * which overflows a step earlier. */
static int check_finite(struct deal *d, struct err *e)
{
    size_t found;
    TRY(deal_room(&d->room, e));
    int rc = slices_find_infinite(d->slices, d->room, CKPT_PIECE, &found, e);
    if (rc < 0)
        return fail(d, rc);
    int64_t first = (int64_t)found;
    if (d->comm)
        rc = d->comm->ops->all_reduce(d->comm, COMM_CONTROL, &first, 1, DT_I64, COMM_MIN, NULL, e);
    if (rc < 0)
        return fail(d, rc);
    d->refused = (size_t)first < d->slices->n;
    return d->refused
               ? err_set(e, ERR_DIVERGED, "no checkpoint is written: %s is not finite", d->slices->tensors[first].name)
               : 0;
}

int deal_save_begin(struct deal *d, const bool *writers, struct err *e)
{
    for (int r = 0; r < d->world; r++)
        d->writers[r] = !writers || writers[r];
    d->given = d->taken = (struct chunk){0};
    d->turn = 0;
    d->posted = d->refused = false;
    return check_finite(d, e);
}

int deal_save_end(struct deal *d, struct err *e)
{
    int rc = 0;
    const void *dropped;
    while (rc == 0 && !d->broken && !d->refused && d->comm && deal_settle(d->slices, NULL, &d->given))
        rc = deal_chunk(d, &dropped, e);
    for (int i = 0; i < 2; i++) { /* also after a failure: requests are to be waited for */
        const int rc2 = deal_wait(&d->give[i], 0, rc < 0 ? NULL : e), rc3 = deal_wait(&d->take[i], 0, NULL);
        rc = rc < 0 ? rc : rc2 < 0 ? fail(d, rc2) : rc3 < 0 ? fail(d, rc3) : 0;
    }
    return rc;
}
