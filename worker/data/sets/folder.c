/* Data set of a folder tree, DIR/<class>/.../<image>, as torchvision's ImageFolder reads it.
 *
 * The names of all files are listed once, at open; the files are read when asked for. Differences from torchvision:
 * hidden files and folders are passed over, and of its extensions those are taken that image_decode() can read
 * (picture_name.h); pictures of other formats are counted. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/image/picture_name.h"
#include "worker/data/sets/dataset_impl.h"

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

struct entry {
    char *name;
    unsigned char type; /* DT_...: of a link, or where the file system does not tell, DT_LNK or DT_UNKNOWN */
};

struct entries {
    struct entry *v;
    size_t n, cap;
};

static void entries_free(struct entries *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i].name);
    free(l->v);
    *l = (struct entries){0};
}

static int entries_add(struct entries *l, const struct dirent *d)
{
    TRY(ARRAY_GROW(l->v, l->cap, l->n + 1, "names", NULL));
    char *copy = strdup(d->d_name);
    if (!copy)
        return -ENOMEM;
    l->v[l->n++] = (struct entry){copy, d->d_type};
    return 0;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

/* The visible entries of a folder in byte order. */
static int list_folder(const char *path, struct entries *ret, struct err *e)
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
            rc = entries_add(ret, entry);
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

static int take_file(struct folder *f, const char *path, const char *name, int label, struct err *e)
{
    pictures_left_out_count(&f->left_out, name);
    return picture_readable(name) ? add_sample(f, path, label, e) : 0;
}

/* A link leads to a file or a folder, or nowhere: then it is a sample that cannot be used. */
static int visit_link(struct folder *f, const char *path, const char *name, int label, int depth, struct err *e)
{
    struct stat st;
    const int code = stat(path, &st) != 0 ? errno : 0;
    if (code != 0 && !picture_readable(name))
        return 0;
    if (code != 0)
        return is_unusable(code) ? add_sample(f, path, label, e)
                                 : err_set(e, ERR_DATA, "cannot read '%s': %s", path, strerror(code));
    if (S_ISDIR(st.st_mode))
        return walk(f, path, label, depth + 1, e);
    return S_ISREG(st.st_mode) ? take_file(f, path, name, label, e) : 0;
}

/* The folder tells what its entries are: to ask for each of a million files would take minutes on a network's disk. */
static int visit(struct folder *f, const char *dir, const struct entry *entry, int label, int depth, struct err *e)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", dir, entry->name) >= (int)sizeof path)
        return err_set(e, ERR_DATA, "the path of '%.100s' in '%.200s' is too long", entry->name, dir);
    switch (entry->type) {
    case DT_REG:
        return take_file(f, path, entry->name, label, e);
    case DT_DIR:
        return walk(f, path, label, depth + 1, e);
    case DT_LNK:
    case DT_UNKNOWN:
        return visit_link(f, path, entry->name, label, depth, e);
    default: /* pipes, sockets, devices */
        return 0;
    }
}

static int walk(struct folder *f, const char *path, int label, int depth, struct err *e)
{
    if (depth > MAX_DEPTH)
        return err_set(e, ERR_DATA, "'%.200s' lies more than %d folders deep (a loop of links?)", path, MAX_DEPTH);
    struct entries entries = {0};
    int rc = list_folder(path, &entries, e);
    for (size_t i = 0; rc == 0 && i < entries.n; i++)
        rc = visit(f, path, &entries.v[i], label, depth, e);
    entries_free(&entries);
    return rc;
}

static bool is_folder(const char *dir, const struct entry *entry)
{
    char path[PATH_MAX];
    struct stat st;
    if (entry->type != DT_LNK && entry->type != DT_UNKNOWN)
        return entry->type == DT_DIR;
    snprintf(path, sizeof path, "%s/%s", dir, entry->name);
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Of a folder without class folders. */
static int no_classes(const char *dir, const struct entries *l, struct err *e)
{
    const char *other = NULL;
    size_t pictures = 0;
    for (size_t i = 0; i < l->n; i++)
        if (picture_readable(l->v[i].name))
            pictures++;
        else if (!other)
            other = l->v[i].name;
    return dataset_explain_folder(dir, pictures, other, e);
}

/* Keep the entries of `dir` that are folders. */
static int keep_folders(const char *dir, struct entries *l, struct err *e)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->n; i++)
        if (is_folder(dir, &l->v[i])) {
            const struct entry folder = l->v[i]; /* the others move behind it */
            l->v[i] = l->v[kept];
            l->v[kept++] = folder;
        }
    if (kept == 0)
        return no_classes(dir, l, e);
    while (l->n > kept)
        free(l->v[--l->n].name);
    return 0;
}

