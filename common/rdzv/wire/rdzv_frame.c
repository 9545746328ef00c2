/* Makes and parses frames: a text with length, number and checksum (rdzv_frame.h). */
#include "common/rdzv/wire/rdzv_frame.h"

#include <stdio.h>

#include "common/base/buf.h"
#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/base/numbers.h"

#define SUMMED 17 /* "LLLLLLLL NNNNNNNN" */

int rdzv_frame_put(struct buf *out, uint32_t number, const void *text, size_t n)
{
    char head[RDZV_FRAME_HEAD + 1];
    TRY(buf_reserve(out, RDZV_FRAME_HEAD + n + 1));
    snprintf(head, sizeof head, "%08x %08x", (unsigned)n, (unsigned)number);
    const uint32_t crc = crc32c(crc32c(0, head, SUMMED), text, n);
    snprintf(head + SUMMED, sizeof head - SUMMED, " %08x\n", (unsigned)crc);
    TRY(buf_add(out, head, RDZV_FRAME_HEAD));
    if (n)
        TRY(buf_add(out, text, n));
    return buf_add(out, "\n", 1);
}

static bool read_hex(const char *p, uint32_t *ret)
{
    uint32_t v = 0;
    for (int i = 0; i < 8; i++) {
        if (hex_digit(p[i]) < 0)
            return false;
        v = v << 4 | (uint32_t)hex_digit(p[i]);
    }
    *ret = v;
    return true;
}

static bool read_head(const char *p, uint32_t *ret_len, uint32_t *ret_number, uint32_t *ret_crc)
{
    return p[8] == ' ' && p[SUMMED] == ' ' && p[RDZV_FRAME_HEAD - 1] == '\n' && read_hex(p, ret_len) &&
           read_hex(p + 9, ret_number) && read_hex(p + SUMMED + 1, ret_crc);
}

bool rdzv_frame_number(const char *p, uint32_t *ret)
{
    uint32_t len, crc;
    return read_head(p, &len, ret, &crc);
}

bool rdzv_frame_take(const char *p, size_t n, struct rdzv_frame *ret)
{
    uint32_t number, len, crc;
    if (n < RDZV_FRAME_HEAD + 1 || !read_head(p, &len, &number, &crc))
        return false;
    const char *text = p + RDZV_FRAME_HEAD;
    if (len > RDZV_FRAME_MAX || len > n - RDZV_FRAME_HEAD - 1 || text[len] != '\n' ||
        crc32c(crc32c(0, p, SUMMED), text, len) != crc)
        return false;
    *ret = (struct rdzv_frame){number, text, len, RDZV_FRAME_HEAD + len + 1};
    return true;
}
