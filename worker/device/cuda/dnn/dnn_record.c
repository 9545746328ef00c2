/* What is known of an engine for a graph, as a record: a checkpoint has a list of them, so that a resumed run takes the
 * same engines and so gives the same bits (decision 0006); rank 0 tells the others the same list; the cache on
 * disk has a file a graph, a list of its records: DIR/<device and versions> cuDNN <version>[ deterministic]
 * v<CACHE_VERSION>/<graph>.json, written whole and renamed.
 *
 *     {"graph": "conv n256 c64 ...", "pattern": 0, "shape": [n, c, h, w, k, r, s, sh, sw, ph, pw, type, nhwc, tf32],
 *      "engine": {"index": 34, "knobs": [[2, 13], ...]}, "us": 41.5, "state": "timed"}
 *
 * A product's shape goes on with the type of its result and whether it is added; its engine is in dnn_product.c. That
 * of a convolution in groups goes on with their number, that of attention with the heads of keys and whether it is
 * causal. state: guessed, timed: this engine is taken, and was timed; barred: it never is, "why"; barred or slower
 * without an engine: the graph is left out. "settled": the fused graph was measured against what lies below it. */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/path.h"
#include "common/json/json.h"
#include "worker/device/cuda/dnn/dnn_impl.h"

enum {
    CACHE_VERSION = 3,
    SHAPE_NUMBERS = 14,
    GROUPS = 16, /* behind those of products */
    CAUSAL,
    ALL_NUMBERS,
    LARGEST = 1 << 24,
    PATH_BYTES = 1024,
    FILE_BYTES = 1 << 18
};

/* TF32 is a matter of F32 alone. */
static void shape_numbers(const struct cudnn_shape *s, int out[ALL_NUMBERS])
{
    const int v[ALL_NUMBERS] = {
        s->n,         s->c,         s->h,      s->w,      s->k,         s->r,    s->s,
        s->stride[0], s->stride[1], s->pad[0], s->pad[1], (int)s->type, s->nhwc, s->tf32 && s->type == DT_F32,
        (int)s->out,  s->add,       s->groups, s->causal};
    memcpy(out, v, sizeof v);
}

bool cudnn_same_shape(const struct cudnn_shape *x, const struct cudnn_shape *y)
{
    int a[ALL_NUMBERS], b[ALL_NUMBERS];
    shape_numbers(x, a);
    shape_numbers(y, b);
    return memcmp(a, b, sizeof a) == 0;
}

static bool is_type(int v)
{
    return v == DT_F32 || v == DT_F16 || v == DT_BF16;
}

/* Which numbers follow those of every shape in a record: *ret_from, and how many. */
static int more_numbers(enum cudnn_pattern p, bool groups, int *ret_from)
{
    *ret_from = cudnn_pattern_product(p) ? SHAPE_NUMBERS : GROUPS;
    return cudnn_pattern_product(p) || cudnn_pattern_attention(p) ? 2 : groups;
}

/* As convolutions over single pixels. */
static bool is_product(const int *v)
{
    return v[2] == 1 && v[3] == 1 && v[5] == 1 && v[6] == 1 && v[7] == 1 && v[8] == 1 && v[9] == 0 && v[10] == 0 &&
           is_type(v[14]);
}

/* Sizes and strides from 1, padding from 0, a filter no larger than what it slides over, a type that exists. */
static int check_numbers(enum cudnn_pattern p, const int *v, struct err *e)
{
    bool good = v[9] >= 0 && v[10] >= 0 && v[9] < LARGEST && v[10] < LARGEST && is_type(v[11]);
    for (int i = 0; i < 9; i++)
        good = good && v[i] > 0 && v[i] < LARGEST;
    if (cudnn_pattern_product(p) && !is_product(v))
        return err_set(e, ERR_CORRUPT, "a plan's shape is that of no product");
    const int groups = v[GROUPS] ? v[GROUPS] : 1;
    good = good && groups > 0 && v[4] % groups == 0 && (cudnn_pattern_attention(p) || v[1] % groups == 0);
    if (!good || v[5] > v[2] + 2 * v[9] || v[6] > v[3] + 2 * v[10])
        return err_set(e, ERR_CORRUPT, "a plan's shape is that of no convolution");
    return 0;
}

static int shape_read(enum cudnn_pattern p, const cJSON *list, struct cudnn_shape *ret, struct err *e)
{
    int v[ALL_NUMBERS] = {0}, from;
    const int size = cJSON_GetArraySize(list),
              more = more_numbers(p, size > SHAPE_NUMBERS && !cudnn_pattern_product(p), &from);
    if (size != SHAPE_NUMBERS + more)
        return err_set(e, ERR_CORRUPT, "a plan's shape has %d numbers (expected %d)", size, SHAPE_NUMBERS + more);
    for (int i = 0; i < size; i++) /* 0 where it is no number */
        v[i < SHAPE_NUMBERS ? i : from + i - SHAPE_NUMBERS] = cJSON_GetArrayItem(list, i)->valueint;
    TRY(check_numbers(p, v, e));
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
                                .tf32 = v[13] != 0,
                                .out = (enum dtype)v[14],
                                .add = v[15] != 0,
                                .groups = v[GROUPS],
                                .causal = v[CAUSAL] != 0};
    return 0;
}

