/* Which engine with which knobs, as JSON: {"index": 34, "knobs": [[2, 13], ...]}. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/json/json.h"
#include "worker/device/cuda/dnn/dnn_impl.h"

enum { KNOBS_MAX = 64 };

static int knob(cudnnBackendDescriptor_t d, int64_t *type, int64_t *value)
{
    int64_t n;
    cudnnBackendKnobType_t t;
    if (cudnnBackendGetAttribute(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &n, &t) !=
            CUDNN_STATUS_SUCCESS ||
        cudnnBackendGetAttribute(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &n, value) !=
            CUDNN_STATUS_SUCCESS)
        return -EIO;
    *type = t;
    return 0;
}

static int knobs(struct cudnn_plan *p, cJSON *list, char *name, size_t cap)
{
    cudnnBackendDescriptor_t all[KNOBS_MAX];
    int made = 0, rc = 0;
    int64_t n = 0;
    while (made < KNOBS_MAX &&
           cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &all[made]) == CUDNN_STATUS_SUCCESS)
        made++;
    if (cudnnBackendGetAttribute(p->config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, made, &n,
                                 all) != CUDNN_STATUS_SUCCESS)
        rc = -EIO;
    for (int64_t i = 0; rc == 0 && i < n && i < made; i++) {
        int64_t type, value;
        rc = knob(all[i], &type, &value);
        if (rc < 0)
            break;
        cJSON *pair = cJSON_CreateArray();
        cJSON_AddItemToArray(pair, cJSON_CreateNumber((double)type));
        cJSON_AddItemToArray(pair, cJSON_CreateNumber((double)value));
        cJSON_AddItemToArray(list, pair);
        size_t used = strlen(name);
        snprintf(name + used, cap - used, "%sk%lld=%lld", i ? "," : "{", (long long)type, (long long)value);
    }
    while (made > 0)
        cudnnBackendDestroyDescriptor(all[--made]);
    return rc;
}

int cudnn_choice_read(struct cudnn_plan *p, struct err *e)
{
    int64_t index = -1, n = 0;
    struct cudnn_parts b = {.e = e, .what = p->graph};
    cudnnBackendDescriptor_t engine = cudnn_make(&b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cJSON *o = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(o, "knobs");
    if (b.rc == 0 && (!list ||
                      cudnnBackendGetAttribute(p->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                               &n, &engine) != CUDNN_STATUS_SUCCESS ||
                      cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n,
                                               &index) != CUDNN_STATUS_SUCCESS))
        b.rc = err_set(e, -EIO, "cuDNN: %s: the engine cannot be read", p->graph);
    if (b.rc == 0) {
        cJSON_AddNumberToObject(o, "index", (double)index);
        snprintf(p->name, sizeof p->name - 2, "eng%lld", (long long)index);
        b.rc = knobs(p, list, p->name, sizeof p->name - 2);
        if (strchr(p->name, '{'))
            strcat(p->name, "}");
        if (b.rc < 0)
            err_set(e, b.rc, "cuDNN: %s: the engine's knobs cannot be read", p->graph);
    }
    if (b.rc == 0 && !(p->choice = cJSON_PrintUnformatted(o)))
        b.rc = err_set(e, -ENOMEM, "no memory for a plan");
    cJSON_Delete(o);
    cudnn_parts_close(&b);
    return b.rc;
}

static void make_knobs(struct cudnn_parts *b, const cJSON *list, cudnnBackendDescriptor_t *all, int *ret_n)
{
    const cJSON *pair;
    *ret_n = 0;
    cJSON_ArrayForEach(pair, list)
    {
        const cJSON *type = cJSON_GetArrayItem(pair, 0), *value = cJSON_GetArrayItem(pair, 1);
        if (*ret_n == KNOBS_MAX / 2 || !cJSON_IsNumber(type) || !cJSON_IsNumber(value)) {
            if (b->rc == 0)
                b->rc = err_set(b->e, ERR_CORRUPT, "a plan's knobs are not pairs of numbers");
            return;
        }
        const cudnnBackendKnobType_t t = (cudnnBackendKnobType_t)type->valueint;
        const int64_t v = (int64_t)value->valuedouble;
        cudnnBackendDescriptor_t d = cudnn_make(b, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        cudnn_set(b, d, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &t);
        cudnn_set(b, d, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &v);
        cudnn_seal(b, d);
        all[(*ret_n)++] = d;
    }
}

int cudnn_choice_config(struct cudnn *d, struct cudnn_parts *b, cudnnBackendDescriptor_t graph, const cJSON *choice,
                        cudnnBackendDescriptor_t *ret)
{
    cudnnBackendDescriptor_t all[KNOBS_MAX];
    int64_t index;
    int n;
    TRY(json_i64(choice, "index", &index, b->e));
    cudnnBackendDescriptor_t engine = cudnn_make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnn_set(b, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    cudnn_set(b, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    cudnn_set(b, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d->props);
    cudnn_seal(b, engine);
    make_knobs(b, cJSON_GetObjectItem(choice, "knobs"), all, &n);
    cudnnBackendDescriptor_t config = cudnn_make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    cudnn_set(b, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    if (n > 0)
        cudnn_set(b, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, all);
    cudnn_seal(b, config);
    if (b->rc == 0)
        *ret = config;
    return b->rc;
}
