/* Checkpoints: DIR/step-00001234/{model.safetensors, train.safetensors, manifest.json} and DIR/latest.
 *
 * model.safetensors holds parameters under torchvision's names and nothing else (no time, path or run id), so equal
 * states are equal files. train.safetensors holds what only a resume needs. manifest.json is written last, everything
 * is fsynced, then the folder renamed from step-N.tmp: a checkpoint either is complete or does not exist. The manifest
 * has the size of each file, a CRC32C of every tensor, one of itself, and the caller's "meta". One process at a time
 * may save into a folder; any number may read. */
#ifndef CRUN_WORKER_CKPT_H
#define CRUN_WORKER_CKPT_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/crc32c.h"
#include "worker/ckpt/safetensors.h"
#include "worker/precision/dtype.h"

struct err;

/* Save; meta (an object, or NULL) is put into the manifest as "meta" (borrowed; its numbers keep 15 digits, so exact
 * state belongs in tensors). Replaces DIR/latest afterwards (a link to the folder, by rename). keep > 0: complete
 * checkpoints beyond the newest `keep` are removed after that, never the one just saved, the best, or one that a link
 * leads to. An existing complete checkpoint of the same step is left as it is and counts as success. DIR is made if
 * missing. On failure (-ENOSPC, ...) what was there before is untouched and nothing half-made is left. Logs "saving
 * step N" before the first byte and "saved step N" at the end. */
int ckpt_save(const char *dir, int64_t step, const struct ckpt_tensor *model, size_t n_model,
              const struct ckpt_tensor *train, size_t n_train, const cJSON *meta, int keep, struct err *e);

/* What ckpt_save() removes, after a link or DIR/best has come to lead elsewhere. saved: is kept. */
int ckpt_rotate(const char *dir, int64_t saved, int keep, struct err *e);

/* For a save that found the disk full and that must succeed: removes the oldest complete checkpoint that is not the
 * best and that no link of its epoch leads to, if another is left. *ret_step: its step; -1: there is none to remove. */
int ckpt_make_room(const char *dir, int64_t *ret_step, struct err *e);

/* Sets members of a complete checkpoint's meta (those of the object `more`, borrowed): what became known of it after it
 * was saved. */
int ckpt_amend(const char *dir, int64_t step, const cJSON *more, struct err *e);

/* Step of the newest checkpoint below `below` (INT64_MAX: of all) whose manifest, headers and sizes are right; -1 if
 * there is none or no folder. The sums of its tensors are not looked at: who reads it checks them. What is passed over
 * is logged, or is an error, as by ckpt_latest(). */
int ckpt_newest(const char *dir, int64_t below, int64_t *ret_step, struct err *e);

/* Step of the newest complete checkpoint (every CRC right); -1 if there is none or no
 * folder. A newer one that is damaged is passed over with a warning in the log; if all are damaged, that is an error: a
 * run must not start over, and in the end rotate away what can be saved, because of a bad disk. Leftovers of a killed
 * save (step-N.tmp) are ignored. The folder is the truth, `latest` a convenience for people. */
int ckpt_latest(const char *dir, int64_t *ret_step, struct err *e);

/* DIR/best leads to the checkpoint that the caller thinks best; rotation spares it. ckpt_best(): -1 if there
 * is none. */
int ckpt_set_best(const char *dir, int64_t step, struct err *e);
int ckpt_best(const char *dir, int64_t *ret_step, struct err *e);

/* Caffe2's file name: DIR/<name>_<epochs>.mdl becomes a link to step-<step>; those of other numbers of epochs are
 * removed after that. Rotation spares what a link leads to. */
int ckpt_link_epoch(const char *dir, const char *name, int64_t epochs, int64_t step, struct err *e);

/* What a path given by a user means: a folder of checkpoints (*step is -1: the newest), or one checkpoint in it
 * (DIR/step-N, also through a link, DIR/latest or DIR/best). *dir: PATH_MAX bytes. ERR_USAGE: nothing there, or
 * something that is neither. */
int ckpt_locate(const char *path, char *dir, int64_t *step, struct err *e);

struct ckpt; /* one opened for reading */
int ckpt_open(struct ckpt **ret, const char *dir, int64_t step, struct err *e);
void ckpt_close(struct ckpt *c);              /* NULL allowed */
const cJSON *ckpt_meta(const struct ckpt *c); /* owned by c; an empty object if none was saved */
/* Read a tensor and verify its CRC: ERR_CORRUPT names the tensor and the file. -ENOENT if there is no such tensor;
 * ERR_MISMATCH with both shapes if it is of another shape or type; dst is undefined then. file: "model" or "train".
 * Thread-safe. */
int ckpt_read(struct ckpt *c, const char *file, const struct ckpt_tensor *want, void *dst, struct err *e);
/* The same of n bytes from byte `at` on, for those who read a tensor from its beginning to its end, in order: *crc goes
 * from piece to piece, and with the last one the sum is verified. */
int ckpt_read_part(struct ckpt *c, const char *file, const struct ckpt_tensor *want, int64_t at, size_t n, void *dst,
                   uint32_t *crc, struct err *e);
/* Is the tensor there, of this shape and type? Errors as of ckpt_read(). */
int ckpt_has(struct ckpt *c, const char *file, const struct ckpt_tensor *want, struct err *e);
/* The file itself ("model" or "train"), to list its tensors; owned by c. NULL for another name. */
struct safetensors *ckpt_file(struct ckpt *c, const char *file);
/* Read everything and verify every CRC: the first damaged tensor is named. */
int ckpt_verify(struct ckpt *c, struct err *e);

/* Is there a complete checkpoint of this step, every CRC right? 0, or what is wrong with it. */
int ckpt_check(const char *dir, int64_t step, struct err *e);

#endif
