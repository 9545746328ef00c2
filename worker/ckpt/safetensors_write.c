/* Writing one safetensors file.
 *
 * The header is made first: it depends on names, types and shapes only, so equal states give equal files. Data then
 * goes to the file piece by piece, straight from the caller's memory or as the tensor's source gives it, each piece
 * summed while it is warm in the cache. */
#include "worker/ckpt/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/base/file.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors holds little-endian data; hosts must be the same");

#define HEADER_MAX ((size_t)100 << 20) /* the format's own limit */

struct entry {
    const struct ckpt_tensor *t;
    int64_t bytes;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->t->name, ((const struct entry *)b)->t->name);
}

static int check_tensor(const struct ckpt_tensor *t, int64_t *bytes, struct err *e)
{
    char shape[CKPT_SHAPE_LEN];
    if (!memchr(t->name, 0, sizeof t->name))
        return err_set(e, -EINVAL, "a tensor's name is longer than %d bytes", CKPT_NAME_MAX);
    if (!t->name[0] || strcmp(t->name, "__metadata__") == 0)
        return err_set(e, -EINVAL, "a tensor cannot be named '%s'", t->name);
    if (ckpt_tensor_bytes(t, bytes) < 0)
        return err_set(e, -EINVAL, "tensor '%s' has an impossible shape: %s", t->name,
                       ckpt_tensor_shape(t, shape, sizeof shape));
    if (!t->data && !t->source && *bytes > 0)
        return err_set(e, -EINVAL, "tensor '%s' has no data", t->name);
    return 0;
}

/* Check every tensor and sort them by name. */
static int plan(struct entry *v, const struct ckpt_tensor *t, size_t n, struct err *e)
{
    int64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        v[i].t = &t[i];
        TRY(check_tensor(&t[i], &v[i].bytes, e));
        if (__builtin_add_overflow(total, v[i].bytes, &total))
            return err_set(e, -EINVAL, "the tensors exceed 2^63 bytes");
    }
    qsort(v, n, sizeof *v, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(v[i - 1].t->name, v[i].t->name) == 0)
            return err_set(e, -EEXIST, "two tensors are named '%s'", v[i].t->name);
    return 0;
}

static int add_entry(struct buf *h, const struct entry *v, int64_t begin)
{
    cJSON *name = cJSON_CreateStringReference(v->t->name);
    char *quoted = name ? cJSON_PrintUnformatted(name) : NULL;
    cJSON_Delete(name);
    if (!quoted)
        return -ENOMEM;
    int rc = buf_printf(h, ",%s:{\"dtype\":\"%s\",\"shape\":[", quoted, dtype_name(v->t->dtype));
    cJSON_free(quoted);
    for (int d = 0; rc == 0 && d < v->t->ndim; d++)
        rc = buf_printf(h, "%s%" PRId64, d ? "," : "", v->t->shape[d]);
    if (rc == 0)
        rc = buf_printf(h, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", begin, begin + v->bytes);
    return rc;
}

/* Length, JSON, and spaces up to a multiple of 8. */
static int make_header(struct buf *h, const struct entry *v, size_t n, struct err *e)
{
    uint64_t length = 0;
    int64_t at = 0;
    int rc = buf_add(h, &length, sizeof length);
    if (rc == 0)
        rc = buf_addstr(h, "{\"__metadata__\":{\"format\":\"pt\"}"); /* transformers asks for it */
    for (size_t i = 0; rc == 0 && i < n; at += v[i++].bytes)
        rc = add_entry(h, &v[i], at);
    if (rc == 0)
        rc = buf_addstr(h, "}");
    while (rc == 0 && h->len % 8 != 0)
        rc = buf_addstr(h, " ");
    if (rc < 0)
        return err_set(e, rc, "the header of %zu tensors cannot be made: %s", n, strerror(-rc));
    length = h->len - sizeof length;
    memcpy(h->data, &length, sizeof length);
    return 0;
}

static int write_all(int fd, const char *p, size_t n, const char *path, struct err *e)
{
    const int rc = file_write_all(fd, p, n);
    return rc < 0 ? err_errno(e, -rc, "write %s", path) : 0;
}

static int piece_of(const struct ckpt_tensor *t, int64_t at, size_t n, const void **ret, struct err *e)
{
    if (!t->data)
        return t->source->bytes(t->source, t, at, n, ret, e);
    *ret = (const char *)t->data + at;
    return 0;
}

static int write_tensor(int fd, const struct entry *v, uint32_t *crc, const char *path, struct err *e)
{
    uint32_t sum = 0;
    for (int64_t at = 0; at < v->bytes; at += CKPT_PIECE) {
        const size_t n = (size_t)(v->bytes - at) < CKPT_PIECE ? (size_t)(v->bytes - at) : CKPT_PIECE;
        const void *p;
        TRY(piece_of(v->t, at, n, &p, e));
        TRY(write_all(fd, p, n, path, e));
        if (crc)
            sum = crc32c(sum, p, n);
    }
    if (crc)
        *crc = sum;
    return 0;
}

static int write_file(int fd, const struct buf *h, const struct entry *v, size_t n, const struct ckpt_tensor *t,
                      uint32_t *crc, const char *path, struct err *e)
{
    TRY(write_all(fd, h->data, h->len, path, e));
    for (size_t i = 0; i < n; i++)
        TRY(write_tensor(fd, &v[i], crc ? &crc[v[i].t - t] : NULL, path, e));
    if (fsync(fd) < 0)
        return err_errno(e, errno, "fsync %s", path);
    return 0;
}

int safetensors_write(const char *path, const struct ckpt_tensor *t, size_t n, uint32_t *crc, struct err *e)
{
    struct buf header;
    buf_init(&header, HEADER_MAX);
    struct entry *v = calloc(n ? n : 1, sizeof *v);
    int fd = -1, rc = v ? 0 : err_set(e, -ENOMEM, "no memory for %zu tensors", n);
    TRY_GOTO(rc, rc, done);
    TRY_GOTO(rc, plan(v, t, n, e), done);
    TRY_GOTO(rc, make_header(&header, v, n, e), done);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        rc = err_errno(e, errno, "create %s", path);
        goto done;
    }
    rc = write_file(fd, &header, v, n, t, crc, path, e);
    if (close(fd) < 0 && rc == 0)
        rc = err_errno(e, errno, "close %s", path);
    if (rc < 0)
        unlink(path);
done:
    free(v);
    buf_free(&header);
    return rc;
}
