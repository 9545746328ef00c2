/* Requests of the TCPStore protocol as bytes, put together independently of the server's parser. */
#ifndef CRUN_TESTS_RENDEZVOUSD_TCPSTORE_WORDS_H
#define CRUN_TESTS_RENDEZVOUSD_TCPSTORE_WORDS_H

#include "common/base/buf.h"
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline void put_number(struct buf *b, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++, v >>= 8)
        buf_add(b, &(char){(char)v}, 1);
}

static inline void put_bytes(struct buf *b, const void *p, size_t n)
{
    put_number(b, n, 8);
    buf_add(b, p, n);
}

static inline void put_text(struct buf *b, const char *s)
{
    put_bytes(b, s, strlen(s));
}

static inline void put_handshake(struct buf *b)
{
    buf_add(b, "\x00\xce\xf7\x85\x3c", 5);
}

/* "6" as it comes from a table: hexadecimal digits, two a byte. */
static inline void put_hex(struct buf *b, const char *hex)
{
    static const char digits[] = "0123456789abcdef";
    for (; hex[0] && hex[1]; hex += 2)
        buf_add(b, &(char){(char)((strchr(digits, hex[0]) - digits) << 4 | (strchr(digits, hex[1]) - digits))}, 1);
}

static inline bool same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

#endif
