/* Counts the cores of this process, and divides them among the ranks of a node. */
#include "worker/config/cores.h"

#include <sched.h>

int cores_of_process(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int threads_of_rank(int64_t asked, int64_t local_world)
{
    if (asked > 0)
        return (int)asked;
    const int64_t share = local_world > 0 ? cores_of_process() / local_world : cores_of_process();
    return share > 0 ? (int)share : 1;
}
