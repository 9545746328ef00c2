/* Opens a communicator by the name of its backend, and splits groups off it. */
#include "worker/comm/comm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/kin.h"
#include "worker/device/device.h"

static const struct comm_ops *const backends[] = {
    &comm_local_ops,
#ifdef HAVE_GLOO
    &comm_gloo_ops,
#endif
};

#define BACKENDS (sizeof backends / sizeof backends[0])

static const struct comm_ops *find_backend(const char *name)
{
    for (size_t i = 0; i < BACKENDS; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

static int unknown(const char *name, const struct comm_options *o, struct err *e)
{
    char list[64] = "";
    for (size_t i = 0; i < BACKENDS; i++) {
        strncat(list, backends[i]->name, sizeof list - strlen(list) - 1);
        strncat(list, ", ", sizeof list - strlen(list) - 1);
    }
    return err_set(e, -EINVAL, "there are no collectives named '%s'; this build has %s%sauto", name, list,
                   o->nccl ? "nccl, " : "");
}

static bool on_device(const struct comm_options *o)
{
    return o->device && o->device->ops->async;
}

/* Between processes, for host memory. */
static int open_host(struct comm **ret, const struct comm_options *o, struct err *e)
{
    const struct comm_ops *ops = find_backend(o->world == 1 ? "local" : "gloo");
    if (!ops)
        return err_set(e, -ENOTSUP, "a world of %d needs collectives between processes, and this build has no gloo",
                       o->world);
    return ops->open(ret, o, e);
}

static int open_nccl(struct comm **ret, const struct comm_options *o, struct err *e)
{
    struct comm_options control = *o;
    struct comm *host, *device;
    char name[128];
    if (!on_device(o))
        return err_set(e, -ENOTSUP, "nccl moves gradients between GPUs: it needs --device cuda");
    if (!o->nccl)
        return err_set(e, -ENOTSUP, "this build of the cuda module has no NCCL; gloo goes through host memory");
    snprintf(name, sizeof name, "%s-control", o->name);
    control.name = name;
    TRY(open_host(&host, &control, e));
    int rc = o->nccl->open(&device, o, e);
    if (rc < 0) {
        host->ops->close(host);
        return rc;
    }
    return comm_beside(ret, host, device, e);
}

/* By name, or the best there is. */
static int open_named(struct comm **ret, const char *name, const struct comm_options *o, struct err *e)
{
    const bool any = strcmp(name, "auto") == 0;
    if (strcmp(name, "nccl") == 0 || (any && o->world > 1 && on_device(o) && o->nccl))
        return open_nccl(ret, o, e);
    if (!any && !find_backend(name))
        return unknown(name, o, e);
    struct comm *host;
    TRY(any ? open_host(&host, o, e) : find_backend(name)->open(&host, o, e));
    if (on_device(o))
        return comm_staged(ret, host, o->device, e);
    *ret = host;
    return 0;
}

int comm_open(struct comm **ret, const char *name, const struct comm_options *o, struct err *e)
{
    if (o->world < 1 || o->rank < 0 || o->rank >= o->world)
        return err_set(e, -EINVAL, "rank %d of a world of %d: expected 0 <= rank < world", o->rank, o->world);
    if (o->timeout_ms <= 0)
        return err_set(e, -EINVAL, "a timeout of %lld ms for collectives: expected more than 0",
                       (long long)o->timeout_ms);
    struct comm *c;
    TRY(open_named(&c, name, o, e));
    if (comm_kin_begin(c, o->cancel_fd, e) < 0) {
        c->ops->close(c);
        return -ENOMEM;
    }
    *ret = c;
    return 0;
}

static const char *called(const struct comm_options *o)
{
    return o->name ? o->name : "";
}

/* *ret: the place of this rank in the list. */
static int check_ranks(const struct comm *parent, const struct comm_options *o, const int *ranks, int n, int *ret,
                       struct err *e)
{
    int at = -1;
    if (n < 1 || n > parent->world)
        return err_set(e, -EINVAL, "group '%s' of %d ranks: expected 1 to %d", called(o), n, parent->world);
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->world || (i > 0 && ranks[i] <= ranks[i - 1]))
            return err_set(e, -EINVAL, "group '%s' lists rank %d at place %d: expected ascending ranks below %d",
                           called(o), ranks[i], i, parent->world);
        at = ranks[i] == parent->rank ? i : at;
    }
    if (at < 0)
        return err_set(e, -EINVAL, "group '%s' is opened by rank %d, which is not in it", called(o), parent->rank);
    *ret = at;
    return 0;
}

/* What carries the memory that o speaks of between ranks that parent's backend brought together. */
static const char *backend_of(const struct comm *parent, const struct comm_options *o, int n)
{
    if (n == 1)
        return "local";
    return parent->ops->host_buffers || on_device(o) ? parent->ops->name : "auto";
}

int comm_group(struct comm **ret, struct comm *parent, const struct comm_options *o, const int *ranks, int n,
               struct err *e)
{
    struct comm_options mine = *o;
    struct comm *c;
    if (!parent->kin)
        return err_set(e, -EINVAL, "group '%s' is opened from a communicator inside another", called(o));
    TRY(check_ranks(parent, o, ranks, n, &mine.rank, e));
    mine.world = n;
    mine.store = NULL;
    mine.through = parent;
    mine.ranks = ranks;
    mine.cancel_fd = comm_kin_cancel_fd(parent);
    mine.name = called(o);
    int rc = comm_open(&c, backend_of(parent, o, n), &mine, e);
    if (rc < 0)
        return err_wrap(e, "group '%s' of %d ranks", mine.name, n);
    comm_kin_add(parent, c);
    *ret = c;
    return 0;
}
