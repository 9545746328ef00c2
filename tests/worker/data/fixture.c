#include "tests/worker/data/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jpeglib.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/data/image/resample.h"

static const struct {
    int channels;
    J_COLOR_SPACE in, file;
} spaces[] = {
    [FIXTURE_RGB] = {3, JCS_RGB, JCS_YCbCr},
    [FIXTURE_GREY] = {1, JCS_GRAYSCALE, JCS_GRAYSCALE},
    [FIXTURE_CMYK] = {4, JCS_CMYK, JCS_CMYK},
    [FIXTURE_YCCK] = {4, JCS_CMYK, JCS_YCCK},
};

/* Exif, big endian, one entry: orientation (0x112), SHORT, 1, value 6. */
static const unsigned char exif[] = "Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0";

static void write_rows(struct jpeg_compress_struct *ci, const struct fixture *f, int channels)
{
    uint8_t *row = malloc((size_t)f->w * (size_t)channels);
    for (int y = 0; y < f->h; y++) {
        for (int x = 0; x < f->w; x++)
            for (int k = 0; k < channels; k++)
                row[x * channels + k] =
                    f->textured ? (uint8_t)(x * 29 + y * 53 + (x * y * 7) % 61 + 80 * k) : f->colour[k];
        JSAMPROW rows = row;
        jpeg_write_scanlines(ci, &rows, 1);
    }
    free(row);
}

void fixture_jpeg(struct buf *out, const struct fixture *f)
{
    struct jpeg_compress_struct ci;
    struct jpeg_error_mgr errors; /* libjpeg's own: prints and exits, which is what a broken test should do */
    unsigned char *data = NULL;
    unsigned long n = 0;
    ci.err = jpeg_std_error(&errors);
    jpeg_create_compress(&ci);
    jpeg_mem_dest(&ci, &data, &n);
    ci.image_width = (JDIMENSION)f->w;
    ci.image_height = (JDIMENSION)f->h;
    ci.input_components = spaces[f->kind].channels;
    ci.in_color_space = spaces[f->kind].in;
    jpeg_set_defaults(&ci);
    jpeg_set_colorspace(&ci, spaces[f->kind].file);
    jpeg_set_quality(&ci, 95, TRUE);
    if (f->across) {
        ci.comp_info[0].h_samp_factor = f->across;
        ci.comp_info[0].v_samp_factor = f->down;
    }
    ci.restart_interval = (unsigned)f->restart;
    if (f->progressive)
        jpeg_simple_progression(&ci);
    jpeg_start_compress(&ci, TRUE);
    if (f->exif_rotated)
        jpeg_write_marker(&ci, JPEG_APP0 + 1, exif, sizeof exif - 1);
    write_rows(&ci, f, spaces[f->kind].channels);
    jpeg_finish_compress(&ci);
    jpeg_destroy_compress(&ci);
    assert_int_equal(buf_add(out, data, n), 0);
    free(data);
}

static int resampled(const struct image *src, const struct resample *r, uint8_t *dst)
{
    const struct region whole = {.im = *src};
    struct resample_rows rows = {0};
    struct resampler s;
    TRY(resampler_init(&s, r, NULL));
    int rc = resampler_run(&s, &whole, &rows, dst, NULL);
    free(rows.at);
    resampler_free(&s);
    return rc;
}

int fixture_crop_resize(const struct image *src, const struct crop *c, int w, int h, uint8_t *dst)
{
    const struct resample r = resample_crop(FILTER_BILINEAR, c, w, h);
    return resampled(src, &r, dst);
}

int fixture_eval(const struct image *src, int resize, int size, uint8_t *dst)
{
    struct resample r;
    TRY(resample_short_side(&r, FILTER_BILINEAR, src->w, src->h, resize, size, NULL));
    resample_centre(&r);
    return resampled(src, &r, dst);
}

int fixture_capture_stderr(void)
{
    int saved = dup(STDERR_FILENO);
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_true(saved >= 0 && dup2(fileno(f), STDERR_FILENO) >= 0);
    fclose(f);
    return saved;
}

long fixture_captured_bytes(int saved)
{
    struct stat st;
    assert_int_equal(fstat(STDERR_FILENO, &st), 0);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    return (long)st.st_size;
}

void fixture_file(const char *dir, const char *name, const void *data, size_t n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    for (char *slash = strchr(path + strlen(dir) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    FILE *f = fopen(path, "wb");
    if (!f)
        fail_msg("cannot write %s", path);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}
