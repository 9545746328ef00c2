/* Finding and reading checkpoints. Opening checks all that is cheap (manifest, headers, sizes); reading a tensor checks
 * its sum. */
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
#include "worker/ckpt/ckpt.h"
#include "worker/ckpt/folder.h"
#include "worker/ckpt/manifest.h"
#include "worker/ckpt/pointer.h"

struct ckpt {
    cJSON *manifest;
    struct safetensors *file[CKPT_FILE_COUNT];
};

static int open_file(struct ckpt *c, const char *folder, enum ckpt_file_id id, struct err *e)
{
    char path[PATH_MAX];
    int64_t bytes;
    TRY(folder_path(path, e, "%s/%s", folder, ckpt_file_paths[id]));
    TRY(safetensors_open(&c->file[id], path, e));
    TRY(manifest_bytes(c->manifest, id, &bytes, e));
    if (bytes != safetensors_bytes(c->file[id]))
        return err_set(e, ERR_CORRUPT, "%s has %" PRId64 " bytes, its manifest says %" PRId64, path,
                       safetensors_bytes(c->file[id]), bytes);
    return 0;
}

int ckpt_open(struct ckpt **ret, const char *dir, int64_t step, struct err *e)
{
    char folder[PATH_MAX], path[PATH_MAX];
    TRY(folder_step_path(folder, dir, step, "", e));
    TRY(folder_path(path, e, "%s/%s", folder, CKPT_MANIFEST));
    struct ckpt *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, -ENOMEM, "no memory to open %s", folder);
    int rc = manifest_read(path, step, &c->manifest, e);
    for (int i = 0; i < CKPT_FILE_COUNT && rc == 0; i++)
        rc = open_file(c, folder, (enum ckpt_file_id)i, e);
    if (rc < 0) {
        ckpt_close(c);
        return rc;
    }
    *ret = c;
    return 0;
}

void ckpt_close(struct ckpt *c)
{
    if (!c)
        return;
    for (int i = 0; i < CKPT_FILE_COUNT; i++)
        safetensors_close(c->file[i]);
    cJSON_Delete(c->manifest);
    free(c);
}

/* Was step-N a checkpoint once? Folders of that name without a manifest are none of our business. */
static bool has_manifest(const char *dir, int64_t step)
{
    char folder[PATH_MAX], path[PATH_MAX];
    return folder_step_path(folder, dir, step, "", NULL) == 0 &&
           folder_path(path, NULL, "%s/%s", folder, CKPT_MANIFEST) == 0 && access(path, F_OK) == 0;
}

static int look(const char *dir, int64_t step, struct err *e)
{
    struct ckpt *c;
    TRY(ckpt_open(&c, dir, step, e));
    ckpt_close(c);
    return 0;
}

typedef int check_fn(const char *dir, int64_t step, struct err *e);

static int newest_of(const char *dir, int64_t below, check_fn *check, int64_t *ret_step, struct err *e)
{
    int64_t *steps, found = -1;
    size_t n, damaged = 0;
    struct err first = {0}, why;
    TRY(folder_list(dir, &steps, &n, e));
    for (size_t i = 0; i < n && found < 0; i++) {
        int rc = steps[i] < below ? check(dir, steps[i], &why) : -ENOENT;
        if (rc == 0)
            found = steps[i];
        else if (rc > -1000 && rc != -ENOENT &&
                 rc != -ENOTDIR) { /* not the file's fault: passing it over would lose it */
            free(steps);
            return err_set(e, rc, "%.400s", why.text);
        } else if (steps[i] < below && has_manifest(dir, steps[i])) {
            log_warn("ckpt", "the checkpoint of step %" PRId64 " is passed over: %s", steps[i], why.text);
            if (damaged++ == 0)
                first = why;
        }
    }
    free(steps);
    if (found < 0 && damaged > 0)
        return err_set(e, first.code, "%s holds no sound checkpoint, only %zu damaged: %.350s", dir, damaged,
                       first.text);
    *ret_step = found;
    return 0;
}

int ckpt_newest(const char *dir, int64_t below, int64_t *ret_step, struct err *e)
{
    return newest_of(dir, below, look, ret_step, e);
}

int ckpt_latest(const char *dir, int64_t *ret_step, struct err *e)
{
    return newest_of(dir, INT64_MAX, ckpt_check, ret_step, e);
}

int ckpt_locate(const char *path, char *dir, int64_t *step, struct err *e)
{
    char real[PATH_MAX];
    int64_t *steps = NULL;
    size_t n = 0;
    struct stat st;
    if (!realpath(path, real))
        return err_set(e, ERR_USAGE, "no checkpoint found at '%s': %s", path, strerror(errno));
    char *name = strrchr(real, '/');
    int64_t one = folder_step(name + 1);
    if (one < 0)
        one = pointer_read(real);
    if (one < 0)
        folder_list(real, &steps, &n, NULL);
    free(steps);
    if (one < 0 && n == 0)
        return err_set(e, ERR_USAGE, "no checkpoint found at '%s': neither a step-N folder nor a folder of them%s",
                       path,
                       stat(real, &st) == 0 && S_ISREG(st.st_mode) ? "; --pretrained takes files of weights" : "");
    if (one >= 0)
        *name = '\0';
    if (one >= 0 && !has_manifest(real, one))
        return err_set(e, ERR_USAGE, "no checkpoint found at '%s': step-%08" PRId64 " is not there or not complete",
                       path, one);
    snprintf(dir, PATH_MAX, "%s", real[0] ? real : "/");
    *step = one;
    return 0;
}

