/* What a file's first bytes say that it is. */
#ifndef CRUN_WORKER_FIRST_BYTES_H
#define CRUN_WORKER_FIRST_BYTES_H

#include <stddef.h>

#define FIRST_BYTES_TEXT 64

/* "a WebP image", "HTML", "a gzip file", "a pickled object"; of what is not known "bytes that begin with 00 01 02 03",
 * of n == 0 "nothing". Returns out. Pure. */
const char *first_bytes_text(const void *data, size_t n, char out[FIRST_BYTES_TEXT]);

#endif
