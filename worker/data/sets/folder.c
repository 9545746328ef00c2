/* Data set of a folder tree, DIR/<class>/.../<image>, as torchvision's ImageFolder reads it.
 *
 * The names of all files are listed once, at open; the files are read when asked for. Differences from torchvision:
 * hidden files and folders are passed over, and of its extensions those are taken that image_decode() can read
 * (picture_name.h); pictures of other formats are counted. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/image/picture_name.h"
#include "worker/data/sets/dataset.h"

#define MAX_DEPTH 16              /* of folders within a class; also ends loops of links */
#define MAX_FILE_BYTES (1u << 30) /* what a struct buf takes */

struct sample {
    char *path;
    int label;
};

struct folder {
    struct dataset base; /* first */
    struct sample *samples;
    size_t cap;
    struct pictures_left_out left_out;
};

struct names {
    char **v;
    size_t n, cap;
};

static void names_free(struct names *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i]);
    free(l->v);
    *l = (struct names){0};
}

static int names_add(struct names *l, const char *name)
{
    TRY(ARRAY_GROW(l->v, l->cap, l->n + 1, "names", NULL));
    char *copy = strdup(name);
    if (!copy)
        return -ENOMEM;
    l->v[l->n++] = copy;
    return 0;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The visible entries of a folder in byte order. */
static int list_folder(const char *path, struct names *ret, struct err *e)
{
    DIR *d = opendir(path);
    if (!d && errno == ENOENT)
        return err_set(e, ERR_DATA, "'%s' does not exist", path);
    if (!d)
        return err_set(e, ERR_DATA, "cannot read the folder '%s': %s", path, strerror(errno));
    int rc = 0;
    struct dirent *entry;
    while (rc == 0 && (errno = 0, entry = readdir(d)))
        if (!picture_hidden(entry->d_name))
            rc = names_add(ret, entry->d_name);
    if (rc == 0 && errno)
        rc = err_set(e, ERR_DATA, "cannot read the folder '%s': %s", path, strerror(errno));
    else if (rc < 0)
        err_set(e, rc, "no memory to list the folder '%s'", path);
    closedir(d);
    if (ret->n > 0)
        qsort(ret->v, ret->n, sizeof *ret->v, by_bytes);
    return rc;
}

static int add_sample(struct folder *f, const char *path, int label, struct err *e)
{
    if (f->base.n == UINT32_MAX)
        return err_set(e, ERR_DATA, "more than %u images", UINT32_MAX);
    TRY(ARRAY_GROW(f->samples, f->cap, f->base.n + 1, "images", e));
    char *copy = strdup(path);
    if (!copy)
        return err_set(e, -ENOMEM, "no memory to list %zu images", f->base.n);
    f->samples[f->base.n++] = (struct sample){copy, label};
    return 0;
}

/* The file's own fault, which no other try mends; what remains is the disk's. */
static bool is_unusable(int code)
{
    return code == ENOENT || code == ENOTDIR || code == EACCES || code == EISDIR || code == ELOOP;
}

static int walk(struct folder *f, const char *path, int label, int depth, struct err *e);

static int visit(struct folder *f, const char *dir, const char *name, int label, int depth, struct err *e)
{
    char path[PATH_MAX];
    struct stat st;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return err_set(e, ERR_DATA, "the path of '%.100s' in '%.200s' is too long", name, dir);
    const int code = stat(path, &st) != 0 ? errno : 0;
    if (code != 0 && !picture_readable(name))
        return 0;
    if (code != 0) /* a link that leads nowhere: a sample that cannot be used */
        return is_unusable(code) ? add_sample(f, path, label, e)
                                 : err_set(e, ERR_DATA, "cannot read '%s': %s", path, strerror(code));
    if (S_ISDIR(st.st_mode))
        return walk(f, path, label, depth + 1, e);
    if (S_ISREG(st.st_mode))
        pictures_left_out_count(&f->left_out, name);
    return picture_readable(name) && S_ISREG(st.st_mode) ? add_sample(f, path, label, e) : 0;
}

static int walk(struct folder *f, const char *path, int label, int depth, struct err *e)
{
    if (depth > MAX_DEPTH)
        return err_set(e, ERR_DATA, "'%.200s' lies more than %d folders deep (a loop of links?)", path, MAX_DEPTH);
    struct names names = {0};
    int rc = list_folder(path, &names, e);
    for (size_t i = 0; rc == 0 && i < names.n; i++)
        rc = visit(f, path, names.v[i], label, depth, e);
    names_free(&names);
    return rc;
}

/* Keep the entries of `dir` that are folders. */
static int keep_folders(const char *dir, struct names *l, struct err *e)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->n; i++) {
        char path[PATH_MAX];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, l->v[i]);
        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
            l->v[kept++] = l->v[i];
        else
            free(l->v[i]);
    }
    l->n = kept;
    return kept > 0 ? 0 : err_set(e, ERR_DATA, "'%s' holds no class folders (expected: %s/<class>/<image>)", dir, dir);
}

