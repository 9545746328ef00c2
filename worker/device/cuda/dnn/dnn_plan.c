/* A plan that has been made: what it is, and running it. */
#include "worker/device/cuda/dnn/dnn_impl.h"

#include "common/base/err.h"

enum cudnn_pattern cudnn_plan_pattern(const struct cudnn_plan *p)
{
    return p->pattern;
}

bool cudnn_plan_measured(const struct cudnn_plan *p)
{
    return p->state == DNN_TIMED || p->state == DNN_TIMED_RAN;
}

bool cudnn_plan_kept(const struct cudnn_plan *p)
{
    return p->kept || cudnn_plan_measured(p);
}

bool cudnn_plan_settled(const struct cudnn_plan *p)
{
    return p->settled;
}

double cudnn_plan_us(const struct cudnn_plan *p)
{
    return p->us;
}

bool cudnn_plan_ran(const struct cudnn_plan *p)
{
    return p->state == DNN_GUESSED_RAN || p->state == DNN_TIMED_RAN;
}

void cudnn_plan_set_ran(struct cudnn_plan *p)
{
    if (p->state == DNN_GUESSED)
        p->state = DNN_GUESSED_RAN;
    if (p->state == DNN_TIMED)
        p->state = DNN_TIMED_RAN;
}

size_t cudnn_plan_workspace(const struct cudnn_plan *p)
{
    return (size_t)p->workspace;
}

const char *cudnn_plan_name(const struct cudnn_plan *p)
{
    return p->name;
}

const char *cudnn_plan_choice(const struct cudnn_plan *p)
{
    return p->choice;
}

int cudnn_execute(struct cudnn_plan *p, void *handle, void *const *pointers, void *workspace)
{
    int64_t ids[DNN_BOUND_MAX];
    void *at[DNN_BOUND_MAX];
    int n = cudnn_pattern_slots(p->pattern);
    for (int i = 0; i < n; i++) {
        ids[i] = i + 1;
        at[i] = pointers[i];
    }
    if (cudnn_pattern_attention(p->pattern))
        n = cudnn_sdpa_bind(p, pointers, ids, at);
    struct cudnn_parts b = {.what = p->graph}; /* a pack for each call: one that is finalised takes no other pointers */
    cudnnBackendDescriptor_t pack = cudnn_make(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    cudnn_set(&b, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    cudnn_set(&b, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, at);
    cudnn_set(&b, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    cudnn_seal(&b, pack);
    const int status =
        b.rc < 0 ? (int)CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED : (int)cudnnBackendExecute(handle, p->plan, pack);
    cudnn_parts_close(&b);
    return status;
}

int cudnn_failed(const struct cudnn_plan *p, int status, struct err *e)
{
    cudnn_fail(e, (cudnnStatus_t)status, p->name);
    return err_wrap(e, "%s", p->graph);
}
