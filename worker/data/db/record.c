#include "worker/data/db/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "record.pb-c.h"
#include "worker/data/image/image.h"

enum { TENSOR_INT32 = 2, TENSOR_BYTE = 3, TENSOR_STRING = 4 };

/* Where pixel (y, x) of channel c lies: planes (Datum) or interleaved (TensorProto). */
struct layout {
    int64_t h, w, c;
    size_t pixel, channel; /* steps */
};

static int check_size(const struct layout *l, size_t bytes, struct err *e)
{
    if ((l->c != 1 && l->c != 3) || l->h < 1 || l->w < 1 || l->h > IMAGE_MAX_PIXELS || l->w > IMAGE_MAX_PIXELS ||
        l->h * l->w > IMAGE_MAX_PIXELS)
        return err_set(e, ERR_DATA, "a record of %lld x %lld pixels of %lld channels", (long long)l->w, (long long)l->h,
                       (long long)l->c);
    if (bytes != (size_t)(l->h * l->w * l->c))
        return err_set(e, ERR_DATA, "a record of %lld x %lld pixels of %lld channels holds %zu bytes", (long long)l->w,
                       (long long)l->h, (long long)l->c, bytes);
    return 0;
}

/* Raw pixels, blue first, to PPM or PGM. */
static int put_pixels(const struct layout *l, const uint8_t *px, size_t bytes, struct buf *data, struct err *e)
{
    const size_t pixels = (size_t)(l->h * l->w), c = (size_t)l->c;
    TRY(check_size(l, bytes, e));
    if (buf_printf(data, "P%c\n%lld %lld\n255\n", c == 3 ? '6' : '5', (long long)l->w, (long long)l->h) < 0 ||
        buf_reserve(data, bytes + 1) < 0)
        return err_set(e, -ENOMEM, "no memory for a record of %zu bytes", bytes);
    char *dst = data->data + data->len;
    for (size_t i = 0; i < pixels; i++)
        for (size_t k = 0; k < c; k++)
            *dst++ = (char)px[i * l->pixel + (c - 1 - k) * l->channel];
    *dst = '\0';
    data->len += bytes;
    return 0;
}

static int put_file(const uint8_t *p, size_t n, struct buf *data, struct err *e)
{
    return buf_add(data, p, n) < 0 ? err_set(e, -ENOMEM, "no memory for a picture of %zu bytes", n) : 0;
}

static int read_datum(const Crun__Record__Datum *d, struct buf *data, int *label, struct err *e)
{
    if (!d->has_data || !d->has_label)
        return err_set(e, ERR_DATA, "a Datum without %s", d->has_label ? "data (float_data is not read)" : "a label");
    *label = d->label;
    if (d->has_encoded && d->encoded)
        return put_file(d->data.data, d->data.len, data, e);
    const struct layout l = {.h = d->height,
                             .w = d->width,
                             .c = d->channels,
                             .pixel = 1,
                             .channel = d->height > 0 && d->width > 0 ? (size_t)d->height * (size_t)d->width : 0};
    return put_pixels(&l, d->data.data, d->data.len, data, e);
}

static int read_tensors(const Crun__Record__TensorProtos *t, struct buf *data, int *label, struct err *e)
{
    const Crun__Record__TensorProto *im = t->protos[0], *lb = t->protos[1];
    if (lb->n_int32_data != 1)
        return err_set(e, ERR_DATA, "a record whose second tensor is no label (%zu integers; expected one)",
                       lb->n_int32_data);
    *label = lb->int32_data[0];
    if (im->data_type == TENSOR_STRING && im->n_string_data == 1)
        return put_file(im->string_data[0].data, im->string_data[0].len, data, e);
    if (im->data_type != TENSOR_BYTE || (im->n_dims != 2 && im->n_dims != 3))
        return err_set(e, ERR_DATA, "a record whose first tensor is no picture (type %d, %zu dimensions)",
                       im->data_type, im->n_dims);
    const int64_t c = im->n_dims == 3 ? im->dims[2] : 1;
    const struct layout l = {.h = im->dims[0], .w = im->dims[1], .c = c, .pixel = c > 0 ? (size_t)c : 0, .channel = 1};
    return put_pixels(&l, im->byte_data.data, im->byte_data.len, data, e);
}

