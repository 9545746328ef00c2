/* Arrays on the heap that grow by doubling. */
#ifndef CRUN_COMMON_ARRAY_H
#define CRUN_COMMON_ARRAY_H

#include <stddef.h>

/* Room for `need` elements of `size` bytes. array: address of the pointer to the first, NULL for none yet; cap: how
 * many there is room for. 0; -ENOMEM, and nothing has changed. */
int array_reserve(void *array, size_t *cap, size_t need, size_t size);

/* v: pointer to the first element; cap: a size_t. */
#define ARRAY_RESERVE(v, cap, need) array_reserve(&(v), &(cap), need, sizeof *(v))

#endif
