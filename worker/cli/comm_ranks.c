/* Opens this rank of comm-bench or comm-test: its group, its device, its buffers. */
#include "worker/cli/comm_ranks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/device.h"
#include "worker/device/module/module.h"

enum { LEAVE_MS = 10000 };

static int buffer_open(struct comm_ranks *b, size_t bytes, void **ret, struct err *e)
{
    if (b->device)
        return b->device->ops->alloc(b->device, bytes, ret, e);
    *ret = calloc(1, bytes);
    return *ret ? 0 : err_set(e, -ENOMEM, "no memory for buffers of %zu bytes", bytes);
}

static void buffer_close(struct comm_ranks *b, void *p)
{
    if (p && b->device)
        b->device->ops->release(b->device, p);
    else
        free(p);
}

static int buffers_open(struct comm_ranks *b, struct err *e)
{
    /* The smallest size may be rounded up to an element a rank. */
    const size_t bytes = (size_t)b->o->most + (size_t)b->all->world * 8;
    TRY(buffer_open(b, bytes, &b->in, e));
    TRY(buffer_open(b, bytes, &b->out, e));
    b->host = calloc(1, bytes);
    return b->host ? 0 : err_set(e, -ENOMEM, "no memory for buffers of %zu bytes", bytes);
}

static int open_device(struct comm_ranks *b, struct comm_options *o, struct err *e)
{
    const struct device_options d = {.threads = 1,
                                     .choice = {.local_rank = (int)b->env.local_rank, .list = b->o->gpus}};
    TRY(device_open(&b->device, "cuda", &d, e));
    b->stream = b->device->ops->async->compute(b->device);
    o->device = b->device;
    o->shares_device = b->o->oversubscribe;
    const struct cuda_module *m = cuda_module(e);
    o->nccl = m ? m->nccl : NULL;
    return 0;
}

static int open_group(struct comm_ranks *b, struct comm_options *o, struct err *e)
{
    const int size = (int)b->o->group_size, groups = size > 0 ? o->world / size : 1;
    int ranks[KNOWN_WORLD_MAX];
    b->group = b->all;
    if (groups == 1)
        return 0;
    const bool block = b->o->group_by == COMM_GROUP_BLOCK;
    const int first = block ? o->rank / size * size : o->rank % groups;
    for (int i = 0; i < size; i++)
        ranks[i] = first + i * (block ? 1 : groups);
    o->name = "group";
    return comm_group(&b->group, b->all, o, ranks, size, e);
}

int comm_ranks_open(struct comm_ranks *b, struct err *e)
{
    struct comm_options o = {.name = "bench", .timeout_ms = (int64_t)(b->o->timeout * 1000)};
    TRY(env_contract_read(&b->env, e));
    o.rank = (int)b->env.rank;
    o.world = (int)b->env.world_size;
    TRY(comm_bench_check(b->o, o.world, e));
    if (b->o->device != COMM_DEVICE_HOST)
        TRY(open_device(b, &o, e));
    TRY(meet_open(&b->meet, &b->env, o.timeout_ms, e));
    o.store = b->meet.store;
    TRY(comm_open(&b->all, b->o->comm, &o, e));
    TRY(open_group(b, &o, e));
    return buffers_open(b, e);
}

void comm_ranks_close(struct comm_ranks *b, bool failed)
{
    if (b->all && failed)
        b->all->ops->abort(b->all);
    if (b->group && b->group != b->all)
        b->group->ops->close(b->group);
    if (b->all)
        b->all->ops->close(b->all);
    meet_close(&b->meet, failed ? 0 : LEAVE_MS);
    free(b->host);
    buffer_close(b, b->in);
    buffer_close(b, b->out);
    if (b->device)
        b->device->ops->close(b->device);
}

int comm_ranks_upload(struct comm_ranks *b, void *to, size_t bytes, struct err *e)
{
    if (b->device)
        return b->device->ops->upload(b->device, to, b->host, bytes, e);
    memcpy(to, b->host, bytes);
    return 0;
}

int comm_ranks_download(struct comm_ranks *b, const void *from, size_t bytes, struct err *e)
{
    if (b->device)
        return b->device->ops->download(b->device, b->host, from, bytes, e);
    memcpy(b->host, from, bytes);
    return 0;
}

int comm_ranks_settle(struct comm_ranks *b, struct err *e)
{
    if (b->device)
        TRY(b->device->ops->sync(b->device, e));
    return b->group->ops->check ? b->group->ops->check(b->group, e) : 0;
}

int comm_ranks_agree(struct comm_ranks *b, double *v, enum comm_op op, struct err *e)
{
    return b->all->ops->all_reduce(b->all, COMM_CONTROL, v, 1, DT_F64, op, NULL, e);
}
