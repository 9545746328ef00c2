/* A text with its length, its number and a checksum in front, as the files of a rendezvous hold it: a daemon's logs
 * (rendezvousd/state), one frame after the other, and the files of a shared folder, one frame each. Pure.
 *
 *     "LENGTH NUMBER CRC32C\n" text "\n"
 *
 * Eight hexadecimal digits each; the sum covers the first two words and the text. */
#ifndef CRUN_COMMON_RDZV_FRAME_H
#define CRUN_COMMON_RDZV_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

#define RDZV_FRAME_HEAD 27                 /* bytes in front of the text */
#define RDZV_FRAME_MAX ((size_t)256 << 20) /* bytes of a text */

struct rdzv_frame {
    uint32_t number;
    const char *text; /* borrowed */
    size_t len;
    size_t bytes; /* of all of it */
};

/* Appends one. -ENOMEM. */
int rdzv_frame_put(struct buf *out, uint32_t number, const void *text, size_t n);
/* False: p does not begin with a whole one whose sum is right. */
bool rdzv_frame_take(const char *p, size_t n, struct rdzv_frame *ret);
/* The number that the RDZV_FRAME_HEAD bytes at p bear, whatever their sum; false: they are no head. */
bool rdzv_frame_number(const char *p, uint32_t *ret);

#endif
