/* Networks that are small enough for emulated kernels, and their memory on a device that is not there. */
#ifndef CRUN_TESTS_TINY_H
#define CRUN_TESTS_TINY_H

#include <stddef.h>
#include <stdint.h>

enum { TINY_SIZE = 8, TINY_CLASSES = 3, BLOCKS_SIZE = 16, BLOCKS_CLASSES = 5 };

struct device;
struct err;
struct fake_counts;
struct program;

/* 1 x 8 x 8 images, convolution, batch norm, ReLU, pool, linear; three classes. */
int tiny_build(struct program **ret, struct err *e);

/* 3 x 16 x 16 images, stem, a block with a plain shortcut (`width` channels), one with a projection (twice as many);
 * five classes. */
int blocks_build(struct program **ret, int width, struct err *e);
/* The same images and classes; stem, then blocks that begin and end with 1x1 convolutions, of `width` channels between
 * and four times as many at their ends: with a projection, a plain shortcut, a projection with a stride of 2. */
int bottlenecks_build(struct program **ret, int width, struct err *e);
/* blocks_build() without its second block: it ends in a plain shortcut, as ResNets do. */
int block_build(struct program **ret, int width, struct err *e);

/* Device memory, which is plain memory here: look at it when the device has nothing more to do. What fails ends the
 * case. */
struct arenas {
    float *params, *stats, *reduce;
};
void arenas_open(struct arenas *a, struct device *d, const struct program *p);
void arenas_fill(const struct arenas *a,
                 const struct program *p); /* parameters and statistics as training begins with them */
void arenas_close(struct arenas *a, struct device *d);

/* n bytes of noise, always the same. */
void noise_fill(uint8_t *out, size_t n);

/* Of a device that was closed: nothing is left behind. */
void assert_given_back(const struct fake_counts *c);

#endif
