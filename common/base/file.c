#include "common/base/file.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"

/* 0: not known, as of a pipe or of what the kernel makes up. */
static size_t size_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 ? (size_t)st.st_size : 0;
}

/* Straight into memory that is there, then by pieces: mostly there is none, unless the file grows meanwhile. */
int file_read_all(int fd, struct buf *out)
{
    char piece[16384];
    const size_t expected = size_of(fd), end = out->len + expected;
    int rc = expected ? buf_reserve(out, expected) : 0;
    while (rc == 0) {
        const size_t left = end > out->len ? end - out->len : 0;
        const ssize_t n = left ? read(fd, out->data + out->len, left) : read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (left) {
            out->len += (size_t)n;
            out->data[out->len] = 0;
        } else {
            rc = buf_add(out, piece, (size_t)n);
        }
        if (n == 0)
            return rc;
    }
    return rc;
}

int file_write_all(int fd, const void *data, size_t n)
{
    for (const char *p = data; n > 0;) {
        const ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return w < 0 ? -errno : -EIO;
        p += w;
        n -= (size_t)w;
    }
    return 0;
}
