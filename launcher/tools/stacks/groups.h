/* Ranks by what their main threads do. */
#ifndef CRUN_LAUNCHER_GROUPS_H
#define CRUN_LAUNCHER_GROUPS_H

#include <stdbool.h>
#include <stddef.h>

struct cJSON;

struct groups_rank {
    int rank;
    struct cJSON *o; /* as its node reported it, with "host" added */
    char *stack;     /* equal for equal stacks */
};

/* All-zero is empty. */
struct groups {
    struct groups_rank *v;
    size_t n, cap;
    struct cJSON *missing; /* objects of host and why; NULL: none */
};

/* For struct ask_nodes.rank_is and .node_is_missing, with a struct groups. */
int groups_add(void *groups, const char *host, const struct cJSON *rank);
int groups_miss(void *groups, const char *host, const char *why);
void groups_free(struct groups *g);

/* Print on stdout, grouping equal stacks, the group with fewest ranks first; for each group its ranks ("ranks
 * 0-4,6-63") and the stack. json: the same for programs. Call once: it takes g apart. -ENOMEM. */
int groups_print(struct groups *g, bool json);

#endif