/* Of a folder without a picture: "(.jpg, ...)", and how many of other formats there are. */
static const char *instead(size_t left_out, char out[PICTURES_LEFT_OUT_TEXT])
{
    int at = snprintf(out, PICTURES_LEFT_OUT_TEXT, "(%s)", picture_suffixes());
    if (left_out > 0)
        snprintf(out + at, PICTURES_LEFT_OUT_TEXT - (size_t)at, ", but %zu of other formats", left_out);
    return out;
}

/* "; is 'DIR/train' meant?", where there is such a folder. */
static const char *another_folder(const char *dir, const struct entries *own, char out[PATH_MAX])
{
    out[0] = '\0';
    for (size_t i = 0; i < own->n; i++)
        if (dataset_is_part(own->v[i].name, strlen(own->v[i].name)) && strncasecmp(own->v[i].name, "train", 5) == 0)
            snprintf(out, PATH_MAX, "; is '%s/%s' meant?", dir, own->v[i].name);
    return out;
}

/* own: the folder's sub-folders; NULL: the classes are training's. */
static int take_class(struct folder *f, const char *dir, const char *name, int label, const struct entries *own,
                      struct err *e)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return err_set(e, ERR_DATA, "the path of class '%.100s' in '%.200s' is too long", name, dir);
    char text[PICTURES_LEFT_OUT_TEXT];
    const size_t before = f->base.n, left_out = f->left_out.all;
    TRY(walk(f, path, label, 0, e));
    if (own && f->base.n == before)
        return err_set(e, ERR_DATA, "class '%s' in '%s' holds no image %s%s", name, dir,
                       instead(f->left_out.all - left_out, text), another_folder(dir, own, path));
    return 0;
}

/* The folder's own classes: the names of its sub-folders. */
static int name_classes(struct folder *f, const char *dir, const struct entries *own, struct err *e)
{
    if (own->n > INT_MAX / 2)
        return err_set(e, ERR_DATA, "'%s' has too many classes (%zu)", dir, own->n);
    char **names = malloc(own->n * sizeof *names);
    if (!names)
        return err_set(e, -ENOMEM, "no memory for %zu class names", own->n);
    for (size_t i = 0; i < own->n; i++)
        names[i] = own->v[i].name;
    const int rc = dataset_set_classes(&f->base, names, (int)own->n, e);
    free(names);
    return rc;
}

static int take_classes(struct folder *f, const char *dir, const struct entries *own, bool own_classes, struct err *e)
{
    struct class_index index = {0};
    int rc = own_classes ? 0 : class_index_init(&index, f->base.class_names, f->base.classes, e);
    for (size_t i = 0; rc == 0 && i < own->n; i++) {
        int label = (int)i;
        if (!own_classes)
            rc = class_index_find(&index, own->v[i].name, dir, &label, e);
        if (rc == 0)
            rc = take_class(f, dir, own->v[i].name, label, own_classes ? own : NULL, e);
    }
    class_index_free(&index);
    return rc;
}

static int list_samples(struct folder *f, const char *dir, char *const *class_names, int classes, struct err *e)
{
    char text[PICTURES_LEFT_OUT_TEXT];
    struct entries own = {0};
    int rc = list_folder(dir, &own, e);
    if (rc == 0)
        rc = keep_folders(dir, &own, e);
    if (rc == 0)
        rc = class_names ? dataset_set_classes(&f->base, class_names, classes, e) : name_classes(f, dir, &own, e);
    if (rc == 0)
        rc = take_classes(f, dir, &own, !class_names, e);
    if (rc == 0 && f->base.n == 0)
        rc = err_set(e, ERR_DATA, "'%s' holds no image %s", dir, instead(f->left_out.all, text));
    if (rc == 0 && f->left_out.all > 0 && !(f->base.left_out = strdup(pictures_left_out_text(&f->left_out, text))))
        rc = err_set(e, -ENOMEM, "no memory to list '%s'", dir);
    entries_free(&own);
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
    const int fd = file_open_regular(s->path, ERR_DATA, e);
    if (fd < 0)
        return fd == ERR_DATA ? fd : cannot_read(-fd, s->path, e);
    int rc = read_all(fd, s->path, data, e);
    close(fd);
    if (rc == 0)
        *label = s->label;
    return rc;
}

static int folder_label(struct dataset *d, size_t i)
{
    return ((const struct folder *)d)->samples[i].label;
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
    dataset_free_classes(d);
    free(d->left_out);
    free(f);
}

static const struct dataset_ops folder_ops = {
    .name = "folder",
    .read = folder_read,
    .label = folder_label,
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
