/* Sorts ImageNet's validation pictures into a folder for each class. */
#include "worker/data/sets/imagenet_val.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/image/picture_name.h"

#define GROUND_TRUTH "ILSVRC2012_validation_ground_truth.txt"
#define CLASSES 1000
#define WNID 9                  /* n01751748 */
#define META_MAX (64u << 20)    /* of meta.mat, inflated; it has less than 1 MB */
#define LABELS_MAX (256u << 20) /* of a file of labels */

struct label {
    char *name;  /* without its suffix; NULL: the next picture's */
    size_t line; /* of its file */
    char wnid[WNID + 1];
};

struct labels {
    struct label *v;
    size_t n, cap;
    bool named;
};

struct names {
    char **v;
    size_t n, cap;
};

/* --- labels */

static bool is_wnid(const char *p)
{
    for (int i = 1; i < WNID; i++)
        if (*p != 'n' || !isdigit((unsigned char)p[i]))
            return false;
    return true;
}

static int add_label(struct labels *l, const char *name, size_t n, const char *wnid, size_t line, struct err *e)
{
    TRY(ARRAY_GROW(l->v, l->cap, l->n + 1, "labels", e));
    struct label *to = &l->v[l->n];
    *to = (struct label){.name = name ? strndup(name, n) : NULL, .line = line};
    if (name && !to->name)
        return err_set(e, -ENOMEM, "no memory for labels");
    memcpy(to->wnid, wnid, WNID);
    l->n++;
    return 0;
}

static int read_text(const char *path, struct buf *b, struct err *e)
{
    const int fd = file_open_regular(path, ERR_DATA, e);
    if (fd < 0)
        return fd == ERR_DATA ? fd : err_set(e, ERR_DATA, "cannot read '%s': %s", path, strerror(-fd));
    b->max = LABELS_MAX;
    const int rc = file_read_all(fd, b);
    close(fd);
    return rc < 0 ? err_set(e, ERR_DATA, "cannot read '%s': %s", path, strerror(-rc)) : 0;
}

/* A name's length without .JPEG. */
static size_t stem(const char *name, size_t n)
{
    return n > 5 && strncasecmp(name + n - 5, ".jpeg", 5) == 0 ? n - 5 : n;
}

/* "NAME,n01751748 ...", "NAME n01751748", "n01751748". */
static int take_line(struct labels *l, const char *line, const char *file, size_t number, struct err *e)
{
    const size_t first = strcspn(line, ", \t"), gap = strspn(line + first, ", \t\"");
    const char *second = line + first + gap;
    if (first == WNID && is_wnid(line) && !l->named)
        return add_label(l, NULL, 0, line, number, e);
    if (is_wnid(second)) {
        l->named = true;
        return add_label(l, line, stem(line, first), second, number, e);
    }
    if (number == 1 && strncasecmp(line, "ImageId", 7) == 0) /* Kaggle's head */
        return 0;
    return err_set(e, ERR_DATA, "line %zu of '%s' has no class: expected NAME,n01751748 or n01751748", number, file);
}

/* The classes by their numbers in the development kit. MATLAB's file is walked over for what looks like a class: its
 * synsets stand in the order of their numbers, the 1,000 that have pictures first, each with one such text, of one byte
 * or two a letter. */
static int find_wnids(const uint8_t *p, size_t n, char (*wnids)[WNID + 1], struct err *e)
{
    int found = 0;
    for (size_t i = 0; found < CLASSES && i + 2 * WNID <= n; i++)
        for (size_t width = 1; found < CLASSES && width <= 2; width++) {
            char text[WNID];
            bool is_one = true;
            for (size_t k = 0; k < WNID; k++) {
                text[k] = (char)p[i + k * width];
                is_one = is_one && (width == 1 || p[i + k * 2 + 1] == 0);
            }
            if (!is_one || !is_wnid(text))
                continue;
            memcpy(wnids[found++], text, WNID);
            i += WNID * width - 1;
            break;
        }
    return found == CLASSES ? 0 : err_set(e, ERR_DATA, "it names %d classes (expected %d)", found, CLASSES);
}

/* MATLAB's version 5: 128 bytes, then elements of a type and a size; 15 is a zlib stream. */
static int read_meta(const char *path, char (*wnids)[WNID + 1], struct err *e)
{
    struct buf b = {0};
    TRY(read_text(path, &b, e));
    const uint8_t *p = (const uint8_t *)b.data;
    uint8_t *out = malloc(META_MAX);
    uLongf n = META_MAX;
    int rc = out ? 0 : err_set(e, -ENOMEM, "no memory to read '%s'", path);
    if (rc == 0 && (b.len < 136 || memcmp(p, "MATLAB 5.0", 10) != 0))
        rc = err_set(e, ERR_DATA, "'%s' is no MATLAB file of version 5", path);
    if (rc == 0 && p[128] == 15)
        rc = uncompress(out, &n, p + 136, (uLong)(b.len - 136)) == Z_OK || n > 0
                 ? 0
                 : err_set(e, ERR_DATA, "'%s' is damaged", path);
    else if (rc == 0)
        memcpy(out, p, n = b.len < META_MAX ? (uLongf)b.len : META_MAX);
    if (rc == 0)
        rc = find_wnids(out, (size_t)n, wnids, e) < 0 ? err_wrap(e, "%s", path) : 0;
    free(out);
    buf_free(&b);
    return rc;
}

