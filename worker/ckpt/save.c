/* Saving a checkpoint.
 *
 *   - leftovers of killed saves (step-*.tmp) are removed; a complete step-N ends it here;
 *   - step-N.tmp is made; model and train tensors are streamed into it and fsynced, then the manifest, then the folder;
 *   - rename to step-N, fsync of DIR: from here on the checkpoint exists, whatever happens;
 *   - `latest` is replaced by rename, surplus checkpoints are renamed to .tmp and removed.
 * What goes wrong before the rename undoes step-N.tmp and is returned. What goes wrong after it (latest, rotation) is
 * only worth a warning: the state is safe. */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/path.h"
#include "worker/ckpt/ckpt.h"
#include "worker/ckpt/folder.h"
#include "worker/ckpt/manifest.h"
#include "worker/ckpt/pointer.h"

/* One tensor file into the folder tmp; crc: room for n. */
static int write_tensors(const char *tmp, enum ckpt_file_id id, const struct ckpt_tensor *t, size_t n, uint32_t *crc,
                         struct manifest_file *ret, struct err *e)
{
    char path[PATH_MAX];
    struct stat st;
    TRY(folder_path(path, e, "%s/%s", tmp, ckpt_file_paths[id]));
    TRY(safetensors_write(path, t, n, crc, e));
    if (stat(path, &st) < 0)
        return err_errno(e, errno, "look at %s", path);
    *ret = (struct manifest_file){.bytes = st.st_size, .tensors = t, .crc = crc, .n = n};
    return 0;
}

static int fill_folder(const char *tmp, int64_t step, const struct ckpt_tensor *const t[CKPT_FILE_COUNT],
                       const size_t n[CKPT_FILE_COUNT], const cJSON *meta, struct err *e)
{
    struct manifest_file files[CKPT_FILE_COUNT];
    uint32_t *crc[CKPT_FILE_COUNT] = {NULL};
    char path[PATH_MAX];
    int rc = 0;
    for (int i = 0; i < CKPT_FILE_COUNT && rc == 0; i++) {
        crc[i] = calloc(n[i] ? n[i] : 1, sizeof *crc[i]);
        rc = crc[i] ? write_tensors(tmp, (enum ckpt_file_id)i, t[i], n[i], crc[i], &files[i], e)
                    : err_set(e, -ENOMEM, "no memory for %zu checksums", n[i]);
    }
    if (rc == 0)
        rc = folder_path(path, e, "%s/%s", tmp, CKPT_MANIFEST);
    if (rc == 0)
        rc = manifest_write(path, step, files, meta, e);
    if (rc == 0)
        rc = folder_sync(tmp, e);
    for (int i = 0; i < CKPT_FILE_COUNT; i++)
        free(crc[i]);
    return rc;
}

/* A folder that stands in the way under the name step-N<to> is removed first. */
static int move_folder(const char *dir, int64_t step, const char *from, const char *to, struct err *e)
{
    char old[PATH_MAX], new[PATH_MAX];
    TRY(folder_step_path(old, dir, step, from, e));
    TRY(folder_step_path(new, dir, step, to, e));
    TRY(folder_remove(new, e));
    if (rename(old, new) < 0)
        return err_errno(e, errno, "rename %s to %s", old, new);
    return folder_sync(dir, e);
}

static int discard(const char *dir, int64_t step, struct err *e)
{
    char tmp[PATH_MAX];
    TRY(move_folder(dir, step, "", ".tmp", e));
    TRY(folder_step_path(tmp, dir, step, ".tmp", e));
    return folder_remove(tmp, e);
}

static bool can_be_opened(const char *dir, int64_t step)
{
    struct ckpt *c;
    if (ckpt_open(&c, dir, step, NULL) < 0)
        return false;
    ckpt_close(c);
    return true;
}

/* Keep the newest `keep` complete ones, the one just saved and those that something points at; folders that are no
 * complete checkpoint are none of our business. */
