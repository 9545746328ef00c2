#include "common/rdzv/homes/framed_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/numbers.h"

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

void framed_file_unescape(const char *text, char *out, size_t cap)
{
    size_t n = 0;
    for (const char *p = text; *p && n + 1 < cap; p++) {
        const int c = *p == '%' ? hex_byte(p + 1, 2) : -1;
        out[n++] = c < 0 ? *p : (char)c;
        p += c < 0 ? 0 : 2;
    }
    out[n] = 0;
}

/* Length, checksum, text. */
static int frame(const char *text, size_t n, struct buf *out)
{
    TRY(buf_printf(out, "%08zx %08" PRIx32 "\n", n, crc32c(0, text, n)));
    return buf_add(out, text, n);
}

/* close(2) is what sends the bytes to an NFS server, and where it complains. */
int framed_file_write(int at, const char *path, int flags, bool sync, const char *text, size_t n)
{
    struct buf b = {0};
    int fd = openat(at, path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    int rc = fd < 0 ? -errno : frame(text, n, &b);
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
    size_t n = 0;
    uint32_t crc = 0;
    const size_t head = 18;
    if (b->len < head || sscanf(b->data, "%8zx %8" SCNx32, &n, &crc) != 2 || n > b->len - head ||
        crc32c(0, b->data + head, n) != crc)
        return -EAGAIN;
    buf_consume(b, head);
    b->len = n;
    b->data[n] = 0;
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
