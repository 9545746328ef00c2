/* Reading records where they lie: a walk over the fields of a message takes no memory, whatever sizes and numbers of
 * fields a record claims. (A tree of a million empty messages, two bytes each, would be a hundred times as large.) */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/data/db/record.h"
#include "worker/data/db/record_impl.h"
#include "worker/data/image/first_bytes.h"
#include "worker/data/image/image.h"

/* --- protobuf's wire format */

struct span {
    const uint8_t *p;
    size_t n;
};

struct field {
    uint32_t number;
    enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 } type;
    uint64_t value;    /* VARINT */
    struct span bytes; /* BYTES; FIXED: its own */
};

static bool take_varint(struct span *s, uint64_t *ret)
{
    *ret = 0;
    for (unsigned shift = 0; s->n > 0 && shift < 64; shift += 7) {
        const uint8_t b = *s->p++;
        s->n--;
        *ret |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80)
            return true;
    }
    return false;
}

static bool take_bytes(struct span *s, uint64_t n, struct span *ret)
{
    if (n > s->n)
        return false;
    *ret = (struct span){s->p, (size_t)n};
    s->p += n;
    s->n -= (size_t)n;
    return true;
}

/* The next field of a message; false: it is damaged there. */
static bool take_field(struct span *s, struct field *f)
{
    uint64_t tag, n;
    if (!take_varint(s, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff)
        return false;
    f->number = (uint32_t)(tag >> 3);
    f->bytes = (struct span){0};
    switch (tag & 7) {
    case VARINT:
        f->type = VARINT;
        return take_varint(s, &f->value);
    case BYTES:
        f->type = BYTES;
        return take_varint(s, &n) && take_bytes(s, n, &f->bytes);
    case FIXED64:
        f->type = FIXED64;
        return take_bytes(s, 8, &f->bytes);
    case FIXED32:
        f->type = FIXED32;
        return take_bytes(s, 4, &f->bytes);
    default: /* groups, which neither kind has */
        return false;
    }
}

/* --- pixels */

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
static int put_pixels(const struct layout *l, struct span px, struct buf *data, struct err *e)
{
    TRY(check_size(l, px.n, e));
    const size_t pixels = (size_t)(l->h * l->w), c = (size_t)l->c;
    if (buf_printf(data, "P%c\n%lld %lld\n255\n", c == 3 ? '6' : '5', (long long)l->w, (long long)l->h) < 0 ||
        buf_reserve(data, px.n + 1) < 0)
        return err_set(e, -ENOMEM, "no memory for a record of %zu bytes", px.n);
    char *dst = data->data + data->len;
    for (size_t i = 0; i < pixels; i++)
        for (size_t k = 0; k < c; k++)
            *dst++ = (char)px.p[i * l->pixel + (c - 1 - k) * l->channel];
    *dst = '\0';
    data->len += px.n;
    return 0;
}

static int put_file(struct span file, struct buf *data, struct err *e)
{
    const int rc = buf_add(data, file.p, file.n);
    if (rc == -E2BIG)
        return err_set(e, ERR_DATA, "a picture of %zu bytes", file.n);
    return rc < 0 ? err_set(e, -ENOMEM, "no memory for a picture of %zu bytes", file.n) : 0;
}

/* --- Caffe's Datum */

struct datum {
    int32_t channels, height, width, label;
    struct span data;
    bool has_data, has_label, encoded, floats;
};

/* false: damaged, or without any of its fields. */
static bool parse_datum(struct span s, struct datum *d)
{
    struct field f;
    bool known = false;
    while (s.n > 0) {
        if (!take_field(&s, &f))
            return false;
        const bool number = f.type == VARINT;
        if (f.number == 1 && number)
            d->channels = (int32_t)f.value;
        else if (f.number == 2 && number)
            d->height = (int32_t)f.value;
        else if (f.number == 3 && number)
            d->width = (int32_t)f.value;
        else if (f.number == 4 && f.type == BYTES)
            d->data = f.bytes, d->has_data = true;
        else if (f.number == 5 && number)
            d->label = (int32_t)f.value, d->has_label = true;
        else if (f.number == 7 && number)
            d->encoded = f.value != 0;
        else if (f.number == 6)
            d->floats = true;
        else if (f.number <= 7)
            return false;
        known = known || f.number <= 7;
    }
    return known;
}

static int read_datum(const struct datum *d, struct buf *data, int *label, struct err *e)
{
    char what[FIRST_BYTES_TEXT];
    if (!d->has_data && d->floats)
        return err_set(e, ERR_DATA, "a Datum with float_data, which is not read: store the pixels as bytes, in data");
    if (!d->has_data || !d->has_label)
        return err_set(e, ERR_DATA, "a Datum without %s", d->has_label ? "data (float_data is not read)" : "a label");
    *label = d->label;
    if (d->encoded)
        return put_file(d->data, data, e);
    const struct layout l = {.h = d->height,
                             .w = d->width,
                             .c = d->channels,
                             .pixel = 1,
                             .channel = d->height > 0 && d->width > 0 ? (size_t)d->height * (size_t)d->width : 0};
    const int rc = put_pixels(&l, d->data, data, e);
    return rc == ERR_DATA ? err_wrap(e, "a Datum that is not marked as encoded, whose data is %s",
                                     first_bytes_text(d->data.p, d->data.n, what))
                          : rc;
}

/* --- Caffe2's TensorProtos */

#define DIMS 3

struct tensor {
    int64_t dims[DIMS], type, ints; /* ints: how many of int32_data there are */
    size_t n_dims, n_strings;
    int32_t number; /* the last of them */
    bool int64s;
    struct span bytes, string;
};

/* A repeated number: one, or packed. */
static bool each_number(const struct field *f, struct tensor *t, void (*take)(struct tensor *, uint64_t))
{
    struct span s = f->bytes;
    uint64_t v = f->value;
    if (f->type == VARINT) {
        take(t, v);
        return true;
    }
    while (f->type == BYTES && s.n > 0) {
        if (!take_varint(&s, &v))
            return false;
        take(t, v);
    }
    return f->type == BYTES;
}

static void take_dim(struct tensor *t, uint64_t v)
{
    if (t->n_dims++ < DIMS)
        t->dims[t->n_dims - 1] = (int64_t)v;
}

static void take_int(struct tensor *t, uint64_t v)
{
    t->ints++;
    t->number = (int32_t)v;
}

static bool parse_tensor(struct span s, struct tensor *t)
{
    struct field f;
    bool sound = true;
    *t = (struct tensor){0};
    while (sound && s.n > 0 && (sound = take_field(&s, &f))) {
        if (f.number == 1)
            sound = each_number(&f, t, take_dim);
        else if (f.number == 2 && f.type == VARINT)
            t->type = (int32_t)f.value;
        else if (f.number == 4)
            sound = each_number(&f, t, take_int);
        else if (f.number == 5 && f.type == BYTES)
            t->bytes = f.bytes;
        else if (f.number == 6 && f.type == BYTES)
            t->string = f.bytes, t->n_strings++;
        else if (f.number == 10)
            t->int64s = true;
        else
            sound = f.number == 3 || f.number > 6;
    }
    return sound;
}

/* The first two tensors; false: damaged, or fewer. */
static bool parse_tensors(struct span s, struct tensor t[2])
{
    struct field f;
    size_t n = 0;
    while (s.n > 0) {
        if (!take_field(&s, &f))
            return false;
        if (f.number == 1 && f.type == BYTES && n < 2 && !parse_tensor(f.bytes, &t[n++]))
            return false;
    }
    return n == 2;
}

static const char *type_name(int64_t type)
{
    switch (type) {
    case TENSOR_FLOAT:
        return "floats, which are not read: store the pixels as bytes";
    case TENSOR_INT64:
        return "INT64";
    default:
        return "another type";
    }
}

static int read_picture(const struct tensor *im, struct buf *data, struct err *e)
{
    if (im->type == TENSOR_STRING && im->n_strings == 1)
        return put_file(im->string, data, e);
    if (im->type != TENSOR_BYTE || (im->n_dims != 2 && im->n_dims != 3))
        return err_set(e, ERR_DATA, "a record whose first tensor is no picture (type %lld, %s; %zu dimensions)",
                       (long long)im->type, type_name(im->type), im->n_dims);
    const int64_t c = im->n_dims == 3 ? im->dims[2] : 1;
    if (im->n_dims == 3 && c != 1 && c != 3 && (im->dims[0] == 1 || im->dims[0] == 3))
        return err_set(
            e, ERR_DATA,
            "a record whose first tensor is %lld x %lld x %lld: planes (CHW) are not read, expected height x "
            "width x channels",
            (long long)im->dims[0], (long long)im->dims[1], (long long)c);
    const struct layout l = {.h = im->dims[0], .w = im->dims[1], .c = c, .pixel = c > 0 ? (size_t)c : 0, .channel = 1};
    return put_pixels(&l, im->bytes, data, e);
}

static int read_tensors(const struct tensor t[2], struct buf *data, int *label, struct err *e)
{
    if (t[1].ints != 1)
        return err_set(e, ERR_DATA, "a record whose second tensor is no label (%lld integers; expected one%s)",
                       (long long)t[1].ints, t[1].int64s ? ", as INT32: this is INT64" : "");
    *label = t[1].number;
    return read_picture(&t[0], data, e);
}

/* A Datum's first field is a number, a TensorProtos' only field a message: their first bytes differ. */
int record_read(const void *p, size_t n, struct buf *data, int *label, struct err *e)
{
    const struct span s = {p, n};
    struct tensor t[2];
    struct datum d = {0};
    char what[FIRST_BYTES_TEXT];
    if (n > 0 && s.p[0] == (1 << 3 | BYTES)) {
        if (parse_tensors(s, t))
            return read_tensors(t, data, label, e);
    } else if (n > 0 && parse_datum(s, &d)) {
        return read_datum(&d, data, label, e);
    }
    return err_set(e, ERR_DATA, "a record of %zu bytes that is neither a Datum nor TensorProtos, but %s", n,
                   first_bytes_text(p, n, what));
}
