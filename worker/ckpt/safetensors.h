/* One safetensors file (github.com/huggingface/safetensors): u64 little-endian header length, JSON header
 * {name: {dtype, shape, data_offsets}}, data. Written here: header padded with spaces to 8 bytes, tensors in name
 * order. Read here: any file that follows the format, written by whomever; nothing in it is believed before it is
 * checked. */
#ifndef CRUN_WORKER_SAFETENSORS_H
#define CRUN_WORKER_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "worker/precision/dtype.h"

struct err;

#define CKPT_NAME_MAX 111
#define CKPT_DIMS_MAX 4

#define CKPT_PIECE ((size_t)4 << 20) /* bytes that are written or read at once */

struct ckpt_source;

struct ckpt_tensor {
    char name[CKPT_NAME_MAX + 1];
    enum dtype dtype;
    int ndim; /* 0..4; 0: a scalar */
    int64_t shape[CKPT_DIMS_MAX];
    const void *data;                 /* host memory, native (little) endian; borrowed during the call */
    const struct ckpt_source *source; /* where data is NULL: gives it piece by piece; borrowed */
};

/* Gives the bytes of tensors that are written. Asked for the tensors of a file in the order of their names, for each
 * tensor's bytes in ascending order, CKPT_PIECE of them at a time, its last piece being what is left. */
struct ckpt_source {
    /* n bytes of t (an element of the caller's array) from byte `at` on; *ret is valid until the next call. */
    int (*bytes)(const struct ckpt_source *s, const struct ckpt_tensor *t, int64_t at, size_t n, const void **ret,
                 struct err *e);
};

/* Streams the tensors (any order; sorted by name in the file) to path, which must not exist yet, and fsyncs it. crc:
 * CRC32C per tensor in input order, or NULL. -EEXIST for a name given twice; -EINVAL for a tensor that cannot be
 * stored; -ENOSPC and the like name the path. Nothing is left behind on failure. */
int safetensors_write(const char *path, const struct ckpt_tensor *t, size_t n, uint32_t *crc, struct err *e);

struct safetensors;
/* Opens and checks the header: at most 100 MB, offsets in range and contiguous, sizes that fit shapes. ERR_CORRUPT says
 * what is wrong, ERR_REFUSED an element type (8-bit floats) that is not read. */
int safetensors_open(struct safetensors **ret, const char *path, struct err *e);
void safetensors_close(struct safetensors *s); /* NULL allowed */
size_t safetensors_count(const struct safetensors *s);
/* Tensors of types that no weights are of (bools, small integers), which are not among those: how many; *ret_first: the
 * first of them, as "'mask', of type BOOL". */
size_t safetensors_passed_over(const struct safetensors *s, const char **ret_first);
const char *safetensors_path(const struct safetensors *s);
int64_t safetensors_bytes(const struct safetensors *s); /* of the whole file */
/* i-th tensor in file order; data is NULL. Valid until close. */
const struct ckpt_tensor *safetensors_at(const struct safetensors *s, size_t i);
int safetensors_find(const struct safetensors *s, const char *name); /* index in file order, -1 if none */
/* Read it whole into dst (shape * dtype bytes). crc (may be NULL) gets the CRC32C of what was read. Thread-safe. */
int safetensors_read(struct safetensors *s, size_t i, void *dst, uint32_t *crc, struct err *e);
/* n bytes of it from byte `at` on, within it. Thread-safe. */
int safetensors_read_part(struct safetensors *s, size_t i, int64_t at, size_t n, void *dst, struct err *e);

/* Bytes of a tensor: -EINVAL for a negative or overflowing shape, an unknown type or too many dimensions. */
int ckpt_tensor_bytes(const struct ckpt_tensor *t, int64_t *ret);

/* Elements of a tensor of floating-point numbers, whose shape was checked; 0 of others. */
int64_t ckpt_tensor_reals(const struct ckpt_tensor *t);

/* "F32 [64, 3, 7, 7]" into out. Returns out. */
char *ckpt_tensor_shape(const struct ckpt_tensor *t, char *out, size_t cap);
#define CKPT_SHAPE_LEN 112

#endif
