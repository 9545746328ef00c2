/* What was chosen for a graph, as a record: a checkpoint has a list of them, so that a resumed run takes the same
 * engines and so gives the same bits (docs/decisions/0006); the cache on disk a file for each: DIR/<device> cuDNN
 * <version>[ deterministic] v<CACHE_VERSION>/<graph>.json, written whole and renamed.
 *
 *     {"graph": "conv n256 c64 ...", "pattern": 0, "measured": true, "us": 41.5,
 *      "shape": [n, c, h, w, k, r, s, sh, sw, ph, pw, type, nhwc, tf32],
 *      "choice": {"engine": 34, "knobs": [[2, 13], ...]}}        or {"barred": why}: no engine runs */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/path.h"
#include "common/json/json.h"
#include "worker/device/cuda/dnn/dnn_impl.h"

enum { CACHE_VERSION = 2, SHAPE_NUMBERS = 14, LARGEST = 1 << 24, PATH_BYTES = 1024 };

/* TF32 is a matter of F32 alone. */
static void shape_numbers(const struct cudnn_shape *s, int out[SHAPE_NUMBERS])
{
    const int v[SHAPE_NUMBERS] = {
        s->n,         s->c,         s->h,      s->w,      s->k,         s->r,    s->s,
        s->stride[0], s->stride[1], s->pad[0], s->pad[1], (int)s->type, s->nhwc, s->tf32 && s->type == DT_F32};
    memcpy(out, v, sizeof v);
}

bool cudnn_same_shape(const struct cudnn_shape *x, const struct cudnn_shape *y)
{
    int a[SHAPE_NUMBERS], b[SHAPE_NUMBERS];
    shape_numbers(x, a);
    shape_numbers(y, b);
    return memcmp(a, b, sizeof a) == 0;
}

/* Sizes and strides from 1, padding from 0, a filter no larger than what it slides over, a type that exists. */
static int check_numbers(const int *v, struct err *e)
{
    bool good = v[9] >= 0 && v[10] >= 0 && v[9] < LARGEST && v[10] < LARGEST &&
                (v[11] == DT_F32 || v[11] == DT_F16 || v[11] == DT_BF16);
    for (int i = 0; i < 9; i++)
        good = good && v[i] > 0 && v[i] < LARGEST;
    if (!good || v[5] > v[2] + 2 * v[9] || v[6] > v[3] + 2 * v[10])
        return err_set(e, ERR_CORRUPT, "a plan's shape is that of no convolution");
    return 0;
}

static int shape_read(const cJSON *list, struct cudnn_shape *ret, struct err *e)
{
    int v[SHAPE_NUMBERS];
    if (cJSON_GetArraySize(list) != SHAPE_NUMBERS)
        return err_set(e, ERR_CORRUPT, "a plan's shape has %d numbers (expected %d)", cJSON_GetArraySize(list),
                       SHAPE_NUMBERS);
    for (int i = 0; i < SHAPE_NUMBERS; i++)
        v[i] = cJSON_GetArrayItem(list, i)->valueint; /* 0 where it is no number */
    TRY(check_numbers(v, e));
    *ret = (struct cudnn_shape){.n = v[0],
                                .c = v[1],
                                .h = v[2],
                                .w = v[3],
                                .k = v[4],
                                .r = v[5],
                                .s = v[6],
                                .stride = {v[7], v[8]},
                                .pad = {v[9], v[10]},
                                .type = (enum dtype)v[11],
                                .nhwc = v[12] != 0,
                                .tf32 = v[13] != 0};
    return 0;
}

static cJSON *record_make(const struct cudnn_plan *p)
{
    int shape[SHAPE_NUMBERS];
    cJSON *o = cJSON_CreateObject();
    shape_numbers(&p->shape, shape);
    cJSON_AddStringToObject(o, "graph", p->graph);
    cJSON_AddNumberToObject(o, "pattern", p->pattern);
    cJSON_AddItemToObject(o, "shape", cJSON_CreateIntArray(shape, SHAPE_NUMBERS));
    cJSON_AddBoolToObject(o, "measured", cudnn_plan_measured(p));
    cJSON_AddNumberToObject(o, "us", p->us);
    if (p->state == DNN_BARRED)
        cJSON_AddStringToObject(cJSON_AddObjectToObject(o, "choice"), "barred", p->barred);
    else
        cJSON_AddRawToObject(o, "choice", p->choice);
    return o;
}

struct record {
    const char *graph;
    enum cudnn_pattern pattern;
    struct cudnn_shape shape;
    const cJSON *choice;
    bool measured;
    double us;
};

