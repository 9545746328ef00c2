/* Numbers as text and back; the smaller and the larger of two. Pure. Functions that run once per request avoid
 * stdio. */
#ifndef CRUN_COMMON_NUMBERS_H
#define CRUN_COMMON_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

#define DIGITS_MAX 20 /* "-9223372036854775808" */

char *digits_write(char *at, long long v); /* decimal, without a NUL; returns its end */

void hex_write(char *ret, const void *bytes, size_t n); /* 2n small digits and a NUL */
int hex_digit(char c);                                  /* upper or lower case; -1: not a hex digit */
int hex_byte(const char *p, size_t n); /* value of the two hex digits at p[0..n); -1: they are not two hex digits */

/* Base64 of n bytes: 4 characters for each 3, without a NUL; returns its end. */
char *base64_write(char *at, const void *bytes, size_t n);
/* The bytes of n characters, padded or not, which may stand where ret is; how many they are. -1: it is none, or more
 * than cap. */
ptrdiff_t base64_read(const char *text, size_t n, char *ret, size_t cap);

/* A list of ranges as text: "0-3,5". Initialise as {.out = memory, .cap = its bytes}, with out[0] = 0. */
struct ranges {
    char *out; /* cut short if cap is too small */
    size_t cap, len;
    size_t at; /* offset of the last range */
    int first, last;
};

void ranges_add(struct ranges *r, int number); /* a number that follows the last one extends its range */

static inline int min_int(int a, int b)
{
    return a < b ? a : b;
}

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

#endif
