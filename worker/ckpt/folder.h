/* Names and folders of checkpoints: what lies in DIR, making and removing it. Used by save.c, open.c and pointer.c. */
#ifndef CRUN_WORKER_CKPT_FOLDER_H
#define CRUN_WORKER_CKPT_FOLDER_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

struct err;

#define CKPT_FILES(X) /* name in the manifest, file */                                                                 \
    X(CKPT_MODEL, "model", "model.safetensors")                                                                        \
    X(CKPT_TRAIN, "train", "train.safetensors")
enum ckpt_file_id {
#define X(id, name, file) id,
    CKPT_FILES(X)
#undef X
        CKPT_FILE_COUNT
};
extern const char *const ckpt_file_names[CKPT_FILE_COUNT], *const ckpt_file_paths[CKPT_FILE_COUNT];
#define CKPT_MANIFEST "manifest.json"

/* A path; -ENAMETOOLONG beyond PATH_MAX. */
int folder_path(char out[PATH_MAX], struct err *e, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* DIR/step-00001234<suffix> */
int folder_step_path(char out[PATH_MAX], const char *dir, int64_t step, const char *suffix, struct err *e);

/* Step of "step-<digits>" as folder_step_path() writes it, -1 for any other name. */
int64_t folder_step(const char *name);

/* Steps of all step-N folders in dir, newest first; *ret is freed by the caller. No folder: none. */
int folder_list(const char *dir, int64_t **ret, size_t *ret_n, struct err *e);

int folder_sync(const char *dir, struct err *e);                     /* fsync of the folder itself */
int folder_write(const char *path, const char *text, struct err *e); /* a new file, fsynced; removed on failure */
int folder_remove(const char *path, struct err *e);                  /* its files, then itself; a missing one is fine */
/* Remove step-*.tmp, left by saves that were killed. */
int folder_clean(const char *dir, struct err *e);

#endif
