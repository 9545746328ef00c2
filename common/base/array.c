#include "common/base/array.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int array_reserve(void *array, size_t *cap, size_t need, size_t size)
{
    void *v;
    size_t more = *cap ? *cap : 8;
    if (need <= *cap)
        return 0;
    while (more < need)
        more *= 2;
    memcpy(&v, array, sizeof v);
    v = reallocarray(v, more, size);
    if (!v)
        return -ENOMEM;
    memcpy(array, &v, sizeof v);
    *cap = more;
    return 0;
}
