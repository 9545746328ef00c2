/* Opens a data set of any kind, and what all kinds have in common. */
#include "worker/data/sets/dataset.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/sets/dataset_impl.h"

void dataset_close(struct dataset *d)
{
    if (d && !d->left_behind)
        d->ops->close(d);
}

bool dataset_has_file(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && access(path, F_OK) == 0;
}

bool dataset_is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static enum dataset_kind kind_of(const char *path)
{
    if (strcmp(path, "null") == 0)
        return DATASET_NULL;
    if (dataset_is_lmdb_file(path))
        return DATASET_LMDB;
    if (dataset_has_file(path, "data.mdb"))
        return DATASET_LMDB;
    if (dataset_has_file(path, "CURRENT"))
        return DATASET_LEVELDB;
    if (dataset_is_mnist(path))
        return DATASET_MNIST;
    if (dataset_is_cifar10(path))
        return DATASET_CIFAR10;
    return dataset_is_tars(path) ? DATASET_TAR : DATASET_FOLDER;
}

/* LMDB and LevelDB open this file by themselves, and would wait for the writer of a pipe. */
static int refuse_pipe(const char *dir, const char *name, struct err *e)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return 0;
    const int fd = file_open_regular(path, ERR_DATA, e);
    if (fd >= 0)
        close(fd);
    return fd == ERR_DATA ? fd : 0; /* what else is wrong the library says */
}

int dataset_open(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e)
{
    struct stat st;
    const enum dataset_kind kind = o->kind == DATASET_AUTO ? kind_of(path) : o->kind;
    if (kind != DATASET_NULL && kind != DATASET_MNIST && stat(path, &st) != 0) /* MNIST: DIR/emnist-letters */
        return err_set(e, ERR_DATA, "'%s' does not exist", path);
    switch (kind) {
    case DATASET_LMDB:
        TRY(refuse_pipe(path, "data.mdb", e));
        return dataset_open_lmdb(ret, path, o, e);
    case DATASET_LEVELDB:
        TRY(refuse_pipe(path, "CURRENT", e));
        return dataset_open_leveldb(ret, path, o, e);
    case DATASET_MNIST:
        return dataset_open_mnist(ret, path, o, e);
    case DATASET_CIFAR10:
        return dataset_open_cifar10(ret, path, o, e);
    case DATASET_TAR:
        return dataset_open_tars(ret, path, o, e);
    case DATASET_TOKENS:
        return dataset_open_tokens(ret, path, o, e);
    case DATASET_NULL:
        return dataset_open_null(ret, o, e);
    default:
        if (!S_ISDIR(st.st_mode))
            return dataset_explain_file(path, e);
        return dataset_open_folder(ret, path, o->class_names, o->classes, e);
    }
}

bool dataset_is_part(const char *name, size_t n)
{
    static const char *const parts[] = {"train", "training", "val", "valid", "validation", "test", "testing", "eval"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strlen(parts[i]) == n && strncasecmp(name, parts[i], n) == 0)
            return true;
    return false;
}

/* --- keys */

int keys_add(struct keys *k, const void *key, size_t n, struct err *e)
{
    TRY(ARRAY_GROW(k->bytes, k->cap, k->len + n, "bytes of keys", e));
    TRY(ARRAY_GROW(k->ends, k->ends_cap, k->n + 1, "keys", e));
    memcpy(k->bytes + k->len, key, n);
    k->len += n;
    k->ends[k->n++] = k->len;
    return 0;
}

const char *keys_at(const struct keys *k, size_t i, size_t *ret_n)
{
    const size_t start = i ? k->ends[i - 1] : 0;
    *ret_n = k->ends[i] - start;
    return k->bytes + start;
}

const char *keys_name(const struct keys *k, const char *path, size_t i)
{
    static _Thread_local char name[SAMPLE_NAME_MAX];
    size_t n;
    const char *key = keys_at(k, i, &n);
    int at = snprintf(name, sizeof name, "%.150s, record '", path);
    for (size_t j = 0; j < n && at < (int)sizeof name - 2; j++)
        name[at++] = key[j] >= ' ' && key[j] <= '~' ? key[j] : '?';
    name[at++] = '\'';
    name[at] = '\0';
    return name;
}

void keys_free(struct keys *k)
{
    free(k->bytes);
    free(k->ends);
    *k = (struct keys){0};
}