/* Lines of a number from 1 to 1000, with meta.mat beside them. */
static int take_ground_truth(struct labels *l, const char *text, const char *path, struct err *e)
{
    char meta[PATH_MAX];
    char wnids[CLASSES][WNID + 1] = {{0}};
    const char *slash = strrchr(path, '/');
    snprintf(meta, sizeof meta, "%.*smeta.mat", slash ? (int)(slash + 1 - path) : 0, path);
    TRY(read_meta(meta, wnids, e));
    for (size_t line = 1; *text; line++) {
        char *end;
        const long number = strtol(text, &end, 10);
        if (end == text || number < 1 || number > CLASSES || !isspace((unsigned char)*end))
            return err_set(e, ERR_DATA, "line %zu of '%s' is no number from 1 to %d", line, path, CLASSES);
        TRY(add_label(l, NULL, 0, wnids[number - 1], line, e));
        text = end + strspn(end, " \r\n");
    }
    return 0;
}

static int read_labels(struct labels *l, const char *path, struct err *e)
{
    char file[PATH_MAX];
    struct stat st;
    struct buf b = {0};
    size_t number = 0;
    const bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    snprintf(file, sizeof file, folder ? "%s/data/" GROUND_TRUTH : "%s", path);
    TRY(read_text(file, &b, e));
    int rc = 0;
    if (b.len > 0 && isdigit((unsigned char)b.data[0]))
        rc = take_ground_truth(l, b.data, file, e);
    else
        for (char *line = b.data, *next; rc == 0 && line && *line; line = next) {
            next = line + strcspn(line, "\n");
            next += *next ? 1 : 0;
            if (next > line && next[-1] == '\n')
                next[-1] = '\0';
            line[strcspn(line, "\r")] = '\0';
            rc = take_line(l, line, file, ++number, e);
        }
    buf_free(&b);
    return rc;
}

static int by_label_name(const void *a, const void *b)
{
    return strcmp(((const struct label *)a)->name, ((const struct label *)b)->name);
}

/* Sorted by their names. */
static int check_twice(const struct labels *l, const char *path, struct err *e)
{
    for (size_t i = 1; i < l->n; i++) {
        const struct label *a = &l->v[i - 1], *b = &l->v[i];
        if (by_label_name(a, b) == 0 && strcmp(a->wnid, b->wnid) != 0)
            return err_set(
                e, ERR_DATA,
                "'%s' has two classes for the picture '%s': %s in line %zu, %s in line %zu; nothing was moved", path,
                a->name, a->line < b->line ? a->wnid : b->wnid, a->line < b->line ? a->line : b->line,
                a->line < b->line ? b->wnid : a->wnid, a->line < b->line ? b->line : a->line);
    }
    return 0;
}

/* --- pictures */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The pictures that lie in the folder itself, in byte order. */
static int list_pictures(const char *dir, struct names *l, struct err *e)
{
    DIR *d = opendir(dir);
    if (!d)
        return err_set(e, ERR_DATA, "cannot read the folder '%s': %s", dir, strerror(errno));
    int rc = 0;
    for (struct dirent *f; rc == 0 && (f = readdir(d));) {
        if (picture_hidden(f->d_name) || !picture_readable(f->d_name))
            continue;
        rc = ARRAY_GROW(l->v, l->cap, l->n + 1, "pictures", e);
        if (rc == 0 && !(l->v[l->n] = strdup(f->d_name)))
            rc = err_set(e, -ENOMEM, "no memory to list '%s'", dir);
        l->n += rc == 0;
    }
    closedir(d);
    if (l->n > 0)
        qsort(l->v, l->n, sizeof *l->v, by_text);
    return rc;
}

/* ILSVRC2012_val_00000293.JPEG is the 293rd, also where others were moved before; 0: its name has no number. */
static size_t number_of(const char *name)
{
    const char *end = strrchr(name, '.'), *begin = end;
    while (begin && begin > name && isdigit((unsigned char)begin[-1]))
        begin--;
    return begin && begin < end ? (size_t)strtoull(begin, NULL, 10) : 0;
}

static const char *class_of(const struct labels *l, const char *name)
{
    if (!l->named) {
        const size_t k = number_of(name);
        return k >= 1 && k <= l->n ? l->v[k - 1].wnid : NULL;
    }
    char key[NAME_MAX + 1];
    snprintf(key, sizeof key, "%.*s", (int)stem(name, strlen(name)), name);
    const struct label *found = bsearch(&(struct label){.name = key}, l->v, l->n, sizeof *l->v, by_label_name);
    return found ? found->wnid : NULL;
}

