/* Private to worker/data: what the sources of data sets share. */
#ifndef CRUN_WORKER_DATA_DATASET_IMPL_H
#define CRUN_WORKER_DATA_DATASET_IMPL_H

#include "worker/data/sets/dataset.h"

#define DATASET_CLASSES_FILE "classes.txt" /* beside a data base: one class name a line, in the order of the labels */

int dataset_open_lmdb(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e);
int dataset_open_leveldb(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e);
int dataset_open_mnist(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e);
int dataset_open_cifar10(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e);
int dataset_open_tars(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e);
int dataset_open_tokens(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e);
int dataset_open_null(struct dataset **ret, const struct dataset_options *o, struct err *e);

/* The path holds such a set. */
bool dataset_is_mnist(const char *path);
bool dataset_is_cifar10(const char *path);
bool dataset_is_lmdb_file(const char *path); /* an LMDB that is one file (MDB_NOSUBDIR) */
bool dataset_is_tars(const char *path);      /* a tar file, or a folder with some in it */

/* ERR_DATA: what `path` is instead of a data set, by its kind or its first bytes, and what would help. It is no
 * folder. */
int dataset_explain_file(const char *path, struct err *e);
/* The same of a folder without class folders, which holds so many pictures itself, and otherwise, first of all, the
 * file `other` (NULL: none). */
int dataset_explain_folder(const char *dir, size_t pictures, const char *other, struct err *e);

/* Labels by name, of classes in any order. */
struct class_index {
    struct class_name *v; /* by name */
    int n;
};
int class_index_init(struct class_index *x, char *const *names, int n, struct err *e); /* names: borrowed. -ENOMEM */
void class_index_free(struct class_index *x);                                          /* zeroed allowed */
/* ERR_DATA: the set at `path` has a class `name`, which training lacks, or has twice. */
int class_index_find(const struct class_index *x, const char *name, const char *path, int *ret, struct err *e);

/* d->class_names: copies of names[0..n), or "0" .. where names is NULL. -ENOMEM. */
int dataset_set_classes(struct dataset *d, char *const *names, int n, struct err *e);
void dataset_free_classes(struct dataset *d);

/* The classes of a data base: those of the training set, of its classes.txt, or --num-labels numbers. Where both tell,
 * its labels are the places of names in its own classes.txt, and become the training set's. ERR_DATA: nothing tells, or
 * training lacks a class. */
int dataset_find_classes(struct dataset *d, const char *path, const struct dataset_options *o, struct err *e);

/* ERR_DATA unless label is one of the classes. */
int dataset_check_label(const struct dataset *d, int label, struct err *e);

/* A record's label becomes that of the class. ERR_DATA: it is none. */
int dataset_take_label(const struct dataset *d, int *label, struct err *e);

/* dir/name exists. */
bool dataset_has_file(const char *dir, const char *name);
bool dataset_is_file(const char *path); /* a regular one */

/* Keys of records, in order. */
struct keys {
    char *bytes;
    size_t len, cap;
    size_t *ends;
    size_t n, ends_cap;
};
int keys_add(struct keys *k, const void *key, size_t n, struct err *e); /* -ENOMEM */
const char *keys_at(const struct keys *k, size_t i, size_t *ret_n);
void keys_free(struct keys *k);

#define SAMPLE_NAME_MAX 300
/* "PATH, record 'KEY'" with what does not print as '?', in the calling thread's own buffer. */
const char *keys_name(const struct keys *k, const char *path, size_t i);

#endif
