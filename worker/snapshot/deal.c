/* Moves tensors between ranks and a file, piece by piece. */
#include "worker/snapshot/deal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/snapshot/deal_impl.h"

/* --- chunks */

bool deal_settle(const struct slices *s, const bool *wanted, struct chunk *c)
{
    for (; c->tensor < s->n; c->tensor++, c->first = 0) {
        const int64_t left = slices_count(s, c->tensor) - c->first,
                      most = (int64_t)(CKPT_PIECE / slices_size(s, c->tensor));
        c->n = left < most ? left : most;
        if (c->n > 0 && (!wanted || wanted[c->tensor]))
            return true;
    }
    return false;
}

void deal_advance(struct chunk *c)
{
    c->first += c->n;
}

void deal_scatter(const struct piece *p, const struct chunk *c, size_t size, const char *from, char *chunk)
{
    struct segment g;
    for (int64_t at = c->first; piece_segment(p, at, c->first + c->n, &g); at = g.whole + g.n) {
        memcpy(chunk + (size_t)(g.whole - c->first) * size, from, (size_t)g.n * size);
        from += (size_t)g.n * size;
    }
}

void deal_gather(const struct piece *p, const struct chunk *c, size_t size, const char *chunk, char *to)
{
    struct segment g;
    for (int64_t at = c->first; piece_segment(p, at, c->first + c->n, &g); at = g.whole + g.n) {
        memcpy(to, chunk + (size_t)(g.whole - c->first) * size, (size_t)g.n * size);
        to += (size_t)g.n * size;
    }
}

/* --- messages on their way */

int deal_room(char **room, struct err *e)
{
    if (!*room && !(*room = malloc(CKPT_PIECE)))
        return err_errno(e, ENOMEM, "a buffer for a checkpoint");
    return 0;
}

int deal_request(struct slot *s, struct comm_request ***ret, struct err *e)
{
    TRY(ARRAY_GROW(s->requests, s->cap, s->n + 1, "messages", e));
    s->requests[s->n] = NULL;
    *ret = &s->requests[s->n++];
    return 0;
}

int deal_wait(struct slot *s, int rc, struct err *e)
{
    const int n = (int)s->n;
    s->n = s->used = 0;
    return comm_wait_all(s->requests, n, rc, e);
}

void deal_slot_free(struct slot *s)
{
    free(s->room);
    free(s->requests);
    *s = (struct slot){0};
}

/* --- who holds what */

/* Everybody's list, in rank order; begin[r]: where that of rank r begins. */
static int gather_pieces(struct comm *c, const struct piece *mine, size_t n, size_t *begin, struct piece **ret,
                         struct err *e)
{
    size_t *bytes = calloc((size_t)c->world + 1, sizeof *bytes);
    int64_t *counts = calloc((size_t)c->world, sizeof *counts), count = (int64_t)n;
    int rc = bytes && counts ? c->ops->all_gather(c, COMM_CONTROL, &count, counts, sizeof count, NULL, e)
                             : err_errno(e, ENOMEM, "what ranks hold");
    for (int r = 0; r < c->world && rc == 0; r++) {
        bytes[r] = (size_t)counts[r] * sizeof *mine;
        begin[r + 1] = begin[r] + (size_t)counts[r];
    }
    if (rc == 0 && !(*ret = malloc((begin[c->world] + 1) * sizeof *mine)))
        rc = err_errno(e, ENOMEM, "what ranks hold");
    if (rc == 0)
        rc = c->ops->all_gather_v(c, COMM_CONTROL, mine, *ret, bytes, NULL, e);
    free(bytes);
    free(counts);
    return rc;
}

/* Of this rank, from its slices. A rank that is alone saves all it holds. */
static struct piece *own_pieces(const struct deal *d)
{
    struct piece *mine = malloc((d->slices->n_held + 1) * sizeof *mine);
    for (size_t i = 0; mine && i < d->slices->n_held; i++) {
        mine[i] = d->slices->held[i].piece;
        mine[i].saved = mine[i].saved || !d->comm;
    }
    return mine;
}

static int collect(struct deal *d, const int64_t *counts, struct err *e)
{
    struct piece *mine = own_pieces(d), *all = NULL;
    size_t *begin = calloc((size_t)d->world + 1, sizeof *begin);
    int rc = mine && begin ? 0 : err_errno(e, ENOMEM, "what ranks hold");
    if (rc == 0 && d->comm)
        rc = gather_pieces(d->comm, mine, d->slices->n_held, begin, &all, e);
    else if (rc == 0)
        begin[1] = d->slices->n_held;
    if (rc == 0 && !d->comm) {
        all = mine;
        mine = NULL;
    }
    free(mine);
    if (rc == 0)
        return exchange_init(&d->x, d->world, begin, all, counts, (int)d->slices->n, e);
    free(begin);
    free(all);
    return rc;
}

int deal_open(struct deal **ret, struct comm *c, struct slices *s, struct err *e)
{
    struct deal *d = calloc(1, sizeof *d);
    int64_t *counts = calloc(s->n + 1, sizeof *counts);
    int rc = d && counts ? 0 : err_errno(e, ENOMEM, "what ranks hold");
    if (rc == 0) {
        *d = (struct deal){
            .comm = c && c->world > 1 ? c : NULL, .rank = c ? c->rank : 0, .world = c ? c->world : 1, .slices = s};
        for (size_t i = 0; i < s->n; i++)
            counts[i] = slices_count(s, i);
        d->writers = calloc((size_t)d->world, sizeof *d->writers);
        rc = d->writers ? collect(d, counts, e) : err_errno(e, ENOMEM, "what ranks hold");
    }
    free(counts);
    if (rc < 0) {
        deal_close(d);
        return rc;
    }
    *ret = d;
    return 0;
}

void deal_close(struct deal *d)
{
    if (!d)
        return;
    for (int i = 0; i < 2; i++) {
        deal_slot_free(&d->give[i]);
        deal_slot_free(&d->take[i]);
    }
    exchange_finish(&d->x);
    free(d->writers);
    free(d->piece);
    free(d->room);
    free(d);
}

const struct slice *deal_own(const struct deal *d, size_t tensor, size_t *n)
{
    const struct piece *first = exchange_of(&d->x, d->rank, (int)tensor, n);
    return &d->slices->held[first - &d->x.pieces[d->x.begin[d->rank]]];
}

bool deal_broken(const struct deal *d)
{
    return d->broken;
}