int ckpt_rotate(const char *dir, int64_t saved, int keep, struct err *e)
{
    if (keep <= 0)
        return 0;
    int64_t *steps;
    size_t n;
    int kept = 0, rc = 0;
    TRY(folder_list(dir, &steps, &n, e));
    for (size_t i = 0; i < n && rc == 0; i++)
        if (can_be_opened(dir, steps[i]) && ++kept > keep && steps[i] != saved && !pointer_to(dir, steps[i]))
            rc = discard(dir, steps[i], e);
    free(steps);
    return rc;
}

/* Another one must be left, whatever becomes of the save that needs the room. */
int ckpt_make_room(const char *dir, int64_t *ret_step, struct err *e)
{
    int64_t *steps, oldest = -1;
    size_t n, complete = 0;
    *ret_step = -1;
    TRY(folder_list(dir, &steps, &n, e));
    for (size_t i = 0; i < n; i++)
        if (can_be_opened(dir, steps[i])) {
            complete++;
            oldest = pointer_to(dir, steps[i]) ? oldest : steps[i];
        }
    free(steps);
    if (complete < 2 || oldest < 0)
        return 0;
    TRY(discard(dir, oldest, e));
    *ret_step = oldest;
    return 0;
}

static void after_save(const char *dir, int64_t step, int keep)
{
    struct err e;
    if (pointer_write(dir, CKPT_LATEST, step, &e) < 0)
        log_warn("ckpt", "step %" PRId64 " is saved, but %s/latest is not updated: %s", step, dir, e.text);
    if (ckpt_rotate(dir, step, keep, &e) < 0)
        log_warn("ckpt", "step %" PRId64 " is saved, but older ones are not removed: %s", step, e.text);
}

static int save_new(const char *dir, int64_t step, const struct ckpt_tensor *const t[CKPT_FILE_COUNT],
                    const size_t n[CKPT_FILE_COUNT], const cJSON *meta, struct err *e)
{
    char tmp[PATH_MAX], path[PATH_MAX];
    TRY(folder_step_path(tmp, dir, step, ".tmp", e));
    TRY(folder_step_path(path, dir, step, "", e));
    if (mkdir(tmp, 0777) < 0)
        return err_errno(e, errno, "make the folder %s", tmp);
    int rc = fill_folder(tmp, step, t, n, meta, e);
    if (rc == 0 && access(path, F_OK) == 0) /* damaged, else we would not be here: out of the way, but not lost */
        rc = move_folder(dir, step, "", ".corrupt", e);
    if (rc == 0 && rename(tmp, path) < 0)
        rc = err_errno(e, errno, "rename %s to %s", tmp, path);
    if (rc < 0) {
        folder_remove(tmp, NULL);
        return rc;
    }
    return folder_sync(dir, e);
}

int ckpt_amend(const char *dir, int64_t step, const cJSON *more, struct err *e)
{
    char folder[PATH_MAX], path[PATH_MAX];
    TRY(folder_step_path(folder, dir, step, "", e));
    TRY(folder_path(path, e, "%s/" CKPT_MANIFEST, folder));
    TRY(manifest_amend(path, step, more, e));
    return folder_sync(folder, e);
}

int ckpt_save(const char *dir, int64_t step, const struct ckpt_tensor *model, size_t n_model,
              const struct ckpt_tensor *train, size_t n_train, const cJSON *meta, int keep, struct err *e)
{
    const struct ckpt_tensor *const t[CKPT_FILE_COUNT] = {[CKPT_MODEL] = model, [CKPT_TRAIN] = train};
    const size_t n[CKPT_FILE_COUNT] = {[CKPT_MODEL] = n_model, [CKPT_TRAIN] = n_train};
    if (step < 0)
        return err_set(e, -EINVAL, "a checkpoint of step %" PRId64 " cannot be saved: steps count from 0", step);
    log_info("ckpt", "saving step %" PRId64, step);
    int rc = path_make_dirs(dir, e);
    if (rc == 0)
        rc = folder_clean(dir, e);
    if (rc == 0 && ckpt_check(dir, step, NULL) < 0)
        rc = save_new(dir, step, t, n, meta, e);
    if (rc < 0) {
        err_wrap(e, "save the checkpoint of step %" PRId64, step);
        return rc;
    }
    after_save(dir, step, keep);
    log_info("ckpt", "saved step %" PRId64, step);
    return 0;
}
