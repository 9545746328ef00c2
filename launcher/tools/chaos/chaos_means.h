/* What faults need besides signals: the nodes' links, and the files behind their workers' clocks. Opened before
 * anything is done, and inherited by the watcher (chaos_watcher.h). */
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
    int link_fd[CHAOS_NODES_MAX];               /* a socket in the namespace of the node's link; -1: it has none */
    _Atomic int64_t *clock_ns[CHAOS_NODES_MAX]; /* how far the workers' clock is ahead; NULL: the node has none */
};

/* ERR_USAGE: a folder, link or file is not usable; -errno. chaos_means_close() closes it, after an error, too. */
int chaos_means_open(struct chaos_means *m, const struct chaos_targets *t, struct err *e);
void chaos_means_close(struct chaos_means *m);

/* -errno; -ENODEV: the link has gone with its namespace or its other end, and is neither up nor down. */
int chaos_link_set(const struct chaos_means *m, int node, bool up);
void chaos_clock_set(const struct chaos_means *m, int node, double ahead_s);

#endif
