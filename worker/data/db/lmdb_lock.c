/* Reserves the space of an LMDB's lock file before the library maps it. */
#include "worker/data/db/lmdb_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"

#define READER_BYTES 64 /* a cache line each, and some for what precedes them */
#define HEAD_BYTES 4096

int lmdb_lock_reserve(const char *path, const char *name, struct err *e)
{
    char file[PATH_MAX];
    struct stat st;
    if (snprintf(file, sizeof file, "%s%s", path, name) >= (int)sizeof file)
        return err_set(e, -ENAMETOOLONG, "a path is too long: %s", path);
    if (lstat(file, &st) == 0 && !S_ISREG(st.st_mode))
        return 1;
    const int fd = open(file, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 && errno == ELOOP) /* put there since */
        return 1;
    int code = fd < 0 ? errno : 0;
    /* the size stays: others have mapped as much of it as there is, and look there for readers */
    if (fd >= 0 && fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, HEAD_BYTES + LMDB_LOCK_READERS * READER_BYTES) < 0)
        code = errno;
    if (fd >= 0)
        close(fd);
    if (code != ENOSPC && code != EDQUOT)
        return 0;
    return err_set(e, ERR_OUTPUT, "no room for '%s': %s; free some space there, or read a copy on another disk", file,
                   strerror(code));
}
