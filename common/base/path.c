#include "common/base/path.h"

#include <errno.h>
#include <limits.h>
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
