#include "launcher/base/fd_room.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROOM 1024

void fd_room_make(void)
{
    struct rlimit limit;
    rlim_t room = ROOM;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < room)
        room = limit.rlim_cur;
    const int fd = room > 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, (int)room - 1) : -1;
    if (fd >= 0)
        close(fd);
}

void fd_room_clear(unsigned first, unsigned last)
{
#ifdef SYS_close_range
    if (first > last || syscall(SYS_close_range, first, last, 0) == 0)
        return;
#endif
    struct rlimit most; /* before Linux 5.9 */
    getrlimit(RLIMIT_NOFILE, &most);
    for (unsigned fd = first; fd <= last && fd < most.rlim_cur; fd++)
        close((int)fd);
}
