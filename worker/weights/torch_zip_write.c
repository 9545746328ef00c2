/* Writes tensors as a .pth file of torch. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/weights/torch_zip.h"

#define PREFIX "archive/"
#define ALIGN 64
#define LOCAL_HEADER 30   /* bytes of a zip's local header before name and extra field */
#define PADDING_ID 0x4246 /* of the extra field, torch's "FB" */

static const char *storage_name(enum dtype t)
{
    static const char *const names[] = {
        [DT_F64] = "DoubleStorage", [DT_F32] = "FloatStorage", [DT_BF16] = "BFloat16Storage", [DT_F16] = "HalfStorage",
        [DT_I64] = "LongStorage",   [DT_I32] = "IntStorage",   [DT_U8] = "ByteStorage"};
    return names[t];
}

/* --- data.pkl, protocol 2 */

static void put_string(struct buf *b, const char *s)
{
    const uint32_t n = (uint32_t)strlen(s);
    const unsigned char head[] = {'X', (unsigned char)n, (unsigned char)(n >> 8), (unsigned char)(n >> 16),
                                  (unsigned char)(n >> 24)};
    buf_add(b, head, sizeof head);
    buf_add(b, s, n);
}

static void put_int(struct buf *b, int64_t v) /* LONG1 of eight bytes */
{
    unsigned char raw[10] = {0x8a, 8};
    for (int i = 0; i < 8; i++)
        raw[2 + i] = (unsigned char)((uint64_t)v >> (8 * i));
    buf_add(b, raw, sizeof raw);
}

static void put_tensor(struct buf *b, const struct ckpt_tensor *t, size_t number)
{
    char key[24];
    int64_t stride[CKPT_DIMS_MAX], count = 1;
    snprintf(key, sizeof key, "%zu", number);
    for (int i = t->ndim - 1; i >= 0; i--) {
        stride[i] = count;
        count *= t->shape[i];
    }
    put_string(b, t->name);
    buf_addstr(b, "ctorch._utils\n_rebuild_tensor_v2\n((");
    put_string(b, "storage");
    buf_printf(b, "ctorch\n%s\n", storage_name(t->dtype));
    put_string(b, key);
    put_string(b, "cpu");
    put_int(b, count);
    buf_addstr(b, "tQ");
    put_int(b, 0);
    buf_addstr(b, "(");
    for (int i = 0; i < t->ndim; i++)
        put_int(b, t->shape[i]);
    buf_addstr(b, "t(");
    for (int i = 0; i < t->ndim; i++)
        put_int(b, stride[i]);
    buf_addstr(b, "t\x89"
                  "ccollections\nOrderedDict\n)RtR");
}

static void put_pickle(struct buf *b, const struct ckpt_tensor *t, size_t n)
{
    buf_addstr(b, "\x80\x02"
                  "ccollections\nOrderedDict\n)R(");
    for (size_t i = 0; i < n; i++)
        put_tensor(b, &t[i], i);
    buf_addstr(b, "u.");
}

/* --- the zip */

struct out {
    zip_t *zip;
    const char *path;
    uint64_t at; /* where the next local header will lie */
};

static int zip_failed(const struct out *o, struct err *e)
{
    return err_set(e, ERR_OUTPUT, "write %s: %s", o->path, zip_strerror(o->zip));
}

/* data is borrowed until the zip is closed. */
static int add_entry(struct out *o, const char *name, const void *data, size_t n, struct err *e)
{
    char full[64], zeros[ALIGN + 4] = {0};
    snprintf(full, sizeof full, PREFIX "%s", name);
    const uint64_t begin = o->at + LOCAL_HEADER + strlen(full) + 4;
    const size_t pad = (size_t)((ALIGN - begin % ALIGN) % ALIGN);
    zip_source_t *source = zip_source_buffer(o->zip, data, n, 0);
    zip_int64_t i = source ? zip_file_add(o->zip, full, source, ZIP_FL_ENC_UTF_8) : -1;
    if (i < 0) {
        zip_source_free(source);
        return zip_failed(o, e);
    }
    const zip_uint64_t at = (zip_uint64_t)i;
    if (zip_set_file_compression(o->zip, at, ZIP_CM_STORE, 0) < 0 ||
        zip_file_set_dostime(o->zip, at, 0, 0x21, 0) < 0 || /* 1980-01-01: equal weights, equal files */
        zip_file_extra_field_set(o->zip, at, PADDING_ID, ZIP_EXTRA_FIELD_NEW, (const zip_uint8_t *)zeros,
                                 (zip_uint16_t)pad, ZIP_FL_LOCAL) < 0)
        return zip_failed(o, e);
    o->at = begin + pad + n;
    return 0;
}

static int add_all(struct out *o, const struct buf *pickle, const struct ckpt_tensor *t, size_t n, struct err *e)
{
    char name[40];
    int64_t bytes;
    TRY(add_entry(o, "data.pkl", pickle->data, pickle->len, e));
    TRY(add_entry(o, "byteorder", "little", 6, e));
    for (size_t i = 0; i < n; i++) {
        if (ckpt_tensor_bytes(&t[i], &bytes) < 0)
            return err_set(e, -EINVAL, "tensor '%s' cannot be stored", t[i].name);
        snprintf(name, sizeof name, "data/%zu", i);
        TRY(add_entry(o, name, t[i].data, (size_t)bytes, e));
    }
    return add_entry(o, "version", "3\n", 2, e);
}

int torch_zip_write(const char *path, const struct ckpt_tensor *t, size_t n, struct err *e)
{
    struct buf pickle = {0};
    int code = 0;
    put_pickle(&pickle, t, n);
    struct out o = {.zip = zip_open(path, ZIP_CREATE | ZIP_EXCL, &code), .path = path};
    if (!o.zip) {
        buf_free(&pickle);
        return code == ZIP_ER_EXISTS ? err_errno(e, EEXIST, "create %s", path)
                                     : err_set(e, ERR_OUTPUT, "cannot create %s", path);
    }
    int rc = add_all(&o, &pickle, t, n, e);
    if (rc == 0 && zip_close(o.zip) < 0)
        rc = zip_failed(&o, e);
    if (rc < 0)
        zip_discard(o.zip);
    buf_free(&pickle);
    return rc;
}
