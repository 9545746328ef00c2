/* Where the processes of a Slurm job meet: a host from Slurm's lists and a port, which each process finds from
 * Slurm's variables. Pure. */
#ifndef CRUN_COMMON_SLURM_H
#define CRUN_COMMON_SLURM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RDZV_PORT 29400 /* default port of an endpoint, as in torchrun */

/* The first host of a Slurm list: "node[07-12,20],gpu3" -> "node07". False if it is not one or does not fit into cap
 * bytes; *ret is then undefined. */
bool slurm_first_host(const char *list, char *ret, size_t cap);

/* "2(x3),1" is 2, 2, 2, 1 tasks on nodes 0 to 3 (SLURM_STEP_TASKS_PER_NODE). node < 0: the most on any. 0 if node is
 * not in the list, or the list is NULL or not well formed. */
int64_t slurm_tasks_on_node(const char *list, int64_t node);

/* The port for a job with this id: the same on every node, and seldom the same for two jobs on the same nodes. At
 * least RDZV_PORT, below the kernel's ephemeral ports (32768). */
int slurm_port(const char *job);

#endif
