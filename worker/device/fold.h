/* A model's first convolution, computed as another one that tensor cores can feed on. 3 channels are few; where the
 * convolution goes over the images in steps of 2, its input's pixels are put together, 2 x 2 of 4 channels (the last
 * ones zeros) to one of 16. In each direction, for a filter of odd size r and padding p over an even size H:
 *
 *   y[o] = sum over t < r of w[t] x[2 o + t - p]
 *        = sum over i, a of w2[i][a] x2[o + i][a]   with t = 2 i + a - p % 2, a 0 or 1
 *
 *   x2[b][a]   x[2 (b - (p + 1) / 2) + a], 0 where x has none: H / 2 + p pixels
 *   w2[i][a]   w[2 i + a - p % 2], 0 where w has none: (r + 1) / 2 pixels
 *
 * That is a convolution of stride 1 without padding, as zeros around the images are stored; its sum has the same
 * products, and zeros. Channel of x2 and w2: (2 a of the height + a of the width) 4 + channel. Pure. */
#ifndef CRUN_WORKER_DEVICE_FOLD_H
#define CRUN_WORKER_DEVICE_FOLD_H

struct program;

enum { FOLD_CHANNELS = 4, FOLD_PIXEL = 4 * FOLD_CHANNELS }; /* of a pixel, of what is put together */

struct fold {
    int conv;      /* the op; -1: there is none, and the rest is unset */
    int size[2];   /* H / 2 + p, of height and width */
    int filter[2]; /* (r + 1) / 2 */
    int before[2]; /* (p + 1) / 2: pixels of zeros before the image */
    int skip[2];   /* p % 2: places of w2 before w begins */
    int whole[2];  /* r */
};

/* The convolution that reads the images, which have up to 4 channels, if it has that form, a filter of more than 2, and
 * if nobody else reads them or asks for their gradient. */
struct fold fold_find(const struct program *p);

/* An op's filter, stride and padding as they are computed: those of x2 where it is that convolution or a backward op of
 * it. */
struct fold_window {
    int filter[2], stride[2], pad[2]; /* of height, width */
};
struct fold_window fold_window(const struct fold *f, const struct program *p, int op);

/* Where x2 has an element of an image: *c, *h and *w become those of x2. */
void fold_place(const struct fold *f, int *c, int *h, int *w);

#endif