static const char *const state_names[] = {
#define X(id, name) name,
    DNN_PLAN_STATES(X)
#undef X
};

cJSON *cudnn_record_make(const struct cudnn_plan *p)
{
    int shape[ALL_NUMBERS], from;
    cJSON *o = cJSON_CreateObject();
    shape_numbers(&p->shape, shape);
    cJSON_AddStringToObject(o, "graph", p->graph);
    cJSON_AddNumberToObject(o, "pattern", p->pattern);
    cJSON *list = cJSON_CreateIntArray(shape, SHAPE_NUMBERS);
    const int more = more_numbers(p->pattern, shape[GROUPS] > 0, &from);
    for (int i = 0; i < more; i++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber(shape[from + i]));
    cJSON_AddItemToObject(o, "shape", list);
    if (p->choice)
        cJSON_AddRawToObject(o, "engine", p->choice);
    cJSON_AddNumberToObject(o, "us", p->us);
    cJSON_AddStringToObject(o, "state", state_names[p->state] ? state_names[p->state] : "tried");
    if (p->settled)
        cJSON_AddBoolToObject(o, "settled", true);
    if (p->why)
        cJSON_AddStringToObject(o, "why", p->why);
    return o;
}

struct record {
    const char *graph, *state, *why;
    enum cudnn_pattern pattern;
    struct cudnn_shape shape;
    const cJSON *engine; /* NULL: of the graph as a whole */
    double us;
    bool settled;
};

static int record_read(const cJSON *o, struct record *r, struct err *e)
{
    int64_t pattern;
    *r = (struct record){.engine = cJSON_GetObjectItem(o, "engine"),
                         .why = "it was said elsewhere",
                         .settled = cJSON_IsTrue(cJSON_GetObjectItem(o, "settled"))};
    TRY(json_str(o, "graph", &r->graph, e));
    TRY(json_i64(o, "pattern", &pattern, e));
    if (pattern < 0 || pattern >= DNN_PATTERN_COUNT)
        return err_set(e, ERR_CORRUPT, "a plan's pattern is %lld (expected 0 to %d)", (long long)pattern,
                       DNN_PATTERN_COUNT - 1);
    r->pattern = (enum cudnn_pattern)pattern;
    TRY(shape_read(r->pattern, cJSON_GetObjectItem(o, "shape"), &r->shape, e));
    TRY(json_str(o, "state", &r->state, e));
    json_f64(o, "us", &r->us, NULL);
    json_str(o, "why", &r->why, NULL);
    return 0;
}

static bool state_is(const struct record *r, enum cudnn_plan_state s)
{
    return strcmp(r->state, state_names[s]) == 0;
}

static int take_by_state(struct cudnn *d, const struct record *r, struct err *e)
{
    const bool barred = state_is(r, DNN_BARRED), slower = state_is(r, DNN_SLOWER), timed = state_is(r, DNN_TIMED);
    if (r->engine && barred)
        return cudnn_adopt_barred(d, r->pattern, &r->shape, r->engine, r->why, e);
    if (!r->engine && (barred || slower))
        return cudnn_bar(d, r->pattern, &r->shape, slower, r->why, false, e); /* the cache has it, or need not */
    if (r->engine && (timed || state_is(r, DNN_GUESSED))) {
        TRY(cudnn_adopt(d, r->pattern, &r->shape, r->engine, timed, r->us, e));
        d->plans->settled = r->settled;
        return 0;
    }
    return err_set(e, ERR_CORRUPT, "a record %s an engine says '%s'", r->engine ? "of" : "without", r->state);
}

static int record_take(struct cudnn *d, const struct record *r, struct err *e)
{
    return take_by_state(d, r, e) < 0 ? err_wrap(e, "%s", r->graph) : 0;
}

/* All of a list that can be taken up; the first error, if any. Barred engines come first: none of them is chosen. */
static int take_list(struct cudnn *d, const cJSON *all, enum cudnn_pattern pattern, const struct cudnn_shape *only,
                     struct err *e)
{
    int rc = cJSON_IsArray(all) ? 0 : err_set(e, ERR_CORRUPT, "a list of plans is not a JSON array");
    for (int pass = 0; pass < 2; pass++) {
        const cJSON *o;
        cJSON_ArrayForEach(o, all)
        {
            struct record r;
            struct err *to = rc == 0 ? e : NULL;
            int one = record_read(o, &r, to);
            if (one == 0 && only && (r.pattern != pattern || !cudnn_same_shape(&r.shape, only)))
                one = err_set(to, ERR_MISMATCH, "it is of another graph, %s", r.graph);
            if (one == 0 && (r.engine && state_is(&r, DNN_BARRED)) == (pass == 0))
                one = record_take(d, &r, to);
            rc = rc == 0 ? one : rc;
        }
    }
    return rc;
}

