/* Makes, chooses and runs cuDNN's plans of convolutions and attention. */
#include "worker/device/cuda/dnn/dnn.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/json/json.h"
#include "worker/device/cuda/dnn/dnn_impl.h"

enum { CONFIGS_MAX = 64 };

static const char *const names[] = {
#define X(id, name, slots, half) name,
    DNN_PATTERNS(X)
#undef X
};
static const int slots[] = {
#define X(id, name, n, half) n,
    DNN_PATTERNS(X)
#undef X
};
static const bool half_only[] = {
#define X(id, name, n, half) half,
    DNN_PATTERNS(X)
#undef X
};

const char *cudnn_pattern_name(enum cudnn_pattern p)
{
    return names[p];
}

int cudnn_pattern_slots(enum cudnn_pattern p)
{
    return slots[p];
}

bool cudnn_pattern_fused(enum cudnn_pattern p)
{
    return half_only[p] || cudnn_pattern_attention(p);
}

void cudnn_describe(enum cudnn_pattern p, const struct cudnn_shape *s, char *out, size_t cap)
{
    char move[64], groups[16] = "";
    if (cudnn_pattern_product(p)) {
        snprintf(out, cap, "%s n%d c%d k%d %s %s %s", names[p], s->n, s->c, s->k,
                 s->type == DT_F32 && s->tf32 ? "TF32" : dtype_name(s->type), s->add ? "added to" : "to",
                 dtype_name(s->out));
        return;
    }
    if (cudnn_pattern_attention(p)) {
        snprintf(out, cap, "%s n%d h%d/%d t%d d%d %s%s", names[p], s->n, s->k, s->groups, s->h, s->c,
                 s->causal ? "causal " : "", dtype_name(s->type));
        return;
    }
    if (s->stride[0] == s->stride[1] && s->pad[0] == s->pad[1])
        snprintf(move, sizeof move, "/%d+%d", s->stride[0], s->pad[0]);
    else
        snprintf(move, sizeof move, "/%dx%d+%dx%d", s->stride[0], s->stride[1], s->pad[0], s->pad[1]);
    if (s->groups > 1)
        snprintf(groups, sizeof groups, " g%d", s->groups);
    snprintf(out, cap, "%s n%d c%d %dx%d k%d%s %dx%d%s %s %s", names[p], s->n, s->c, s->h, s->w, s->k, groups, s->r,
             s->s, move, s->type == DT_F32 && s->tf32 ? "TF32" : dtype_name(s->type), s->nhwc ? "nhwc" : "nchw");
}

