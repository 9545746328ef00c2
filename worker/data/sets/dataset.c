#include "worker/data/sets/dataset.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "worker/data/sets/dataset_impl.h"

void dataset_close(struct dataset *d)
{
    if (d)
        d->ops->close(d);
}

bool dataset_has_file(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && access(path, F_OK) == 0;
}

static enum dataset_kind kind_of(const char *path)
{
    if (strcmp(path, "null") == 0)
        return DATASET_NULL;
    if (dataset_has_file(path, "data.mdb"))
        return DATASET_LMDB;
    if (dataset_has_file(path, "CURRENT"))
        return DATASET_LEVELDB;
    if (dataset_is_mnist(path))
        return DATASET_MNIST;
    return dataset_is_cifar10(path) ? DATASET_CIFAR10 : DATASET_FOLDER;
}

int dataset_open(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e)
{
    struct stat st;
    const enum dataset_kind kind = o->kind == DATASET_AUTO ? kind_of(path) : o->kind;
    if (kind != DATASET_NULL && stat(path, &st) != 0)
        return err_set(e, ERR_DATA, "'%s' does not exist", path);
    switch (kind) {
    case DATASET_LMDB:
        return dataset_open_lmdb(ret, path, o, e);
    case DATASET_LEVELDB:
        return dataset_open_leveldb(ret, path, o, e);
    case DATASET_MNIST:
        return dataset_open_mnist(ret, path, o, e);
    case DATASET_CIFAR10:
        return dataset_open_cifar10(ret, path, o, e);
    case DATASET_NULL:
        return dataset_open_null(ret, o, e);
    default:
        return dataset_open_folder(ret, path, o->class_names, o->classes, e);
    }
}

/* --- classes */

void dataset_free_classes(struct dataset *d)
{
    free(d->class_names);
    d->class_names = NULL;
}

static const char *name_of(char *const *names, int i, char number[16])
{
    snprintf(number, 16, "%d", i);
    return names ? names[i] : number;
}

/* The array and what it points to are one block: a block for each of millions of names would take three times as
 * much. */
int dataset_set_classes(struct dataset *d, char *const *names, int n, struct err *e)
{
    char number[16];
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += strlen(name_of(names, i, number)) + 1;
    d->class_names = malloc(((size_t)n + 1) * sizeof *d->class_names + bytes);
    if (!d->class_names)
        return err_set(e, -ENOMEM, "no memory for %d class names", n);
    char *at = (char *)(d->class_names + n + 1);
    for (d->classes = 0; d->classes < n; d->classes++) {
        d->class_names[d->classes] = at;
        at = stpcpy(at, name_of(names, d->classes, number)) + 1;
    }
    d->class_names[n] = NULL;
    return 0;
}

int dataset_check_label(const struct dataset *d, int label, struct err *e)
{
    if (label >= 0 && label < d->classes)
        return 0;
    return err_set(e, ERR_DATA, "label %d of a set of %d classes", label, d->classes);
}

/* -ENOENT: no such file. */
static int read_classes(struct dataset *d, const char *path, struct err *e)
{
    char file[PATH_MAX], *line = NULL, **names = NULL;
    size_t line_cap = 0, n = 0, cap = 0;
    int rc = 0;
    if (snprintf(file, sizeof file, "%s/" DATASET_CLASSES_FILE, path) >= (int)sizeof file)
        return -ENOENT;
    FILE *f = fopen(file, "re");
    if (!f)
        return -ENOENT;
    for (ssize_t len; rc == 0 && (len = getline(&line, &line_cap, f)) > 0;) {
        line[strcspn(line, "\r\n")] = '\0';
        rc = n < INT_MAX / 2 ? ARRAY_GROW(names, cap, n + 1, "names of classes", e)
                             : err_set(e, -ENOMEM, "too many class names in '%s'", file);
        if (rc == 0 && !(names[n++] = strdup(line)))
            rc = err_set(e, -ENOMEM, "no memory for the class names of '%s'", file);
    }
    fclose(f);
    free(line);
    if (rc == 0 && n == 0)
        rc = err_set(e, ERR_DATA, "'%s' names no class", file);
    if (rc == 0)
        rc = dataset_set_classes(d, names, (int)n, e);
    while (n > 0)
        free(names[--n]);
    free(names);
    return rc;
}

int dataset_find_classes(struct dataset *d, const char *path, const struct dataset_options *o, struct err *e)
{
    if (o->class_names)
        return dataset_set_classes(d, o->class_names, o->classes, e);
    int rc = read_classes(d, path, e);
    if (rc != -ENOENT)
        return rc;
    if (o->num_labels > 0)
        return dataset_set_classes(d, NULL, o->num_labels, e);
    return err_set(e, ERR_DATA,
                   "'%s' does not tell its number of classes (no " DATASET_CLASSES_FILE "): give --num-labels", path);
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