/* For the cache: what will hold in the next run, too. What was not timed may be timed then. */
static bool lasts(const struct cudnn_plan *p)
{
    return !p->fleeting && p->state != DNN_GUESSED && p->state != DNN_GUESSED_RAN;
}

/* What is known of all graphs, or of one for the cache; cJSON's. */
static cJSON *list_make(const struct cudnn *d, const struct cudnn_plan *of)
{
    cJSON *all = cJSON_CreateArray();
    for (const struct cudnn_plan *p = d->plans; p; p = p->next)
        if (p->state != DNN_CANDIDATE && (!of || (lasts(p) && cudnn_same_graph(p, of->pattern, &of->shape))))
            cJSON_AddItemToArray(all, cudnn_record_make(p));
    return all;
}

int cudnn_export(const struct cudnn *d, char **ret, struct err *e)
{
    cJSON *all = list_make(d, NULL);
    *ret = cJSON_PrintUnformatted(all);
    cJSON_Delete(all);
    return *ret ? 0 : err_set(e, -ENOMEM, "no memory for the list of plans");
}

int cudnn_import(struct cudnn *d, const char *json, struct err *e)
{
    cJSON *all = cJSON_Parse(json);
    const int rc = take_list(d, all, DNN_CONV, NULL, e);
    cJSON_Delete(all);
    return rc;
}

/* --- the cache */

/* Containers that share a folder may share numbers of processes. */
void cudnn_mark(char out[CUDNN_MARK])
{
    static atomic_uint made;
    snprintf(out, CUDNN_MARK, "%d-%u-%" PRIx64, (int)getpid(), atomic_fetch_add(&made, 1), (uint64_t)clock_ns());
}

bool cudnn_cache_folder(const struct cudnn *d, char *out, size_t cap)
{
    if (!d->cache_dir)
        return false;
    snprintf(out, cap, "%s/%s cuDNN %zu%s v%d", d->cache_dir, d->device, cudnnGetVersion(),
             d->o.deterministic ? " deterministic" : "", CACHE_VERSION);
    return true;
}

/* The folder of this device, and a graph's file in it. */
static void cache_path(const struct cudnn *d, const char *graph, char dir[PATH_BYTES], char file[PATH_BYTES + 160])
{
    cudnn_cache_folder(d, dir, PATH_BYTES);
    const int used = snprintf(file, PATH_BYTES + 160, "%s/%s.json", dir, graph);
    for (char *c = file + strlen(dir) + 1; c < file + used && *c; c++)
        if (*c == '/')
            *c = ':';
}

static int read_file(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s, struct err *e)
{
    char graph[128], dir[PATH_BYTES], file[PATH_BYTES + 160];
    cJSON *all;
    cudnn_describe(pattern, s, graph, sizeof graph);
    cache_path(d, graph, dir, file);
    TRY(json_read_file(file, FILE_BYTES, &all, e));
    const int rc = take_list(d, all, pattern, s, e);
    cJSON_Delete(all);
    return rc < 0 ? err_wrap(e, "%s", file) : 0;
}

void cudnn_cache_get(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s)
{
    struct err e;
    int rc = d->cache_dir ? read_file(d, pattern, s, &e) : 0;
    if (rc < 0 && rc != -ENOENT && rc != -ENOTDIR)
        log_warn("cudnn", "cached plan: %s; the plan is chosen anew", e.text);
}

int cudnn_record_bar(struct cudnn *d, const cJSON *record, const char *why, struct err *e)
{
    struct record r;
    TRY(record_read(record, &r, e));
    if (!r.engine)
        return err_set(e, ERR_CORRUPT, "a trial of %s names no engine", r.graph);
    cudnn_cache_get(d, r.pattern, &r.shape); /* what else is known stays so */
    TRY(cudnn_adopt_barred(d, r.pattern, &r.shape, r.engine, why, e));
    char *engine = cJSON_PrintUnformatted(r.engine);
    log_warn("cudnn", "engine %s for %s is barred: %s", engine ? engine : "?", r.graph, why);
    free(engine);
    cudnn_cache_put(d, d->plans);
    return 0;
}

static int write_file(const struct cudnn *d, const struct cudnn_plan *p, struct err *e)
{
    char dir[PATH_BYTES], file[PATH_BYTES + 160], mark[CUDNN_MARK], part[PATH_BYTES + 160 + CUDNN_MARK];
    cache_path(d, p->graph, dir, file);
    TRY(path_make_dirs(dir, e));
    cudnn_mark(mark);
    snprintf(part, sizeof part, "%s.%s", file, mark);
    cJSON *all = list_make(d, p);
    char *text = cJSON_PrintUnformatted(all);
    cJSON_Delete(all);
    FILE *f = text ? fopen(part, "wxe") : NULL;
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
