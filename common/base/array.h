/* Arrays that double. array: the address of the pointer to the first element (NULL: none yet); cap: number of
 * elements that there is room for; need: number that is needed. On -ENOMEM nothing has changed. */
#ifndef CRUN_COMMON_ARRAY_H
#define CRUN_COMMON_ARRAY_H

#include <stddef.h>

struct err;

/* Elements of `size` bytes, from malloc. 0; -ENOMEM. */
int array_reserve(void *array, size_t *cap, size_t need, size_t size);
/* The same, with a message: "no memory for 128 <what>". e may be NULL. */
int array_grow(void *array, size_t *cap, size_t need, size_t size, const char *what, struct err *e);

/* v: pointer to the first element; cap: a size_t. */
#define ARRAY_RESERVE(v, cap, need) array_reserve(&(v), &(cap), need, sizeof *(v))
#define ARRAY_GROW(v, cap, need, what, e) array_grow(&(v), &(cap), need, sizeof *(v), what, e)

#endif
