#include "launcher/place/nvml_lib.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "common/base/err.h"

#define SONAME "libnvidia-ml.so.1"

static const struct {
    const char *name;
    size_t at;
} symbols[] = {
#define X(name, args) {#name, offsetof(struct nvml_lib, name)},
    NVML_LIB_FUNCTIONS(X)
#undef X
};

static int open_library(struct nvml_lib *l, struct err *e)
{
    void *lib = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(e, -ENOENT, SONAME " of the NVIDIA driver is not installed or cannot be loaded: %s", dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *f = dlsym(lib, symbols[i].name);
        if (!f)
            return err_set(e, -ENOENT, SONAME " has no %s: expected a newer NVIDIA driver", symbols[i].name);
        memcpy((char *)l + symbols[i].at, &f, sizeof f);
    }
    int rc = l->nvmlInit_v2();
    return rc == NVML_SUCCESS ? 0 : err_set(e, -ENODEV, "the NVIDIA driver does not answer (NVML error %d)", rc);
}

const struct nvml_lib *nvml_lib(struct err *e)
{
    static struct nvml_lib lib;
    static bool loaded;
    if (!loaded)
        loaded = open_library(&lib, e) == 0;
    return loaded ? &lib : NULL;
}
