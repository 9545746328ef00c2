#include "launcher/output/process/whole_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/err.h"

int whole_file_write(const char *path, const char *text, size_t n, struct err *e)
{
    char tmp[4200];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.%d.tmp", path, (int)getpid()) >= sizeof tmp)
        return err_set(e, -ENAMETOOLONG, "cannot write '%.60s...': the path is too long", path);
    FILE *file = fopen(tmp, "we");
    if (!file)
        return err_errno(e, errno, "cannot write '%s'", path);
    const bool bad = fwrite(text, 1, n, file) != n;
    if (fclose(file) != 0 || bad || rename(tmp, path) != 0) {
        const int why = errno;
        unlink(tmp);
        return err_errno(e, why, "cannot write '%s'", path);
    }
    return 0;
}
