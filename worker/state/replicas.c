#include "worker/state/replicas.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/ckpt/ckpt.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

static const char *const arena_names[] = {"parameters", "momentum", "running statistics"};
enum { ARENAS = sizeof arena_names / sizeof *arena_names };

static int hash(struct state *s, const void *arena, size_t elements, uint32_t *ret, struct err *e)
{
    size_t bytes = state_bytes(s, elements);
    void *host = malloc(bytes ? bytes : 1);
    if (!host)
        return err_errno(e, ENOMEM, "compare replicas");
    int rc = bytes ? s->device->ops->download(s->device, host, arena, bytes, e) : 0;
    if (rc == 0)
        *ret = crc32c(0, host, bytes);
    free(host);
    return rc;
}

int replicas_check(struct state *s, struct comm *c, struct err *e)
{
    uint32_t mine[ARENAS];
    TRY(hash(s, s->params, s->program->n_train, &mine[0], e));
    TRY(hash(s, s->momentum, s->program->n_train, &mine[1], e));
    TRY(hash(s, s->stats, s->program->n_stats, &mine[2], e));
    uint32_t *all = calloc((size_t)c->world, sizeof mine);
    if (!all)
        return err_errno(e, ENOMEM, "compare replicas");
    int rc = c->ops->all_gather(c, COMM_CONTROL, mine, all, sizeof mine, NULL, e);
    for (int r = 1; rc == 0 && r < c->world; r++)
        for (int a = 0; rc == 0 && a < ARENAS; a++)
            if (all[r * ARENAS + a] != all[a])
                rc = err_set(e, ERR_MISMATCH, "replicas differ: %s of rank %d are not those of rank 0", arena_names[a],
                             r);
    free(all);
    return rc;
}
