/* Makes inherited descriptors close-on-exec, so that workers do not get them (own_fds.h). */
#include "common/base/own_fds.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WITHOUT_PROC 1024 /* without /proc, descriptors below this are tried one by one */

static void keep_one(int fd)
{
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0)
        fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
}

void own_fds_keep(void)
{
    if (syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC) == 0)
        return; /* else Linux before 5.11 */
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' && atoi(e->d_name) >= 3)
            keep_one(atoi(e->d_name));
    if (d)
        closedir(d);
    for (int fd = 3; !d && fd < WITHOUT_PROC; fd++)
        keep_one(fd);
}
