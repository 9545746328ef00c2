/* What the decoders share: the type by content, the bound on pixels, luma; and the transforms built on the
 * resampler. */
#include "worker/data/image/image.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/data/image/first_bytes.h"
#include "worker/data/image/image_impl.h"
#include "worker/data/image/portable_math.h"
#include "worker/data/image/resample.h"
#include "worker/data/image/rng.h"

void image_free(struct image *im)
{
    free(im->px);
    *im = (struct image){0};
}

int image_check_size(uint64_t w, uint64_t h, struct err *e)
{
    if (w == 0 || h == 0)
        return err_set(e, ERR_DATA, "an image of %ju x %ju pixels", (uintmax_t)w, (uintmax_t)h);
    if (w > IMAGE_MAX_PIXELS || h > IMAGE_MAX_PIXELS || w * h > IMAGE_MAX_PIXELS)
        return err_set(e, ERR_DATA, "an image of %ju x %ju pixels exceeds the limit of %u pixels", (uintmax_t)w,
                       (uintmax_t)h, IMAGE_MAX_PIXELS);
    return 0;
}

int image_alloc(struct image *im, uint64_t w, uint64_t h, int c, struct err *e)
{
    TRY(image_check_size(w, h, e));
    uint8_t *px = malloc((size_t)w * (size_t)h * (size_t)c);
    if (!px)
        return err_set(e, -ENOMEM, "no memory for an image of %ju x %ju pixels", (uintmax_t)w, (uintmax_t)h);
    *im = (struct image){.px = px, .w = (int)w, .h = (int)h, .c = c};
    return 0;
}

int region_alloc(struct region *part, uint64_t w, uint64_t h, int c, struct err *e)
{
    TRY(image_check_size(w, h, e));
    const size_t bytes = (size_t)w * (size_t)h * (size_t)c;
    if (bytes > part->room) {
        image_free(&part->im);
        part->room = 0;
        TRY(image_alloc(&part->im, w, h, c, e));
        part->room = bytes;
    }
    part->im.w = (int)w;
    part->im.h = (int)h;
    part->im.c = c;
    return 0;
}

void image_luma(const uint8_t *rgb, uint8_t *grey, size_t n)
{
    for (size_t i = 0; i < n; i++, rgb += 3)
        grey[i] = (uint8_t)((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >> 16);
}

/* Pictures that are decoded as a whole. */
static int decode_other(const void *data, size_t n, int channels, struct image *ret, struct err *e)
{
    const unsigned char *head = data;
    if (n >= 8 && memcmp(head, "\x89PNG\r\n\x1a\n", 8) == 0) {
#ifdef HAVE_PNG
        return image_decode_png(data, n, channels, ret, e);
#else
        return err_set(e, ERR_DATA, "a PNG image, which this build cannot read (it was made without libpng)");
#endif
    }
    if (n >= 12 && memcmp(head, "RIFF", 4) == 0 && memcmp(head + 8, "WEBP", 4) == 0) {
#ifdef HAVE_WEBP
        return image_decode_webp(data, n, channels, ret, e);
#else
        return err_set(e, ERR_DATA, "a WebP image, which this build cannot read (it was made without libwebp)");
#endif
    }
    if (n >= 2 && head[0] == 'P' && (head[1] == '5' || head[1] == '6'))
        return image_decode_pnm(data, n, channels, ret, e);
    if (n == 0)
        return err_set(e, ERR_DATA, "the file is empty");
    char what[FIRST_BYTES_TEXT];
    return err_set(e, ERR_DATA, "neither a JPEG nor a PNG, WebP, PPM or PGM image, but %s (%zu bytes)",
                   first_bytes_text(data, n, what), n);
}

int image_decode_part(const void *data, size_t n, int channels, const struct want *want, struct region *ret,
                      struct err *e)
{
    struct rect wanted;
    struct image whole;
    if (channels != 1 && channels != 3)
        return err_set(e, -EINVAL, "images have 1 or 3 channels, not %d", channels);
    if (n >= 3 && memcmp(data, "\xff\xd8\xff", 3) == 0)
        return image_decode_jpeg(data, n, channels, want, ret, e);
    TRY(decode_other(data, n, channels, &whole, e));
    image_free(&ret->im);
    *ret = (struct region){.im = whole};
    return want ? want->choose(want->arg, whole.w, whole.h, &wanted, e) : 0;
}

int image_decode(const void *data, size_t n, int channels, struct image *ret, struct err *e)
{
    struct region all = {0};
    const int rc = image_decode_part(data, n, channels, NULL, &all, e);
    if (rc < 0)
        image_free(&all.im);
    else
        *ret = all.im;
    return rc;
}

static int resample_whole(const struct image *src, const struct resample *r, uint8_t *dst, struct err *e)
{
    const struct region whole = {.im = *src};
    struct resample_rows rows = {0};
    struct resampler s;
    TRY(resampler_init(&s, r, e));
    int rc = resampler_run(&s, &whole, &rows, dst, e);
    free(rows.at);
    resampler_free(&s);
    return rc;
}

int image_resize(const struct image *src, double x0, double y0, double x1, double y1, int w, int h, bool flip,
                 uint8_t *dst, struct err *e)
{
    if (!(x0 >= 0 && y0 >= 0 && x0 < x1 && y0 < y1 && x1 <= src->w && y1 <= src->h) || w < 1 || h < 1)
        return err_set(e, -EINVAL, "cannot resize the box (%g, %g, %g, %g) of a %d x %d image to %d x %d", x0, y0, x1,
                       y1, src->w, src->h, w, h);
    const struct resample r = {.source = {.w = src->w, .h = src->h},
                               .x0 = x0,
                               .y0 = y0,
                               .x1 = x1,
                               .y1 = y1,
                               .w = w,
                               .h = h,
                               .window = {.w = w, .h = h},
                               .flip = flip};
    return resample_whole(src, &r, dst, e);
}

struct crop augment_crop(const struct augment *a, struct rng *r, int w, int h)
{
    struct crop c = {.flip = rng_unit(r) < a->flip};
    double area = (double)w * h, log_min = pm_log(a->ratio_min), log_max = pm_log(a->ratio_max);
    for (int attempt = 0; attempt < 10; attempt++) {
        double target = area * rng_range(r, a->scale_min, a->scale_max);
        double ratio = pm_exp(rng_range(r, log_min, log_max));
        double cw = rint(sqrt(target * ratio)), ch = rint(sqrt(target / ratio));
        if (cw < 1 || ch < 1 || cw > w || ch > h)
            continue;
        c.w = (int)cw;
        c.h = (int)ch;
        c.y = (int)rng_below(r, (uint64_t)(h - c.h + 1));
        c.x = (int)rng_below(r, (uint64_t)(w - c.w + 1));
        return c;
    }
    double ratio = (double)w / h;
    c.w = ratio > a->ratio_max ? (int)rint(h * a->ratio_max) : w;
    c.h = ratio < a->ratio_min ? (int)rint(w / a->ratio_min) : h;
    c.w = c.w < 1 ? 1 : c.w > w ? w : c.w;
    c.h = c.h < 1 ? 1 : c.h > h ? h : c.h;
    c.x = (w - c.w) / 2;
    c.y = (h - c.h) / 2;
    return c;
}
