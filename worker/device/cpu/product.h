/* Convolutions of NHWC tensors as products of matrices: which ones gain by it, and the rows of pixels around them.
 *
 * A convolution is a product of its weights and an unfolded input, which has a row for each pixel of the output with
 * all that its window sees: Chellapilla, Puri, Simard, "High Performance Convolutional Neural Networks for Document
 * Processing", IWFHR 2006. Of a 1x1 window that moves pixel by pixel the input is unfolded as it lies. */
#ifndef CRUN_WORKER_DEVICE_CPU_PRODUCT_H
#define CRUN_WORKER_DEVICE_CPU_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/device/cpu/dnnl_wrap.h"

/* Does a product take the place of oneDNN's convolution? Of NHWC tensors; amx: dnn_has_amx(). */
bool product_pays(const struct dnn_shape *s, enum dnn_dir dir, bool amx);

bool product_is_whole(const struct dnn_shape *s); /* the input is unfolded as it lies */
size_t product_unfolded_bytes(const struct dnn_shape *s);
/* x (n,h,w,c) to rows (n * oh * ow, kh * kw * c), zeros for padding. */
void product_unfold(const struct dnn_shape *s, const void *x, void *rows, int threads);
/* Rows (n * oh * ow, c) of a 1x1 window without padding to the pixels of x that it saw; the others are zeros. */
void product_spread(const struct dnn_shape *s, const void *rows, void *x, int threads);

#endif
