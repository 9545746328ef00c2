/* A growable byte buffer with a hard limit, so that a peer cannot make it take all memory. */
#ifndef CRUN_COMMON_BUF_H
#define CRUN_COMMON_BUF_H

#include <stddef.h>

struct err;

struct buf {
    char *data; /* len bytes, then a NUL that is not counted (once anything was added) */
    size_t len, cap;
    size_t max; /* bytes; 0 = 1 GiB */
};

/* All-zero is a valid empty buffer. */
void buf_init(struct buf *b, size_t max);
void buf_free(struct buf *b);  /* releases the memory; b is empty and usable again */
void buf_clear(struct buf *b); /* len = 0, memory kept */

/* Each returns 0; -E2BIG beyond max; -ENOMEM. Nothing is added on failure. */
int buf_reserve(struct buf *b, size_t more);
int buf_add(struct buf *b, const void *data, size_t n);
int buf_addstr(struct buf *b, const char *s);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void buf_consume(struct buf *b, size_t n); /* drop the first n bytes; n <= len */

#endif
