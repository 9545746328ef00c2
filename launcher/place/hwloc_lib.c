/* Loads hwloc (hwloc_lib.h). */
#include "launcher/place/hwloc_lib.h"

#include "common/base/shared_lib.h"

/* The library's name that fits the headers at build time. */
#if HWLOC_API_VERSION >> 16 == 2
#define SONAME "libhwloc.so.15"
#else
#error "hwloc 2 is needed (Debian: libhwloc-dev)"
#endif

static const struct lib_symbol symbols[] = {
#define X(name) {#name, offsetof(struct hwloc_lib, name)},
    HWLOC_LIB_FUNCTIONS(X)
#undef X
};

const struct hwloc_lib *hwloc_lib(struct err *e)
{
    static struct hwloc_lib functions;
    static struct shared_lib lib = SHARED_LIB(SONAME, " (Debian: libhwloc15)", "hwloc 2", symbols, &functions);
    return shared_lib_open(&lib, e);
}
