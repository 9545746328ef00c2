/* One file of CIFAR-10's or CIFAR-100's archive for Python. Private to worker/data. */
#ifndef CRUN_WORKER_DATA_CIFAR10_PICKLE_H
#define CRUN_WORKER_DATA_CIFAR10_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

#define CIFAR10_PICTURE (32 * 32 * 3)

struct cifar10_pickle {
    uint8_t *labels; /* the caller's, for `room` of them */
    size_t room;
    bool fine;             /* CIFAR-100: labels are its 100 classes */
    const uint8_t *pixels; /* (n, 3, 32, 32), within the data */
    size_t n, n_labels;
};

/* Fills in pixels, n, n_labels and labels; may change the data. ERR_DATA: a sentence about "it": no such file, or a
 * damaged one. Pure. */
int cifar10_pickle_read(struct cifar10_pickle *ret, void *data, size_t n, struct err *e);

#endif