static int record_read(const cJSON *o, struct record *r, struct err *e)
{
    int64_t pattern;
    *r = (struct record){.choice = cJSON_GetObjectItem(o, "choice"),
                         .measured = cJSON_IsTrue(cJSON_GetObjectItem(o, "measured"))};
    TRY(json_str(o, "graph", &r->graph, e));
    TRY(json_i64(o, "pattern", &pattern, e));
    if (pattern < 0 || pattern >= DNN_PATTERN_COUNT)
        return err_set(e, ERR_CORRUPT, "a plan's pattern is %lld (expected 0 to %d)", (long long)pattern,
                       DNN_PATTERN_COUNT - 1);
    r->pattern = (enum cudnn_pattern)pattern;
    TRY(shape_read(cJSON_GetObjectItem(o, "shape"), &r->shape, e));
    json_f64(o, "us", &r->us, NULL); /* older ones have none */
    return r->choice ? 0 : err_set(e, ERR_CORRUPT, "the plan of %s has no choice", r->graph);
}

static int record_take(struct cudnn *d, const struct record *r, struct err *e)
{
    const char *why;
    int rc = json_str(r->choice, "barred", &why, NULL) == 0
                 ? cudnn_bar(d, r->pattern, &r->shape, why, false, e)
                 : cudnn_adopt(d, r->pattern, &r->shape, r->choice, r->measured, r->us, e);
    return rc < 0 ? err_wrap(e, "%s", r->graph) : 0;
}
int cudnn_export(const struct cudnn *d, char **ret, struct err *e)
{
    cJSON *all = cJSON_CreateArray();
    for (const struct cudnn_plan *p = d->plans; p; p = p->next)
        if (p->state != DNN_CANDIDATE)
            cJSON_AddItemToArray(all, record_make(p));
    *ret = cJSON_PrintUnformatted(all);
    cJSON_Delete(all);
    return *ret ? 0 : err_set(e, -ENOMEM, "no memory for the list of plans");
}

int cudnn_import(struct cudnn *d, const char *json, struct err *e)
{
    cJSON *all = cJSON_Parse(json);
    const cJSON *o;
    struct record r;
    int rc = cJSON_IsArray(all) ? 0 : err_set(e, ERR_CORRUPT, "a list of plans is not a JSON array");
    cJSON_ArrayForEach(o, all)
    {
        if (rc == 0)
            rc = record_read(o, &r, e);
        if (rc == 0)
            rc = record_take(d, &r, e);
    }
    cJSON_Delete(all);
    return rc;
}

/* --- the cache */

/* The folder of this device, and a graph's file in it. */
static void cache_path(const struct cudnn *d, const char *graph, char dir[PATH_BYTES], char file[PATH_BYTES + 160])
{
    snprintf(dir, PATH_BYTES, "%s/%s cuDNN %zu%s v%d", d->cache_dir, d->device, cudnnGetVersion(),
             d->o.deterministic ? " deterministic" : "", CACHE_VERSION);
    const int used = snprintf(file, PATH_BYTES + 160, "%s/%s.json", dir, graph);
    for (char *c = file + strlen(dir) + 1; c < file + used && *c; c++)
        if (*c == '/')
            *c = ':';
}

static int read_file(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s, struct err *e)
{
    char graph[128], dir[PATH_BYTES], file[PATH_BYTES + 160];
    struct record r;
    cJSON *o;
    cudnn_describe(pattern, s, graph, sizeof graph);
    cache_path(d, graph, dir, file);
    TRY(json_read_file(file, 1 << 16, &o, e));
    int rc = record_read(o, &r, e);
    if (rc == 0 && (r.pattern != pattern || !cudnn_same_shape(&r.shape, s)))
        rc = err_set(e, ERR_MISMATCH, "%s is of another graph, %s", file, r.graph);
    if (rc == 0)
        rc = record_take(d, &r, e);
    cJSON_Delete(o);
    return rc;
}

void cudnn_cache_get(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s)
{
    struct err e;
    int rc = d->cache_dir ? read_file(d, pattern, s, &e) : 0;
    if (rc < 0 && rc != -ENOENT && rc != -ENOTDIR)
        log_warn("cudnn", "cached plan: %s; the plan is chosen anew", e.text);
}

static int write_file(const struct cudnn *d, const struct cudnn_plan *p, struct err *e)
{
    char dir[PATH_BYTES], file[PATH_BYTES + 160], part[PATH_BYTES + 192];
    cache_path(d, p->graph, dir, file);
    TRY(path_make_dirs(dir, e));
    snprintf(part, sizeof part, "%s.%d", file, (int)getpid());
    cJSON *o = record_make(p);
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

void cudnn_cache_put(struct cudnn *d, const struct cudnn_plan *p)
{
    struct err e;
    if (!d->cache_dir || d->unwritable || write_file(d, p, &e) == 0)
        return;
    d->unwritable = true;
    log_warn("cudnn", "--plan-cache: %s; what is chosen in this run is not kept", e.text);
}
