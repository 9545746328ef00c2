/* Converts numbers to text and back (numbers.h). */
#include "common/base/numbers.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char pairs[] = /* 00 to 99 */
    "00010203040506070809101112131415161718192021222324"
    "25262728293031323334353637383940414243444546474849"
    "50515253545556575859606162636465666768697071727374"
    "75767778798081828384858687888990919293949596979899";

static int digits_of(unsigned long long u)
{
    int n = 1;
    for (unsigned long long least = 10; n < 20 && u >= least; least *= 10)
        n++;
    return n;
}

char *digits_write(char *at, long long v)
{
    unsigned long long u = v < 0 ? 0 - (unsigned long long)v : (unsigned long long)v;
    if (v < 0)
        *at++ = '-';
    char *const end = at + digits_of(u), *p = end;
    for (; u >= 100; u /= 100)
        memcpy(p -= 2, pairs + u % 100 * 2, 2);
    if (u >= 10)
        memcpy(p - 2, pairs + u * 2, 2);
    else
        p[-1] = (char)('0' + u);
    return end;
}

void hex_write(char *ret, const void *bytes, size_t n)
{
    for (const unsigned char *p = bytes; n > 0; n--, p++) {
        *ret++ = "0123456789abcdef"[*p >> 4];
        *ret++ = "0123456789abcdef"[*p & 15];
    }
    *ret = 0;
}

int hex_digit(char c)
{
    const char small = (char)(c | 32);
    return c >= '0' && c <= '9' ? c - '0' : small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

int hex_byte(const char *p, size_t n)
{
    return n < 2 || hex_digit(p[0]) < 0 || hex_digit(p[1]) < 0 ? -1 : hex_digit(p[0]) * 16 + hex_digit(p[1]);
}

static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *base64_write(char *at, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i += 3, at += 4) {
        const size_t have = n - i < 3 ? n - i : 3;
        const unsigned v = (unsigned)p[i] << 16 | (have > 1 ? (unsigned)p[i + 1] << 8 : 0) | (have > 2 ? p[i + 2] : 0);
        for (int k = 0; k < 4; k++)
            at[k] = k > (int)have ? '=' : base64[v >> (18 - 6 * k) & 63];
    }
    return at;
}

static int base64_digit(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

ptrdiff_t base64_read(const char *text, size_t n, char *ret, size_t cap)
{
    unsigned bits = 0;
    int have = 0;
    size_t len = 0;
    for (; n > 0 && text[n - 1] == '='; n--)
        ;
    for (size_t i = 0; i < n; i++) {
        const int d = base64_digit(text[i]);
        if (d < 0)
            return -1;
        bits = bits << 6 | (unsigned)d;
        have += 6;
        if (have < 8)
            continue;
        have -= 8;
        if (len == cap)
            return -1;
        ret[len++] = (char)(bits >> have & 0xff);
    }
    return (ptrdiff_t)len;
}

void ranges_add(struct ranges *r, int number)
{
    const bool follows = r->len > 0 && number == r->last + 1;
    const size_t at = follows ? r->at : r->len, left = r->cap - at;
    const char *comma = at > 0 ? "," : "";
    r->first = follows ? r->first : number;
    r->last = number;
    r->at = at;
    const int n = follows ? snprintf(r->out + at, left, "%s%d-%d", comma, r->first, number)
                          : snprintf(r->out + at, left, "%s%d", comma, number);
    r->len = at + ((size_t)n < left ? (size_t)n : left - 1);
}
