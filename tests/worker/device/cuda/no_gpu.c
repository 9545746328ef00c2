/* gpu_open() of programs that bring a GPU of their own. */
#include <errno.h>

#include "common/base/err.h"
#include "worker/device/cuda/gpu/gpu.h"

int gpu_open(struct gpu **ret, int index, struct err *e)
{
    return err_set(e, -ENODEV, "no GPU is linked");
}
