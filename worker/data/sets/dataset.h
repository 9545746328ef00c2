/* A data set is a numbered list of samples with labels, behind a vtable: a tree of pictures, a data base of records
 * (worker/data/db), MNIST's and CIFAR-10's own files, or pictures made up; or files of tokens.
 *
 *   path -> dataset_open(): what it looks like, or --data-format -> one source's open(): classes, number of samples
 *   sample id -> read(): the file's bytes, or pixels as PPM, and the label; of tokens read_tokens(): the row itself ->
 *   loader threads, any number at once
 *
 * A set knows nothing of order, epochs or ranks: that is the sampler's (worker/data/loader/sampler.h). */
#ifndef CRUN_WORKER_DATASET_H
#define CRUN_WORKER_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/choice.h"

struct buf;
struct err;
struct dataset;

struct dataset_ops {
    const char *name;
    /* Sample i (0..n-1) as bytes for image_decode(): appends them to *data, sets *label. Any thread. ERR_DATA: this
     * sample is damaged, gone, or may not be read, or *label is no class; other errors are the disk's, and the next try
     * may succeed. */
    int (*read)(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e);
    /* Of a set of tokens, instead of read(): sample i as `length` tokens, and for each the one behind it. Any thread.
     * ERR_DATA: a token that is none of the vocabulary, or a file that has changed. */
    int (*read_tokens)(struct dataset *d, size_t i, int32_t *tokens, int32_t *labels, struct err *e);
    /* The class of sample i, as far as it is known without reading the sample. NULL: it is not. */
    int (*label)(struct dataset *d, size_t i);
    const char *(*sample_name)(struct dataset *d, size_t i); /* for messages; valid until close */
    void (*close)(struct dataset *d);
};

struct dataset {
    const struct dataset_ops *ops; /* first member of every source's struct */
    size_t n;
    int length;         /* tokens of a sample; 0: samples are pictures */
    int classes;        /* of tokens: the vocabulary */
    char **class_names; /* classes entries; owned by the data set; NULL: tokens have no names */
    int *own_labels;    /* classes by the numbers that records use; NULL: they are the same */
    int n_own_labels;
    bool by_number; /* samples say numbers, training has names (or the reverse): the k-th number is its k-th class */
    uint32_t *
        shard_ends; /* of a set in shards: samples up to the end of each, none empty; owned by the data set; else NULL */
    int n_shards;
    bool left_behind; /* a thread is stuck in read(): it is never closed */
    /* a sentence: which of its pictures are no samples, as nothing here reads their formats, or how many tokens at its
     * end make none; or NULL */
    char *left_out;
};

#define DATASET_KINDS(X)                                                                                               \
    X(DATASET_AUTO, "auto")     /* what the path holds */                                                              \
    X(DATASET_FOLDER, "folder") /* DIR/<class>/<picture> */                                                            \
    X(DATASET_LMDB, "lmdb")     /* a folder with data.mdb, or one file: Caffe Datum or Caffe2 TensorProtos records */  \
    X(DATASET_LEVELDB, "leveldb") /* a folder with CURRENT: the same records */                                        \
    X(DATASET_MNIST, "mnist")     /* a folder with train-images-idx3-ubyte and so on, also .gz */                      \
    X(DATASET_CIFAR10, "cifar10") /* a folder with data_batch_1.bin and so on, or data_batch_1 */                      \
    X(DATASET_TAR, "tar")         /* a tar file, or DIR/<name>.tar: of WebDataset, or one for each class */            \
    X(DATASET_TOKENS, "tokens")   /* a file, or DIR/<name>.bin: llm.c's, or without a header */                        \
    X(DATASET_NULL, "null")       /* made-up pictures, nothing is read */

enum dataset_kind { DATASET_KINDS(CHOICE_ID) };

struct dataset_options {
    enum dataset_kind kind;
    bool testing;             /* the test part of a set that has two in one folder (mnist, cifar10) */
    char *const *class_names; /* those of the training set, copied; NULL: the set's own */
    int classes;              /* entries of class_names */
    int num_labels;           /* of records without class names (lmdb, leveldb, null); 0: not set */
    size_t null_samples;      /* null: how many; 0: 1281167, or 50000 if testing */
    int null_size;            /* null: pixels a side */
    int length, vocabulary;   /* tokens: of a sample; numbers from 0 to vocabulary - 1 */
    int token_bytes;          /* tokens: of files without a header, 2 or 4; 0: they have one */
    bool makes_nothing;       /* no file is made beside the data: an LMDB without a lock file is read without one */
};

/* Opens what path holds. "null" as a path is DATASET_NULL. ERR_DATA: one sentence. -ENOTSUP: this build has no reader
 * for it. */
int dataset_open(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e);
void dataset_close(struct dataset *d); /* NULL allowed */

/* Is this what people call a part of a data set: "train", "val", "Test", ...? */
bool dataset_is_part(const char *name, size_t n);

/* DIR/<class>/<anything>.{jpg,jpeg,png,ppm,pgm}, in any case: classes are the sub-folders in byte order, files in byte
 * order within a class; nested folders are walked, hidden entries (.name) passed over, pictures of other formats
 * reported in left_out; a link of such a name that leads nowhere is a sample whose read fails with ERR_DATA.
 * class_names/classes: the training set's classes, in any order, copied; NULL: take the folder's own. A class here that
 * is not among them is refused (ERR_DATA names it). ERR_DATA: missing folder ("... does not exist"), no classes, a set
 * without any image, and with class_names NULL a class without one. */
int dataset_open_folder(struct dataset **ret, const char *dir, char *const *class_names, int classes, struct err *e);

#endif
