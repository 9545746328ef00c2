/* Grows the descriptor table before a process has threads (fd_room.h). */
#include "launcher/base/fd_room.h"

#include <fcntl.h>
#include <sys/resource.h>
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
