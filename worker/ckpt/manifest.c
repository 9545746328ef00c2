/* Writes, reads and amends manifest.json of a checkpoint. */
#include "worker/ckpt/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/json/json.h"

#define FORMAT "crun checkpoint"
#define VERSION 1
#define MANIFEST_MAX ((size_t)1 << 30) /* names of millions of classes */

/* The sum of the whole tree as compact JSON. */
static int sum_of(const cJSON *root, uint32_t *ret)
{
    char *text = cJSON_PrintUnformatted(root);
    if (!text)
        return -ENOMEM;
    *ret = crc32c(0, text, strlen(text));
    cJSON_free(text);
    return 0;
}

static bool add_hex(cJSON *o, const char *name, uint32_t value)
{
    char hex[16];
    snprintf(hex, sizeof hex, "%08" PRIx32, value);
    return cJSON_AddStringToObject(o, name, hex) != NULL;
}

static bool add_file(cJSON *files, const char *name, const struct manifest_file *f)
{
    cJSON *o = cJSON_AddObjectToObject(files, name);
    if (!o || !cJSON_AddNumberToObject(o, "bytes", (double)f->bytes))
        return false;
    cJSON *crc = cJSON_AddObjectToObject(o, "crc32c");
    for (size_t i = 0; crc && i < f->n; i++)
        if (!add_hex(crc, f->tensors[i].name, f->crc[i]))
            return false;
    return crc != NULL;
}

static bool add_members(cJSON *root, int64_t step, const struct manifest_file file[CKPT_FILE_COUNT], const cJSON *meta)
{
    if (!cJSON_AddStringToObject(root, "format", FORMAT) || !cJSON_AddNumberToObject(root, "version", VERSION) ||
        !cJSON_AddNumberToObject(root, "step", (double)step))
        return false;
    cJSON *files = cJSON_AddObjectToObject(root, "files");
    if (!files)
        return false;
    for (int i = 0; i < CKPT_FILE_COUNT; i++)
        if (!add_file(files, ckpt_file_names[i], &file[i]))
            return false;
    cJSON *part = cJSON_CreateObjectReference(meta ? meta->child : NULL); /* borrowed */
    if (!cJSON_AddItemToObject(root, "meta", part)) {
        cJSON_Delete(part);
        return false;
    }
    return true;
}

static int write_summed(cJSON *root, const char *path, struct err *e)
{
    uint32_t sum;
    char *text = sum_of(root, &sum) == 0 && add_hex(root, "crc32c", sum) ? cJSON_Print(root) : NULL;
    int rc = text ? 0 : err_set(e, -ENOMEM, "no memory to make %s", path);
    if (rc == 0 && strlen(text) > MANIFEST_MAX)
        rc = err_set(e, -EFBIG, "%s would have %zu bytes, at most %zu can be read again", path, strlen(text),
                     MANIFEST_MAX);
    if (rc == 0)
        rc = folder_write(path, text, e);
    cJSON_free(text);
    return rc;
}

int manifest_write(const char *path, int64_t step, const struct manifest_file file[CKPT_FILE_COUNT], const cJSON *meta,
                   struct err *e)
{
    if (meta && !cJSON_IsObject(meta))
        return err_set(e, -EINVAL, "the meta part of a checkpoint must be a JSON object");
    cJSON *root = cJSON_CreateObject();
    int rc = root && add_members(root, step, file, meta) ? write_summed(root, path, e)
                                                         : err_set(e, -ENOMEM, "no memory to make %s", path);
    cJSON_Delete(root);
    return rc;
}

static int parse_hex(const char *text, uint32_t *ret)
{
    if (strlen(text) != 8 || strspn(text, "0123456789abcdef") != 8)
        return -EINVAL;
    *ret = (uint32_t)strtoul(text, NULL, 16);
    return 0;
}

