/* For programs that plan over the fake GPU without cuDNN: the device's doors to the real libraries, shut. Nothing calls them but cuda_open(). */
#include <errno.h>

#include "common/err.h"
#include "worker/device/cuda/dnn.h"
#include "worker/device/cuda/gpu.h"

static const char *const names[] = {
#define X(id, name, slots, half) name,
    DNN_PATTERNS(X)
#undef X
};

int dnn_open(struct dnn **ret, const struct dnn_options *o, struct err *e)
{
    return err_set(e, -ENODEV, "cuDNN is not linked");
}

void dnn_close(struct dnn *d)
{
}

int dnn_find(struct dnn *d, enum dnn_pattern p, const struct dnn_shape *s, struct dnn_plan **ret, struct err *e)
{
    return err_set(e, -ENOTSUP, "cuDNN is not linked");
}

int dnn_candidates(struct dnn *d, enum dnn_pattern p, const struct dnn_shape *s, struct dnn_plan **ret, int cap,
                   int *ret_n, struct err *e)
{
    return err_set(e, -ENOTSUP, "cuDNN is not linked");
}

int dnn_choose(struct dnn *d, struct dnn_plan *p, double us, struct err *e)
{
    return err_set(e, -ENOTSUP, "cuDNN is not linked");
}

int dnn_export(const struct dnn *d, char **ret, struct err *e)
{
    return err_set(e, -ENOTSUP, "cuDNN is not linked");
}

int dnn_import(struct dnn *d, const char *json, struct err *e)
{
    return err_set(e, -ENOTSUP, "cuDNN is not linked");
}

bool dnn_plan_measured(const struct dnn_plan *p)
{
    return true;
}

size_t dnn_plan_workspace(const struct dnn_plan *p)
{
    return 0;
}

const char *dnn_pattern_name(enum dnn_pattern p)
{
    return names[p];
}
