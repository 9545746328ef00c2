/* Sums of activations, ReLU, and copies of floats as they are stored. */
#include "worker/device/cpu/kern/kern_set.h"

#define FAMILY "worker/device/cpu/kern/kern_add.h"
#include "worker/device/cpu/kern/kern_each.h"

void KERN_OF_SET(add)(const void *a, const void *b, void *y, bool relu, size_t n, enum store t, int threads)
{
    DISPATCH(add, ANY_WIDTH, a, b, y, relu, n, threads);
}

void KERN_OF_SET(relu_bwd)(const void *y, const void *dy, void *dx, size_t n, enum store t, int threads)
{
    DISPATCH(relu_bwd, ANY_WIDTH, y, dy, dx, n, threads);
}

void KERN_OF_SET(give)(const float *from, void *to, size_t n, bool past, enum store t, int threads)
{
    DISPATCH(give, ANY_WIDTH, from, to, n, past, threads);
}
