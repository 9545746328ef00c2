/* Names out of files, records, peers and command lines may hold bytes that a terminal acts upon, or that break a line:
 * control bytes and DEL are shown as '?'. (Log lines and errors' sentences do so themselves.) */
#ifndef CRUN_COMMON_PRINTABLE_H
#define CRUN_COMMON_PRINTABLE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

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
