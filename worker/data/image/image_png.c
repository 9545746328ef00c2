/* PNG through libpng's row interface: 8 bits, palettes and low depths expanded, alpha dropped, gamma left alone (as
 * Pillow's convert).
 *
 * libpng takes the memory that a chunk's length and the header ask for before it reads. So the lengths are held against
 * the file first: a chunk must lie within it, and the pixels within what deflate can make of the bytes of its IDATs. Of
 * the chunks only those are read that pixels depend on: text and profiles may be packed a thousandfold. */
#include <errno.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/data/image/image_impl.h"

struct reader {
    const uint8_t *data;
    size_t n, at;
    uint64_t packed; /* bytes of all IDATs */
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

#define SIGNATURE 8u
#define CHUNK 12u         /* length, type, and a sum behind the data */
#define DEFLATE_MAX 1032u /* bytes that one byte can become */

static uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Up to IEND chunks lie within the file. */
static int check_chunks(struct reader *rd, struct err *e)
{
    for (size_t at = SIGNATURE; rd->n - at >= CHUNK;) {
        const uint8_t *type = rd->data + at + 4;
        const uint32_t n = get_u32(rd->data + at);
        if (n > rd->n - at - CHUNK)
            return err_set(e, ERR_DATA, "not a whole PNG image: a chunk of %u bytes, of which %zu are there", n,
                           rd->n - at - CHUNK);
        if (memcmp(type, "IEND", 4) == 0)
            return 0;
        if (memcmp(type, "IDAT", 4) == 0)
            rd->packed += n;
        at += CHUNK + n;
    }
    return err_set(e, ERR_DATA, "not a whole PNG image: premature end of file");
}

/* The header has been read; no memory was taken for pixels yet. */
static int check_pixels(const struct reader *rd, struct err *e)
{
    const uint64_t w = png_get_image_width(rd->png, rd->info), h = png_get_image_height(rd->png, rd->info);
    const uint64_t bits = (uint64_t)png_get_bit_depth(rd->png, rd->info) * png_get_channels(rd->png, rd->info);
    TRY(image_check_size(w, h, e));
    if ((w * bits + 7) / 8 * h / DEFLATE_MAX <= rd->packed)
        return 0;
    return err_set(e, ERR_DATA, "not a whole PNG image: %ju bytes for %ju x %ju pixels", (uintmax_t)rd->packed,
                   (uintmax_t)w, (uintmax_t)h);
}

static int decode(struct reader *rd, struct err *e)
{
    TRY(check_chunks(rd, e));
    if (setjmp(png_jmpbuf(rd->png)))
        return err_set(e, ERR_DATA, "not a whole PNG image: %s", rd->text);
    png_set_read_fn(rd->png, rd, on_read);
    png_set_user_limits(rd->png, 0x7fffffff, 0x7fffffff); /* ours is on the product, and says more */
    png_set_keep_unknown_chunks(rd->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_read_info(rd->png, rd->info);
    TRY(check_pixels(rd, e));
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
