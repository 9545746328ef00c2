/* Names the kind of a file by its first bytes. */
#include "worker/data/image/first_bytes.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Formats by what stands at a place of the file; the first that fits counts. */
static const struct format {
    size_t at;
    const char *bytes;
    size_t n;
    const char *name;
} formats[] = {
#define BYTES(text) text, sizeof(text) - 1
    {0, BYTES("\xff\xd8\xff"), "a JPEG image"},
    {0, BYTES("\x89PNG\r\n\x1a\n"), "a PNG image"},
    {8, BYTES("WEBP"), "a WebP image"},
    {0, BYTES("GIF8"), "a GIF image"},
    {0, BYTES("II*\0"), "a TIFF image"},
    {0, BYTES("MM\0*"), "a TIFF image"},
    {4, BYTES("ftypavif"), "an AVIF image"},
    {4, BYTES("ftypheic"), "a HEIC image"},
    {4, BYTES("ftypmif1"), "a HEIF image"},
    {4, BYTES("ftyp"), "an MP4 video"},
    {4, BYTES("jP  "), "a JPEG 2000 image"},
    {0, BYTES("\xff\x0a"), "a JPEG XL image"},
    {4, BYTES("JXL "), "a JPEG XL image"},
    {0, BYTES("8BPS"), "a Photoshop file"},
    {0, BYTES("P1"), "a PBM image"},
    {0, BYTES("P2"), "a PGM image as text"},
    {0, BYTES("P3"), "a PPM image as text"},
    {0, BYTES("P4"), "a PBM image"},
    {0, BYTES("P5"), "a PGM image"},
    {0, BYTES("P6"), "a PPM image"},
    {0, BYTES("BM"), "a BMP image"},
    {0, BYTES("\x1f\x8b"), "a gzip file"},
    {0, BYTES("PK\3\4"), "a zip file"},
    {0, BYTES("BZh"), "a bzip2 file"},
    {0,
     BYTES("\xfd"
           "7zXZ"),
     "an xz file"},
    {0, BYTES("\x28\xb5\x2f\xfd"), "a zstd file"},
    {0, BYTES("\x93NUMPY"), "a NumPy array"},
    {0, BYTES("\x89HDF"), "an HDF5 file"},
    {0, BYTES("PAR1"), "a Parquet file"},
    {0, BYTES("%PDF"), "a PDF file"},
    {0, BYTES("\x80\2"), "a pickled object"},
    {0, BYTES("\x80\3"), "a pickled object"},
    {0, BYTES("\x80\4"), "a pickled object"},
    {0, BYTES("\x80\5"), "a pickled object"},
    {0, BYTES("version https://git-lfs"), "a pointer of Git LFS"},
    {16, BYTES("\xde\xc0\xef\xbe"), "an LMDB"},
    {257, BYTES("ustar"), "a tar file"},
#undef BYTES
};

/* After blanks: <!DOCTYPE, <html, <?xml. */
static const char *markup(const char *p, size_t n)
{
    while (n > 0 && strchr(" \t\r\n", *p) && *p)
        p++, n--;
    if (n >= 5 && (strncasecmp(p, "<html", 5) == 0 || (n >= 9 && strncasecmp(p, "<!doctype", 9) == 0)))
        return "HTML";
    if (n >= 5 && strncmp(p, "<?xml", 5) == 0)
        return "XML";
    return n >= 4 && strncmp(p, "<svg", 4) == 0 ? "an SVG image" : NULL;
}

static const char *name_of(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const struct format *f = &formats[i];
        if (n >= f->at + f->n && memcmp(p + f->at, f->bytes, f->n) == 0)
            return f->name;
    }
    return markup((const char *)p, n);
}

const char *first_bytes_text(const void *data, size_t n, char out[FIRST_BYTES_TEXT])
{
    const uint8_t *p = data;
    const char *name = n > 0 ? name_of(p, n) : "nothing";
    int at = snprintf(out, FIRST_BYTES_TEXT, "%s", name ? name : "bytes that begin with");
    for (size_t i = 0; !name && i < n && i < 8; i++)
        at += snprintf(out + at, FIRST_BYTES_TEXT - (size_t)at, " %02x", p[i]);
    return out;
}
