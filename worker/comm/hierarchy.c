/* All-reduces node by node, over two kinds of groups beside the communicator itself:
 *
 *   node 0:  ranks 0 1 2     "inside"   reduce-scatter: rank k of a node has the node's sum of part k
 *   node 1:  ranks 3 4 5     "between"  all-reduce of part k over rank k of every node: {0 3} {1 4} {2 5}
 *                            "inside"   all-gather
 *
 * A node may have fewer ranks than another: parts are as many as the smallest node has ranks, and whoever has none only
 * gives and takes. Everything else goes over the communicator as it is. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/comm/reduce.h"
#include "worker/device/device.h"

struct hierarchy {
    struct comm base;
    struct comm_ops ops;           /* the name is the communicator's */
    struct comm *all;              /* what it goes over */
    bool owned;                    /* closed with it */
    struct comm *inside, *between; /* between: NULL: this rank has no part */
    int parts;
    char *part[COMM_CHANNELS]; /* channels are used from different threads */
    size_t room[COMM_CHANNELS];
};

static struct hierarchy *self(struct comm *c)
{
    return (struct hierarchy *)c;
}

static void hierarchy_close(struct comm *c)
{
    struct hierarchy *h = self(c);
    if (h->between)
        h->between->ops->close(h->between);
    if (h->inside)
        h->inside->ops->close(h->inside);
    if (h->owned)
        h->all->ops->close(h->all);
    for (int i = 0; i < COMM_CHANNELS; i++)
        free(h->part[i]);
    free(h);
}

static void hierarchy_abort(struct comm *c) /* its groups with it: they were opened from it */
{
    struct comm *all = self(c)->all;
    all->ops->abort(all);
}

static size_t part_of(const struct hierarchy *h, size_t n, int k)
{
    const size_t parts = (size_t)h->parts;
    return k < h->parts ? n / parts + ((size_t)k < n % parts) : 0;
}

static int take_room(struct hierarchy *h, enum comm_channel ch, size_t bytes, struct err *e)
{
    if (h->room[ch] >= bytes)
        return 0;
    free(h->part[ch]);
    h->part[ch] = malloc(bytes);
    h->room[ch] = h->part[ch] ? bytes : 0;
    return h->part[ch] ? 0 : err_set(e, -ENOMEM, "no memory for a part of %zu bytes", bytes);
}

static int by_nodes(struct hierarchy *h, enum comm_channel ch, void *buf, size_t n, enum dtype t, enum comm_op op,
                    struct err *e)
{
    struct comm *in = h->inside, *over = h->between;
    size_t counts[in->world];
    for (int r = 0; r < in->world; r++)
        counts[r] = part_of(h, n, r);
    const size_t mine = counts[in->rank];
    TRY(reduce_check(t, op, e));
    TRY(take_room(h, ch, (part_of(h, n, 0) + 1) * dtype_size(t), e));
    TRY(in->ops->reduce_scatter_v(in, ch, buf, h->part[ch], counts, t, op, NULL, e));
    if (over)
        TRY(over->ops->all_reduce(over, ch, h->part[ch], mine, t, op, NULL, e));
    for (int r = 0; r < in->world; r++)
        counts[r] *= dtype_size(t);
    return in->ops->all_gather_v(in, ch, h->part[ch], buf, counts, NULL, e);
}

static int hierarchy_all_reduce(struct comm *c, enum comm_channel ch, void *buf, size_t n, enum dtype t,
                                enum comm_op op, void *stream, struct err *e)
{
    struct hierarchy *h = self(c);
    if (ch == COMM_CONTROL || n * dtype_size(t) < COMM_HIERARCHY_BYTES)
        return h->all->ops->all_reduce(h->all, ch, buf, n, t, op, stream, e);
    return by_nodes(h, ch, buf, n, t, op, e);
}

/* --- as it is */

static int hierarchy_reduce(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n, enum dtype t,
                            enum comm_op op, int root, void *stream, struct err *e)
{
    struct comm *all = self(c)->all;
    return all->ops->reduce(all, ch, in, out, n, t, op, root, stream, e);
}

static int hierarchy_broadcast(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int root, void *stream,
                               struct err *e)
{
    struct comm *all = self(c)->all;
    return all->ops->broadcast(all, ch, buf, bytes, root, stream, e);
}

static int hierarchy_all_gather_v(struct comm *c, enum comm_channel ch, const void *in, void *out, const size_t *bytes,
                                  void *stream, struct err *e)
{
    struct comm *all = self(c)->all;
    return all->ops->all_gather_v(all, ch, in, out, bytes, stream, e);
}

static int hierarchy_reduce_scatter_v(struct comm *c, enum comm_channel ch, const void *in, void *out,
                                      const size_t *counts, enum dtype t, enum comm_op op, void *stream, struct err *e)
{
    struct comm *all = self(c)->all;
    return all->ops->reduce_scatter_v(all, ch, in, out, counts, t, op, stream, e);
}

