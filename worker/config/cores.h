/* The cores of this process, and how many compute threads a rank makes of them. */
#ifndef CRUN_WORKER_CORES_H
#define CRUN_WORKER_CORES_H

#include <stdint.h>

/* Cores in this process' affinity mask; at least 1. */
int cores_of_process(void);

/* Threads of one of `local_world` ranks on this host: `asked` of them, or for 0 its even share of the cores; at least
 * 1. */
int threads_of_rank(int64_t asked, int64_t local_world);

#endif
