/* Which engine with which knobs, as text: {"engine": 34, "knobs": [[2, 13], ...]}, or {"barred": why} where none of
 * them runs; and the cache of such texts on disk, a file a graph: DIR/<device> cuDNN <version>[
 * deterministic]/<graph>.json, written whole and renamed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/path.h"
#include "worker/device/cuda/dnn/dnn_impl.h"

enum { KNOBS_MAX = 64, PATH_BYTES = 1024 };

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
        cJSON_AddNumberToObject(o, "engine", (double)index);
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

int cudnn_choice_config(struct cudnn *d, struct cudnn_parts *b, cudnnBackendDescriptor_t graph, const char *choice,
                        cudnnBackendDescriptor_t *ret)
{
    cudnnBackendDescriptor_t all[KNOBS_MAX];
    int64_t index;
    int n;
    cJSON *o = cJSON_Parse(choice);
    int rc = o ? json_i64(o, "engine", &index, b->e) : err_set(b->e, ERR_CORRUPT, "a plan's choice is not JSON");
    if (rc < 0) {
        cJSON_Delete(o);
        return rc;
    }
    cudnnBackendDescriptor_t engine = cudnn_make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnn_set(b, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    cudnn_set(b, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    cudnn_set(b, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d->props);
    cudnn_seal(b, engine);
    make_knobs(b, cJSON_GetObjectItem(o, "knobs"), all, &n);
    cudnnBackendDescriptor_t config = cudnn_make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    cudnn_set(b, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    if (n > 0)
        cudnn_set(b, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, all);
    cudnn_seal(b, config);
    cJSON_Delete(o);
    if (b->rc == 0)
        *ret = config;
    return b->rc;
}

char *cudnn_choice_barred(const char *why)
{
    cJSON *o = cJSON_CreateObject();
    char *text = cJSON_AddStringToObject(o, "barred", why) ? cJSON_PrintUnformatted(o) : NULL;
    cJSON_Delete(o);
    return text;
}

char *cudnn_choice_why_barred(const char *choice)
{
    cJSON *o = cJSON_Parse(choice);
    const char *why = cJSON_GetStringValue(cJSON_GetObjectItem(o, "barred"));
    char *r = why ? strdup(why) : NULL;
    cJSON_Delete(o);
    return r;
}

/* The path of a graph's file; dir too, if not NULL. */
static void cache_path(const struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, char *dir, char *file)
{
    char graph[128];
    cudnn_describe(p, s, graph, sizeof graph);
    for (char *c = graph; *c; c++)
        if (*c == '/')
            *c = ':';
    snprintf(dir, PATH_BYTES, "%s/%s cuDNN %zu%s", d->cache_dir, d->device, cudnnGetVersion(),
             d->o.deterministic ? " deterministic" : "");
    snprintf(file, PATH_BYTES + 160, "%s/%s.json", dir, graph);
}

int cudnn_cache_get(struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s, char **ret)
{
    char dir[PATH_BYTES], file[PATH_BYTES + 160];
    cJSON *o;
    struct err e;
    if (!d->cache_dir)
        return -ENOENT;
    cache_path(d, p, s, dir, file);
    int rc = json_read_file(file, 1 << 16, &o, &e);
    if (rc < 0) {
        if (rc != -ENOENT && rc != -ENOTDIR)
            log_warn("cudnn", "%s; the plan is chosen anew", e.text);
        return -ENOENT;
    }
    *ret = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return *ret ? 0 : -ENOENT;
}

static int write_file(const struct cudnn *d, const struct cudnn_plan *p, double us, struct err *e)
{
    char dir[PATH_BYTES], file[PATH_BYTES + 160], part[PATH_BYTES + 192];
    cache_path(d, p->pattern, &p->shape, dir, file);
    TRY(path_make_dirs(dir, e));
    snprintf(part, sizeof part, "%s.%d", file, (int)getpid());
    cJSON *o = cJSON_Parse(p->choice);
    cJSON_AddNumberToObject(o, "us", us);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    FILE *f = text ? fopen(part, "we") : NULL;
    bool written = f && fprintf(f, "%s\n", text) > 0;
    if (f && fclose(f) != 0)
        written = false;
    free(text);
    if (written && rename(part, file) == 0)
        return 0;
    int code = errno;
    if (f)
        unlink(part);
    return err_errno(e, code, "write %s", file);
}

void cudnn_cache_put(struct cudnn *d, const struct cudnn_plan *p, double us)
{
    struct err e;
    if (!d->cache_dir || d->unwritable || write_file(d, p, us, &e) == 0)
        return;
    d->unwritable = true;
    log_warn("cudnn", "--plan-cache: %s; what is chosen in this run is not kept", e.text);
}
