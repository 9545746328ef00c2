/* Named tensors from wherever they lie: a checkpoint (its folder, or the newest of a folder of them; sums are checked),
 * a safetensors file (or a folder of Hugging Face's with one), a .pth file of torch, or llm.c's of a GPT-2. */
#ifndef CRUN_WORKER_WEIGHTS_WEIGHTS_H
#define CRUN_WORKER_WEIGHTS_WEIGHTS_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

#include "worker/ckpt/safetensors.h"

struct err;
struct weights;

/* ERR_USAGE: nothing there. ERR_CORRUPT, ERR_REFUSED (see pickle_read.h), -ENOTSUP: one sentence. */
int weights_open(struct weights **ret, const char *path, struct err *e);
/* A checkpoint that keeps moving averages (--ema) gives those from now on, under the names of what they average.
 * Others: no effect. */
void weights_take_averages(struct weights *w);
bool weights_has_averages(const struct weights *w);
void weights_close(struct weights *w);              /* NULL allowed */
const cJSON *weights_meta(const struct weights *w); /* of a checkpoint's manifest; NULL for a bare file */
size_t weights_count(const struct weights *w);
const struct ckpt_tensor *weights_at(const struct weights *w, size_t i); /* data is NULL; valid until close */
/* NULL: none. What has another library's name is found by ours (foreign.h); if it is in several tensors there, or as
 * (in, out), *ret_i is a number behind weights_count(), for weights_read_real() alone. */
const struct ckpt_tensor *weights_find(struct weights *w, const char *name, size_t *ret_i);
bool weights_was_found(const struct weights *w, size_t i); /* or a part of what was */
/* Into dst, as it is stored. */
int weights_read(struct weights *w, size_t i, void *dst, struct err *e);
/* As real (DT_F32 or DT_F64), from any floating-point type; rounds to nearest even. ERR_MISMATCH for integers. */
int weights_read_real(struct weights *w, size_t i, enum dtype real, void *dst, struct err *e);

#endif
