/* One question to all nodes of a job (reference/rendezvous-protocol.md, "Questions"). */
#ifndef CRUN_LAUNCHER_ASK_NODES_H
#define CRUN_LAUNCHER_ASK_NODES_H

#include <stddef.h>

struct ask_options;
struct cJSON;
struct err;

struct ask_nodes {
    const char *what; /* "stacks", "logs" */
    int rank;         /* -1: all */
    /* Each rank that a node tells of, an object; host: of its node. -ENOMEM ends it. */
    int (*rank_is)(void *arg, const char *host, const struct cJSON *rank);
    /* A node that tells of none, and why; or of fewer than it has. */
    int (*node_is_missing)(void *arg, const char *host, const char *why);
    void *arg;
};

/* Errors as whom_request(); ERR_CORRUPT. */
int ask_nodes(const struct ask_options *o, const char *run, const struct ask_nodes *q, struct err *e);
/* One node's answer, as above. ERR_CORRUPT. */
int ask_nodes_read(const char *host, const char *text, const struct ask_nodes *q, struct err *e);

/* On stdout; bytes that would steer a terminal as '?'. */
void ask_nodes_put(const char *text);

#endif
