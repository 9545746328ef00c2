/* --dry-run: what would be started on this node. */
#ifndef CRUN_LAUNCHER_DRYRUN_H
#define CRUN_LAUNCHER_DRYRUN_H

#include <stdio.h>

struct cgroup_tables;
struct config;
struct err;
struct program;

/* Print rank, command and variables of each worker of this node; what only the rendezvous or the start decide is shown
 * as <why>. t: of this process. */
int dryrun_print(const struct config *c, const struct program *p, const struct cgroup_tables *t, FILE *out,
                 struct err *e);

#endif
