/* Names of classes and what a label means: a folder's sub-folders, a data base's classes.txt, those of training. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/sets/dataset_impl.h"

void dataset_free_classes(struct dataset *d)
{
    free(d->class_names);
    free(d->own_labels);
    d->class_names = NULL;
    d->own_labels = NULL;
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

int dataset_take_label(const struct dataset *d, int *label, struct err *e)
{
    if (!d->own_labels)
        return dataset_check_label(d, *label, e);
    if (*label < 0 || *label >= d->n_own_labels)
        return err_set(e, ERR_DATA, "label %d of a set of %d classes", *label, d->n_own_labels);
    *label = d->own_labels[*label];
    return 0;
}

struct class_name {
    const char *name;
    int label;
};

static int by_name(const void *a, const void *b)
{
    const struct class_name *x = a, *y = b;
    return strcmp(x->name, y->name);
}

int class_index_init(struct class_index *x, char *const *names, int n, struct err *e)
{
    *x = (struct class_index){.v = malloc((size_t)n * sizeof *x->v), .n = n};
    if (!x->v)
        return err_set(e, -ENOMEM, "no memory for %d class names", n);
    for (int i = 0; i < n; i++)
        x->v[i] = (struct class_name){names[i], i};
    qsort(x->v, (size_t)n, sizeof *x->v, by_name);
    return 0;
}

void class_index_free(struct class_index *x)
{
    free(x->v);
    *x = (struct class_index){0};
}

static const struct class_name *find(const struct class_index *x, const struct class_name *key)
{
    return bsearch(key, x->v, (size_t)x->n, sizeof *key, by_name);
}

int class_index_find(const struct class_index *x, const char *name, const char *path, int *ret, struct err *e)
{
    const struct class_name key = {.name = name};
    const struct class_name *end = x->v + x->n, *found = find(x, &key);
    if (!found)
        return err_set(e, ERR_DATA, "'%s' has a class '%s' that the training data lacks", path, name);
    if ((found > x->v && by_name(found - 1, &key) == 0) || (found + 1 < end && by_name(found + 1, &key) == 0))
        return err_set(e, ERR_DATA, "'%s' has a class '%s' that the training data has twice", path, name);
    *ret = found->label;
    return 0;
}

/* A classes.txt. */
struct class_list {
    char **names;
    size_t n, cap;
};

static void class_list_free(struct class_list *l)
{
    while (l->n > 0)
        free(l->names[--l->n]);
    free(l->names);
}

/* Empty lines are for the end of the file. */
static int add_class(struct class_list *l, const char *name, bool after_empty, const char *file, struct err *e)
{
    if (after_empty)
        return err_set(e, ERR_DATA, "line %zu of '%s' is empty: each line names a class", l->n + 1, file);
    if (l->n >= INT_MAX / 2)
        return err_set(e, -ENOMEM, "too many class names in '%s'", file);
    TRY(ARRAY_GROW(l->names, l->cap, l->n + 1, "names of classes", e));
    if (!(l->names[l->n] = strdup(name)))
        return err_set(e, -ENOMEM, "no memory for the class names of '%s'", file);
    l->n++;
    return 0;
}

