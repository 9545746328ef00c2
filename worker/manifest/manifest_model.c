/* Writes and reads the text of the model in a manifest. */
#include "worker/manifest/manifest_model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/json/json.h"
#include "worker/manifest/manifest_choice.h"
#include "worker/model/model.h"
#include "worker/program/program.h"

static const char *const styles[] = {NET_STYLES(CHOICE_NAME)};

static void sum_text(const char *text, char out[16])
{
    snprintf(out, 16, "%08" PRIx32, crc32c(0, text, strlen(text)));
}

void meta_add_model(cJSON *meta, const struct meta_model *m)
{
    char sum[16];
    cJSON_AddStringToObject(meta, "arch", m->arch);
    cJSON_AddStringToObject(meta, "net_style", styles[m->style]);
    cJSON *model = cJSON_AddObjectToObject(meta, "model");
    sum_text(m->text, sum);
    cJSON_AddStringToObject(model, "text", m->text);
    cJSON_AddStringToObject(model, "crc32c", sum);
}

/* Of a checkpoint that has none: its arch means a shipped model. */
static int text_of_arch(const cJSON *meta, char **ret, struct err *e)
{
    const char *arch;
    TRY(json_str(meta, "arch", &arch, e));
    const int style = meta_choice_id(meta, "net_style", styles, sizeof styles / sizeof *styles, NET_TORCH);
    if (strchr(arch, '/') || model_text(ret, arch, (enum net_style)style, false, e) < 0)
        return err_set(e, ERR_MISMATCH, "the checkpoint is of arch '%.60s', which is not known here", arch);
    return 0;
}

static int text_of_model(const cJSON *model, char **ret, struct err *e)
{
    const char *text, *said;
    struct model_facts ignored;
    char sum[16];
    TRY(json_str(model, "text", &text, e));
    TRY(json_str(model, "crc32c", &said, e));
    sum_text(text, sum);
    if (strcmp(said, sum) != 0)
        return err_set(e, ERR_CORRUPT, "the checkpoint's model has the sum %s, and %.16s is noted", sum, said);
    if (model_facts("the checkpoint's model", text, &ignored, e) < 0)
        return e ? e->code = ERR_CORRUPT : ERR_CORRUPT;
    *ret = strdup(text);
    return *ret ? 0 : err_errno(e, ENOMEM, "the checkpoint's model");
}

int meta_model_text(const cJSON *meta, char **ret, struct err *e)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(meta, "model");
    return model ? text_of_model(model, ret, e) : text_of_arch(meta, ret, e);
}

static int number(const cJSON *meta, const char *name, int min, int max, int *ret, struct err *e)
{
    int64_t v;
    TRY(json_i64(meta, name, &v, e));
    if (v < min || v > max)
        return err_set(e, ERR_CORRUPT, "the checkpoint's %s is %lld (expected %d to %d)", name, (long long)v, min, max);
    *ret = (int)v;
    return 0;
}

int meta_shape(const cJSON *meta, struct meta_shape *ret, struct err *e)
{
    *ret = (struct meta_shape){0};
    TRY(number(meta, "num_labels", 2, 1 << 24, &ret->classes, e));
    if (cJSON_GetObjectItemCaseSensitive(meta, "sequence_length"))
        return number(meta, "sequence_length", 1, 1 << 24, &ret->length, e);
    TRY(number(meta, "image_size", 1, 4096, &ret->size, e));
    return number(meta, "channels", 1, 3, &ret->channels, e);
}

/* The same names, and tensors, of another network: what was typed says it best. */
static int check_style(const cJSON *meta, const struct meta_model *m, struct err *e)
{
    const char *was = meta_choice(meta, "net_style"), *now = styles[m->style];
    if (!was || strcmp(was, now) == 0 || strncmp(m->arch, "resnet", 6) != 0)
        return 0;
    return err_set(e, ERR_MISMATCH, "the checkpoint is of --net-style %.40s, this run of %s", was, now);
}

int meta_check_model(const cJSON *meta, const struct meta_model *m, struct err *e)
{
    const char *arch;
    char *theirs;
    struct err why;
    TRY(json_str(meta, "arch", &arch, e));
    TRY(meta_model_text(meta, &theirs, e));
    int rc = model_compare(theirs, m->text, &why);
    free(theirs);
    if (rc == 0)
        return 0;
    if (rc == ERR_MISMATCH && strcmp(arch, m->arch) != 0)
        return err_set(e, rc, "the checkpoint is of arch %.60s, this run of %s", arch, m->arch);
    TRY(check_style(meta, m, e));
    return err_set(e, rc, "the checkpoint's model %.60s is another than this run's: %s", arch, why.text);
}

int model_check_held(const struct model_options *o, int64_t held, struct err *e)
{
    struct program *p;
    int64_t n = 0;
    TRY(model_build(&p, o, e));
    for (int i = 0; i < p->nparams; i++)
        n += (int64_t)p->params[i].count;
    program_destroy(p);
    return n <= held ? 0
                     : err_set(e, ERR_MISMATCH, "its model has %lld elements, and only %lld are stored", (long long)n,
                               (long long)held);
}
