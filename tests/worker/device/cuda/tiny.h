/* A network that is small enough for emulated kernels: 1 x 8 x 8 images, convolution, batch norm, ReLU, pool, linear; three classes. */
#ifndef CRUN_TESTS_TINY_H
#define CRUN_TESTS_TINY_H

enum { TINY_SIZE = 8, TINY_CLASSES = 3 };

struct err;
struct program;

int tiny_build(struct program **ret, struct err *e);

#endif
