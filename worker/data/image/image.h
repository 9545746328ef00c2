/* Decode, crop, resize, flip: from file bytes to a (H, W, C) u8 slot of a batch. Pure functions of their arguments; any
 * thread.
 *
 *   file bytes -> image_decode(): detected by content -> image_jpeg.c, image_png.c, image_webp.c, image_pnm.c ->
 *   (h, w, c) pixels -> a box, drawn by rng.h from (seed, pass, id, repetition) -> image_resize():
 *   resample.c, or resample_avx2.c where the processor has it, with equal bits -> the slot
 *
 * canvas.h draws pictures (made-up data sets), jpeg_write.h stores them; portable_math.h gives equal numbers on every
 * machine. */
#ifndef CRUN_WORKER_IMAGE_H
#define CRUN_WORKER_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

struct image {
    uint8_t *px; /* (h, w, c) interleaved, malloc'ed */
    int w, h, c;
};
void image_free(struct image *im);

#define IMAGE_MAX_PIXELS (178956970u) /* Pillow's bomb limit, 2 * 89478485 */

/* JPEG (baseline, progressive, grey, CMYK/YCCK), PNG, WebP (no animation), PPM and PGM (binary, 8 bits), detected by
 * content, never by name. channels: 3 (grey is replicated, CMYK converted, alpha dropped as Pillow's convert("RGB")
 * does) or 1 (ITU-R 601 luma). EXIF orientation is ignored, as torchvision's ImageFolder does. ERR_DATA: not an
 * image, truncated, corrupt, more than IMAGE_MAX_PIXELS (refused from the header, before memory is taken). */
int image_decode(const void *data, size_t n, int channels, struct image *ret, struct err *e);

/* Resample box (x0, y0, x1, y1 in source pixels, fractions allowed) to (h, w), bilinear with antialiasing as Pillow's
 * Image.resize(BILINEAR, box) does: support scales with the reduction, two passes with u8 in between. flip: mirrored
 * left-right. dst: (h, w, c). */
int image_resize(const struct image *src, double x0, double y0, double x1, double y1, int w, int h, bool flip,
                 uint8_t *dst, struct err *e);

struct augment {                 /* training transform, torchvision's RandomResizedCrop + RandomHorizontalFlip */
    double scale_min, scale_max; /* share of the area, 0.08, 1 */
    double ratio_min, ratio_max; /* 3/4, 4/3 */
    double flip;                 /* probability, 0.5 */
};

struct crop {
    int x, y, w, h; /* source pixels */
    bool flip;
};

/* Pure: the crop that these random numbers (rng.h) give: ten tries, then the central fallback, as torchvision. */
struct rng;
struct crop augment_crop(const struct augment *a, struct rng *r, int w, int h);

#endif
