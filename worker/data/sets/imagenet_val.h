/* `trainer make-data imagenet-val`: the flat folder of ImageNet's validation pictures becomes one of class folders.
 * Files are renamed, never copied. */
#ifndef CRUN_WORKER_DATA_IMAGENET_VAL_H
#define CRUN_WORKER_DATA_IMAGENET_VAL_H

#include <stddef.h>

struct err;

struct imagenet_val_options {
    const char *pictures; /* DIR/ILSVRC2012_val_00000001.JPEG ...; what is sorted already is left where it is */
    const char *out;      /* OUT/n01751748/ILSVRC2012_val_00000001.JPEG; made; may be `pictures` */
    /* Who is of which class:
     *   - a folder: the development kit, data/ILSVRC2012_validation_ground_truth.txt and data/meta.mat below it;
     *   - that .txt itself, with meta.mat beside it;
     *   - lines "NAME,n01751748 ..." or "NAME n01751748" (Kaggle's LOC_val_solution.csv);
     *   - lines "n01751748", the k-th of the k-th picture by name. */
    const char *labels;
};

struct imagenet_val_done {
    size_t moved, classes;
    size_t sorted; /* nothing was moved, as all of these are in their places */
};

/* Nothing is renamed before each picture is known to have a class. A call that was cut off is made again. ERR_DATA:
 * also a picture with two classes; ERR_OUTPUT: a folder or a name cannot be made. */
int imagenet_val_sort(const struct imagenet_val_options *o, struct imagenet_val_done *ret, struct err *e);

#endif