static int label_of(const struct dataset *d, const char *name)
{
    for (int lo = 0, hi = d->classes - 1; lo <= hi;) {
        int mid = lo + (hi - lo) / 2, order = strcmp(name, d->class_names[mid]);
        if (order == 0)
            return mid;
        if (order < 0)
            hi = mid - 1;
        else
            lo = mid + 1;
    }
    return -1;
}

/* Of a folder without a picture: "(.jpg, ...)", and how many of other formats there are. */
static const char *instead(size_t left_out, char out[PICTURES_LEFT_OUT_TEXT])
{
    int at = snprintf(out, PICTURES_LEFT_OUT_TEXT, "(%s)", picture_suffixes());
    if (left_out > 0)
        snprintf(out + at, PICTURES_LEFT_OUT_TEXT - (size_t)at, ", but %zu of other formats", left_out);
    return out;
}

static int take_class(struct folder *f, const char *dir, const char *name, bool own_classes, struct err *e)
{
    char path[PATH_MAX];
    int label = label_of(&f->base, name);
    if (label < 0)
        return err_set(e, ERR_DATA, "'%s' has a class '%s' that the training data lacks", dir, name);
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return err_set(e, ERR_DATA, "the path of class '%.100s' in '%.200s' is too long", name, dir);
    char text[PICTURES_LEFT_OUT_TEXT];
    const size_t before = f->base.n, left_out = f->left_out.all;
    TRY(walk(f, path, label, 0, e));
    if (own_classes && f->base.n == before)
        return err_set(e, ERR_DATA, "class '%s' in '%s' holds no image %s", name, dir,
                       instead(f->left_out.all - left_out, text));
    return 0;
}

static int list_samples(struct folder *f, const char *dir, char *const *class_names, int classes, struct err *e)
{
    char text[PICTURES_LEFT_OUT_TEXT];
    struct names own = {0}, map = {0};
    int rc = list_folder(dir, &own, e);
    if (rc == 0)
        rc = keep_folders(dir, &own, e);
    if (rc == 0 && !class_names && own.n > INT_MAX / 2)
        rc = err_set(e, ERR_DATA, "'%s' has too many classes (%zu)", dir, own.n);
    size_t n = class_names ? (size_t)classes : own.n;
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (names_add(&map, class_names ? class_names[i] : own.v[i]) < 0)
            rc = err_set(e, -ENOMEM, "no memory for %zu class names", n);
    f->base.class_names = map.v; /* owned from here on, also after an error */
    f->base.classes = (int)map.n;
    for (size_t i = 0; rc == 0 && i < own.n; i++)
        rc = take_class(f, dir, own.v[i], !class_names, e);
    if (rc == 0 && f->base.n == 0)
        rc = err_set(e, ERR_DATA, "'%s' holds no image %s", dir, instead(f->left_out.all, text));
    if (rc == 0 && f->left_out.all > 0 && !(f->base.left_out = strdup(pictures_left_out_text(&f->left_out, text))))
        rc = err_set(e, -ENOMEM, "no memory to list '%s'", dir);
    names_free(&own);
    return rc;
}

static int cannot_read(int code, const char *path, struct err *e)
{
    return is_unusable(code) ? err_set(e, ERR_DATA, "cannot be read: %s", strerror(code))
                             : err_errno(e, code, "cannot read '%s'", path);
}

static int read_all(int fd, const char *path, struct buf *data, struct err *e)
{
    const int rc = file_read_all(fd, data);
    if (rc == -E2BIG)
        return err_set(e, ERR_DATA, "a file of more than %u bytes", MAX_FILE_BYTES);
    return rc < 0 ? cannot_read(-rc, path, e) : 0;
}

static int folder_read(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e)
{
    const struct sample *s = &((const struct folder *)d)->samples[i];
    int fd = open(s->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return cannot_read(errno, s->path, e);
    int rc = read_all(fd, s->path, data, e);
    close(fd);
    if (rc == 0)
        *label = s->label;
    return rc;
}

static const char *folder_sample_name(struct dataset *d, size_t i)
{
    return ((const struct folder *)d)->samples[i].path;
}

static void folder_close(struct dataset *d)
{
    struct folder *f = (struct folder *)d;
    for (size_t i = 0; i < d->n; i++)
        free(f->samples[i].path);
    free(f->samples);
    for (int i = 0; i < d->classes; i++)
        free(d->class_names[i]);
    free(d->class_names);
    free(d->left_out);
    free(f);
}

static const struct dataset_ops folder_ops = {
    .name = "folder",
    .read = folder_read,
    .sample_name = folder_sample_name,
    .close = folder_close,
};

int dataset_open_folder(struct dataset **ret, const char *dir, char *const *class_names, int classes, struct err *e)
{
    struct folder *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(e, -ENOMEM, "no memory for a data set");
    f->base.ops = &folder_ops;
    int rc = list_samples(f, dir, class_names, classes, e);
    if (rc < 0)
        folder_close(&f->base);
    else
        *ret = &f->base;
    return rc;
}
