/* A data set is a numbered list of samples with labels; sources behind a vtable (folder now; LMDB, LevelDB, IDX beside it). */
#ifndef CRUN_WORKER_DATASET_H
#define CRUN_WORKER_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct dataset;

struct dataset_ops {
    const char *name;
    /* Sample i (0..n-1) as an encoded or raw image: appends the bytes to *data, sets *label. Any thread. */
    int (*read)(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e);
    const char *(*sample_name)(struct dataset *d, size_t i); /* for messages; valid until close */
    void (*close)(struct dataset *d);
};

struct dataset {
    const struct dataset_ops *ops; /* first member of every source's struct */
    size_t n;
    int classes;
    char **class_names; /* classes entries, sorted; owned by the data set */
};

/* DIR/<class>/<anything>.{jpg,jpeg,png}, in any case: classes are the sub-folders in byte order, files in byte order within a class; nested
 * folders are walked, hidden entries (.name) passed over. class_names/classes: the training set's classes, sorted, copied; NULL: take the
 * folder's own. A class here that is not among them is refused (ERR_DATA names it).
 * ERR_DATA: missing folder ("... does not exist"), no classes, a set without any image, and with class_names NULL a class without one. */
int dataset_open_folder(struct dataset **ret, const char *dir, char *const *class_names, int classes, struct err *e);
void dataset_close(struct dataset *d); /* NULL allowed */

#endif
