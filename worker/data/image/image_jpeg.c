/* JPEG through libjpeg(-turbo): grey, YCbCr and RGB by the library, CMYK and YCCK (Adobe's inverted values) by us as
 * Pillow does it. */
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/data/image/image_impl.h"
#include "worker/data/image/jpeg_errors.h"

#define MAX_SCANS 500 /* of a progressive file: a small one can ask for hours of work */

struct reader {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_errors errors;
    struct jpeg_progress_mgr progress;
    struct region part; /* its width is in pixels of a row */
    uint8_t *row;       /* of the file's own channels, where they are converted */
    int channels;       /* wanted */
    const struct want *want;
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
        cmyk_to_rgb(rd->row, rgb, rd->part.im.w);
    }
    if (rd->row && rd->channels == 1)
        image_luma(rd->row, dst, (size_t)rd->part.im.w);
}

/* The pixels of a part are those of the whole picture if what they are interpolated from is there: up to two pixels (of
 * a chroma sample each side) beyond it. */
#define MARGIN 2

/* Rows and columns that are worth decoding. Progressive files and files in several scans are decoded as a whole: they
 * give no row before the last scan, and nothing would be saved. */
static int choose_part(struct reader *rd, struct rect *ret)
{
    struct jpeg_decompress_struct *ci = &rd->cinfo;
    const int w = (int)ci->image_width, h = (int)ci->image_height;
    *ret = (struct rect){.w = w, .h = h};
    if (!rd->want)
        return 0;
    TRY(rd->want->choose(rd->want->arg, w, h, ret, rd->e));
    if (jpeg_has_multiple_scans(ci)) {
        *ret = (struct rect){.w = w, .h = h};
        return 0;
    }
    const int right = ret->x + ret->w + MARGIN, bottom = ret->y + ret->h;
    ret->x = ret->x > MARGIN ? ret->x - MARGIN : 0;
    ret->w = (right < w ? right : w) - ret->x;
    ret->h = bottom - ret->y;
    return 0;
}

/* Columns: libjpeg begins at the left of a block. */
static int begin_part(struct reader *rd, struct rect *r)
{
    struct jpeg_decompress_struct *ci = &rd->cinfo;
    if (r->w < (int)ci->image_width) {
        JDIMENSION x = (JDIMENSION)r->x, w = (JDIMENSION)r->w;
        jpeg_crop_scanline(ci, &x, &w);
        r->x = (int)x;
        r->w = (int)w;
    }
    rd->part.x = r->x;
    rd->part.y = r->y;
    TRY(region_alloc(&rd->part, (uint64_t)r->w, (uint64_t)r->h, rd->channels, rd->e));
    if (ci->output_components == rd->channels)
        return 0;
    rd->row = malloc((size_t)r->w * 4);
    return rd->row ? 0 : err_set(rd->e, -ENOMEM, "no memory for a row of %d pixels", r->w);
}

/* Before memory is taken: Huffman codes give each block of 8 x 8 pixels at least one bit, the code of its mean.
 * Without this a progressive file of a kilobyte would take a gigabyte of coefficients. (Arithmetic codes have no such
 * bound.) */
static int check_bytes(const struct reader *rd, size_t n)
{
    const struct jpeg_decompress_struct *ci = &rd->cinfo;
    const uint64_t blocks = (uint64_t)((ci->image_width + 7) / 8) * ((ci->image_height + 7) / 8);
    if (ci->arith_code || blocks / 8 <= n)
        return 0;
    return err_set(rd->e, ERR_DATA, "not a whole JPEG image: %zu bytes for %u x %u pixels", n, ci->image_width,
                   ci->image_height);
}

/* What is damaged below the part is damage, too: all rows are read through, and the last one decoded, else libjpeg
 * would stop here. */
static int check_rest(struct reader *rd)
{
    struct jpeg_decompress_struct *ci = &rd->cinfo;
    if (ci->output_scanline == ci->output_height)
        return 0;
    if (ci->output_height - ci->output_scanline > 1)
        jpeg_skip_scanlines(ci, ci->output_height - ci->output_scanline - 1);
    JSAMPROW row = rd->row ? rd->row : (rd->row = malloc((size_t)rd->part.im.w * 4));
    if (!row)
        return err_set(rd->e, -ENOMEM, "no memory for a row of %d pixels", rd->part.im.w);
    jpeg_read_scanlines(ci, &row, 1);
    return 0;
}

static int decode(struct reader *rd, const void *data, size_t n)
{
    struct jpeg_decompress_struct *ci = &rd->cinfo;
    struct rect r;
    if (setjmp(rd->errors.escape))
        return err_set(rd->e, ERR_DATA, "not a whole JPEG image: %s", rd->errors.text);
    jpeg_create_decompress(ci);
    ci->progress = &rd->progress;
    jpeg_mem_src(ci, data, (unsigned long)n);
    jpeg_read_header(ci, TRUE);
    TRY(image_check_size(ci->image_width, ci->image_height, rd->e));
    TRY(check_bytes(rd, n));
    TRY(choose_part(rd, &r));
    ci->out_color_space = choose_space(rd);
    jpeg_start_decompress(ci);
    TRY(begin_part(rd, &r));
    if (r.y > 0)
        jpeg_skip_scanlines(ci, (JDIMENSION)r.y);
    const size_t bytes = (size_t)r.w * (size_t)rd->channels;
    for (int y = 0; y < r.h; y++)
        read_row(rd, rd->part.im.px + (size_t)y * bytes);
    TRY(check_rest(rd));
    jpeg_finish_decompress(ci);
    return 0;
}

int image_decode_jpeg(const void *data, size_t n, int channels, const struct want *want, struct region *ret,
                      struct err *e)
{
    struct reader rd = {
        .part = *ret, .channels = channels, .want = want, .e = e, .progress.progress_monitor = watch_scans};
    rd.cinfo.err = jpeg_errors_init(&rd.errors);
    int rc = decode(&rd, data, n);
    jpeg_destroy_decompress(&rd.cinfo);
    free(rd.row);
    *ret = rd.part;
    return rc;
}
