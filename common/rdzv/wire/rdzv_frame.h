/* A frame is a text behind its length, number and checksum. The files of a rendezvous hold frames: a daemon's logs
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
/* Parse the frame at p. False: p does not begin with a whole frame whose checksum is right. */
bool rdzv_frame_take(const char *p, size_t n, struct rdzv_frame *ret);
/* Read the frame number from the RDZV_FRAME_HEAD bytes at p, without checking the checksum; false: this is no frame
 * head. */
bool rdzv_frame_number(const char *p, uint32_t *ret);

#endif
