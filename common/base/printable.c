#include "common/base/printable.h"

#include <string.h>

void printable_make(char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        text[i] = printable_byte(text[i]);
}

const char *printable(const char *text, char *out, size_t cap)
{
    const size_t n = strnlen(text, cap - 1);
    memcpy(out, text, n);
    out[n] = '\0';
    printable_make(out, n);
    return out;
}

void printable_vline(FILE *f, const char *fmt, va_list ap)
{
    char line[16384];
    vsnprintf(line, sizeof line, fmt, ap);
    printable_make(line, strlen(line));
    fprintf(f, "%s\n", line);
}

void printable_line(FILE *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printable_vline(f, fmt, ap);
    va_end(ap);
}
