/* Reads and writes whole files (file.h). */
#include "common/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"

static struct file_at *at_page;

void file_at_share(struct file_at *page)
{
    at_page = page;
}

void file_at(const char *path)
{
    if (!at_page)
        return;
    snprintf(at_page->path, sizeof at_page->path, "%s", path ? path : "");
    at_page->since_ms = path ? clock_ms() : 0;
}

int file_open_regular_at(int at, const char *name, int flags, const char *path, int code, struct err *e)
{
    struct stat st;
    const int fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
    if (fd < 0)
        return err_errno(e, errno, "open %s", path);
    if (fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)))
        return fd;
    close(fd);
    return err_set(e, code, "%s is not a regular file, but a %s", path, S_ISFIFO(st.st_mode) ? "named pipe" : "device");
}

int file_open_regular(const char *path, int code, struct err *e)
{
    return file_open_regular_at(AT_FDCWD, path, 0, path, code, e);
}

int file_stream_regular(FILE **ret, const char *path, int code, struct err *e)
{
    const int fd = file_open_regular(path, code, e);
    if (fd < 0)
        return fd;
    FILE *f = fdopen(fd, "r");
    if (!f) {
        close(fd);
        return err_errno(e, ENOMEM, "open %s", path);
    }
    *ret = f;
    return 0;
}

/* Size of a regular file; 0: not known, as for a pipe or a file of /proc. */
static size_t size_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 ? (size_t)st.st_size : 0;
}

/* Read straight into reserved memory, then piece by piece: usually nothing is left by then, unless the file grows
 * meanwhile. */
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

static int read_text(char *out, size_t cap, const char *format, va_list ap)
{
    char path[PATH_MAX];
    out[0] = '\0';
    if (vsnprintf(path, sizeof path, format, ap) >= (int)sizeof path)
        return -ENAMETOOLONG;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    const ssize_t n = read(fd, out, cap - 1);
    const int why = errno;
    close(fd);
    out[n > 0 ? n : 0] = '\0';
    return n < 0 ? -why : (int)n;
}

int file_read_text(char *out, size_t cap, const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    const int n = read_text(out, cap, path, ap);
    va_end(ap);
    return n;
}

int file_read_line(char *out, size_t cap, const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    const int n = read_text(out, cap, path, ap);
    va_end(ap);
    const size_t len = strcspn(out, "\n");
    out[len] = '\0';
    return n < 0 ? n : (int)len;
}

int file_read_int(int otherwise, const char *path, ...)
{
    char text[32];
    va_list ap;
    va_start(ap, path);
    read_text(text, sizeof text, path, ap);
    va_end(ap);
    sscanf(text, "%d", &otherwise);
    return otherwise;
}

/* --- descriptors */

#define WITHOUT_PROC 1024 /* without /proc, descriptors below this are tried one by one */

static void keep_one(int fd)
{
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0)
        fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
}

void file_keep_fds(void)
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