const cJSON *ckpt_meta(const struct ckpt *c)
{
    return cJSON_GetObjectItemCaseSensitive(c->manifest, "meta");
}

static int file_id(const char *name)
{
    for (int i = 0; i < CKPT_FILE_COUNT; i++)
        if (strcmp(ckpt_file_names[i], name) == 0)
            return i;
    return -1;
}

struct safetensors *ckpt_file(struct ckpt *c, const char *file)
{
    int id = file_id(file);
    return id < 0 ? NULL : c->file[id];
}

/* n bytes of a tensor from byte `at` on; with its last ones the sum of all is compared. */
static int read_part(struct ckpt *c, enum ckpt_file_id id, size_t i, int64_t at, size_t n, void *dst, uint32_t *crc,
                     struct err *e)
{
    struct safetensors *s = c->file[id];
    const struct ckpt_tensor *t = safetensors_at(s, i);
    int64_t bytes;
    uint32_t want;
    TRY(ckpt_tensor_bytes(t, &bytes));
    TRY(safetensors_read_part(s, i, at, n, dst, e));
    *crc = crc32c(at == 0 ? 0 : *crc, dst, n);
    if (at + (int64_t)n < bytes)
        return 0;
    TRY(manifest_crc(c->manifest, id, t->name, &want, e));
    if (*crc != want)
        return err_set(e, ERR_CORRUPT,
                       "tensor '%s' in %s is damaged: its CRC32C is %08" PRIx32 " instead of %08" PRIx32, t->name,
                       safetensors_path(s), *crc, want);
    return 0;
}

static bool same_shape(const struct ckpt_tensor *a, const struct ckpt_tensor *b)
{
    if (a->dtype != b->dtype || a->ndim != b->ndim)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

/* Its index in the file. */
static int find(struct ckpt *c, const char *file, const struct ckpt_tensor *want, enum ckpt_file_id *ret_id,
                size_t *ret, struct err *e)
{
    int id = file_id(file);
    if (id < 0)
        return err_set(e, -EINVAL, "a checkpoint has no file '%s'", file);
    int i = safetensors_find(c->file[id], want->name);
    if (i < 0)
        return err_set(e, -ENOENT, "%s has no tensor '%s'", safetensors_path(c->file[id]), want->name);
    const struct ckpt_tensor *have = safetensors_at(c->file[id], (size_t)i);
    if (!same_shape(have, want)) {
        char a[CKPT_SHAPE_LEN], b[CKPT_SHAPE_LEN];
        return err_set(e, ERR_MISMATCH, "tensor '%s' in %s is %s instead of %s", want->name,
                       safetensors_path(c->file[id]), ckpt_tensor_shape(have, a, sizeof a),
                       ckpt_tensor_shape(want, b, sizeof b));
    }
    *ret_id = (enum ckpt_file_id)id;
    *ret = (size_t)i;
    return 0;
}

int ckpt_has(struct ckpt *c, const char *file, const struct ckpt_tensor *want, struct err *e)
{
    enum ckpt_file_id id;
    size_t i;
    return find(c, file, want, &id, &i, e);
}

int ckpt_read_part(struct ckpt *c, const char *file, const struct ckpt_tensor *want, int64_t at, size_t n, void *dst,
                   uint32_t *crc, struct err *e)
{
    enum ckpt_file_id id;
    size_t i;
    TRY(find(c, file, want, &id, &i, e));
    return read_part(c, id, i, at, n, dst, crc, e);
}

int ckpt_read(struct ckpt *c, const char *file, const struct ckpt_tensor *want, void *dst, struct err *e)
{
    enum ckpt_file_id id;
    size_t i;
    int64_t bytes;
    uint32_t crc;
    TRY(find(c, file, want, &id, &i, e));
    TRY(ckpt_tensor_bytes(want, &bytes));
    for (int64_t at = 0; at < bytes; at += CKPT_PIECE) {
        const size_t n = (size_t)(bytes - at) < CKPT_PIECE ? (size_t)(bytes - at) : CKPT_PIECE;
        TRY(read_part(c, id, i, at, n, (char *)dst + at, &crc, e));
    }
    return 0;
}

static int verify_tensor(struct ckpt *c, enum ckpt_file_id id, size_t i, void *room, struct err *e)
{
    int64_t bytes;
    uint32_t crc;
    TRY(ckpt_tensor_bytes(safetensors_at(c->file[id], i), &bytes));
    for (int64_t at = 0; at < bytes; at += CKPT_PIECE) {
        const size_t n = (size_t)(bytes - at) < CKPT_PIECE ? (size_t)(bytes - at) : CKPT_PIECE;
        TRY(read_part(c, id, i, at, n, room, &crc, e));
    }
    return 0;
}

static int verify_file(struct ckpt *c, enum ckpt_file_id id, struct err *e)
{
    void *room = malloc(CKPT_PIECE);
    if (!room)
        return err_set(e, -ENOMEM, "no memory to read %s", safetensors_path(c->file[id]));
    int rc = 0;
    for (size_t i = 0; i < safetensors_count(c->file[id]) && rc == 0; i++)
        rc = verify_tensor(c, id, i, room, e);
    free(room);
    return rc;
}

int ckpt_verify(struct ckpt *c, struct err *e)
{
    for (int i = 0; i < CKPT_FILE_COUNT; i++)
        TRY(verify_file(c, (enum ckpt_file_id)i, e));
    return 0;
}

int ckpt_check(const char *dir, int64_t step, struct err *e)
{
    struct ckpt *c;
    TRY(ckpt_open(&c, dir, step, e));
    int rc = ckpt_verify(c, e);
    ckpt_close(c);
    return rc;
}
