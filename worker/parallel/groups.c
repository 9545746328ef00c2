/* Opens and closes the communicators of a rank's groups. */
#include "worker/parallel/groups.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/parallel/ownership.h"

static const char *const names[LAYOUT_GROUPS] = {
    [LAYOUT_ALL] = "all",       [LAYOUT_BATCH] = "batch",   [LAYOUT_DATA] = "data",
    [LAYOUT_TENSOR] = "tensor", [LAYOUT_STAGES] = "stages", [LAYOUT_ENDS] = "ends"};

static int open_one(struct comm **ret, struct comm *all, const struct layout *l, enum layout_group g,
                    const struct comm_options *o, struct err *e)
{
    const struct layout_ranks r = layout_group(l, g, all->rank);
    struct comm_options named = *o;
    *ret = r.count == all->world ? all : NULL;
    if (*ret || r.count == 1)
        return 0;
    int *ranks = calloc((size_t)r.count, sizeof *ranks);
    if (!ranks)
        return err_errno(e, ENOMEM, "a group of %d ranks", r.count);
    for (int i = 0; i < r.count; i++)
        ranks[i] = layout_group_rank(&r, i);
    named.name = names[g];
    int rc = comm_group(ret, all, &named, ranks, r.count, e);
    free(ranks);
    return rc;
}

/* The groups that gradients are summed over: of whole parameters, and of split ones. */
static int arrange(struct comm *groups[LAYOUT_GROUPS], const struct comm *all, const struct layout *l,
                   const struct comm_options *o, int by_node, struct err *e)
{
    static const enum layout_group of[] = {LAYOUT_BATCH, LAYOUT_DATA};
    for (int i = 0; i < (l->tensor > 1 ? 2 : 1); i++) {
        struct comm *c = groups[of[i]];
        if (c)
            TRY(comm_hierarchy(&groups[of[i]], c, o, by_node, c != all, e));
    }
    return 0;
}

int groups_open(struct comm *ret[LAYOUT_GROUPS], struct comm *all, const struct ownership *own,
                const struct comm_options *o, int by_node, struct err *e)
{
    const struct layout *l = &own->layout;
    int rc = 0;
    for (int g = 0; g < LAYOUT_GROUPS; g++)
        ret[g] = NULL;
    for (int g = 0; g < LAYOUT_GROUPS && rc == 0; g++)
        if (g != LAYOUT_ENDS || ownership_ties(own))
            rc = open_one(&ret[g], all, l, (enum layout_group)g, o, e);
    if (rc == 0 && by_node >= 0)
        rc = arrange(ret, all, l, o, by_node, e);
    if (rc < 0)
        groups_close(ret, all);
    return rc;
}

void groups_close(struct comm *groups[LAYOUT_GROUPS], const struct comm *all)
{
    for (int g = 0; g < LAYOUT_GROUPS; g++) {
        if (groups[g] && groups[g] != all)
            groups[g]->ops->close(groups[g]);
        groups[g] = NULL;
    }
}

/* Edge k is of stages k and k + 1; they are opened in ascending order, so no two ranks wait for each other. */
static int open_edge(struct comm *edges[2], struct comm *stages, int k, const struct comm_options *o, struct err *e)
{
    const int next = (k + 1) % stages->world, ranks[] = {k < next ? k : next, k < next ? next : k};
    struct comm_options named = *o;
    struct comm **ret = stages->rank == k ? &edges[1] : &edges[0];
    named.name = "neighbours";
    return stages->rank == k || stages->rank == next ? comm_group(ret, stages, &named, ranks, 2, e) : 0;
}

int groups_open_edges(struct comm *ret[2], struct comm *stages, bool ring, const struct comm_options *o, struct err *e)
{
    int rc = 0;
    ret[0] = ret[1] = NULL;
    if (!stages || stages->ops->host_buffers)
        return 0;
    for (int k = 0; k < stages->world - !ring && rc == 0; k++)
        rc = open_edge(ret, stages, k, o, e);
    if (rc < 0)
        groups_close_edges(ret);
    return rc;
}

void groups_close_edges(struct comm *edges[2])
{
    for (int i = 0; i < 2; i++) {
        if (edges[i])
            edges[i]->ops->close(edges[i]);
        edges[i] = NULL;
    }
}