static int check_all(const struct imagenet_val_options *o, const struct labels *l, const struct names *pictures,
                     struct err *e)
{
    size_t without = 0;
    const char *first = NULL;
    for (size_t i = 0; i < pictures->n; i++)
        if (!class_of(l, pictures->v[i]) && ++without == 1)
            first = pictures->v[i];
    if (without == 0)
        return 0;
    return err_set(e, ERR_DATA, "'%s' has no class for %zu of %zu pictures, as '%s': nothing was moved", o->labels,
                   without, pictures->n, first);
}

/* No picture lies in the folder itself. Is every one of the labels in its place? */
static int check_sorted(const struct imagenet_val_options *o, const struct labels *l, size_t *ret, struct err *e)
{
    char dir[PATH_MAX];
    size_t placed = 0, all = l->n;
    for (size_t i = 1; l->named && i < l->n; i++)
        all -= by_label_name(&l->v[i - 1], &l->v[i]) == 0;
    DIR *d = opendir(o->out);
    int rc = 0;
    for (struct dirent *f; rc == 0 && d && (f = readdir(d));) {
        struct names in = {0};
        if (strlen(f->d_name) != WNID || !is_wnid(f->d_name) ||
            snprintf(dir, sizeof dir, "%s/%s", o->out, f->d_name) >= (int)sizeof dir)
            continue;
        rc = list_pictures(dir, &in, e);
        for (size_t i = 0; i < in.n; i++) {
            const char *wnid = rc == 0 ? class_of(l, in.v[i]) : NULL;
            placed += wnid && strcmp(wnid, f->d_name) == 0;
            if (wnid && strcmp(wnid, f->d_name) != 0)
                rc = err_set(e, ERR_DATA, "'%s/%s' is of class %s: it was sorted by other labels", dir, in.v[i], wnid);
            free(in.v[i]);
        }
        free(in.v);
    }
    if (d)
        closedir(d);
    *ret = placed;
    if (rc == 0 && (placed == 0 || placed < all))
        rc = err_set(e, ERR_DATA,
                     "'%s' holds no picture itself, and in the class folders of '%s' are %zu of the %zu that "
                     "have a label: is it the folder with the pictures?",
                     o->pictures, o->out, placed, all);
    return rc;
}

static int move(const struct imagenet_val_options *o, const char *name, const char *wnid, size_t *classes,
                struct err *e)
{
    char from[PATH_MAX], to[PATH_MAX];
    snprintf(from, sizeof from, "%s/%s", o->pictures, name);
    snprintf(to, sizeof to, "%s/%s", o->out, wnid);
    if (mkdir(to, 0777) == 0)
        ++*classes;
    else if (errno != EEXIST)
        return err_set(e, ERR_OUTPUT, "cannot make the folder '%s': %s", to, strerror(errno));
    if (snprintf(to, sizeof to, "%s/%s/%s", o->out, wnid, name) >= (int)sizeof to || access(to, F_OK) == 0)
        return err_set(e, ERR_OUTPUT, "cannot move '%s': '%s' is there already", from, to);
    if (rename(from, to) == 0)
        return 0;
    return err_set(e, ERR_OUTPUT, "cannot move '%s' to '%s': %s%s", from, to, strerror(errno),
                   errno == EXDEV ? "; --out must be on the same disk" : "");
}

int imagenet_val_sort(const struct imagenet_val_options *o, struct imagenet_val_done *ret, struct err *e)
{
    struct labels labels = {0};
    struct names pictures = {0};
    struct imagenet_val_done done = {0};
    int rc = read_labels(&labels, o->labels, e);
    if (rc == 0 && labels.named)
        qsort(labels.v, labels.n, sizeof *labels.v, by_label_name);
    if (rc == 0 && labels.named)
        rc = check_twice(&labels, o->labels, e);
    if (rc == 0)
        rc = list_pictures(o->pictures, &pictures, e);
    if (rc == 0)
        rc = check_all(o, &labels, &pictures, e);
    if (rc == 0 && pictures.n == 0)
        rc = check_sorted(o, &labels, &done.sorted, e);
    if (rc == 0 && mkdir(o->out, 0777) != 0 && errno != EEXIST)
        rc = err_set(e, ERR_OUTPUT, "cannot make the folder '%s': %s", o->out, strerror(errno));
    for (; rc == 0 && done.moved < pictures.n; done.moved += rc == 0)
        rc = move(o, pictures.v[done.moved], class_of(&labels, pictures.v[done.moved]), &done.classes, e);
    for (size_t i = 0; i < labels.n; i++)
        free(labels.v[i].name);
    for (size_t i = 0; i < pictures.n; i++)
        free(pictures.v[i]);
    free(labels.v);
    free(pictures.v);
    if (rc == 0)
        *ret = done;
    return rc;
}
