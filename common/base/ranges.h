/* Numbers as text: "0-3,5". Pure. */
#ifndef CRUN_COMMON_RANGES_H
#define CRUN_COMMON_RANGES_H

#include <stddef.h>

/* Begins as {.out = memory, .cap = its bytes}, with out[0] = 0. */
struct ranges {
    char *out; /* cut short if cap is too small */
    size_t cap, len;
    size_t at; /* where the last range stands */
    int first, last;
};

void ranges_add(struct ranges *r, int number); /* one that follows the last joins its range */

#endif
