/* Checks and repairs text from outside: that must be UTF-8, and that is printed. */
#ifndef CRUN_COMMON_UTF8_H
#define CRUN_COMMON_UTF8_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* Length of the well-formed character at s (NUL-terminated), 0 if it is none. */
size_t utf8_len(const char *s);

/* Bytes that are no UTF-8 become '?'. */
void utf8_clean(char *text);

/* Copy text, or as many whole characters of it as leave room for "..." at the end. cap: size of out, at least 4. */
void utf8_copy(char *out, size_t cap, const char *text);

/* A copy in which bytes that are not UTF-8 become U+FFFD, malloc'ed; NULL: no memory. */
char *utf8_replaced(const char *text);

/* Names out of files, records, peers and command lines may hold bytes that a terminal acts upon, or that break a line:
 * control bytes and DEL are shown as '?'. Log lines and errors' sentences do so themselves. */
static inline char printable_byte(char c)
{
    return (unsigned char)c < ' ' || c == 0x7f ? '?' : c;
}

/* In place. */
void printable_make(char *text, size_t n);
/* A copy, cut to cap - 1 bytes. Returns out. */
const char *printable(const char *text, char *out, size_t cap);
/* One line, cut to 16 KiB; its end is added. */
void printable_line(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void printable_vline(FILE *f, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

#endif
