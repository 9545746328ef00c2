/* Calls that are made of others, the same over every backend. */
#include <errno.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"

int comm_root_check(const struct comm *c, int root, struct err *e)
{
    if (root >= 0 && root < c->world)
        return 0;
    return err_set(e, -EINVAL, "rank %d is the root in a world of %d", root, c->world);
}

int64_t comm_sent(const struct comm *c, enum comm_channel ch)
{
    if (c->world == 1)
        return 0;
    return c->ops->sent ? c->ops->sent(c, ch) : -1;
}

int comm_wait(struct comm_request *r, struct err *e)
{
    return r ? r->comm->ops->wait(r, e) : 0;
}

int comm_recv(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int peer, void *stream, struct err *e)
{
    struct comm_request *r = NULL;
    int rc = c->ops->irecv(c, ch, buf, bytes, peer, stream, &r, e);
    return rc < 0 ? rc : comm_wait(r, e);
}

int comm_all_gather_equal(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t bytes, void *stream,
                          struct err *e)
{
    size_t each[c->world];
    for (int r = 0; r < c->world; r++)
        each[r] = bytes;
    return c->ops->all_gather_v(c, ch, in, out, each, stream, e);
}

int comm_reduce_scatter_equal(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n, enum dtype t,
                              enum comm_op op, void *stream, struct err *e)
{
    size_t each[c->world];
    for (int r = 0; r < c->world; r++)
        each[r] = n;
    return c->ops->reduce_scatter_v(c, ch, in, out, each, t, op, stream, e);
}

int comm_wait_all(struct comm_request **all, int n, int rc, struct err *e)
{
    for (int i = 0; i < n; i++) {
        int now = comm_wait(all[i], rc < 0 ? NULL : e);
        rc = rc < 0 ? rc : now;
    }
    return rc;
}

int comm_gather(struct comm *c, enum comm_channel ch, const void *part, void *all, const size_t *bytes, int root,
                void *stream, struct err *e)
{
    struct comm_request *requests[c->world + 1];
    char *to = all;
    int n = 0, rc = c->ops->isend(c, ch, part, bytes[c->rank], root, stream, &requests[0], e);
    n += rc == 0;
    for (int r = 0; rc == 0 && c->rank == root && r < c->world; r++) {
        rc = c->ops->irecv(c, ch, to, bytes[r], r, stream, &requests[n], e);
        n += rc == 0;
        to += bytes[r];
    }
    return comm_wait_all(requests, n, rc, e);
}

int comm_scatter(struct comm *c, enum comm_channel ch, const void *all, void *part, const size_t *bytes, int root,
                 void *stream, struct err *e)
{
    struct comm_request *requests[c->world + 1];
    const char *from = all;
    int n = 0, rc = c->ops->irecv(c, ch, part, bytes[c->rank], root, stream, &requests[0], e);
    n += rc == 0;
    for (int r = 0; rc == 0 && c->rank == root && r < c->world; r++) {
        rc = c->ops->isend(c, ch, from, bytes[r], r, stream, &requests[n], e);
        n += rc == 0;
        from += bytes[r];
    }
    return comm_wait_all(requests, n, rc, e);
}