/* -ENOENT: no such file. */
static int read_classes(const char *path, struct class_list *ret, struct err *e)
{
    char file[PATH_MAX], *line = NULL;
    size_t line_cap = 0;
    bool empty = false;
    int rc = 0;
    const char *slash = dataset_is_file(path) ? strrchr(path, '/') : NULL;
    const int dir = slash ? (int)(slash - path) : (int)strlen(path);
    if (dataset_is_file(path) && !slash) /* in this folder */
        snprintf(file, sizeof file, DATASET_CLASSES_FILE);
    else if (snprintf(file, sizeof file, "%.*s/" DATASET_CLASSES_FILE, dir, path) >= (int)sizeof file)
        return -ENOENT;
    FILE *f = NULL;
    rc = file_stream_regular(&f, file, ERR_DATA, e);
    if (rc == -ENOENT)
        return rc;
    if (rc < 0 && rc != ERR_DATA)
        return err_set(e, ERR_DATA, "cannot read '%s': %s", file, strerror(-rc));
    if (rc < 0)
        return rc;
    while (rc == 0 && getline(&line, &line_cap, f) > 0) {
        line[strcspn(line, "\r\n")] = '\0';
        if (*line)
            rc = add_class(ret, line, empty, file, e);
        empty = empty || !*line;
    }
    if (rc == 0 && ferror(f))
        rc = err_set(e, ERR_DATA, "cannot read '%s': %s", file, strerror(errno));
    fclose(f);
    free(line);
    return rc == 0 && ret->n == 0 ? err_set(e, ERR_DATA, "'%s' names no class", file) : rc;
}

static bool are_numbers(char *const *names, int n)
{
    char number[16];
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name_of(NULL, i, number)) != 0)
            return false;
    return true;
}

static bool begin_alike(const struct class_list *own, const struct dataset_options *o)
{
    bool alike = own->n <= (size_t)o->classes;
    for (size_t i = 0; alike && i < own->n; i++)
        alike = strcmp(own->names[i], o->class_names[i]) == 0;
    return alike;
}

static bool have_a_name_in_common(const struct class_index *training, const struct class_list *own)
{
    for (size_t i = 0; i < own->n; i++)
        if (find(training, &(struct class_name){.name = own->names[i]}))
            return true;
    return false;
}

/* Records without names, and what make-db made of such, have numbers for names. Those say nothing to other names. */
static bool match_by_number(const struct class_index *training, const struct class_list *own,
                            const struct dataset_options *o)
{
    return (are_numbers(o->class_names, o->classes) || are_numbers(own->names, (int)own->n)) &&
           !have_a_name_in_common(training, own);
}

/* The labels of a test set of records, whose names are `own`, as those of training. */
static int match_classes(struct dataset *d, const char *path, const struct class_list *own,
                         const struct dataset_options *o, struct err *e)
{
    struct class_index index;
    size_t found = 0;
    if (begin_alike(own, o))
        return 0;
    TRY(class_index_init(&index, o->class_names, o->classes, e));
    int *labels = calloc(own->n, sizeof *labels);
    int rc = labels ? 0 : err_set(e, -ENOMEM, "no memory for %zu class names", own->n);
    while (rc == 0 && found < own->n &&
           (rc = class_index_find(&index, own->names[found], path, labels + found, e)) == 0)
        found++;
    const bool by_number = rc == ERR_DATA && match_by_number(&index, own, o);
    class_index_free(&index);
    if (rc == 0) {
        d->own_labels = labels;
        d->n_own_labels = (int)own->n;
        return 0;
    }
    free(labels);
    d->by_number = by_number;
    return by_number ? 0 : rc;
}

int dataset_find_classes(struct dataset *d, const char *path, const struct dataset_options *o, struct err *e)
{
    struct class_list own = {0};
    int rc = read_classes(path, &own, e);
    const bool named = rc == 0;
    d->by_number = rc == -ENOENT && o->class_names && !are_numbers(o->class_names, o->classes);
    if (rc == 0 && o->class_names)
        rc = match_classes(d, path, &own, o, e);
    if (rc == -ENOENT)
        rc = o->class_names || o->num_labels > 0
                 ? 0
                 : err_set(e, ERR_DATA,
                           "'%s' does not tell its number of classes (no " DATASET_CLASSES_FILE "): give --num-labels",
                           path);
    if (rc == 0)
        rc = o->class_names ? dataset_set_classes(d, o->class_names, o->classes, e)
             : named        ? dataset_set_classes(d, own.names, (int)own.n, e)
                            : dataset_set_classes(d, NULL, o->num_labels, e);
    class_list_free(&own);
    return rc;
}
