/* Guesses which known word was meant by one that was mistyped. Pure. */
#ifndef CRUN_COMMON_NEAREST_H
#define CRUN_COMMON_NEAREST_H

#include <stddef.h>

struct nearest {
    const char *typed; /* n bytes */
    size_t n, limit;
    const char *word; /* the nearest so far; NULL: none is near enough for a guess */
};

/* typed and the words are borrowed. A word of more than 64 bytes is never near. */
void nearest_begin(struct nearest *s, const char *typed, size_t n);
void nearest_try(struct nearest *s, const char *word);

#endif
