#include "worker/comm/comm.h"

#include <errno.h>
#include <string.h>

#include "common/err.h"

static const struct comm_ops *const backends[] = {
    &comm_local_ops,
#ifdef HAVE_GLOO
    &comm_gloo_ops,
#endif
};

#define BACKENDS (sizeof backends / sizeof backends[0])

static const struct comm_ops *find(const char *name)
{
    for (size_t i = 0; i < BACKENDS; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

static int unknown(const char *name, struct err *e)
{
    char list[64] = "";
    for (size_t i = 0; i < BACKENDS; i++) {
        strncat(list, backends[i]->name, sizeof list - strlen(list) - 1);
        strncat(list, ", ", sizeof list - strlen(list) - 1);
    }
    return err_set(e, -EINVAL, "there are no collectives named '%s'; this build has %sauto", name, list);
}

int comm_open(struct comm **ret, const char *name, const struct comm_options *o, struct err *e)
{
    if (o->world < 1 || o->rank < 0 || o->rank >= o->world)
        return err_set(e, -EINVAL, "rank %d of a world of %d: expected 0 <= rank < world", o->rank, o->world);
    if (o->timeout_ms <= 0)
        return err_set(e, -EINVAL, "a timeout of %lld ms for collectives: expected more than 0",
                       (long long)o->timeout_ms);
    const struct comm_ops *ops;
    if (strcmp(name, "auto") != 0) {
        ops = find(name);
        if (!ops)
            return unknown(name, e);
    } else {
        ops = find(o->world == 1 ? "local" : "gloo");
        if (!ops)
            return err_set(e, -ENOTSUP, "a world of %d needs collectives between processes, and this build has no gloo",
                           o->world);
    }
    return ops->open(ret, o, e);
}
