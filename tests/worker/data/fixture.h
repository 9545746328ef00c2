/* Images and folders made on the fly for the tests of worker/data. Failures end the test. */
#ifndef CRUN_TESTS_DATA_FIXTURE_H
#define CRUN_TESTS_DATA_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct crop;
struct image;

enum fixture_kind { FIXTURE_RGB, FIXTURE_GREY, FIXTURE_CMYK, FIXTURE_YCCK };

struct fixture {
    int w, h;
    enum fixture_kind kind;
    uint8_t colour[4]; /* in the kind's channels; CMYK and YCCK: CMYK as stored */
    bool textured;     /* a busy pattern instead of the colour */
    bool progressive;
    int across, down;  /* pixels a chroma sample covers; 0: 2 x 2 */
    int restart;       /* blocks between restart markers; 0: none */
    bool exif_rotated; /* an Exif segment that says: turn by 90 degrees */
};

void fixture_jpeg(struct buf *out, const struct fixture *f);

/* What input_load() makes of a decoded picture, the whole of it: a crop scaled to (h, w); the short side scaled to
 * `resize`, then the central size x size. dst: (h, w, c). Return what the resampler does. */
int fixture_crop_resize(const struct image *src, const struct crop *c, int w, int h, uint8_t *dst);
int fixture_eval(const struct image *src, int resize, int size, uint8_t *dst);

/* Between the two calls what is written to stderr goes to a file instead; returns the number of bytes. */
int fixture_capture_stderr(void);
long fixture_captured_bytes(int saved);

/* Write DIR/name, making the folders above it. */
void fixture_file(const char *dir, const char *name, const void *data, size_t n);

#endif
