/* Hashes what ranks hold copies of, and compares the hashes. */
#include "worker/state/replicas.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

static const char *const names[] = {REPLICAS_ARENAS(CHOICE_NAME)};

const char *replicas_arena_name(enum replicas_arena a)
{
    return names[a];
}

/* Of what a group of ranks holds copies of. */
static const enum layout_group groups[] = {LAYOUT_BATCH, LAYOUT_DATA, LAYOUT_ENDS};
enum { GROUPS = sizeof groups / sizeof *groups };

/* n elements from element `first` of an arena. */
static int add_hash(struct state *s, const void *arena, size_t first, size_t n, uint32_t *hash, struct err *e)
{
    const size_t bytes = state_bytes(s, n);
    const char *at = (const char *)arena + state_bytes(s, first);
    if (bytes == 0 || !arena)
        return 0;
    if (!s->device->ops->async) { /* the host's memory */
        *hash = crc32c(*hash, at, bytes);
        return 0;
    }
    void *host = malloc(bytes);
    if (!host)
        return err_errno(e, ENOMEM, "compare replicas");
    int rc = s->device->ops->download(s->device, host, at, bytes, e);
    if (rc == 0)
        *hash = crc32c(*hash, host, bytes);
    free(host);
    return rc;
}

static int hash_pieces(struct state *s, const void *arena, enum ownership_arena a, uint32_t hash[GROUPS], struct err *e)
{
    const struct ownership *own = s->own;
    const int n = a == OWNERSHIP_PARAMS || a == OWNERSHIP_AVERAGES ? own->npieces : own->nbuckets;
    for (int k = 0; k < n; k++) {
        const struct ownership_piece *p = &own->pieces[k];
        const bool has_all = p->part == 0 || (!ownership_is_cut(own, a) && a != OWNERSHIP_GRADIENTS);
        for (int g = 0; g < GROUPS && has_all; g++)
            if (groups[g] == LAYOUT_ENDS ? p->tied : groups[g] == p->group)
                TRY(add_hash(s, arena, ownership_place(own, a, p->first), p->end - p->first, &hash[g], e));
    }
    return 0;
}

int replicas_hash(struct state *s, bool sums, struct replicas_hashes *ret, struct err *e)
{
    const size_t n_stats = program_statistics(s->program);
    *ret = (struct replicas_hashes){0};
    TRY(hash_pieces(s, s->params, OWNERSHIP_PARAMS, ret->of[REPLICAS_PARAMS], e));
    TRY(hash_pieces(s, s->momentum, OWNERSHIP_MOMENTS, ret->of[REPLICAS_MOMENTUM], e));
    TRY(hash_pieces(s, s->second, OWNERSHIP_MOMENTS, ret->of[REPLICAS_SECOND], e));
    TRY(add_hash(s, s->stats, 0, n_stats, &ret->of[REPLICAS_STATS][0], e));
    TRY(hash_pieces(s, s->ema_params, OWNERSHIP_AVERAGES, ret->of[REPLICAS_EMA_PARAMS], e));
    TRY(add_hash(s, s->ema_stats, 0, n_stats, &ret->of[REPLICAS_EMA_STATS][0], e));
    if (!sums)
        return 0;
    TRY(hash_pieces(s, s->reduce, OWNERSHIP_GRADIENTS, ret->of[REPLICAS_SUMS], e));
    return add_hash(s, s->reduce, s->program->n_train, s->program->n_stats, &ret->of[REPLICAS_SUMS][0], e);
}

uint32_t replicas_hash_params(const struct state *s)
{
    return crc32c(0, s->params, state_bytes(s, program_params(s->program)));
}

/* The first rank of those whose hash more than half of a group has; the group's first where there is no such hash. */
static int typical(const struct layout_ranks *group, const struct replicas_hashes *all, int a, int g)
{
    int candidate = group->first, lead = 0, alike = 0, first = 0;
    for (int i = 0; i < group->count; i++) { /* if any hash has a majority, the candidate's does (Boyer and Moore) */
        const int r = layout_group_rank(group, i);
        if (lead == 0)
            candidate = r;
        lead += all[r].of[a][g] == all[candidate].of[a][g] ? 1 : -1;
    }
    for (int i = group->count - 1; i >= 0; i--)
        if (all[layout_group_rank(group, i)].of[a][g] == all[candidate].of[a][g]) {
            first = i;
            alike++;
        }
    return layout_group_rank(group, 2 * alike > group->count ? first : 0);
}

/* They are not equal in this group. */
static int name_odd(const struct layout_ranks *group, const struct replicas_hashes *all, int a, int g, struct err *e)
{
    const int one = typical(group, all, a, g);
    int i = 0;
    while (all[layout_group_rank(group, i)].of[a][g] == all[one].of[a][g])
        i++;
    return err_set(e, ERR_MISMATCH, "replicas differ: %s of rank %d are not those of rank %d", names[a],
                   layout_group_rank(group, i), one);
}

/* Rank r's, and those of the first rank of each group that it is in. */
static int compare(const struct layout *l, const struct replicas_hashes *all, int r, struct err *e)
{
    for (int a = 0; a < REPLICAS_N; a++)
        for (int g = 0; g < GROUPS; g++) {
            const struct layout_ranks group = layout_group(l, groups[g], r);
            if (all[r].of[a][g] != all[group.first].of[a][g])
                return name_odd(&group, all, a, g, e);
        }
    return 0;
}

int replicas_compare(const struct layout *l, const struct replicas_hashes *all, struct err *e)
{
    for (int r = 1; r < layout_members(l); r++)
        TRY(compare(l, all, r, e));
    return 0;
}

int replicas_check(struct state *s, struct comm *c, bool sums, struct err *e)
{
    struct replicas_hashes mine, *all = calloc((size_t)c->world, sizeof mine);
    int rc = all ? replicas_hash(s, sums, &mine, e) : err_errno(e, ENOMEM, "compare replicas");
    if (rc == 0)
        rc = c->ops->all_gather(c, COMM_CONTROL, &mine, all, sizeof mine, NULL, e);
    if (rc == 0)
        rc = replicas_compare(&s->own->layout, all, e);
    free(all);
    return rc;
}