static int check_summed(cJSON *root, int64_t step, struct err *e)
{
    const char *format, *hex;
    int64_t version, found;
    TRY(json_str(root, "format", &format, e));
    TRY(json_i64(root, "version", &version, e));
    if (strcmp(format, FORMAT) != 0)
        return err_set(e, ERR_CORRUPT, "its format is '%.40s' instead of '%s'", format, FORMAT);
    if (version != VERSION)
        return err_set(e, ERR_MISMATCH, "its version is %" PRId64 ", this program reads version %d", version, VERSION);
    TRY(json_str(root, "crc32c", &hex, e));
    uint32_t want, sum;
    if (parse_hex(hex, &want) < 0)
        return err_set(e, ERR_CORRUPT, "its crc32c is '%.40s' instead of eight hexadecimal digits", hex);
    cJSON_DeleteItemFromObjectCaseSensitive(root, "crc32c");
    if (sum_of(root, &sum) < 0)
        return err_set(e, -ENOMEM, "no memory to check it");
    if (sum != want)
        return err_set(e, ERR_CORRUPT, "its CRC32C is %08" PRIx32 " instead of %08" PRIx32, sum, want);
    TRY(json_i64(root, "step", &found, e));
    if (found != step)
        return err_set(e, ERR_CORRUPT, "it is of step %" PRId64 " instead of %" PRId64, found, step);
    if (!cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(root, "meta")))
        return err_set(e, ERR_CORRUPT, "member 'meta' is missing or no object");
    return 0;
}

int manifest_read(const char *path, int64_t step, cJSON **ret, struct err *e)
{
    cJSON *root;
    TRY(json_read_file(path, MANIFEST_MAX, &root, e));
    int rc = check_summed(root, step, e);
    if (rc < 0) {
        err_wrap(e, "%s", path);
        cJSON_Delete(root);
        return rc;
    }
    *ret = root;
    return 0;
}

static bool set_members(cJSON *meta, const cJSON *more)
{
    for (const cJSON *m = more->child; m; m = m->next) {
        cJSON *copy = cJSON_Duplicate(m, 1);
        if (!copy || (!cJSON_ReplaceItemInObjectCaseSensitive(meta, m->string, copy) &&
                      !cJSON_AddItemToObject(meta, m->string, copy))) {
            cJSON_Delete(copy);
            return false;
        }
    }
    return true;
}

int manifest_amend(const char *path, int64_t step, const cJSON *more, struct err *e)
{
    char tmp[PATH_MAX];
    cJSON *root;
    TRY(folder_path(tmp, e, "%s.tmp", path));
    if (unlink(tmp) < 0 && errno != ENOENT)
        return err_errno(e, errno, "remove %s", tmp);
    TRY(manifest_read(path, step, &root, e));
    int rc = set_members(cJSON_GetObjectItemCaseSensitive(root, "meta"), more)
                 ? write_summed(root, tmp, e)
                 : err_set(e, -ENOMEM, "no memory to make %s", tmp);
    cJSON_Delete(root);
    if (rc == 0 && rename(tmp, path) < 0)
        rc = err_errno(e, errno, "rename %s to %s", tmp, path);
    return rc;
}

static const cJSON *file_of(const cJSON *m, enum ckpt_file_id file)
{
    return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(m, "files"), ckpt_file_names[file]);
}

int manifest_bytes(const cJSON *m, enum ckpt_file_id file, int64_t *ret, struct err *e)
{
    const cJSON *o = file_of(m, file);
    if (!o)
        return err_set(e, ERR_CORRUPT, "the manifest does not mention %s", ckpt_file_paths[file]);
    return json_i64(o, "bytes", ret, e);
}

int manifest_crc(const cJSON *m, enum ckpt_file_id file, const char *tensor, uint32_t *ret, struct err *e)
{
    const cJSON *hex =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(file_of(m, file), "crc32c"), tensor);
    if (!cJSON_IsString(hex) || parse_hex(hex->valuestring, ret) < 0)
        return err_set(e, ERR_CORRUPT, "the manifest has no CRC32C of tensor '%s' of %s", tensor,
                       ckpt_file_paths[file]);
    return 0;
}