/* A Datum's first field is a number, a TensorProtos' only field a message: their first bytes differ. */
int record_read(const void *p, size_t n, struct buf *data, int *label, struct err *e)
{
    int rc = err_set(e, ERR_DATA, "a record of %zu bytes that is neither a Datum nor TensorProtos", n);
    if (n > 0 && *(const uint8_t *)p == (1 << 3 | 2)) {
        Crun__Record__TensorProtos *t = crun__record__tensor_protos__unpack(NULL, n, p);
        if (t && t->n_protos >= 2)
            rc = read_tensors(t, data, label, e);
        if (t)
            crun__record__tensor_protos__free_unpacked(t, NULL);
        return rc;
    }
    Crun__Record__Datum *d = n > 0 ? crun__record__datum__unpack(NULL, n, p) : NULL;
    if (d) {
        rc = read_datum(d, data, label, e);
        crun__record__datum__free_unpacked(d, NULL);
    }
    return rc;
}

/* --- writing */

static int put_message(const ProtobufCMessage *m, struct buf *out, struct err *e)
{
    const size_t n = protobuf_c_message_get_packed_size(m);
    if (buf_reserve(out, n + 1) < 0)
        return err_set(e, -ENOMEM, "no memory for a record of %zu bytes", n);
    out->len += protobuf_c_message_pack(m, (uint8_t *)out->data + out->len);
    out->data[out->len] = '\0';
    return 0;
}

static int put_tensors(Crun__Record__TensorProto *picture, int32_t label, struct buf *out, struct err *e)
{
    Crun__Record__TensorProto lb = CRUN__RECORD__TENSOR_PROTO__INIT;
    Crun__Record__TensorProto *both[] = {picture, &lb};
    Crun__Record__TensorProtos t = CRUN__RECORD__TENSOR_PROTOS__INIT;
    int64_t one = 1;
    lb.has_data_type = 1;
    lb.data_type = TENSOR_INT32;
    lb.n_dims = lb.n_int32_data = 1;
    lb.dims = &one;
    lb.int32_data = &label;
    t.n_protos = 2;
    t.protos = both;
    return put_message(&t.base, out, e);
}

int record_write_encoded(enum record_format f, const void *file, size_t n, int label, struct buf *out, struct err *e)
{
    ProtobufCBinaryData bytes = {.len = n, .data = (uint8_t *)file};
    if (f == RECORD_DATUM) {
        Crun__Record__Datum d = CRUN__RECORD__DATUM__INIT;
        d.has_data = d.has_label = d.has_encoded = d.encoded = 1;
        d.data = bytes;
        d.label = label;
        return put_message(&d.base, out, e);
    }
    Crun__Record__TensorProto im = CRUN__RECORD__TENSOR_PROTO__INIT;
    int64_t one = 1;
    im.has_data_type = 1;
    im.data_type = TENSOR_STRING;
    im.n_dims = im.n_string_data = 1;
    im.dims = &one;
    im.string_data = &bytes;
    return put_tensors(&im, label, out, e);
}

int record_write_raw(enum record_format f, const struct image *im, int label, struct buf *out, struct err *e)
{
    const size_t pixels = (size_t)im->w * (size_t)im->h, c = (size_t)im->c, n = pixels * c;
    uint8_t *px = malloc(n);
    if (!px)
        return err_set(e, -ENOMEM, "no memory for a record of %zu bytes", n);
    for (size_t i = 0; i < pixels; i++)
        for (size_t k = 0; k < c; k++)
            px[f == RECORD_DATUM ? k * pixels + i : i * c + k] = im->px[i * c + (c - 1 - k)];
    int rc;
    if (f == RECORD_DATUM) {
        Crun__Record__Datum d = CRUN__RECORD__DATUM__INIT;
        d.has_channels = d.has_height = d.has_width = d.has_data = d.has_label = d.has_encoded = 1;
        d.channels = im->c;
        d.height = im->h;
        d.width = im->w;
        d.label = label;
        d.data = (ProtobufCBinaryData){.len = n, .data = px};
        rc = put_message(&d.base, out, e);
    } else {
        Crun__Record__TensorProto t = CRUN__RECORD__TENSOR_PROTO__INIT;
        int64_t dims[] = {im->h, im->w, im->c};
        t.has_data_type = t.has_byte_data = 1;
        t.data_type = TENSOR_BYTE;
        t.n_dims = 3;
        t.dims = dims;
        t.byte_data = (ProtobufCBinaryData){.len = n, .data = px};
        rc = put_tensors(&t, label, out, e);
    }
    free(px);
    return rc;
}
