/* Whole files through descriptors. */
#ifndef CRUN_COMMON_FILE_H
#define CRUN_COMMON_FILE_H

#include <stddef.h>

struct buf;

/* Append what fd, which stands at its beginning, holds up to its end. 0; -E2BIG beyond out->max; -ENOMEM; -errno of
 * read(2). */
int file_read_all(int fd, struct buf *out);

/* All n bytes. 0 or -errno of write(2), and then some of them may be there. */
int file_write_all(int fd, const void *data, size_t n);

#endif
