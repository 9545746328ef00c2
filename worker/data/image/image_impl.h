/* Private to worker/data: the decoders and the resampler behind image.h and input.h. */
#ifndef CRUN_WORKER_DATA_IMAGE_IMPL_H
#define CRUN_WORKER_DATA_IMAGE_IMPL_H

#include "worker/data/image/image.h"

struct rect {
    int x, y, w, h; /* pixels of a picture */
};

/* Which part of a picture of w x h pixels is wanted: asked once its header is read. *ret lies within the picture. */
struct want {
    int (*choose)(void *arg, int w, int h, struct rect *ret, struct err *e);
    void *arg;
};

/* A part of a picture, at least what was wanted of it. Pixels outside of that are not those of the whole picture. */
struct region {
    struct image im;
    int x, y;    /* of its first pixel in the picture */
    size_t room; /* bytes at im.px that the next picture may take; 0: not known */
};

/* As image_decode(), but no more need be done than what is wanted. The wanted pixels, and which files are refused, are
 * the same. ret: zeros, or that of an earlier call, whose memory is taken again where it is large enough; the caller
 * frees it, also after an error. */
int image_decode_part(const void *data, size_t n, int channels, const struct want *want, struct region *ret,
                      struct err *e);

/* Check the size a header claims, then take the memory. ERR_DATA beyond IMAGE_MAX_PIXELS or for an empty one. */
int image_check_size(uint64_t w, uint64_t h, struct err *e);
int image_alloc(struct image *im, uint64_t w, uint64_t h, int c, struct err *e);
int region_alloc(struct region *part, uint64_t w, uint64_t h, int c, struct err *e); /* with the memory it has */

/* ITU-R 601 luma in 16-bit fixed point; n pixels. */
void image_luma(const uint8_t *rgb, uint8_t *grey, size_t n);

int image_decode_jpeg(const void *data, size_t n, int channels, const struct want *want, struct region *ret,
                      struct err *e); /* want NULL: the whole */
int image_decode_png(const void *data, size_t n, int channels, struct image *ret, struct err *e);
int image_decode_webp(const void *data, size_t n, int channels, struct image *ret, struct err *e);
int image_decode_pnm(const void *data, size_t n, int channels, struct image *ret, struct err *e); /* n >= 2 */

#endif
