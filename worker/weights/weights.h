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

/* part: NULL, or of a file of others the member of its outermost dict, or else the beginning of names, under which the
 * weights lie; what is not there is passed over, and names lose that beginning. ERR_USAGE: nothing there, or no such
 * part. ERR_CORRUPT, ERR_REFUSED (see pickle_read.h), -ENOTSUP: one sentence. */
int weights_open(struct weights **ret, const char *path, const char *part, struct err *e);
/* Names of a file of others lose what wrappers put before them: "module." (DistributedDataParallel) and "_orig_mod."
 * (torch.compile). Before anything was found. ERR_MISMATCH: two become one. */
int weights_drop_wrappers(struct weights *w, struct err *e);
/* From now on weights_find() looks for names behind the beginning behind which most of wanted[n], a model's names,
 * are found, in ours or another library's spelling (prefix.h): *ret_prefix, valid until close; "": none. least: one
 * behind which fewer lie is none. ERR_MISMATCH names two. */
int weights_choose_prefix(struct weights *w, const char *const *wanted, size_t n, size_t least, const char **ret_prefix,
                          struct err *e);
/* Members of a .pth file's dict, or tensors of a .safetensors file, that are no tensors that can be taken: how many;
 * *ret_first: the first of them. */
size_t weights_passed_over(const struct weights *w, const char **ret_first);
/* "'a' is taken, and not 'b'" of a file with several models, if no part was asked for; else "". */
const char *weights_another(const struct weights *w);
/* A checkpoint that keeps moving averages (--ema) gives those from now on, under the names of what they average.
 * Others: no effect. */
void weights_take_averages(struct weights *w);
bool weights_has_averages(const struct weights *w);
/* NULL; or, if tensors of the file stand for others (pruning, adapters): what they are and the remedy (foreign.h), and
 * *ret_name, the first of them. */
const char *weights_made_of(const struct weights *w, const char **ret_name);
void weights_close(struct weights *w);              /* NULL allowed */
const cJSON *weights_meta(const struct weights *w); /* of a checkpoint's manifest; NULL for a bare file */
size_t weights_count(const struct weights *w);
const struct ckpt_tensor *weights_at(const struct weights *w, size_t i); /* data is NULL; valid until close */
/* NULL: none. What has another library's name is found by ours (foreign.h); if it is in several tensors there, or as
 * (in, out), *ret_i is a number behind weights_count(), for weights_read_real() alone. */
const struct ckpt_tensor *weights_find(struct weights *w, const char *name, size_t *ret_i);
bool weights_was_found(const struct weights *w, size_t i); /* or a part of what was */
/* 1: there is a tensor behind the prefix that was not found, and whose name differs in its numbers alone from that of
 * one that was found, as of another layer or block (one of them is between dots); *ret_i: the first. 0; -ENOMEM. */
int weights_is_larger(const struct weights *w, size_t *ret_i, struct err *e);
/* Into dst, as it is stored. */
int weights_read(struct weights *w, size_t i, void *dst, struct err *e);
/* As real (DT_F32 or DT_F64), from any floating-point type; rounds to nearest even. ERR_MISMATCH for integers. */
int weights_read_real(struct weights *w, size_t i, enum dtype real, void *dst, struct err *e);

#endif
