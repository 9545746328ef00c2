/* RGB pixels to a JPEG file in memory, for drawn data sets and tests. */
#ifndef CRUN_WORKER_DATA_JPEG_WRITE_H
#define CRUN_WORKER_DATA_JPEG_WRITE_H

#include <stdint.h>

struct buf;
struct err;

/* px: (h, w, c), c = 3 (RGB) or 1 (grey). Appends to *out. quality: 1..100. */
int jpeg_write(const uint8_t *px, int w, int h, int c, int quality, struct buf *out, struct err *e);

#endif
