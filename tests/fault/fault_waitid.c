/* waitid(2) as it may be found, for LD_PRELOAD. A process that asks for one child by pid or pidfd is told
 *
 *   FAULT_WAITID=pidfd   EINVAL for a pidfd: Linux 5.3, and some seccomp filters
 *   FAULT_WAITID=once    ECHILD, the first time that it would have reaped the child
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { BY_PIDFD = 3 };

int waitid(idtype_t type, id_t id, siginfo_t *info, int options)
{
    static int failed;
    int (*real)(idtype_t, id_t, siginfo_t *, int);
    const char *fault = getenv("FAULT_WAITID");
    *(void **)&real = dlsym(RTLD_NEXT, "waitid");
    const int by_pidfd = (int)type == BY_PIDFD;
    if (fault && strcmp(fault, "pidfd") == 0 && by_pidfd) {
        errno = EINVAL;
        return -1;
    }
    if (fault && strcmp(fault, "once") == 0 && (by_pidfd || type == P_PID) && options & WEXITED &&
        !(options & WNOWAIT) && !failed++) {
        errno = ECHILD;
        return -1;
    }
    return real(type, id, info, options);
}
