#include "worker/comm/comm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
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
    return open_named(ret, name, o, e);
}
