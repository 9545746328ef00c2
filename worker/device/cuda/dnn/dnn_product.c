/* Matrix products among the graphs: cuBLASLt's algorithms are their engines, and are kept as those are.
 *
 *     "engine": {"cublaslt": 130200, "algo": "<64 bytes in hex>", "workspace": 0, "atomic": false, "name": "lt66{...}"}
 *
 * NVIDIA's header: the 64 bytes may be kept, and mean the same to the same version of the library. */
#include "worker/device/cuda/dnn/dnn_impl.h"

#include <cublasLt.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/json/json.h"

enum { WORDS = 8, DIGITS = 16 };

static void to_hex(const uint64_t *words, char out[WORDS * DIGITS + 1])
{
    for (int i = 0; i < WORDS; i++)
        snprintf(out + i * DIGITS, DIGITS + 1, "%016" PRIx64, words[i]);
}

static int from_hex(const char *text, uint64_t *words, struct err *e)
{
    if (strlen(text) != WORDS * DIGITS || strspn(text, "0123456789abcdef") != WORDS * DIGITS)
        return err_set(e, ERR_CORRUPT, "a product's algorithm is not %d digits", WORDS * DIGITS);
    for (int i = 0; i < WORDS; i++) {
        char word[DIGITS + 1] = {0};
        memcpy(word, text + i * DIGITS, DIGITS);
        words[i] = strtoull(word, NULL, 16);
    }
    return 0;
}

static char *choice_text(const struct dnn_algo *a)
{
    char hex[WORDS * DIGITS + 1];
    cJSON *o = cJSON_CreateObject();
    to_hex(a->opaque, hex);
    cJSON_AddNumberToObject(o, "cublaslt", (double)cublasLtGetVersion());
    cJSON_AddStringToObject(o, "algo", hex);
    cJSON_AddNumberToObject(o, "workspace", (double)a->workspace);
    cJSON_AddBoolToObject(o, "atomic", a->atomic);
    cJSON_AddStringToObject(o, "name", a->name);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

static int take_algo(struct cudnn_plan *p, const struct dnn_algo *a, struct err *e)
{
    p->algo = *a;
    p->workspace = (int64_t)a->workspace;
    snprintf(p->name, sizeof p->name, "%s", a->name);
    p->choice = choice_text(a);
    return p->choice ? 0 : err_set(e, -ENOMEM, "no memory for a plan");
}

int cudnn_product_candidate(struct cudnn *d, enum cudnn_pattern pattern, const struct cudnn_shape *s,
                            const struct dnn_algo *a, struct cudnn_plan **ret, struct err *e)
{
    struct cudnn_plan *p = cudnn_plan_new(d, pattern, s);
    *ret = NULL;
    const int rc = p ? take_algo(p, a, e) : err_set(e, -ENOMEM, "no memory for a plan");
    if (rc < 0 || cudnn_choice_barred(d, pattern, s, p->choice)) {
        cudnn_plan_free(p);
        return rc;
    }
    p->next = d->plans;
    d->plans = p;
    *ret = p;
    return 0;
}

static int may_be_used(const struct cudnn_plan *p, const struct dnn_algo *a, int64_t version, struct err *e)
{
    const struct cudnn_options *o = &p->d->o;
    if (version != (int64_t)cublasLtGetVersion())
        return err_set(e, -ENOTSUP, "%s for %s was chosen with cuBLASLt %lld, this is %zu", a->name, p->graph,
                       (long long)version, cublasLtGetVersion());
    if (o->deterministic && a->atomic)
        return err_set(e, -ENOTSUP, "%s for %s is not deterministic", a->name, p->graph);
    return 0;
}

int cudnn_product_read(struct cudnn_plan *p, const cJSON *choice, struct err *e)
{
    struct dnn_algo a = {.atomic = cJSON_IsTrue(cJSON_GetObjectItem(choice, "atomic"))};
    const char *hex, *name;
    int64_t version, workspace;
    TRY(json_i64(choice, "cublaslt", &version, e));
    TRY(json_i64(choice, "workspace", &workspace, e));
    TRY(json_str(choice, "algo", &hex, e));
    TRY(json_str(choice, "name", &name, e));
    TRY(from_hex(hex, a.opaque, e));
    if (workspace < 0 || workspace > INT32_MAX)
        return err_set(e, ERR_CORRUPT, "a product's workspace is %lld bytes", (long long)workspace);
    a.workspace = (size_t)workspace;
    snprintf(a.name, sizeof a.name, "%.*s", (int)sizeof a.name - 1, name);
    TRY(may_be_used(p, &a, version, e));
    return take_algo(p, &a, e);
}

const struct dnn_algo *cudnn_plan_algo(const struct cudnn_plan *p)
{
    return &p->algo;
}
