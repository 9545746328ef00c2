/* Samples out of tar files, which are never unpacked: a tar, or a folder of them, its shards in byte order. The headers
 * are walked over once, at open (tar_walk.h); then each sample is one pread(2) at a place that is known.
 *
 * What a picture's class is:
 *   - a member NAME.cls, a number, belongs to the picture NAME.jpg (WebDataset). Of several pictures of one NAME the
 *     first counts. Names of classes: classes.txt beside the tars, else numbers.
 *   - Where no tar has such: the folder that the picture lies in within the tar, else the name of the tar: so
 *     ImageNet's n01440764.tar and the other 999 are a training set as they come. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/image/picture_name.h"
#include "worker/data/sets/dataset_impl.h"
#include "worker/data/sets/tar_walk.h"

#define LABEL_MAX (1 << 24)
#define LABELS_UNSAID 30000 /* a larger one, of fewer images, is taken for a mistake */

struct shard {
    char *path;
    int fd; /* kept open as far as the limit of descriptors allows; else -1, and opened for each sample */
};

struct sample {
    uint64_t offset;
    size_t name; /* in .names */
    uint32_t size, shard;
    int32_t label; /* of .cls; else the number of its class name, in the order in which they came */
    bool by_cls;
};

struct known_class {
    char *name;
    int number;
};

struct tars {
    struct dataset base; /* first */
    struct shard *shards;
    size_t n_shards, shards_cap;
    struct sample *samples;
    size_t cap;
    char *names;
    size_t names_len, names_cap;
    struct known_class *known; /* by name */
    size_t n_known, known_cap;
    size_t labelled, described, nested; /* members .cls, .json, .tar */
    size_t folders;                     /* beside the tars */
    size_t in_folders;                  /* pictures that lie in one */
    int most;                           /* the largest label of a .cls */
    char *part;                         /* the folder train, val or the like that pictures lie in; NULL: in none yet */
    struct pictures_left_out left_out;
};

static bool has_suffix(const char *name, const char *suffix)
{
    const char *dot = strrchr(name, '.');
    return dot && strcasecmp(dot, suffix) == 0;
}

/* Behind the last slash. */
static const char *base_of(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

/* Bytes of NAME, up to the first dot behind the last slash. */
static size_t key_length(const char *name)
{
    const char *base = base_of(name);
    return (size_t)(base - name) + strcspn(base, ".");
}

/* --- which tars */

static int add_shard(struct tars *d, const char *path, struct err *e)
{
    TRY(ARRAY_GROW(d->shards, d->shards_cap, d->n_shards + 1, "tar files", e));
    char *copy = strdup(path);
    if (!copy)
        return err_set(e, -ENOMEM, "no memory to list tar files");
    d->shards[d->n_shards++] = (struct shard){.path = copy, .fd = -1};
    return 0;
}

static bool is_tar(const struct dirent *f)
{
    return !picture_hidden(f->d_name) && has_suffix(f->d_name, ".tar");
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct shard *)a)->path, ((const struct shard *)b)->path);
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int list_shards(struct tars *d, const char *path, struct err *e)
{
    char file[PATH_MAX];
    if (dataset_is_file(path))
        return add_shard(d, path, e);
    DIR *dir = opendir(path);
    if (!dir)
        return err_set(e, ERR_DATA, "cannot read the folder '%s': %s", path, strerror(errno));
    int rc = 0;
    for (struct dirent *f; rc == 0 && (f = readdir(dir));) {
        if (picture_hidden(f->d_name) || snprintf(file, sizeof file, "%s/%s", path, f->d_name) >= (int)sizeof file)
            continue;
        if (is_tar(f))
            rc = add_shard(d, file, e);
        else
            d->folders += is_folder(file);
    }
    closedir(dir);
    if (d->n_shards > 0)
        qsort(d->shards, d->n_shards, sizeof *d->shards, by_path);
    return rc == 0 && d->n_shards == 0 ? err_set(e, ERR_DATA, "'%s' holds no .tar file", path) : rc;
}

bool dataset_is_tars(const char *path)
{
    if (dataset_is_file(path))
        return has_suffix(path, ".tar");
    DIR *dir = opendir(path);
    bool found = false;
    for (struct dirent *f; dir && !found && (f = readdir(dir));)
        found = is_tar(f);
    if (dir)
        closedir(dir);
    return found;
}

/* --- what is in them */

