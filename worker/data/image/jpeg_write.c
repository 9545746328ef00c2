/* Encodes RGB pixels as a JPEG file in memory. */
#include "worker/data/image/jpeg_write.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/data/image/jpeg_errors.h"

struct writer {
    struct jpeg_compress_struct cinfo;
    struct jpeg_errors errors;
    unsigned char *data; /* libjpeg's growing output, malloc'ed by it */
    unsigned long n;
};

static int compress(struct writer *wr, const uint8_t *px, int w, int h, int c, int quality)
{
    struct jpeg_compress_struct *ci = &wr->cinfo;
    if (setjmp(wr->errors.escape))
        return -EIO;
    jpeg_create_compress(ci);
    jpeg_mem_dest(ci, &wr->data, &wr->n);
    ci->image_width = (JDIMENSION)w;
    ci->image_height = (JDIMENSION)h;
    ci->input_components = c;
    ci->in_color_space = c == 3 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(ci);
    jpeg_set_quality(ci, quality, TRUE);
    ci->dct_method = JDCT_ISLOW;
    jpeg_start_compress(ci, TRUE);
    while (ci->next_scanline < ci->image_height) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(px + (size_t)ci->next_scanline * (size_t)w * (size_t)c);
        jpeg_write_scanlines(ci, &row, 1);
    }
    jpeg_finish_compress(ci);
    return 0;
}

int jpeg_write(const uint8_t *px, int w, int h, int c, int quality, struct buf *out, struct err *e)
{
    struct writer wr = {.n = 0};
    wr.cinfo.err = jpeg_errors_init(&wr.errors);
    int rc = compress(&wr, px, w, h, c, quality);
    if (rc < 0)
        rc = err_set(e, rc, "libjpeg: %s", wr.errors.text);
    else if (buf_add(out, wr.data, wr.n) < 0)
        rc = err_set(e, -ENOMEM, "no memory for a JPEG of %lu bytes", wr.n);
    jpeg_destroy_compress(&wr.cinfo);
    free(wr.data);
    return rc;
}
