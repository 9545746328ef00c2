/* PNG through libpng's row interface: 8 bits, palettes and low depths expanded, alpha dropped, gamma left alone (as
 * Pillow's convert). */
#include <errno.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/data/image/image_impl.h"

struct reader {
    const uint8_t *data;
    size_t n, at;
    png_structp png;
    png_infop info;
    struct image im; /* as libpng gives it: c channels of the file */
    png_bytep *rows;
    char text[160];
};

static void on_error(png_structp png, png_const_charp text)
{
    struct reader *rd = png_get_error_ptr(png);
    snprintf(rd->text, sizeof rd->text, "%s", text);
    longjmp(png_jmpbuf(png), 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
}

static void on_read(png_structp png, png_bytep dst, size_t n)
{
    struct reader *rd = png_get_io_ptr(png);
    if (n > rd->n - rd->at)
        png_error(png, "premature end of file");
    memcpy(dst, rd->data + rd->at, n);
    rd->at += n;
}

static int decode(struct reader *rd, struct err *e)
{
    if (setjmp(png_jmpbuf(rd->png)))
        return err_set(e, ERR_DATA, "not a whole PNG image: %s", rd->text);
    png_set_read_fn(rd->png, rd, on_read);
    png_set_user_limits(rd->png, 0x7fffffff, 0x7fffffff); /* ours is on the product, and says more */
    png_read_info(rd->png, rd->info);
    png_set_palette_to_rgb(rd->png);
    png_set_expand_gray_1_2_4_to_8(rd->png);
    png_set_strip_16(rd->png);
    png_set_strip_alpha(rd->png);
    png_set_interlace_handling(rd->png);
    uint32_t w = png_get_image_width(rd->png, rd->info), h = png_get_image_height(rd->png, rd->info);
    bool grey = !(png_get_color_type(rd->png, rd->info) & PNG_COLOR_MASK_COLOR);
    TRY(image_alloc(&rd->im, w, h, grey ? 1 : 3, e));
    png_read_update_info(rd->png, rd->info);
    size_t stride = (size_t)w * (size_t)rd->im.c;
    if (png_get_rowbytes(rd->png, rd->info) != stride)
        return err_set(e, ERR_DATA, "a PNG image of %d channels", png_get_channels(rd->png, rd->info));
    rd->rows = malloc(sizeof *rd->rows * h);
    if (!rd->rows)
        return err_set(e, -ENOMEM, "no memory for %u rows", h);
    for (uint32_t y = 0; y < h; y++)
        rd->rows[y] = rd->im.px + y * stride;
    png_read_image(rd->png, rd->rows);
    png_read_end(rd->png, NULL);
    return 0;
}

static int convert(const struct image *im, int channels, struct image *ret, struct err *e)
{
    struct image out;
    TRY(image_alloc(&out, (uint64_t)im->w, (uint64_t)im->h, channels, e));
    size_t n = (size_t)im->w * (size_t)im->h;
    if (channels == 1)
        image_luma(im->px, out.px, n);
    else
        for (size_t i = 0; i < n; i++)
            memset(out.px + 3 * i, im->px[i], 3);
    *ret = out;
    return 0;
}

int image_decode_png(const void *data, size_t n, int channels, struct image *ret, struct err *e)
{
    struct reader rd = {.data = data, .n = n};
    rd.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &rd, on_error, on_warning);
    rd.info = rd.png ? png_create_info_struct(rd.png) : NULL;
    int rc = rd.info ? decode(&rd, e) : err_set(e, -ENOMEM, "no memory to read a PNG image");
    if (rd.png)
        png_destroy_read_struct(&rd.png, &rd.info, NULL);
    free(rd.rows);
    if (rc == 0 && rd.im.c == channels) {
        *ret = rd.im;
        return 0;
    }
    if (rc == 0)
        rc = convert(&rd.im, channels, ret, e);
    image_free(&rd.im);
    return rc;
}
