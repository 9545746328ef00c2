/* Picture data bases in LMDB and LevelDB: reading them as data sets, and making them. This header: their records.
 *
 *   lmdb.c, leveldb.c: struct dataset_ops; a key an entry, read at once by any thread -> record_read() -> picture,
 *                          label
 *   make_db.c: any data set -> record_write_*() -> db_writer_lmdb.c, db_writer_leveldb.c, in the order of keys
 *
 * Records: Caffe's Datum and Caffe2's TensorProtos (record.proto), detected by content. Datum: channels, height,
 * width and data, planes one after the other (blue first where there are three, as OpenCV has them), or the bytes of a
 * picture file where `encoded`; label. TensorProtos: two tensors, the picture (a string: the bytes of a picture file;
 * bytes: height x width x channels, blue first) and the label (one int32). */
#ifndef CRUN_WORKER_DATA_RECORD_H
#define CRUN_WORKER_DATA_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/choice.h"

struct buf;
struct err;
struct image;

#define RECORD_FORMATS(X)                                                                                              \
    X(RECORD_DATUM, "datum")                                                                                           \
    X(RECORD_TENSORPROTOS, "tensorprotos")
enum record_format { RECORD_FORMATS(CHOICE_ID) };

/* Append the picture to *data as image_decode() reads it (raw pixels as PPM or PGM) and set *label, whatever it is.
 * ERR_DATA: neither kind of record, sizes that do not fit, no label. */
int record_read(const void *p, size_t n, struct buf *data, int *label, struct err *e);

/* Append a record that holds the bytes of a picture file. */
int record_write_encoded(enum record_format f, const void *file, size_t n, int label, struct buf *out, struct err *e);
/* Append a record that holds the pixels. */
int record_write_raw(enum record_format f, const struct image *im, int label, struct buf *out, struct err *e);

#endif
