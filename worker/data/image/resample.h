/* Scaling of u8 pictures in two passes, along rows, then along columns; only what is needed is computed.
 *
 * Bilinear and bicubic with antialiasing are to the bit what Pillow's Image.resize(BILINEAR or BICUBIC) defines: a
 * triangle or a cubic filter whose support grows with the reduction, weights in 22-bit fixed point, rounded to u8
 * between the passes. Area is what OpenCV's INTER_AREA defines: the mean of the source over the output pixel's square,
 * exact here and rounded once (half up). */
#ifndef CRUN_WORKER_DATA_RESAMPLE_H
#define CRUN_WORKER_DATA_RESAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/data/image/image_impl.h"

struct err;

enum filter { FILTER_BILINEAR, FILTER_BICUBIC, FILTER_AREA };

/* The box (x0, y0, x1, y1) of the source is resampled to (h, w); of that the window is wanted, mirrored left-right if
 * flip. The source is a rectangle cut out of a picture: nothing outside it is seen. FILTER_AREA: the box is the
 * source. */
struct resample {
    enum filter filter;
    struct rect source;
    double x0, y0, x1, y1;
    int w, h;
    struct rect window;
    bool flip;
};

/* The crop cut out first, then scaled to (h, w), so that nothing outside it is seen: torchvision's resized_crop. */
struct resample resample_crop(enum filter filter, const struct crop *c, int w, int h);

/* The short side scaled to `resize`, the long one in proportion and truncated (torchvision's Resize); size x size of
 * that is wanted, for the caller to place: the window lies at (0, 0). -EINVAL if resize < size; ERR_DATA: too long a
 * picture. */
int resample_short_side(struct resample *ret, enum filter filter, int w, int h, int resize, int size, struct err *e);

/* The window in the middle, as torchvision's CenterCrop places it. */
void resample_centre(struct resample *r);

/* Filter of one axis. Output i is the sum of source[origin + first[i] + k] * weight[i * taps + k], k < count[i]. */
struct axis {
    int n, taps; /* taps: a multiple of 4; weights from count[i] on are 0 */
    int most;    /* largest of count[] */
    int origin;  /* in the source; first[0] is 0 */
    int *first, *count;
    int32_t *weight;
    int16_t *low; /* not area: weight = high * 2^16 + low */
    int8_t *high; /* 0 to 64, bicubic: -10 to 80 */
};

struct resampler {
    struct resample r;
    struct axis across, down;
    const struct resample_kernels *kernels;
};

/* -ENOMEM. */
int resampler_init(struct resampler *s, const struct resample *r, struct err *e);
void resampler_free(struct resampler *s); /* zeroed allowed */

/* The pixels of the picture that the window depends on. */
struct rect resampler_needs(const struct resampler *s);

struct resample_rows { /* between the passes: kept from one picture to the next. Zeros at first; free(at) */
    void *at;
    size_t bytes;
};

/* part: at least those pixels. dst: (window.h, window.w, c). -ENOMEM. */
int resampler_run(const struct resampler *s, const struct region *part, struct resample_rows *rows, uint8_t *dst,
                  struct err *e);

/* The inner loops of the bilinear and the bicubic filter; all give the same bits. */
struct resample_kernels {
    /* n rows of 3 channels, `stride` bytes apart, to a->n pixels each, from right to left if flip. src: source pixel
     * a->origin; nothing at or behind `end` is read. */
    void (*rows_rgb)(const struct axis *a, const uint8_t *src, size_t stride, int n, const uint8_t *end, uint8_t *dst,
                     bool flip);
    /* rows: source rows a->origin onwards, `bytes` each. dst: (a->n, bytes). */
    void (*columns)(const struct axis *a, const uint8_t *rows, size_t bytes, uint8_t *dst);
};
extern const struct resample_kernels resample_plain;
extern const struct resample_kernels resample_avx2; /* x86-64 only, where the processor has it */
const struct resample_kernels *resample_best(void); /* for this processor */

#define RESAMPLE_PRECISION 22 /* bits: 32 less 8 for the pixel and 2 for the overshoot of the bicubic filter */
static inline uint8_t resample_rounded(int32_t sum)
{
    int32_t v = sum >> RESAMPLE_PRECISION; /* bicubic weights may be negative: sums go below 0 and above 255 */
    return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v;
}

void resample_pixel_rgb(const struct axis *a, int i, const uint8_t *src, uint8_t *out);

#endif
