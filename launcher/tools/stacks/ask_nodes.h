/* Asks all nodes of a job one question (reference/rendezvous-protocol.md, "Questions"). */
#ifndef CRUN_LAUNCHER_ASK_NODES_H
#define CRUN_LAUNCHER_ASK_NODES_H

#include <stddef.h>

struct ask_options;
struct cJSON;
struct err;

struct ask_nodes {
    const char *what; /* "stacks", "logs" */
    int rank;         /* -1: all */
    /* Called for each rank that a node reports, an object; host: of its node. -ENOMEM ends it. */
    int (*rank_is)(void *arg, const char *host, const struct cJSON *rank);
    /* Called for a node that reports no rank, and why; or fewer ranks than it has. */
    int (*node_is_missing)(void *arg, const char *host, const char *why);
    void *arg;
};

/* Errors as whom_request(); ERR_CORRUPT. */
int ask_nodes(const struct ask_options *o, const char *run, const struct ask_nodes *q, struct err *e);
/* One node's answer, as above. ERR_CORRUPT. */
int ask_nodes_read(const char *host, const char *text, const struct ask_nodes *q, struct err *e);

/* Print on stdout; bytes that would control a terminal become '?'. */
void ask_nodes_put(const char *text);

#endif
