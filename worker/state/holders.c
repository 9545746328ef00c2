/* Finds the ranks that can give what others have lost. */
#include "worker/state/holders.h"

#include <errno.h>

#include "common/base/err.h"

int holders_of_whole(const struct layout_ranks *g, const bool *here)
{
    for (int i = 0; i < g->count; i++)
        if (here[layout_group_rank(g, i)])
            return layout_group_rank(g, i);
    return -1;
}

int holders_of_part(const struct layout_ranks *g, int distance, int part, const bool *here)
{
    const int owner = layout_group_rank(g, part), second = layout_group_rank(g, (part + distance) % g->count);
    return here[owner] ? owner : here[second] ? second : -1;
}

static int lost(const struct layout_ranks *g, int distance, int part, struct err *e)
{
    const int owner = layout_group_rank(g, part);
    if (distance)
        return err_set(e, -ENODATA, "rank %d and rank %d, which had its part of the state as well, are lost together",
                       owner, layout_group_rank(g, (part + distance) % g->count));
    return err_set(e, -ENODATA, "rank %d is lost, and no other rank has its part of the state", owner);
}

/* The groups of rank r that copies are held in. */
static int check_groups(const struct layout *l, int r, const bool *here, struct err *e)
{
    static const enum layout_group groups[] = {LAYOUT_BATCH, LAYOUT_DATA};
    for (int i = 0; i < (l->tensor > 1 ? 2 : 1); i++) {
        const struct layout_ranks g = layout_group(l, groups[i], r);
        const int distance = layout_second_distance(l, &g);
        const bool cut = l->zero > 0 && g.count > 1;
        if ((cut ? holders_of_part(&g, distance, g.index, here) : holders_of_whole(&g, here)) < 0)
            return lost(&g, distance, g.index, e);
    }
    return 0;
}

int holders_check(const struct layout *l, const bool *here, struct err *e)
{
    for (int r = 0; r < layout_members(l); r++)
        TRY(check_groups(l, r, here, e));
    return 0;
}
