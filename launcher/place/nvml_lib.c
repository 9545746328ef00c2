/* Loads NVIDIA's management library (nvml_lib.h). */
#include "launcher/place/nvml_lib.h"

#include <errno.h>

#include "common/base/err.h"
#include "common/base/shared_lib.h"

static const struct lib_symbol symbols[] = {
#define X(name, args) {#name, offsetof(struct nvml_lib, name)},
    NVML_LIB_FUNCTIONS(X)
#undef X
};

const struct nvml_lib *nvml_lib(struct err *e)
{
    static struct nvml_lib functions;
    static struct shared_lib lib =
        SHARED_LIB("libnvidia-ml.so.1", " (NVIDIA driver)", "a newer NVIDIA driver", symbols, &functions);
    static bool initialised;
    if (initialised || !shared_lib_open(&lib, e))
        return initialised ? &functions : NULL;
    const int rc = functions.nvmlInit_v2();
    initialised = rc == NVML_SUCCESS;
    if (!initialised)
        err_set(e, -ENODEV, "the NVIDIA driver does not answer (NVML error %d)", rc);
    return initialised ? &functions : NULL;
}
