/* Checks and repairs text from outside that must be UTF-8. Pure. */
#ifndef CRUN_COMMON_UTF8_H
#define CRUN_COMMON_UTF8_H

#include <stddef.h>

/* Length of the well-formed character at s (NUL-terminated), 0 if it is none. */
size_t utf8_len(const char *s);

/* Bytes that are no UTF-8 become '?'. */
void utf8_clean(char *text);

/* Copy text, or as many whole characters of it as leave room for "..." at the end. cap: size of out, at least 4. */
void utf8_copy(char *out, size_t cap, const char *text);

/* A copy in which bytes that are not UTF-8 become U+FFFD, malloc'ed; NULL: no memory. */
char *utf8_replaced(const char *text);

#endif
