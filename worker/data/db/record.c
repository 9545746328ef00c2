/* Writing records, through protobuf-c. */
#include "worker/data/db/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "record.pb-c.h"
#include "worker/data/db/record_impl.h"
#include "worker/data/image/image.h"

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
