/* JPEG through libjpeg(-turbo): grey, YCbCr and RGB by the library, CMYK and YCCK (Adobe's inverted values) by us as Pillow does it. */
#include <errno.h>
#include <stdlib.h>

#include "common/err.h"
#include "worker/data/image_impl.h"
#include "worker/data/jpeg_errors.h"

#define MAX_SCANS 500 /* of a progressive file: a small one can ask for hours of work */

struct reader {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_errors errors;
    struct jpeg_progress_mgr progress;
    struct image im;
    uint8_t *row; /* of the file's own channels, where they are converted */
    int channels; /* wanted */
    struct err *e;
};

static void watch_scans(j_common_ptr cinfo)
{
    struct jpeg_decompress_struct *ci = (struct jpeg_decompress_struct *)cinfo;
    if (ci->input_scan_number > MAX_SCANS)
        jpeg_errors_raise(cinfo, "more than 500 scans");
}

/* Inverted CMYK to RGB: with k already 255 - K, a channel is k less c's share of it. */
static void cmyk_to_rgb(const uint8_t *cmyk, uint8_t *rgb, int n)
{
    for (int i = 0; i < n; i++, cmyk += 4, rgb += 3) {
        for (int k = 0; k < 3; k++) {
            int product = (255 - cmyk[k]) * cmyk[3] + 128;
            int v = cmyk[3] - (((product >> 8) + product) >> 8);
            rgb[k] = v < 0 ? 0 : (uint8_t)v;
        }
    }
}

/* What libjpeg shall give us per pixel. */
static J_COLOR_SPACE choose_space(const struct reader *rd)
{
    switch (rd->cinfo.jpeg_color_space) {
    case JCS_CMYK:
    case JCS_YCCK:
        return JCS_CMYK;
    case JCS_GRAYSCALE:
        return rd->channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    default:
        return JCS_RGB;
    }
}

static void read_row(struct reader *rd, uint8_t *dst)
{
    struct jpeg_decompress_struct *ci = &rd->cinfo;
    JSAMPROW row = rd->row ? rd->row : dst;
    jpeg_read_scanlines(ci, &row, 1);
    if (ci->out_color_space == JCS_CMYK) {
        uint8_t *rgb = rd->channels == 3 ? dst : rd->row; /* in place: it shrinks */
        cmyk_to_rgb(rd->row, rgb, rd->im.w);
    }
    if (rd->row && rd->channels == 1)
        image_luma(rd->row, dst, (size_t)rd->im.w);
}

static int decode(struct reader *rd, const void *data, size_t n)
{
    struct jpeg_decompress_struct *ci = &rd->cinfo;
    if (setjmp(rd->errors.escape))
        return err_set(rd->e, ERR_DATA, "not a whole JPEG image: %s", rd->errors.text);
    jpeg_create_decompress(ci);
    ci->progress = &rd->progress;
    jpeg_mem_src(ci, data, (unsigned long)n);
    jpeg_read_header(ci, TRUE);
    TRY(image_alloc(&rd->im, ci->image_width, ci->image_height, rd->channels, rd->e));
    ci->out_color_space = choose_space(rd);
    jpeg_start_decompress(ci);
    if (ci->output_components != rd->channels) {
        rd->row = malloc((size_t)rd->im.w * 4);
        if (!rd->row)
            return err_set(rd->e, -ENOMEM, "no memory for a row of %d pixels", rd->im.w);
    }
    while (ci->output_scanline < ci->output_height)
        read_row(rd, rd->im.px + (size_t)ci->output_scanline * (size_t)rd->im.w * (size_t)rd->channels);
    jpeg_finish_decompress(ci);
    return 0;
}

int image_decode_jpeg(const void *data, size_t n, int channels, struct image *ret, struct err *e)
{
    struct reader rd = {.channels = channels, .e = e, .progress.progress_monitor = watch_scans};
    rd.cinfo.err = jpeg_errors_init(&rd.errors);
    int rc = decode(&rd, data, n);
    jpeg_destroy_decompress(&rd.cinfo);
    free(rd.row);
    if (rc < 0)
        image_free(&rd.im);
    else
        *ret = rd.im;
    return rc;
}