static int hierarchy_barrier(struct comm *c, enum comm_channel ch, struct err *e)
{
    struct comm *all = self(c)->all;
    return all->ops->barrier(all, ch, e);
}

/* A request is waited for where it was made. */
static int hierarchy_isend(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                           struct comm_request **ret, struct err *e)
{
    struct comm *all = self(c)->all;
    return all->ops->isend(all, ch, buf, bytes, peer, stream, ret, e);
}

static int hierarchy_irecv(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int peer, void *stream,
                           struct comm_request **ret, struct err *e)
{
    struct comm *all = self(c)->all;
    return all->ops->irecv(all, ch, buf, bytes, peer, stream, ret, e);
}

static int hierarchy_send(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                          struct err *e)
{
    struct comm *all = self(c)->all;
    return all->ops->send(all, ch, buf, bytes, peer, stream, e);
}

/* What it takes over counts once: here, or where it came from. */
static int64_t hierarchy_sent(const struct comm *c, enum comm_channel ch)
{
    const struct hierarchy *h = (const struct hierarchy *)c;
    const int64_t all = h->owned ? comm_sent(h->all, ch) : 0, inside = comm_sent(h->inside, ch),
                  between = h->between ? comm_sent(h->between, ch) : 0;
    return all < 0 || inside < 0 || between < 0 ? -1 : all + inside + between;
}

static const struct comm_ops hierarchy_ops = {.host_buffers = true,
                                              .close = hierarchy_close,
                                              .abort = hierarchy_abort,
                                              .all_reduce = hierarchy_all_reduce,
                                              .reduce = hierarchy_reduce,
                                              .broadcast = hierarchy_broadcast,
                                              .all_gather = comm_all_gather_equal,
                                              .all_gather_v = hierarchy_all_gather_v,
                                              .reduce_scatter = comm_reduce_scatter_equal,
                                              .reduce_scatter_v = hierarchy_reduce_scatter_v,
                                              .barrier = hierarchy_barrier,
                                              .isend = hierarchy_isend,
                                              .irecv = hierarchy_irecv,
                                              .send = hierarchy_send,
                                              .sent = hierarchy_sent};

/* --- opening */

/* Which rank of its node each one is. */
static void count_places(const int *nodes, int n, int *places)
{
    for (int r = 0; r < n; r++) {
        places[r] = 0;
        for (int i = 0; i < r; i++)
            places[r] += nodes[i] == nodes[r];
    }
}

/* The parts there are, as many as the smallest node has ranks; and how many nodes. */
static int smallest_node(const int *nodes, const int *places, int n, int *ret_nodes)
{
    int least = n;
    *ret_nodes = 0;
    for (int r = 0; r < n; r++) {
        int size = 0;
        for (int i = 0; i < n; i++)
            size += nodes[i] == nodes[r];
        least = size < least ? size : least;
        *ret_nodes += places[r] == 0;
    }
    return least;
}

/* The ranks whose number in `of` is `value`. */
static int open_group(struct comm **ret, struct comm *all, const struct comm_options *o, const char *name,
                      const int *of, int value, struct err *e)
{
    struct comm_options named = *o;
    int ranks[all->world], n = 0;
    for (int r = 0; r < all->world; r++)
        if (of[r] == value)
            ranks[n++] = r;
    named.name = name;
    return comm_group(ret, all, &named, ranks, n, e);
}

static int open_groups(struct hierarchy *h, const struct comm_options *o, const int *nodes, const int *places,
                       struct err *e)
{
    const int me = h->all->rank;
    TRY(open_group(&h->inside, h->all, o, "inside of a node", nodes, nodes[me], e));
    return places[me] < h->parts ? open_group(&h->between, h->all, o, "between nodes", places, places[me], e) : 0;
}

int comm_hierarchy(struct comm **ret, struct comm *all, const struct comm_options *o, int node, bool owned,
                   struct err *e)
{
    int nodes[all->world], places[all->world], n;
    TRY(all->ops->all_gather(all, COMM_CONTROL, &node, nodes, sizeof node, NULL, e));
    count_places(nodes, all->world, places);
    const int parts = smallest_node(nodes, places, all->world, &n);
    if (n == 1 || n == all->world) {
        *ret = all;
        return 0;
    }
    if (o->device && o->device->ops->async)
        return err_set(e, -ENOTSUP, "sums node by node of the %s device's memory: expected cpu or ref",
                       o->device->ops->name);
    struct hierarchy *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for a communicator");
    *h = (struct hierarchy){.base = {.ops = &h->ops, .rank = all->rank, .world = all->world},
                            .ops = hierarchy_ops,
                            .all = all,
                            .parts = parts};
    h->ops.name = all->ops->name;
    int rc = open_groups(h, o, nodes, places, e);
    if (rc < 0) {
        hierarchy_close(&h->base);
        return rc;
    }
    h->owned = owned;
    *ret = &h->base;
    return 0;
}
