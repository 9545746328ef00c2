/* What faults are made with, beside signals: the links of nodes, and the files behind their workers' clocks. Opened
 * before anything is done, and inherited by the watcher (chaos_watcher.h). */
#ifndef CRUN_LAUNCHER_CHAOS_MEANS_H
#define CRUN_LAUNCHER_CHAOS_MEANS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "launcher/tools/chaos/chaos_plan.h"

struct chaos_targets;
struct err;

struct chaos_means {
    const struct chaos_targets *targets;
    int link_fd[CHAOS_NODES_MAX];               /* a socket where the node's link is; -1: it has none */
    _Atomic int64_t *clock_ns[CHAOS_NODES_MAX]; /* NULL: none; else how far the workers' clock is ahead */
};

/* ERR_USAGE: a folder, link or file is not what it should be; -errno. Closed by chaos_means_close(), also then. */
int chaos_means_open(struct chaos_means *m, const struct chaos_targets *t, struct err *e);
void chaos_means_close(struct chaos_means *m);

/* -errno; a link that has gone with its namespace or its other end is neither up nor down: -ENODEV. */
int chaos_link_set(const struct chaos_means *m, int node, bool up);
void chaos_clock_set(const struct chaos_means *m, int node, double ahead_s);

#endif
