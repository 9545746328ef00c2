/* For programs that plan over the fake GPU without cuDNN: the device's doors to the real libraries, shut. Nothing calls
 * them but cuda_open(). */
#include <errno.h>

#include "common/base/err.h"
#include "worker/device/cuda/dnn/dnn.h"
#include "worker/device/cuda/gpu/gpu.h"

static const char *const names[] = {
#define X(id, name, slots, half) name,
    DNN_PATTERNS(X)
#undef X
};

int cudnn_open(struct cudnn **ret, const struct cudnn_options *o, struct err *e)
{
    return err_set(e, -ENODEV, "cuDNN is not linked");
}

void cudnn_close(struct cudnn *d)
{
}

int cudnn_find(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, struct cudnn_plan **ret,
               struct err *e)
{
    return err_set(e, -ENOTSUP, "cuDNN is not linked");
}

int cudnn_candidates(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, struct cudnn_plan **ret,
                     int cap, int *ret_n, struct err *e)
{
    return err_set(e, -ENOTSUP, "cuDNN is not linked");
}

int cudnn_product_candidate(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s,
                            const struct dnn_algo *a, struct cudnn_plan **ret, struct err *e)
{
    return err_set(e, -ENOTSUP, "cuDNN is not linked");
}

void cudnn_choose(struct cudnn *d, struct cudnn_plan *p, double us)
{
}

int cudnn_export(const struct cudnn *d, char **ret, struct err *e)
{
    return err_set(e, -ENOTSUP, "cuDNN is not linked");
}

int cudnn_import(struct cudnn *d, const char *json, struct err *e)
{
    return err_set(e, -ENOTSUP, "cuDNN is not linked");
}

int cudnn_version(void)
{
    return 0;
}

bool cudnn_deterministic(const struct cudnn *d)
{
    return false;
}

bool cudnn_plan_measured(const struct cudnn_plan *p)
{
    return true;
}

bool cudnn_plan_ran(const struct cudnn_plan *p)
{
    return true;
}

void cudnn_plan_set_ran(struct cudnn_plan *p)
{
}

int cudnn_bar(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, bool slower, const char *why,
              bool lasting, struct err *e)
{
    return err_set(e, -ENOTSUP, "cuDNN is not linked");
}

void cudnn_bar_engine(struct cudnn *d, struct cudnn_plan *p, const char *why, bool lasting)
{
}

void cudnn_settle(struct cudnn *d, struct cudnn_plan *p)
{
}

bool cudnn_plan_settled(const struct cudnn_plan *p)
{
    return true;
}

bool cudnn_same_shape(const struct cudnn_shape *x, const struct cudnn_shape *y)
{
    return false;
}

bool cudnn_plan_kept(const struct cudnn_plan *p)
{
    return true;
}

void cudnn_trial_begin(struct cudnn *d, const struct cudnn_plan *p)
{
}

void cudnn_trial_end(struct cudnn *d)
{
}

bool cudnn_pattern_fused(enum cudnn_pattern p)
{
    return false;
}

void cudnn_describe(enum cudnn_pattern p, const struct cudnn_shape *s, char *out, size_t cap)
{
    out[0] = '\0';
}

const char *cudnn_plan_name(const struct cudnn_plan *p)
{
    return "";
}

size_t cudnn_plan_workspace(const struct cudnn_plan *p)
{
    return 0;
}

const char *cudnn_pattern_name(enum cudnn_pattern p)
{
    return names[p];
}
