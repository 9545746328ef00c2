/* All chosen plans of a device as text, for a checkpoint: a resumed run takes the same engines and so gives the same
 * bits (docs/decisions/0006). [{"graph": "conv n256 c64 ...", "pattern": 0, "shape": [n, c, h, w, k, r, s, sh, sw, ph,
 * pw, type, nhwc, tf32], "measured": true, "choice": {...}}, ...] */
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/base/json.h"
#include "worker/device/cuda/dnn/dnn_impl.h"

enum { SHAPE_NUMBERS = 14, LARGEST = 1 << 24 };

static void shape_numbers(const struct cudnn_shape *s, int *out)
{
    const int v[SHAPE_NUMBERS] = {s->n,         s->c,         s->h,      s->w,      s->k,         s->r,    s->s,
                                  s->stride[0], s->stride[1], s->pad[0], s->pad[1], (int)s->type, s->nhwc, s->tf32};
    for (int i = 0; i < SHAPE_NUMBERS; i++)
        out[i] = v[i];
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

int cudnn_export(const struct cudnn *d, char **ret, struct err *e)
{
    cJSON *all = cJSON_CreateArray();
    for (const struct cudnn_plan *p = d->plans; p; p = p->next) {
        int shape[SHAPE_NUMBERS];
        if (!p->chosen)
            continue;
        cJSON *o = cJSON_CreateObject();
        shape_numbers(&p->shape, shape);
        cJSON_AddStringToObject(o, "graph", p->graph);
        cJSON_AddNumberToObject(o, "pattern", p->pattern);
        cJSON_AddItemToObject(o, "shape", cJSON_CreateIntArray(shape, SHAPE_NUMBERS));
        cJSON_AddBoolToObject(o, "measured", p->measured);
        cJSON_AddItemToObject(o, "choice", cJSON_Parse(p->choice));
        cJSON_AddItemToArray(all, o);
    }
    *ret = cJSON_PrintUnformatted(all);
    cJSON_Delete(all);
    return *ret ? 0 : err_set(e, -ENOMEM, "no memory for the list of plans");
}

static int import_one(struct cudnn *d, const cJSON *o, struct err *e)
{
    int64_t pattern;
    struct cudnn_shape s;
    const char *graph;
    TRY(json_str(o, "graph", &graph, e));
    TRY(json_i64(o, "pattern", &pattern, e));
    if (pattern < 0 || pattern >= DNN_PATTERN_COUNT)
        return err_set(e, ERR_CORRUPT, "a plan's pattern is %lld (expected 0 to %d)", (long long)pattern,
                       DNN_PATTERN_COUNT - 1);
    TRY(shape_read(cJSON_GetObjectItem(o, "shape"), &s, e));
    char *choice = cJSON_PrintUnformatted(cJSON_GetObjectItem(o, "choice"));
    int rc = choice ? cudnn_adopt(d, (enum cudnn_pattern)pattern, &s, choice, e)
                    : err_set(e, ERR_CORRUPT, "the plan of %s has no choice", graph);
    free(choice);
    if (rc == 0 && cJSON_IsTrue(cJSON_GetObjectItem(o, "measured")))
        cudnn_measured(d, (enum cudnn_pattern)pattern, &s);
    return rc < 0 ? err_wrap(e, "%s", graph) : 0;
}

int cudnn_import(struct cudnn *d, const char *json, struct err *e)
{
    cJSON *all = cJSON_Parse(json);
    const cJSON *o;
    int rc = cJSON_IsArray(all) ? 0 : err_set(e, ERR_CORRUPT, "a list of plans is not a JSON array");
    cJSON_ArrayForEach(o, all)
    {
        if (rc == 0)
            rc = import_one(d, o, e);
    }
    cJSON_Delete(all);
    return rc;
}