/* The number of a class name; a new one has the next. */
static int know_class(struct tars *d, const char *name, size_t n, int *ret, struct err *e)
{
    size_t low = 0, high = d->n_known;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const int order = strncmp(d->known[middle].name, name, n);
        if (order == 0 && !d->known[middle].name[n]) {
            *ret = d->known[middle].number;
            return 0;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    TRY(ARRAY_GROW(d->known, d->known_cap, d->n_known + 1, "classes", e));
    char *copy = strndup(name, n);
    if (!copy || d->n_known >= INT_MAX / 2) {
        free(copy);
        return err_set(e, -ENOMEM, "no memory for %zu class names", d->n_known);
    }
    memmove(d->known + low + 1, d->known + low, (d->n_known - low) * sizeof *d->known);
    d->known[low] = (struct known_class){copy, (int)d->n_known};
    *ret = (int)d->n_known++;
    return 0;
}

/* Pictures of two parts are not one set: their classes are called alike. */
static int check_part(struct tars *d, const char *name, const char *tar, struct err *e)
{
    for (const char *slash; (slash = strchr(name, '/')); name = slash + 1) {
        const size_t n = (size_t)(slash - name);
        if (!dataset_is_part(name, n))
            continue;
        if (d->part && (strlen(d->part) != n || memcmp(d->part, name, n) != 0))
            return err_set(e, ERR_DATA,
                           "'%s' holds the parts '%s' and '%.*s' of a data set: give a tar of each, or unpack it and "
                           "give the folder of one",
                           tar, d->part, (int)n, name);
        if (!d->part && !(d->part = strndup(name, n)))
            return err_set(e, -ENOMEM, "no memory to list '%s'", tar);
    }
    return 0;
}

/* The folder a picture lies in, or its tar. */
static int class_of(struct tars *d, const char *name, const char *tar, int *ret, struct err *e)
{
    const char *base = base_of(name);
    if (base > name + 1) {
        const char *end = base - 1, *begin = end;
        while (begin > name && begin[-1] != '/')
            begin--;
        d->in_folders++;
        return know_class(d, begin, (size_t)(end - begin), ret, e);
    }
    tar = base_of(tar);
    return know_class(d, tar, strlen(tar) - strlen(".tar") * has_suffix(tar, ".tar"), ret, e);
}

static int add_sample(struct tars *d, const struct tar_member *m, struct err *e)
{
    const size_t n = strlen(m->name) + 1;
    int label;
    if (d->base.n == UINT32_MAX)
        return err_set(e, ERR_DATA, "more than %u images", UINT32_MAX);
    TRY(ARRAY_GROW(d->samples, d->cap, d->base.n + 1, "images", e));
    TRY(ARRAY_GROW(d->names, d->names_cap, d->names_len + n, "bytes of names", e));
    TRY(check_part(d, m->name, d->shards[d->n_shards].path, e));
    TRY(class_of(d, m->name, d->shards[d->n_shards].path, &label, e));
    memcpy(d->names + d->names_len, m->name, n);
    d->samples[d->base.n++] = (struct sample){.offset = m->offset,
                                              .name = d->names_len,
                                              .size = m->size < UINT32_MAX ? (uint32_t)m->size : UINT32_MAX,
                                              .shard = (uint32_t)d->n_shards,
                                              .label = label};
    d->names_len += n;
    return 0;
}

/* Members of one NAME, in a row. */
struct group {
    char key[PATH_MAX];
    size_t first; /* its pictures are the samples from here on */
    int label;
    bool labelled;
};

/* With a .cls its first picture has that label, and there are no others of it. */
static void end_group(struct tars *d, struct group *g)
{
    if (g->labelled && d->base.n > g->first) {
        d->base.n = g->first + 1;
        d->samples[g->first].label = g->label;
        d->samples[g->first].by_cls = true;
    }
    g->labelled = false;
    g->first = d->base.n;
}

static int take_label(struct tars *d, struct tar *t, const struct tar_member *m, struct group *g, struct err *e)
{
    char text[24], *end;
    TRY(tar_text(t, m, text, sizeof text, e));
    const long label = strtol(text, &end, 10);
    if (end == text || *(end + strspn(end, " \r\n")) || label < 0 || label >= LABEL_MAX)
        return err_set(e, ERR_DATA, "'%s' in '%s' is no label: expected a number from 0 to %d", m->name, t->path,
                       LABEL_MAX - 1);
    g->label = (int)label;
    g->labelled = true;
    d->most = g->label > d->most ? g->label : d->most;
    d->labelled++;
    return 0;
}

static int take_member(struct tars *d, struct tar *t, const struct tar_member *m, struct group *g, struct err *e)
{
    const size_t key = key_length(m->name);
    if (picture_hidden(base_of(m->name)))
        return 0;
    if (strncmp(g->key, m->name, key) != 0 || g->key[key]) {
        end_group(d, g);
        memcpy(g->key, m->name, key);
        g->key[key] = '\0';
    }
    if (has_suffix(m->name, ".cls"))
        return take_label(d, t, m, g, e);
    d->described += has_suffix(m->name, ".json");
    d->nested += has_suffix(m->name, ".tar");
    pictures_left_out_count(&d->left_out, m->name);
    return picture_readable(m->name) ? add_sample(d, m, e) : 0;
}

static int index_shard(struct tars *d, bool keep, struct err *e)
{
    struct tar t;
    struct tar_member m;
    struct group g = {.first = d->base.n};
    TRY(tar_open(&t, d->shards[d->n_shards].path, e));
    int rc;
    while ((rc = tar_next(&t, &m, e)) > 0 && (rc = take_member(d, &t, &m, &g, e)) == 0)
        ;
    end_group(d, &g);
    if (keep && rc == 0)
        d->shards[d->n_shards].fd = t.fd;
    else
        tar_close(&t);
    return rc;
}

static size_t descriptors_to_keep(void)
{
    struct rlimit l;
    return getrlimit(RLIMIT_NOFILE, &l) == 0 ? (size_t)l.rlim_cur / 4 : 0;
}

/* d->n_shards counts those that are indexed. */
static int index_all(struct tars *d, struct err *e)
{
    const size_t n = d->n_shards, keep = descriptors_to_keep();
    int rc = (d->base.shard_ends = calloc(n, sizeof *d->base.shard_ends))
                 ? 0
                 : err_set(e, -ENOMEM, "no memory for %zu tar files", n);
    for (d->n_shards = 0; rc == 0 && d->n_shards < n; d->n_shards++) {
        const size_t before = d->base.n;
        rc = index_shard(d, d->n_shards < keep, e);
        if (d->base.n > before)
            d->base.shard_ends[d->base.n_shards++] = (uint32_t)d->base.n;
    }
    d->n_shards = n;
    return rc;
}

/* --- classes */

static int check_classes(const struct tars *d, const char *path, struct err *e)
{
    if (d->base.n == 0 && d->nested > 0)
        return err_set(e, ERR_DATA, "'%s' holds %zu .tar files and no picture: unpack it (tar xf) and give the folder",
                       path, d->nested);
    if (d->base.n == 0)
        return err_set(e, ERR_DATA, "'%s' holds no image (%s)", path, picture_suffixes());
    if (d->labelled == 0 && d->described > 0 && d->in_folders == 0)
        return err_set(
            e, ERR_DATA,
            "'%s' has %zu .json beside its pictures, and no .cls: which number in them the class is cannot be "
            "known; write NAME.cls with the number",
            path, d->described);
    return 0;
}

/* Labels of .cls: numbers. A picture without one has none. */
static int number_classes(struct tars *d, const char *path, const struct dataset_options *o, struct err *e)
{
    struct dataset_options with = *o;
    if (with.num_labels == 0)
        with.num_labels = d->most + 1;
    TRY(dataset_find_classes(&d->base, path, &with, e));
    if (o->num_labels == 0 && d->base.classes == d->most + 1 && d->most >= LABELS_UNSAID && (size_t)d->most > d->base.n)
        return err_set(e, ERR_DATA,
                       "'%s' has a .cls that says %d, and %zu images: if there are so many classes, say so with "
                       "--num-labels or a classes.txt",
                       path, d->most, d->base.n);
    return 0;
}

/* Names: in byte order they are the classes, or they are training's. */
static int name_classes(struct tars *d, const char *path, const struct dataset_options *o, struct err *e)
{
    struct class_index index = {0};
    char **names = calloc(d->n_known, sizeof *names);
    int *labels = calloc(d->n_known, sizeof *labels); /* by their first numbers */
    int rc = names && labels ? 0 : err_set(e, -ENOMEM, "no memory for %zu class names", d->n_known);
    if (rc == 0 && o->class_names)
        rc = class_index_init(&index, o->class_names, o->classes, e);
    for (size_t i = 0; rc == 0 && i < d->n_known; i++) {
        names[i] = d->known[i].name;
        labels[d->known[i].number] = (int)i;
        if (o->class_names)
            rc = class_index_find(&index, names[i], path, &labels[d->known[i].number], e);
    }
    for (size_t i = 0; rc == 0 && i < d->base.n; i++)
        d->samples[i].label = labels[d->samples[i].label];
    if (rc == 0)
        rc = o->class_names ? dataset_set_classes(&d->base, o->class_names, o->classes, e)
                            : dataset_set_classes(&d->base, names, (int)d->n_known, e);
    class_index_free(&index);
    free(names);
    free(labels);
    return rc;
}

/* --- the data set */

static int tars_read(struct dataset *base, size_t i, struct buf *data, int *label, struct err *e)
{
    const struct tars *d = (const struct tars *)base;
    const struct sample *s = &d->samples[i];
    const struct shard *shard = &d->shards[s->shard];
    if (s->size > 1u << 30 || buf_reserve(data, (size_t)s->size + 1) < 0)
        return err_set(e, s->size > 1u << 30 ? ERR_DATA : -ENOMEM, "no memory for a file of %u bytes", s->size);
    const int fd = shard->fd >= 0 ? shard->fd : file_open_regular(shard->path, ERR_DATA, e);
    if (fd < 0)
        return fd == -ENOENT || fd == -EACCES ? ERR_DATA : fd;
    const int rc = tar_pread(fd, shard->path, data->data + data->len, s->size, s->offset, e);
    if (shard->fd < 0)
        close(fd);
    TRY(rc);
    data->len += s->size;
    data->data[data->len] = '\0';
    *label = s->label;
    if (d->labelled && !s->by_cls)
        return err_set(e, ERR_DATA, "no .cls says what its class is");
    return d->labelled ? dataset_take_label(base, label, e) : 0;
}

static int tars_label(struct dataset *base, size_t i)
{
    const struct tars *d = (const struct tars *)base;
    int label = d->samples[i].label;
    if (!d->labelled)
        return label;
    return d->samples[i].by_cls && dataset_take_label(base, &label, NULL) == 0 ? label : -1;
}

static const char *tars_sample_name(struct dataset *base, size_t i)
{
    static _Thread_local char name[PATH_MAX];
    const struct tars *d = (const struct tars *)base;
    snprintf(name, sizeof name, "%.2000s/%.2000s", d->shards[d->samples[i].shard].path, d->names + d->samples[i].name);
    return name;
}

static void tars_close(struct dataset *base)
{
    struct tars *d = (struct tars *)base;
    for (size_t i = 0; i < d->n_shards; i++) {
        if (d->shards[i].fd >= 0)
            close(d->shards[i].fd);
        free(d->shards[i].path);
    }
    for (size_t i = 0; i < d->n_known; i++)
        free(d->known[i].name);
    free(d->known);
    free(d->part);
    free(d->shards);
    free(d->samples);
    free(d->names);
    free(base->shard_ends);
    free(base->left_out);
    dataset_free_classes(base);
    free(d);
}

static const struct dataset_ops tars_ops = {
    .name = "tar",
    .read = tars_read,
    .label = tars_label,
    .sample_name = tars_sample_name,
    .close = tars_close,
};

/* What of the path is not part of the set, or weighs nothing. */
static int tell_left_out(struct tars *d, const char *path, struct err *e)
{
    struct buf text = {0};
    char pictures[PICTURES_LEFT_OUT_TEXT];
    size_t nameless = 0, beyond = 0;
    for (size_t i = 0; d->labelled && i < d->base.n; i++) {
        nameless += !d->samples[i].by_cls;
        beyond += d->samples[i].by_cls && tars_label(&d->base, i) < 0;
    }
    const struct {
        size_t n;
        const char *one, *many;
    } counts[] = {{d->folders, "folder beside the tar files is left out", "folders beside the tar files are left out"},
                  {nameless, "picture has no .cls and weighs nothing", "pictures have no .cls and weigh nothing"},
                  {beyond, "picture has a .cls beyond the classes and weighs nothing",
                   "pictures have a .cls beyond the classes and weigh nothing"}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof counts / sizeof *counts; i++)
        if (counts[i].n > 0)
            rc = buf_printf(&text, "%s%zu %s", text.len ? "; " : "", counts[i].n,
                            counts[i].n > 1 ? counts[i].many : counts[i].one);
    if (rc == 0 && d->left_out.all > 0)
        rc = buf_printf(&text, "%s%s", text.len ? "; " : "", pictures_left_out_text(&d->left_out, pictures));
    if (rc == 0 && text.len > 0)
        rc = (d->base.left_out = strdup(text.data)) ? 0 : -ENOMEM;
    buf_free(&text);
    return rc < 0 ? err_set(e, -ENOMEM, "no memory to list '%s'", path) : 0;
}

static int fill(struct tars *d, const char *path, const struct dataset_options *o, struct err *e)
{
    TRY(list_shards(d, path, e));
    TRY(index_all(d, e));
    TRY(check_classes(d, path, e));
    TRY(d->labelled ? number_classes(d, path, o, e) : name_classes(d, path, o, e));
    return tell_left_out(d, path, e);
}

int dataset_open_tars(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e)
{
    struct tars *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(e, -ENOMEM, "no memory for a data set");
    d->base.ops = &tars_ops;
    const int rc = fill(d, path, o, e);
    if (rc < 0)
        tars_close(&d->base);
    else
        *ret = &d->base;
    return rc;
}