static int open_properties(struct cudnn *d, int index, struct err *e)
{
    struct cudnn_parts *b = &d->parts;
    b->e = e;
    b->what = "device properties";
    d->props = cudnn_make(b, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    if (d->o.props_json) {
        const int64_t n = (int64_t)strlen(d->o.props_json) + 1;
        cudnn_set(b, d->props, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n, d->o.props_json);
    } else {
        const int32_t id = index;
        cudnn_set(b, d->props, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &id);
    }
    cudnn_seal(b, d->props);
    return b->rc;
}

/* The device's properties as cuDNN writes them. */
static int read_properties(struct cudnn *d, char **ret, struct err *e)
{
    int64_t n = 0, got = 0;
    cudnnStatus_t rc =
        cudnnBackendGetAttribute(d->props, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, &n, NULL);
    char *text = rc == CUDNN_STATUS_SUCCESS ? calloc(1, (size_t)n + 1) : NULL;
    if (rc == CUDNN_STATUS_SUCCESS && !text)
        return err_set(e, -ENOMEM, "no memory for %lld bytes of device properties", (long long)n);
    if (text)
        rc = cudnnBackendGetAttribute(d->props, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n, &got,
                                      text);
    if (rc != CUDNN_STATUS_SUCCESS) {
        free(text);
        return cudnn_fail(e, rc, "device properties");
    }
    *ret = text;
    return 0;
}

/* Names the folder of the plan cache. */
static int read_device_name(struct cudnn *d, const char *json, struct err *e)
{
    const char *name;
    cJSON *o = cJSON_Parse(json);
    const cJSON *driver = o ? cJSON_GetObjectItem(o, "driverVer") : NULL;
    int rc = o ? json_str(o, "deviceName", &name, e) : err_set(e, ERR_CORRUPT, "device properties are not JSON");
    if (rc == 0)
        snprintf(d->device, sizeof d->device, "%.100s CUDA %zu driver %d", name, cudnnGetCudartVersion(),
                 cJSON_IsNumber(driver) ? driver->valueint : 0);
    cJSON_Delete(o);
    return rc;
}

/* Plans of engines that are compiled at run time load NVRTC and let it go again, a quarter of a second each: held, it
 * is loaded once. Where it is not found by this name, nothing but time is lost. */
static void hold_compiler(void)
{
    char name[32];
    snprintf(name, sizeof name, "libnvrtc.so.%zu", cudnnGetCudartVersion() / 1000);
    void *l = dlopen(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (l)
        dlclose(l);
}

int cudnn_open(struct cudnn **ret, const struct cudnn_options *o, struct err *e)
{
    struct cudnn *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(e, -ENOMEM, "no memory for cuDNN");
    d->o = *o;
    d->trial = -1;
    d->cache_dir = o->cache_dir ? strdup(o->cache_dir) : NULL;
    hold_compiler();
    char *json = NULL;
    int rc = open_properties(d, o->index, e);
    if (rc == 0 && !o->props_json)
        rc = read_properties(d, &json, e);
    if (rc == 0)
        rc = read_device_name(d, json ? json : o->props_json, e);
    free(json);
    d->o.props_json = NULL; /* borrowed during this call only */
    if (rc < 0) {
        cudnn_close(d);
        return rc;
    }
    cudnn_trials_sweep(d);
    *ret = d;
    return 0;
}

void cudnn_plan_free(struct cudnn_plan *p)
{
    if (!p)
        return;
    cudnn_parts_close(&p->parts);
    free(p->choice);
    free(p->why);
    free(p);
}

void cudnn_close(struct cudnn *d)
{
    if (!d)
        return;
    while (d->plans) {
        struct cudnn_plan *p = d->plans;
        d->plans = p->next;
        cudnn_plan_free(p);
    }
    cudnn_trials_close(d);
    cudnn_parts_close(&d->parts);
    free(d->cache_dir);
    free(d);
}

bool cudnn_deterministic(const struct cudnn *d)
{
    return d->o.deterministic;
}

int cudnn_version(void)
{
    return (int)cudnnGetVersion();
}

int cudnn_properties(struct cudnn *d, char **ret, struct err *e)
{
    return read_properties(d, ret, e);
}

bool cudnn_same_graph(const struct cudnn_plan *p, enum cudnn_pattern pattern, const struct cudnn_shape *s)
{
    return p->pattern == pattern && cudnn_same_shape(&p->shape, s);
}

static bool has_note(const cudnnBackendNumericalNote_t *notes, int64_t n, cudnnBackendNumericalNote_t note)
{
    for (int64_t i = 0; i < n; i++)
        if (notes[i] == note)
            return true;
    return false;
}

/* May this engine compute what was asked for? Full sums in fp32, TF32 only where allowed, the same bits each time where
 * asked for. */
static bool engine_will_do(const struct cudnn *d, enum cudnn_pattern p, const struct cudnn_shape *s,
                           cudnnBackendDescriptor_t engine)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;
    if (cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                 CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes) != CUDNN_STATUS_SUCCESS)
        return false;
    if ((d->o.deterministic || p == DNN_SDPA_BWD) && has_note(notes, n, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC))
        return false;
    if (has_note(notes, n, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION))
        return false;
    if (s->type != DT_F32)
        return true;
    bool lower = has_note(notes, n, CUDNN_NUMERICAL_NOTE_TENSOR_CORE) ||
                 has_note(notes, n, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
    return s->tf32 || !lower;
}

/* Finalise a plan of an engine configuration that p->parts holds. */
int cudnn_plan_finish(struct cudnn_plan *p, struct err *e)
{
    struct cudnn_parts *b = &p->parts;
    int64_t n = 0;
    b->e = e;
    p->plan = cudnn_make(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    cudnn_set(b, p->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &p->config);
    cudnn_set(b, p->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &p->d->props);
    cudnn_seal(b, p->plan);
    if (b->rc < 0)
        return b->rc;
    cudnnStatus_t rc = cudnnBackendGetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                                &n, &p->workspace);
    if (rc != CUDNN_STATUS_SUCCESS)
        return cudnn_fail(e, rc, b->what);
    if (p->d->o.workspace_limit && (size_t)p->workspace > p->d->o.workspace_limit)
        return err_set(e, -ENOTSUP, "%s wants %lld bytes of workspace, %zu are allowed", b->what,
                       (long long)p->workspace, p->d->o.workspace_limit);
    return cudnn_choice_read(p, e);
}

struct cudnn_plan *cudnn_plan_new(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s)
{
    struct cudnn_plan *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->d = d;
    p->pattern = pattern;
    p->shape = *s;
    cudnn_describe(pattern, s, p->graph, sizeof p->graph);
    p->parts.what = p->graph;
    return p;
}

/* Engine configurations by one mode of the heuristics; they belong to the caller. */
static int ask_heuristics(struct cudnn *d, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                          cudnnBackendDescriptor_t *configs, int64_t *ret_n)
{
    struct cudnn_parts b = {.what = "heuristics"};
    int64_t n = 0;
    cudnnBackendDescriptor_t heur = cudnn_make(&b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnn_set(&b, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    cudnn_set(&b, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    cudnn_set(&b, heur, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d->props);
    cudnn_seal(&b, heur);
    int made = 0;
    while (b.rc == 0 && made < CONFIGS_MAX &&
           cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[made]) == CUDNN_STATUS_SUCCESS)
        made++;
    if (b.rc == 0 && cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made,
                                              &n, configs) != CUDNN_STATUS_SUCCESS)
        n = 0; /* this mode knows nothing of the graph */
    for (int i = n < made ? (int)n : made; i < made; i++)
        cudnnBackendDestroyDescriptor(configs[i]);
    cudnn_parts_close(&b);
    *ret_n = n < made ? n : made;
    return b.rc;
}

/* A plan of this configuration, which it takes over; NULL if it cannot be had or must not be used. */
static struct cudnn_plan *try_config(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s,
                                     cudnnBackendDescriptor_t config)
{
    int64_t n = 0;
    struct cudnn_plan *p = cudnn_plan_new(d, pattern, s);
    cudnnBackendDescriptor_t engine = p ? cudnn_make(&p->parts, CUDNN_BACKEND_ENGINE_DESCRIPTOR) : NULL;
    if (!engine) {
        cudnnBackendDestroyDescriptor(config);
        cudnn_plan_free(p);
        return NULL;
    }
    p->parts.all[p->parts.n++] = config;
    p->config = config;
    if (cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine) !=
            CUDNN_STATUS_SUCCESS ||
        !engine_will_do(d, pattern, s, engine) || cudnn_plan_finish(p, NULL) < 0 ||
        cudnn_choice_barred(d, pattern, s, p->choice)) {
        cudnn_plan_free(p);
        return NULL;
    }
    return p;
}

static int no_engine(enum cudnn_pattern pattern, const struct cudnn_shape *s, struct err *e)
{
    char text[128];
    cudnn_describe(pattern, s, text, sizeof text);
    return err_set(e, -ENOTSUP, "cuDNN %zu has no engine for %s", cudnnGetVersion(), text);
}

static bool may_have_engines(enum cudnn_pattern pattern, const struct cudnn_shape *s)
{
    if (cudnn_pattern_attention(pattern))
        return s->type != DT_F32;
    return !cudnn_pattern_product(pattern) && (!half_only[pattern] || (s->type == DT_F16 && s->nhwc));
}

static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK};

