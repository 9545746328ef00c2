/* WebP, lossy or lossless, by libwebp: its size is known from the header before memory is taken. Alpha is dropped, as
 * of PNG. An animation is refused: which of its pictures is meant? */
#include <stdlib.h>
#include <webp/decode.h>

#include "common/base/err.h"
#include "worker/data/image/image_impl.h"

static int decode(const void *data, size_t n, struct image *rgb, struct err *e)
{
    WebPBitstreamFeatures f;
    if (WebPGetFeatures(data, n, &f) != VP8_STATUS_OK)
        return err_set(e, ERR_DATA, "a damaged WebP image");
    if (f.has_animation)
        return err_set(e, ERR_DATA, "an animated WebP image: only still ones are read");
    TRY(image_alloc(rgb, (uint64_t)f.width, (uint64_t)f.height, 3, e));
    const size_t stride = (size_t)rgb->w * 3;
    if (WebPDecodeRGBInto(data, n, rgb->px, stride * (size_t)rgb->h, (int)stride))
        return 0;
    image_free(rgb);
    return err_set(e, ERR_DATA, "a damaged WebP image, or one that is cut short");
}

int image_decode_webp(const void *data, size_t n, int channels, struct image *ret, struct err *e)
{
    struct image rgb;
    TRY(decode(data, n, &rgb, e));
    if (channels == 3) {
        *ret = rgb;
        return 0;
    }
    const int rc = image_alloc(ret, (uint64_t)rgb.w, (uint64_t)rgb.h, 1, e);
    if (rc == 0)
        image_luma(rgb.px, ret->px, (size_t)rgb.w * (size_t)rgb.h);
    image_free(&rgb);
    return rc;
}
