/* Reads the lines of a file with their places. */
#include "worker/report/lines.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/file.h"

int lines_open(struct lines *l, const char *path, struct err *e)
{
    TRY(file_stream_regular(&l->file, path, ERR_CORRUPT, e));
    l->path = path;
    l->begin = l->end = 0;
    l->torn = false;
    l->text[0] = 0;
    return 0;
}

int lines_next(struct lines *l, struct err *e)
{
    size_t n = 0;
    int c;
    l->begin = l->end;
    while ((c = getc_unlocked(l->file)) != EOF && c != '\n') {
        if (n == sizeof l->text - 1)
            return err_set(e, ERR_CORRUPT, "%s: the line at byte %" PRId64 " is longer than %d bytes", l->path,
                           l->begin, LINE_MAX_BYTES - 1);
        l->text[n++] = (char)c;
    }
    l->text[n] = 0;
    if (c == '\n') {
        l->end += (int64_t)n + 1;
        return 1;
    }
    if (ferror(l->file))
        return err_errno(e, errno, "read %s", l->path);
    l->torn = n > 0;
    return 0;
}

void lines_close(struct lines *l)
{
    if (l->file)
        fclose(l->file);
    l->file = NULL;
}

int lines_write(int fd, const char *data, size_t n, const char *path, struct err *e)
{
    const int rc = file_write_all(fd, data, n);
    return rc < 0 ? err_errno(e, -rc, "write %s", path) : 0;
}
