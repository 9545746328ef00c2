/* Writes and checks in a manifest how pictures were prepared. */
#include "worker/snapshot/snapshot_input.h"

#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/json/json.h"
#include "worker/config/config.h"
#include "worker/data/loader/input.h"
#include "worker/manifest/manifest_choice.h"
#include "worker/program/program.h"
#include "worker/snapshot/snapshot.h"

static const char *const inputs[] = {INPUTS(CHOICE_NAME)}, *const interpolations[] = {INTERPOLATIONS(CHOICE_NAME)};

void meta_add_input(cJSON *meta, const struct snapshot_identity *id)
{
    if (id->sequence_length)
        return;
    cJSON_AddStringToObject(meta, "input", inputs[id->cfg->input]);
    cJSON_AddNumberToObject(meta, "scale", (double)id->cfg->scale);
    cJSON_AddStringToObject(meta, "interpolation", interpolations[id->cfg->interpolation]);
    cJSON_AddItemToObject(meta, "mean", cJSON_CreateFloatArray(id->program->input.mean, 4));
    cJSON_AddItemToObject(meta, "std", cJSON_CreateFloatArray(id->program->input.std, 4));
}

struct text {
    char of[64];
};

static struct text text_of(const char *name)
{
    struct text t;
    snprintf(t.of, sizeof t.of, "%s", name);
    return t;
}

/* list: of a manifest, or NULL for values. As floats, in which the model holds them. */
static struct text channels_text(const cJSON *list, const float values[4], int64_t channels)
{
    struct text t = {""};
    size_t used = 0;
    for (int i = 0; i < channels && used < sizeof t.of; i++) {
        const float v = list ? (float)cJSON_GetNumberValue(cJSON_GetArrayItem(list, i)) : values[i];
        used += (size_t)snprintf(t.of + used, sizeof t.of - used, "%s%.7g", i ? "," : "", (double)v);
    }
    return t;
}

static int compare(const struct snapshot_identity *id, bool tell, const char *option, struct text was, struct text now,
                   struct err *e)
{
    if (strcmp(was.of, now.of) == 0)
        return 0;
    if (id->evaluate)
        return err_set(e, ERR_MISMATCH, "the checkpoint was trained with --%s %s, this run has %s", option, was.of,
                       now.of);
    if (tell)
        log_warn("resume", "--%s was %s and is now %s", option, was.of, now.of);
    return 0;
}

/* Evaluations do not differ if one was random and one is bicubic. */
static const char *interpolation(const struct snapshot_identity *id, int how)
{
    return interpolations[id->evaluate && how == INTERPOLATION_RANDOM ? INTERPOLATION_BICUBIC : how];
}

int meta_check_input(const cJSON *meta, const struct snapshot_identity *id, bool tell, struct err *e)
{
    const char *kind = meta_choice(meta, "input");
    const int how = meta_choice_id(meta, "interpolation", interpolations, INTERPOLATION_RANDOM + 1, 0);
    double scale;
    const cJSON *mean = cJSON_GetObjectItemCaseSensitive(meta, "mean"),
                *std = cJSON_GetObjectItemCaseSensitive(meta, "std");
    if (!kind || !mean || !std)
        return 0;
    TRY(compare(id, tell, "input", text_of(kind), text_of(inputs[id->cfg->input]), e));
    TRY(compare(id, tell, "mean", channels_text(mean, NULL, id->channels),
                channels_text(NULL, id->program->input.mean, id->channels), e));
    TRY(compare(id, tell, "std", channels_text(std, NULL, id->channels),
                channels_text(NULL, id->program->input.std, id->channels), e));
    if (tell && json_f64(meta, "scale", &scale, NULL) == 0 && scale != (double)id->cfg->scale)
        log_warn("resume", "--scale was %g and is now %g", scale, (double)id->cfg->scale);
    return compare(id, tell, "interpolation", text_of(interpolation(id, how)),
                   text_of(interpolation(id, id->cfg->interpolation)), e);
}
