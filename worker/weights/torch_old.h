/* Files that torch.save() wrote before torch 1.6, or writes with _use_new_zipfile_serialization=False: pickles, and
 * behind them the storages (pickle_read.h). Nothing is believed of a size before the file is known to have it. */
#ifndef CRUN_WORKER_WEIGHTS_TORCH_OLD_H
#define CRUN_WORKER_WEIGHTS_TORCH_OLD_H

#include <stddef.h>

#include "worker/ckpt/safetensors.h"

struct err;
struct pickle;
struct torch_old;

/* part: see pickle_read.h. ERR_CORRUPT, ERR_REFUSED, -ENOTSUP, -errno. */
int torch_old_open(struct torch_old **ret, const char *path, const char *part, struct err *e);
void torch_old_close(struct torch_old *f); /* NULL allowed */
size_t torch_old_count(const struct torch_old *f);
const struct ckpt_tensor *torch_old_at(const struct torch_old *f, size_t i); /* data is NULL; valid until close */
const struct pickle *torch_old_pickle(const struct torch_old *f);
/* Into dst (shape * dtype bytes), contiguous. Not thread-safe. */
int torch_old_read(struct torch_old *f, size_t i, void *dst, struct err *e);

#endif