/* How many the heuristics would name: asked for none of them, they do not look whether one can run here. */
static int count_configs(struct cudnn *d, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode)
{
    struct cudnn_parts b = {.what = "heuristics"};
    int64_t n = 0;
    cudnnBackendDescriptor_t heur = cudnn_make(&b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnn_set(&b, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    cudnn_set(&b, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    cudnn_set(&b, heur, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d->props);
    cudnn_seal(&b, heur);
    if (b.rc < 0 || cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n,
                                             NULL) != CUDNN_STATUS_SUCCESS)
        n = 0;
    cudnn_parts_close(&b);
    return (int)n;
}

int cudnn_offers(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s, int *ret, struct err *e)
{
    char text[128];
    struct cudnn_parts b = {.e = e, .what = text};
    cudnnBackendDescriptor_t graph;
    cudnn_describe(pattern, s, text, sizeof text);
    *ret = 0;
    if (!may_have_engines(pattern, s))
        return 0;
    const int rc = cudnn_graph_build(&b, pattern, s, &graph);
    for (size_t m = 0; rc == 0 && m < sizeof modes / sizeof *modes; m++)
        *ret += count_configs(d, graph, modes[m]);
    cudnn_parts_close(&b);
    return rc;
}

int cudnn_candidates(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s, struct cudnn_plan **ret,
                     int cap, int *ret_n, struct err *e)
{
    char text[128];
    struct cudnn_parts b = {.e = e, .what = text};
    cudnnBackendDescriptor_t graph, configs[CONFIGS_MAX];
    int found = 0;
    cudnn_describe(pattern, s, text, sizeof text);
    if (!may_have_engines(pattern, s))
        return no_engine(pattern, s, e);
    int rc = cudnn_graph_build(&b, pattern, s, &graph);
    for (size_t m = 0; rc == 0 && m < sizeof modes / sizeof *modes && found < cap; m++) {
        int64_t n;
        if (modes[m] == CUDNN_HEUR_MODE_FALLBACK && found > 0)
            break; /* the last resort */
        if (ask_heuristics(d, graph, modes[m], configs, &n) < 0)
            continue;
        for (int64_t i = 0; i < n; i++) {
            if (found == cap) {
                cudnnBackendDestroyDescriptor(configs[i]);
                continue;
            }
            struct cudnn_plan *p = try_config(d, pattern, s, configs[i]);
            if (!p)
                continue;
            p->next = d->plans;
            d->plans = p;
            ret[found++] = p;
        }
    }
    cudnn_parts_close(&b);
    if (rc < 0)
        return rc;
    *ret_n = found;
    return found > 0 ? 0 : no_engine(pattern, s, e);
}

/* What was chosen elsewhere may have been chosen under other rules. */
int cudnn_plan_check(struct cudnn_plan *p, struct err *e)
{
    int64_t n = 0;
    struct cudnn_parts b = {.e = e, .what = p->graph};
    cudnnBackendDescriptor_t engine = cudnn_make(&b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (b.rc == 0 && (cudnnBackendGetAttribute(p->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                               &n, &engine) != CUDNN_STATUS_SUCCESS ||
                      !engine_will_do(p->d, p->pattern, &p->shape, engine)))
        b.rc = err_set(e, -ENOTSUP, "%s for %s is not deterministic or not precise enough for this run", p->name,
                       p->graph);
    cudnn_parts_close(&b);
    return b.rc;
}
