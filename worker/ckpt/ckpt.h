/* Checkpoints: DIR/step-00001234/{model.safetensors, train.safetensors, manifest.json} and DIR/latest.
 *
 * safetensors (github.com/huggingface/safetensors): u64 header length, JSON header {name: {dtype, shape, data_offsets}}, data. The header is
 * padded with spaces to 8 bytes; tensors lie in name order. model.safetensors holds parameters under torchvision's names and nothing else (no time,
 * path or run id), so equal states are equal files. manifest.json is written last, fsynced, and the folder renamed from step-N.tmp:
 * a checkpoint either is complete or does not exist. The manifest has a CRC32C of every tensor and the caller's own members. */
#ifndef CRUN_WORKER_CKPT_H
#define CRUN_WORKER_CKPT_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/dtype.h"

struct err;

struct ckpt_tensor {
    char name[112];
    enum dtype dtype;
    int ndim;          /* 0..4; 0: a scalar */
    int64_t shape[4];
    const void *data;  /* host memory, native (little) endian; borrowed during the call */
};

/* --- one safetensors file --------------------------------------------------------------------------------------------- */
/* Streams the tensors (any order; sorted by name in the file) to path (a new file), fsyncs. crc: CRC32C per tensor in input order, or NULL.
 * -EEXIST for a name given twice, -ENOSPC and the like name the path. */
int safetensors_write(const char *path, const struct ckpt_tensor *t, size_t n, uint32_t *crc, struct err *e);

struct safetensors;
/* Opens and checks the header: offsets in range, no overlap, sizes that fit shapes. ERR_CORRUPT says what is wrong. */
int safetensors_open(struct safetensors **ret, const char *path, struct err *e);
void safetensors_close(struct safetensors *s);
size_t safetensors_count(const struct safetensors *s);
/* i-th tensor in file order; data is NULL. Valid until close. */
const struct ckpt_tensor *safetensors_at(const struct safetensors *s, size_t i);
int safetensors_find(const struct safetensors *s, const char *name); /* -1 if none */
/* Read it whole into dst (shape * dtype bytes). crc (may be NULL) gets the CRC32C of what was read. */
int safetensors_read(struct safetensors *s, size_t i, void *dst, uint32_t *crc, struct err *e);

/* --- checkpoints ------------------------------------------------------------------------------------------------------- */
/* Save; meta is put into the manifest as "meta" (borrowed). Replaces DIR/latest afterwards (a text file with the folder's name, by
 * rename). keep > 0: older complete checkpoints beyond the newest `keep` are removed after that. An existing complete checkpoint of the
 * same step is left as it is and counts as success. DIR is made if missing. */
int ckpt_save(const char *dir, int64_t step, const struct ckpt_tensor *model, size_t n_model,
              const struct ckpt_tensor *train, size_t n_train, const cJSON *meta, int keep, struct err *e);

/* Step of the newest complete checkpoint (manifest present and readable); -1 if there is none or no folder. Leftovers of a
 * killed save (step-N.tmp) are ignored. The folder is the truth, `latest` a convenience for people. */
int ckpt_latest(const char *dir, int64_t *ret_step, struct err *e);

struct ckpt; /* one opened for reading */
int ckpt_open(struct ckpt **ret, const char *dir, int64_t step, struct err *e);
void ckpt_close(struct ckpt *c);
const cJSON *ckpt_meta(const struct ckpt *c);  /* owned by c */
int64_t ckpt_step(const struct ckpt *c);
/* Read a tensor and verify its CRC: ERR_CORRUPT names the tensor and the file. -ENOENT if there is no such tensor; ERR_MISMATCH with both
 * shapes if it is of another shape or type. file: "model" or "train". */
int ckpt_read(struct ckpt *c, const char *file, const struct ckpt_tensor *want, void *dst, struct err *e);

/* CRC32C (Castagnoli), software or SSE4.2; crc32c(0, ...) starts. */
uint32_t crc32c(uint32_t crc, const void *data, size_t n);

#endif
