/* Locks the memory of this process (resident.h). */
#include "launcher/base/resident.h"

#include <sys/mman.h>
#include <sys/resource.h>

void resident_keep(void)
{
    struct rlimit limit;
    int flags = MCL_CURRENT | MCL_ONFAULT;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY)
        flags |= MCL_FUTURE;
    mlockall(flags);
}
