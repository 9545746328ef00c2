/* Grows an array (array.h). */
#include "common/base/array.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

#define FIRST 8

int array_reserve(void *array, size_t *cap, size_t need, size_t size)
{
    void *v;
    size_t more = *cap ? *cap : FIRST;
    if (need <= *cap)
        return 0;
    while (more < need && more <= SIZE_MAX / 2)
        more *= 2;
    memcpy(&v, array, sizeof v); /* *array may be a pointer of any type */
    v = more >= need ? reallocarray(v, more, size) : NULL;
    if (!v)
        return -ENOMEM;
    memcpy(array, &v, sizeof v);
    *cap = more;
    return 0;
}

int array_grow(void *array, size_t *cap, size_t need, size_t size, const char *what, struct err *e)
{
    if (array_reserve(array, cap, need, size) < 0)
        return err_set(e, -ENOMEM, "no memory for %zu %s", need, what);
    return 0;
}
