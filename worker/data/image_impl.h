/* Private to worker/data: the decoders and the resampler behind image.h. */
#ifndef CRUN_WORKER_DATA_IMAGE_IMPL_H
#define CRUN_WORKER_DATA_IMAGE_IMPL_H

#include "worker/data/image.h"

/* Check the size a header claims, then take the memory. ERR_DATA beyond IMAGE_MAX_PIXELS or for an empty one. */
int image_alloc(struct image *im, uint64_t w, uint64_t h, int c, struct err *e);

/* ITU-R 601 luma in 16-bit fixed point; n pixels. */
void image_luma(const uint8_t *rgb, uint8_t *grey, size_t n);

int image_decode_jpeg(const void *data, size_t n, int channels, struct image *ret, struct err *e);
int image_decode_png(const void *data, size_t n, int channels, struct image *ret, struct err *e);
int image_decode_pnm(const void *data, size_t n, int channels, struct image *ret, struct err *e); /* n >= 2 */

struct image_view {
    const uint8_t *px;
    size_t stride; /* bytes from row to row */
    int w, h, c;
};

/* The box (x0, y0, x1, y1) of the view is resampled to (h, w); of that the window is written, mirrored left-right if flip. */
struct resample {
    double x0, y0, x1, y1;
    int w, h;
    int win_x, win_y, win_w, win_h;
    bool flip;
};

/* dst: (win_h, win_w, c) */
int image_resample(const struct image_view *src, const struct resample *r, uint8_t *dst, struct err *e);

#endif
