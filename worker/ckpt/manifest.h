/* manifest.json of a checkpoint, written last: what makes the folder a checkpoint. Used by save.c and open.c only.
 *
 *     {"format": "crun checkpoint", "version": 1, "step": 1234,
 *      "files": {"model": {"bytes": 46827520, "crc32c": {"bn1.bias": "1c291ca3", ...}}, "train": {...}},
 *      "meta": {...}, "crc32c": "9ae0daaf"}
 *
 * The last member is the sum of the rest as compact JSON. */
#ifndef CRUN_WORKER_CKPT_MANIFEST_H
#define CRUN_WORKER_CKPT_MANIFEST_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/ckpt/folder.h"
#include "worker/ckpt/safetensors.h"

struct err;

struct manifest_file {
    int64_t bytes;
    const struct ckpt_tensor *tensors;
    const uint32_t *crc; /* of each tensor */
    size_t n;
};

int manifest_write(const char *path, int64_t step, const struct manifest_file file[CKPT_FILE_COUNT], const cJSON *meta,
                   struct err *e);

/* Sets members of "meta" (those of the object `more`, borrowed). A kill at any moment leaves the old manifest or the
 * new one. */
int manifest_amend(const char *path, int64_t step, const cJSON *more, struct err *e);

/* Reads and checks it: format, version, step and sum. *ret is freed with cJSON_Delete. */
int manifest_read(const char *path, int64_t step, cJSON **ret, struct err *e);
int manifest_bytes(const cJSON *m, enum ckpt_file_id file, int64_t *ret, struct err *e);
int manifest_crc(const cJSON *m, enum ckpt_file_id file, const char *tensor, uint32_t *ret, struct err *e);

#endif
