/* The word that somebody may have meant who typed one that is not known. Pure. */
#ifndef CRUN_COMMON_NEAREST_H
#define CRUN_COMMON_NEAREST_H

#include <stddef.h>

struct nearest {
    const char *typed; /* n bytes */
    size_t n, limit;
    const char *word; /* the nearest so far, NULL: all are too far away for more than a guess */
};

/* typed and the words are borrowed. Words of more than 64 bytes are far from all others. */
void nearest_begin(struct nearest *s, const char *typed, size_t n);
void nearest_try(struct nearest *s, const char *word);

#endif
