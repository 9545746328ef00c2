/* Callbacks for the history of jobs (rendezvousd/history): what happens to each job. */
#ifndef CRUN_RENDEZVOUSD_JOBS_WATCH_H
#define CRUN_RENDEZVOUSD_JOBS_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct jobs;
struct leader_restart;
struct rdzv_cause;

/* The present state of a job. Strings and pointers are borrowed for the call. */
struct jobs_facts {
    const char *run, *instance, *principal, *state; /* state: rdzv_state_name() */
    bool over;
    uint64_t round;
    int nodes, min_nodes, max_nodes, restarts, max_restarts;
    int world_size; /* of the newest round */
    int64_t age_ms;
    const struct leader_restart *restart; /* the newest, NULL: none */
    int exit_code;                        /* once it is over */
    const struct rdzv_cause *cause;       /* likewise; NULL: it needs none */
};

struct jobs_watcher { /* called from inside any jobs_ function; each may be NULL */
    void (*changed)(void *arg, const struct jobs_facts *f);
    /* fields: a record (rdzv_wire.h) as the node sent it, unchecked. */
    void (*reported)(void *arg, const char *instance, const char *node, const char *fields, size_t n);
    void (*failed)(void *arg, const char *instance, const char *text, size_t n); /* its failure report, unchecked */
    void *arg;
};

void jobs_watch(struct jobs *j, const struct jobs_watcher *w); /* copied */

#endif
