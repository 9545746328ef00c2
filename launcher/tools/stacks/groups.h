/* Ranks by what their main threads do. */
#ifndef CRUN_LAUNCHER_GROUPS_H
#define CRUN_LAUNCHER_GROUPS_H

#include <stddef.h>
#include <stdio.h>

struct cJSON;
struct err;

struct groups_rank {
    int rank, pid;
    char host[128], wait[96], state;
    char *frames; /* one a line, the innermost first; "": none */
    char *why;    /* then: why there are none */
};

struct groups_missing {
    char host[128], why[256];
};

/* All-zero is empty. */
struct groups {
    struct groups_rank *v;
    size_t n, cap;
    struct groups_missing *missing;
    size_t n_missing, cap_missing;
};

/* struct ask_nodes.rank_is and .node_is_missing, with a struct groups. */
int groups_add(void *groups, const char *host, const struct cJSON *rank);
int groups_miss(void *groups, const char *host, const char *why);
void groups_free(struct groups *g);

/* Equal stacks together, the group of fewest ranks first; of each all ranks ("ranks 0-4,6-63"), and the stack. Sorts g.
 */
void groups_print(struct groups *g, FILE *out);
int groups_print_json(struct groups *g, FILE *out, struct err *e);

#endif
