/* torch.save()'s files (.pth): a zip of stored entries <prefix>/data.pkl, <prefix>/byteorder, <prefix>/data/<storage>,
 * <prefix>/version. Files of torch before 1.6 are no zip: torch_old.h. Without libzip (Meson option `libzip`) every
 * call is -ENOTSUP. */
#ifndef CRUN_WORKER_WEIGHTS_TORCH_ZIP_H
#define CRUN_WORKER_WEIGHTS_TORCH_ZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/ckpt/safetensors.h"

struct err;
struct pickle;
struct torch_zip;

/* Reads the list of tensors; see pickle_read.h for part and for what is taken. ERR_CORRUPT, ERR_REFUSED, -ENOTSUP,
 * -errno. */
int torch_zip_open(struct torch_zip **ret, const char *path, const char *part, struct err *e);
void torch_zip_close(struct torch_zip *z); /* NULL allowed */
size_t torch_zip_count(const struct torch_zip *z);
const struct ckpt_tensor *torch_zip_at(const struct torch_zip *z, size_t i); /* data is NULL; valid until close */
const struct pickle *torch_zip_pickle(const struct torch_zip *z);
/* Into dst (shape * dtype bytes), contiguous. Not thread-safe. */
int torch_zip_read(struct torch_zip *z, size_t i, void *dst, struct err *e);

/* A new file that torch.load(weights_only=True) reads as an OrderedDict of tensors. Data begins at multiples of 64
 * bytes, as torch's own does. The same tensors give the same bytes. */
int torch_zip_write(const char *path, const struct ckpt_tensor *t, size_t n, struct err *e);

#endif
