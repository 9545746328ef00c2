#include "launcher/place/hwloc_lib.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "common/base/err.h"

/* The name that the headers we were built with belong to. */
#if HWLOC_API_VERSION >> 16 == 2
#define SONAME "libhwloc.so.15"
#else
#error "hwloc 2 is needed (Debian: libhwloc-dev)"
#endif

static const struct {
    const char *name;
    size_t at;
} symbols[] = {
#define X(name) {#name, offsetof(struct hwloc_lib, name)},
    HWLOC_LIB_FUNCTIONS(X)
#undef X
};

const struct hwloc_lib *hwloc_lib(struct err *e)
{
    static struct hwloc_lib lib;
    static bool loaded;
    void *handle = loaded ? NULL : dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);
    if (loaded)
        return &lib;
    if (!handle) {
        err_set(e, -ENOENT, SONAME " is not installed or cannot be loaded (Debian: libhwloc15): %s", dlerror());
        return NULL;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *f = dlsym(handle, symbols[i].name);
        if (!f) {
            err_set(e, -ENOENT, SONAME " has no %s: expected hwloc 2", symbols[i].name);
            return NULL;
        }
        memcpy((char *)&lib + symbols[i].at, &f, sizeof f);
    }
    loaded = true;
    return &lib;
}
