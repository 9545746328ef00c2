/* Makes folders, and opens them without following other users' links (path.h). */
#include "common/base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"

int path_make_dirs(const char *dir, struct err *e)
{
    char path[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(path, sizeof path, "%s", dir) >= sizeof path)
        return err_set(e, ERR_OUTPUT, "folder name of %zu bytes is too long", strlen(dir));
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != 0)
            continue;
        char end = *p;
        *p = 0;
        const int why = mkdir(path, 0777) < 0 ? errno : 0;
        if (why && why != EEXIST && !(stat(path, &st) == 0 && S_ISDIR(st.st_mode)))
            return err_set(e, ERR_OUTPUT, "cannot make folder %s: %s", path, strerror(why));
        if (!end)
            break;
        *p = end;
    }
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
        return err_set(e, ERR_OUTPUT, "%s is not a folder", path);
    return 0;
}

int path_make_writable(const char *dir, struct err *e)
{
    TRY(path_make_dirs(dir, e));
    if (access(dir, W_OK | X_OK) < 0)
        return err_set(e, ERR_OUTPUT, "cannot write into folder %s: %s", dir, strerror(errno));
    return 0;
}

/* Open a link itself and read it through that descriptor: so nobody can exchange it after its owner was checked. */
static int open_link(const char *path)
{
    char to[2 * PATH_MAX], target[PATH_MAX];
    struct stat st;
    const char *slash = strrchr(path, '/');
    const int link = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    const bool is_link = link >= 0 && fstat(link, &st) == 0 && S_ISLNK(st.st_mode);
    const bool is_ours = is_link && (st.st_uid == geteuid() || st.st_uid == 0);
    const ssize_t n = is_ours ? readlinkat(link, "", target, sizeof target - 1) : -1;
    if (link >= 0)
        close(link);
    errno = link < 0 || is_link ? ELOOP : ENOTDIR;
    if (n < 0)
        return -1;
    target[n] = 0;
    snprintf(to, sizeof to, "%.*s%s", target[0] == '/' || !slash ? 0 : (int)(slash + 1 - path), path, target);
    return open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int path_open_dir(const char *path)
{
    char plain[PATH_MAX]; /* without a slash at its end, which would make the kernel follow a link */
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n >= sizeof plain) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(plain, path, n);
    plain[n] = 0;
    const int fd = open(plain, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 && (errno == ELOOP || errno == ENOTDIR) ? open_link(plain) : fd; /* as those flags tell a link */
}
