/* Writes and reads files of one frame, and tells a torn one from a whole one. See framed_file.h. */
#include "common/rdzv/homes/framed_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/rdzv/wire/rdzv_frame.h"

#define TORN_TRIES 20 /* of a file that is being written */

void framed_file_escape(const char *text, char *out, size_t cap)
{
    size_t n = 0;
    for (const char *p = text; *p && n + 4 < cap; p++) {
        bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-' ||
                     *p == '_' || (*p == '.' && p != text);
        n += (size_t)snprintf(out + n, cap - n, plain ? "%c" : "%%%02X", (unsigned char)*p);
    }
    out[n] = 0;
}

/* close(2) is what sends the bytes to an NFS server, and where it complains. */
int framed_file_write(int at, const char *path, int flags, bool sync, const char *text, size_t n)
{
    struct buf b = {0};
    int fd = openat(at, path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    int rc = fd < 0 ? -errno : rdzv_frame_put(&b, 0, text, n);
    if (rc == 0)
        rc = file_write_all(fd, b.data, b.len);
    if (rc == 0 && sync && fsync(fd) < 0)
        rc = -errno;
    if (fd >= 0 && close(fd) < 0 && rc == 0)
        rc = -errno;
    buf_free(&b);
    return rc;
}

/* The text within a frame; -EAGAIN if it is not whole. */
static int unframe(struct buf *b)
{
    struct rdzv_frame f;
    if (!rdzv_frame_take(b->data, b->len, &f))
        return -EAGAIN;
    buf_consume(b, RDZV_FRAME_HEAD);
    b->len = f.len;
    b->data[f.len] = 0;
    return 0;
}

int framed_file_read(int at, const char *path, struct buf *out)
{
    int rc = -EAGAIN;
    for (int i = 0; i < TORN_TRIES && rc == -EAGAIN; i++) {
        if (i > 0)
            poll(NULL, 0, 1);
        buf_clear(out);
        int fd = openat(at, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        rc = fd < 0 ? -errno : file_read_all(fd, out);
        if (fd >= 0)
            close(fd);
        if (rc == 0)
            rc = out->len == 0 ? -ENOENT : unframe(out); /* made, and nothing written yet */
    }
    return rc == -ESTALE ? -EAGAIN : rc; /* NFS: another host has replaced it */
}
