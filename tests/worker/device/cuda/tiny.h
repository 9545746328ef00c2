/* Networks that are small enough for emulated kernels. */
#ifndef CRUN_TESTS_TINY_H
#define CRUN_TESTS_TINY_H

enum { TINY_SIZE = 8, TINY_CLASSES = 3, BLOCKS_SIZE = 16, BLOCKS_CLASSES = 5 };

struct err;
struct program;

/* 1 x 8 x 8 images, convolution, batch norm, ReLU, pool, linear; three classes. */
int tiny_build(struct program **ret, struct err *e);

/* 3 x 16 x 16 images, stem, a block with a plain shortcut (`width` channels), one with a projection (twice as many); five classes. */
int blocks_build(struct program **ret, int width, struct err *e);

#endif
