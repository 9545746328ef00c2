/* A load: the reader reads chunk after chunk of the tensors that are wanted. What every rank holds whole is broadcast;
 * of another tensor each rank is sent what it holds. A reader that cannot read on still sends to the end and reports
 * its error then, so chunks carry no status. */
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/snapshot/deal_impl.h"
#include "worker/state/state.h"

struct load {
    struct deal *d;
    const struct deal_load *l;
    struct slot slots[2]; /* of the reader: strided parts on their way */
    char *chunk[2];       /* values; of the slot's turn */
    char *room;
    int turn;
    int rc; /* of reading */
    struct err why;
};

static int put(const struct load *x, const char *values, const struct slice *v, int64_t first, int64_t n, struct err *e)
{
    return slices_put(x->d->slices, v, first, n, values, x->l->averages, e);
}

/* What this rank holds of a chunk that it has. */
static int keep(struct load *x, const struct chunk *c, const char *values, struct err *e)
{
    const struct slices *s = x->d->slices;
    const size_t size = slices_size(s, c->tensor);
    size_t own;
    const struct slice *v = deal_own(x->d, c->tensor, &own);
    for (const struct slice *end = v + own; v < end; v++) {
        int64_t first;
        struct segment g;
        const int64_t n = piece_range(&v->piece, c->first, c->first + c->n, &first);
        if (n == 0 || !piece_segment(&v->piece, c->first, c->first + c->n, &g))
            continue;
        const char *from = values + (size_t)(g.whole - c->first) * size;
        if (g.n < n) {
            TRY(deal_room(&x->room, e));
            deal_gather(&v->piece, c, size, values, x->room);
            from = x->room;
        }
        TRY(put(x, from, v, first, n, e));
    }
    return 0;
}

/* One rank's part of the chunk: from where it is, or put together. */
static int send_part(struct load *x, const struct chunk *c, int rank, const struct piece *p, struct err *e)
{
    struct deal *d = x->d;
    struct slot *s = &x->slots[x->turn];
    const size_t size = slices_size(d->slices, c->tensor);
    const char *from = x->chunk[x->turn];
    struct comm_request **request;
    struct segment g;
    int64_t first;
    const int64_t n = piece_range(p, c->first, c->first + c->n, &first);
    const size_t bytes = (size_t)n * size;
    if (n == 0 || !piece_segment(p, c->first, c->first + c->n, &g))
        return 0;
    from += (size_t)(g.whole - c->first) * size;
    if (g.n < n) {
        TRY(deal_room(&s->room, e));
        if (s->used + bytes > CKPT_PIECE)
            TRY(deal_wait(s, 0, e));
        deal_gather(p, c, size, x->chunk[x->turn], s->room + s->used);
        from = s->room + s->used;
        s->used += bytes;
    }
    TRY(deal_request(s, &request, e));
    return d->comm->ops->isend(d->comm, COMM_CONTROL, from, bytes, rank, NULL, request, e);
}

static int send_parts(struct load *x, const struct chunk *c, struct err *e)
{
    for (int r = 0; r < x->d->world; r++) {
        size_t n;
        const struct piece *p = exchange_of(&x->d->x, r, (int)c->tensor, &n);
        for (size_t i = 0; i < n && r != x->d->rank; i++)
            TRY(send_part(x, c, r, &p[i], e));
    }
    return 0;
}

/* What this rank holds of a chunk that the reader has. */
static int receive_parts(struct load *x, const struct chunk *c, struct err *e)
{
    struct deal *d = x->d;
    size_t own;
    const struct slice *v = deal_own(d, c->tensor, &own);
    for (const struct slice *end = v + own; v < end; v++) {
        int64_t first;
        const int64_t n = piece_range(&v->piece, c->first, c->first + c->n, &first);
        if (n == 0)
            continue;
        TRY(comm_recv(d->comm, COMM_CONTROL, x->chunk[0], (size_t)n * slices_size(d->slices, c->tensor), x->l->reader,
                      NULL, e));
        TRY(put(x, x->chunk[0], v, first, n, e));
    }
    return 0;
}

static void read_chunk(struct load *x, const struct chunk *c)
{
    if (x->rc == 0)
        x->rc = x->l->from->read(x->l->from, c->tensor, c->first, (size_t)c->n, x->chunk[x->turn], &x->why);
}

static int load_chunk(struct load *x, const struct chunk *c, struct err *e)
{
    struct deal *d = x->d;
    const bool reads = d->rank == x->l->reader;
    const size_t bytes = (size_t)c->n * slices_size(d->slices, c->tensor);
    x->turn = reads ? !x->turn : 0;
    if (reads) {
        TRY(deal_wait(&x->slots[x->turn], 0, e)); /* of two turns ago */
        read_chunk(x, c);
    }
    const bool all = exchange_all_whole(&d->x, (int)c->tensor, slices_count(d->slices, c->tensor));
    char *values = x->chunk[x->turn];
    if (d->comm && all)
        TRY(d->comm->ops->broadcast(d->comm, COMM_CONTROL, values, bytes, x->l->reader, NULL, e));
    else if (d->comm)
        TRY(reads ? send_parts(x, c, e) : receive_parts(x, c, e));
    return reads || all ? keep(x, c, values, e) : 0;
}

static int load_all(struct load *x, struct err *e)
{
    struct chunk c = {0};
    TRY(deal_room(&x->chunk[0], e));
    TRY(x->d->rank == x->l->reader ? deal_room(&x->chunk[1], e) : 0);
    for (; deal_settle(x->d->slices, x->l->wanted, &c); deal_advance(&c))
        TRY(load_chunk(x, &c, e));
    return 0;
}

/* How the reader's reading went, on all ranks. */
static int share_result(const struct load *x, int *reading, struct err *e)
{
    const struct deal *d = x->d;
    int64_t code = x->rc;
    if (d->comm)
        TRY(d->comm->ops->broadcast(d->comm, COMM_CONTROL, &code, sizeof code, x->l->reader, NULL, e));
    *reading = (int)code;
    if (code < 0 && d->rank != x->l->reader)
        return err_set(e, -ECANCELED, "rank %d could not load %s", x->l->reader, x->l->what);
    return code < 0 ? err_set(e, x->rc, "%s", x->why.text) : 0;
}

int deal_load(struct deal *d, const struct deal_load *l, int *reading, struct err *e)
{
    struct load x = {.d = d, .l = l};
    int rc = load_all(&x, e);
    *reading = 0;
    for (int i = 0; i < 2; i++) {
        rc = deal_wait(&x.slots[i], rc, rc < 0 ? NULL : e);
        deal_slot_free(&x.slots[i]);
        free(x.chunk[i]);
    }
    free(x.room);
    d->slices->state->version++;
    return rc < 0 ? rc : share_result(&x, reading, e);
}
