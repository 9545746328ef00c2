/* Weights in several files, as Hugging Face's index (model.safetensors.index.json, or pytorch_model.bin.index.json of
 * torch's) names them: {"weight_map": {tensor: file}}. The files lie beside the index: other names than plain ones of
 * that folder are refused. */
#ifndef CRUN_WORKER_WEIGHTS_SHARDS_H
#define CRUN_WORKER_WEIGHTS_SHARDS_H

#include <stddef.h>

#include "worker/ckpt/safetensors.h"

struct err;
struct shards;

/* ERR_CORRUPT: an index that is none, a file that is not there or lacks a tensor, a tensor that is claimed twice. */
int shards_open(struct shards **ret, const char *path, struct err *e);
void shards_close(struct shards *s); /* NULL allowed */
size_t shards_count(const struct shards *s);
const struct ckpt_tensor *shards_at(const struct shards *s, size_t i); /* data is NULL; valid until close */
int shards_read(struct shards *s, size_t i, void *dst, struct err *e);

#endif
