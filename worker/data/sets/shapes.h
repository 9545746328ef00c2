/* `trainer make-data shapes`: a JPEG data set of procedurally drawn shapes. The same options give the same bytes on
 * every machine with the same libjpeg. */
#ifndef CRUN_WORKER_SHAPES_H
#define CRUN_WORKER_SHAPES_H

#include <stdint.h>

struct err;

#define SHAPES_MAX_CLASSES 10

struct shapes_options {
    /* train/ and val/ with a folder of .jpg files per class are made here; must not hold a data set made with other
     * options */
    const char *out;
    int classes;                   /* 2..SHAPES_MAX_CLASSES */
    int train_images, test_images; /* in all */
    int image_size;                /* 16..512 */
    uint64_t seed;
};

/* Draws what is missing, with progress on stderr; a finished set (its dataset.json is written last) is left as it
 * is. */
int shapes_make(const struct shapes_options *o, struct err *e);

/* One picture, (size, size, 3). index counts over train and test together. Pure. */
void shapes_draw(int cls, uint64_t seed, uint64_t index, int size, uint8_t *rgb);
const char *shapes_class_name(int cls);

/* `trainer make-data`, also of text (token_set.h): argv[0] is "make-data". Returns an exit code. */
int shapes_main(int argc, char **argv);

#endif
