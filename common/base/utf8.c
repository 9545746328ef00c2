/* Checks and repairs UTF-8 (utf8.h). */
#include "common/base/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

size_t utf8_len(const char *text)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t least; /* smaller values are overlong forms */
    } forms[] = {{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    const unsigned char *s = (const unsigned char *)text;
    for (size_t n = 0; n < sizeof forms / sizeof *forms; n++) {
        if ((s[0] & forms[n].mask) != forms[n].lead)
            continue;
        uint32_t code = s[0] & (unsigned char)~forms[n].mask;
        for (size_t i = 1; i <= n; i++) {
            if ((s[i] & 0xc0) != 0x80) /* also ends at the NUL */
                return 0;
            code = code << 6 | (s[i] & 0x3f);
        }
        bool surrogate = code >= 0xd800 && code < 0xe000;
        return code < forms[n].least || code > 0x10ffff || surrogate ? 0 : n + 1;
    }
    return 0;
}

void utf8_clean(char *text)
{
    while (*text) {
        const size_t n = utf8_len(text);
        if (n == 0)
            *text = '?';
        text += n ? n : 1;
    }
}

void utf8_copy(char *out, size_t cap, const char *text)
{
    const size_t n = strlen(text);
    size_t keep = n < cap ? n : cap - sizeof "...";
    while (n >= cap && keep > 0 && (text[keep] & 0xc0) == 0x80) /* within a character */
        keep--;
    memcpy(out, text, keep);
    memcpy(out + keep, "...", n < cap ? 0 : 3);
    out[keep + (n < cap ? 0 : 3)] = '\0';
}

char *utf8_replaced(const char *text)
{
    static const char mark[] = "\xef\xbf\xbd";
    char *copy = malloc((sizeof mark - 1) * strlen(text) + 1), *to = copy;
    while (copy && *text) {
        const size_t n = utf8_len(text), add = n ? n : sizeof mark - 1;
        memcpy(to, n ? text : mark, add);
        to += add;
        text += n ? n : 1;
    }
    if (copy)
        *to = '\0';
    return copy;
}

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
