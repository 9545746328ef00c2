/* Operations on a picture of bytes, as torchvision's transforms do them with Pillow: what Pillow computes in integers
 * is equal to the bit, what it computes in floats within one level.
 *
 *   input.c: a decoded, cropped picture -> policy.h draws operations and their values -> picture_op() changes it
 *
 * Pure; any thread. Grey pictures have one channel, others red, green, blue. */
#ifndef CRUN_WORKER_DATA_PICTURE_OPS_H
#define CRUN_WORKER_DATA_PICTURE_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/data/image/image.h"

/* X(id, word, what the value is) */
#define PICTURE_OPS(X)                                                                                                 \
    X(PICTURE_IDENTITY, "identity")           /* none */                                                               \
    X(PICTURE_SHEAR_X, "shear-x")             /* pixels that a row moves against the row above it */                   \
    X(PICTURE_SHEAR_Y, "shear-y")             /* the same of columns */                                                \
    X(PICTURE_TRANSLATE_X, "translate-x")     /* pixels to the right */                                                \
    X(PICTURE_TRANSLATE_Y, "translate-y")     /* pixels downwards */                                                   \
    X(PICTURE_ROTATE, "rotate")               /* degrees around the centre, counterclockwise, -180 to 180 */           \
    X(PICTURE_BRIGHTNESS, "brightness")       /* factor: 0 is black, 1 changes nothing, above 1 is more */             \
    X(PICTURE_COLOR, "color")                 /* factor: 0 is grey */                                                  \
    X(PICTURE_CONTRAST, "contrast")           /* factor: 0 is the mean grey level everywhere */                        \
    X(PICTURE_SHARPNESS, "sharpness")         /* factor: 0 is smoothed */                                              \
    X(PICTURE_POSTERIZE, "posterize")         /* upper bits that are kept, 0 to 8 */                                   \
    X(PICTURE_SOLARIZE, "solarize")           /* levels from this one on are inverted */                               \
    X(PICTURE_SOLARIZE_ADD, "solarize-add")   /* levels below 128 rise by so many */                                   \
    X(PICTURE_AUTOCONTRAST, "autocontrast")   /* none: levels of each channel are spread over 0 to 255 */              \
    X(PICTURE_EQUALIZE, "equalize")           /* none: levels of each channel become equally frequent */               \
    X(PICTURE_INVERT, "invert")               /* none */                                                               \
    X(PICTURE_GREY, "grey")                   /* none: luma in all channels */                                         \
    X(PICTURE_BLUR, "blur")                   /* deviation of a Gaussian, in pixels */                                 \
    X(PICTURE_CONTRAST_AREA, "contrast-area") /* factor: 0 is the level (pixels / 256) everywhere, as big_vision has */
enum picture_op {
#define X(id, word) id,
    PICTURE_OPS(X)
#undef X
        PICTURE_OPS_N
};

struct picture_how {
    enum {
        PICTURE_NEAREST,  /* pixels that move (shear, translate, rotate) are the nearest ones: torchvision's default */
        PICTURE_BILINEAR, /* ... are computed from 4 */
        PICTURE_BICUBIC   /* ... from 16 */
    } between;
    uint8_t fill[3]; /* what comes in from outside the picture */
};

/* Changes im->px in place. spare: w * h * c bytes of anybody's. */
void picture_op(struct image *im, enum picture_op op, double value, const struct picture_how *how, uint8_t *spare);

/* A square of 2 * half pixels around (x, y), as far as it lies in the picture, becomes `fill`. */
void picture_cut_out(struct image *im, int x, int y, int half, const uint8_t fill[3]);

#endif
