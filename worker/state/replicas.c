#include "worker/state/replicas.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/ckpt/ckpt.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

static const char *const arena_names[] = {"parameters", "momentum", "running statistics"};
enum { ARENAS = sizeof arena_names / sizeof *arena_names };

/* Of what a group of ranks holds copies of. */
static const enum layout_group groups[] = {LAYOUT_BATCH, LAYOUT_DATA};
enum { GROUPS = sizeof groups / sizeof *groups };

struct hashes {
    uint32_t of[ARENAS][GROUPS];
};

/* n elements from element `first` of an arena. */
static int add_hash(struct state *s, const void *arena, size_t first, size_t n, uint32_t *hash, struct err *e)
{
    const size_t bytes = state_bytes(s, n);
    if (bytes == 0)
        return 0;
    void *host = malloc(bytes);
    if (!host)
        return err_errno(e, ENOMEM, "compare replicas");
    int rc = s->device->ops->download(s->device, host, (const char *)arena + state_bytes(s, first), bytes, e);
    if (rc == 0)
        *hash = crc32c(*hash, host, bytes);
    free(host);
    return rc;
}

static int hash_pieces(struct state *s, const void *arena, enum ownership_arena a, uint32_t hash[GROUPS], struct err *e)
{
    const struct ownership *own = s->own;
    for (int k = 0; k < own->npieces; k++) {
        const struct ownership_piece *p = &own->pieces[k];
        if (p->part == 0 || !ownership_is_cut(own, a))
            TRY(add_hash(s, arena, ownership_place(own, a, p->first), p->end - p->first, &hash[p->group == groups[1]],
                         e));
    }
    return 0;
}

/* Rank r's, and those of the first rank of each group that it is in. */
static int compare(const struct layout *l, const struct hashes *all, int r, struct err *e)
{
    for (int a = 0; a < ARENAS; a++)
        for (int g = 0; g < GROUPS; g++) {
            const int first = layout_group(l, groups[g], r).first;
            if (all[r].of[a][g] != all[first].of[a][g])
                return err_set(e, ERR_MISMATCH, "replicas differ: %s of rank %d are not those of rank %d",
                               arena_names[a], r, first);
        }
    return 0;
}

int replicas_check(struct state *s, struct comm *c, struct err *e)
{
    struct hashes mine = {0};
    TRY(hash_pieces(s, s->params, OWNERSHIP_PARAMS, mine.of[0], e));
    TRY(hash_pieces(s, s->momentum, OWNERSHIP_MOMENTS, mine.of[1], e));
    TRY(add_hash(s, s->stats, 0, s->program->n_stats, &mine.of[2][0], e));
    struct hashes *all = calloc((size_t)c->world, sizeof mine);
    if (!all)
        return err_errno(e, ENOMEM, "compare replicas");
    int rc = c->ops->all_gather(c, COMM_CONTROL, &mine, all, sizeof mine, NULL, e);
    for (int r = 1; rc == 0 && r < c->world; r++)
        rc = compare(&s->own->layout, all, r, e);
    free(all);
    return rc;
}
