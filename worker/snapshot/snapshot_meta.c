/* The position is what a run goes on from. Of what else is noted, some must not change, as the weights would mean
 * something else; the rest may, and differences are logged. The order of samples, the input and the model are checked
 * in snapshot_order.c, snapshot_input.c and manifest_model.c. */
#include "worker/snapshot/snapshot_meta.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/json/json.h"
#include "worker/config/config.h"
#include "worker/manifest/class_names.h"
#include "worker/manifest/manifest_model.h"
#include "worker/precision/loss_scale.h"
#include "worker/program/program.h"
#include "worker/snapshot/snapshot.h"
#include "worker/snapshot/snapshot_input.h"
#include "worker/snapshot/snapshot_order.h"
#include "worker/snapshot/snapshot_split.h"

/* Members of the manifest that are plain numbers: written, read and compared from this list. */
#define POSITION_FIELDS(X)                                                                                             \
    X(updates)                                                                                                         \
    X(epoch)                                                                                                           \
    X(step)                                                                                                            \
    X(epoch_loss)                                                                                                      \
    X(epoch_top1)                                                                                                      \
    X(epoch_count)                                                                                                     \
    X(epoch_seconds)                                                                                                   \
    X(seconds)
#define BEST_FIELDS(X)                                                                                                 \
    X(best_top1)                                                                                                       \
    X(best_updates)
#define OPTIONAL_FIELDS(X) /* as they are where a checkpoint lacks them */                                             \
    BEST_FIELDS(X)                                                                                                     \
    X(lr)                                                                                                              \
    X(peak)                                                                                                            \
    X(stale)                                                                                                           \
    X(judged)                                                                                                          \
    X(moments_from)                                                                                                    \
    X(rate_workers)                                                                                                    \
    X(rate_batch)

/* Numbers of the identity. */
#define AT(f) #f, offsetof(struct snapshot_identity, f)
static const struct number {
    const char *name;
    size_t at; /* int64_t */
    enum { FIXED, FIXED_IN_TRAINING, NOTED } rule;
    enum { ALWAYS, OF_PICTURES, OF_TOKENS } where;
} numbers[] = {{AT(num_labels), FIXED},
               {AT(image_size), NOTED, OF_PICTURES},
               {AT(channels), FIXED, OF_PICTURES},
               {AT(sequence_length), FIXED_IN_TRAINING, OF_TOKENS},
               {AT(seed), FIXED_IN_TRAINING},
               {AT(batch), NOTED},
               {AT(world), NOTED},
               {AT(threads), NOTED},
               {AT(train_images), NOTED}};
#define NUMBERS (sizeof numbers / sizeof *numbers)

/* Options that may change between runs of one training; changes are logged. */
#define NOTED_OPTIONS(X)                                                                                               \
    X("num-epochs", num_epochs)                                                                                        \
    X("max-steps", max_steps)                                                                                          \
    X("epoch-size", epoch_size)                                                                                        \
    X("base-learning-rate", base_lr)                                                                                   \
    X("momentum", momentum)                                                                                            \
    X("weight-decay", weight_decay)                                                                                    \
    X("beta2", beta2)                                                                                                  \
    X("adam-eps", adam_eps)                                                                                            \
    X("lars-eta", lars_eta)                                                                                            \
    X("bn-decay", bn_decay)                                                                                            \
    X("clip-grad-norm", clip_grad_norm)                                                                                \
    X("label-smoothing", label_smoothing)                                                                              \
    X("bce-threshold", bce_threshold)                                                                                  \
    X("ema", ema)                                                                                                      \
    X("ema-every", ema_every)                                                                                          \
    X("layer-decay", layer_decay)                                                                                      \
    X("accumulate", accumulate)                                                                                        \
    X("lr-min", lr_min)                                                                                                \
    X("lr-power", lr_power)                                                                                            \
    X("lr-step", lr_step_epochs)                                                                                       \
    X("lr-gamma", lr_gamma)                                                                                            \
    X("warmup-epochs", warmup_epochs)                                                                                  \
    X("warmup-start", warmup_start)                                                                                    \
    X("crop-scale MIN", crop_scale.min)                                                                                \
    X("crop-scale MAX", crop_scale.max)                                                                                \
    X("sync-bn", sync_bn)                                                                                              \
    X("crop-padding", crop_padding)                                                                                    \
    X("hflip", hflip)                                                                                                  \
    X("random-erase", random_erase)                                                                                    \
    X("mixup", mixup)                                                                                                  \
    X("cutmix", cutmix)                                                                                                \
    X("mix-group", mix_group)

/* The same of options whose values are names, and of flags. */
static const char *const named_options[] = {"lr-policy",      "lr-scale", "lr-warmup",    "sampler",  "shuffle",
                                            "drop-last",      "nesterov", "sgd-rule",     "no-decay", "lr-mul",
                                            "fast-attention", "augment",  "color-jitter", "loss",     "class-weights",
                                            "best-by",        "lr-per"};
#define NAMED_OPTIONS (sizeof named_options / sizeof *named_options)

static void add_milestones(cJSON *options, const struct milestones *m)
{
    cJSON *list = cJSON_AddArrayToObject(options, "lr-milestones");
    for (int i = 0; i < m->n; i++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber(m->epoch[i]));
}

/* Of this run. */
static void add_named_options(cJSON *options, const struct train_config *cfg)
{
    cJSON *all = cJSON_CreateObject();
    args_json(&train_program, cfg, all);
    for (size_t i = 0; i < NAMED_OPTIONS; i++)
        cJSON_AddItemToObject(options, named_options[i],
                              cJSON_DetachItemFromObjectCaseSensitive(all, named_options[i]));
    add_milestones(options, &cfg->milestones);
    cJSON_Delete(all);
}

static bool is_noted(const struct snapshot_identity *id, const struct number *n)
{
    return n->where == ALWAYS || n->where == (id->sequence_length ? OF_TOKENS : OF_PICTURES);
}

static int64_t number_of(const struct snapshot_identity *id, const struct number *n)
{
    return *(const int64_t *)(const void *)((const char *)id + n->at);
}

/* Integers above 2^53 do not occur (seeds are limited by the option table), so JSON numbers are exact. */
cJSON *meta_make(const struct position *at, const struct snapshot_identity *id)
{
    cJSON *m = cJSON_CreateObject();
    meta_add_model(m, &(struct meta_model){id->arch, id->model, id->cfg->net_style});
    cJSON_AddStringToObject(m, "device", id->device);
    cJSON_AddStringToObject(m, "amp", id->amp);
    cJSON_AddStringToObject(m, "optimizer", id->optimizer);
    cJSON_AddStringToObject(m, "run_id", id->run_id);
    for (size_t i = 0; i < NUMBERS; i++)
        if (is_noted(id, &numbers[i]))
            cJSON_AddNumberToObject(m, numbers[i].name, (double)number_of(id, &numbers[i]));
#define X(f) cJSON_AddNumberToObject(m, #f, (double)at->f);
    POSITION_FIELDS(X)
    OPTIONAL_FIELDS(X)
#undef X
    meta_add_input(m, id);
    cJSON *options = cJSON_AddObjectToObject(m, "options");
#define X(name, f) cJSON_AddNumberToObject(options, name, (double)id->cfg->f);
    NOTED_OPTIONS(X)
#undef X
    add_named_options(options, id->cfg);
    meta_add_order(m, &id->order);
    meta_add_split(m, id);
    if (class_names_add(m, id->classes, id->nclasses) == 0)
        return m;
    cJSON_Delete(m);
    return NULL;
}

cJSON *meta_best(const struct position *at)
{
    cJSON *m = cJSON_CreateObject();
#define X(f) cJSON_AddNumberToObject(m, #f, (double)at->f);
    BEST_FIELDS(X)
#undef X
    return m;
}

void meta_add_scale(cJSON *meta, const struct loss_scale *s)
{
    cJSON *m = cJSON_AddObjectToObject(meta, "loss_scale");
    cJSON_AddNumberToObject(m, "scale", s->scale);
    cJSON_AddNumberToObject(m, "clean", (double)s->clean);
    cJSON_AddNumberToObject(m, "skipped", (double)s->skipped);
    cJSON_AddBoolToObject(m, "dynamic", s->dynamic);
}

void meta_take_scale(const cJSON *meta, const struct snapshot_identity *id, bool tell, struct loss_scale *s)
{
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(meta, "loss_scale");
    const bool dynamic = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(m, "dynamic"));
    const char *precision = "";
    double scale = 0;
    int64_t clean = 0;
    if (json_i64(m, "skipped", &s->skipped, NULL) < 0) /* a checkpoint from before there were any */
        return;
    json_str(meta, "amp", &precision, NULL);
    if (!s->dynamic && !dynamic)
        return;
    if (s->dynamic && dynamic && strcmp(precision, id->amp) == 0 && json_f64(m, "scale", &scale, NULL) == 0 &&
        json_i64(m, "clean", &clean, NULL) == 0 && scale > 0) {
        s->scale = scale;
        s->clean = clean;
    } else if (tell && !id->evaluate) {
        log_warn("resume", "the loss scale begins anew at %g", s->scale);
    }
}

/* Without the quotes of JSON. */
static void print_value(const cJSON *v, char *out, size_t cap)
{
    char *text = cJSON_PrintUnformatted(v);
    snprintf(out, cap, "%s", cJSON_IsString(v) ? v->valuestring : text ? text : "?");
    free(text);
}

/* What a checkpoint does not say (older ones), or says as a number, is not compared. */
static void tell_named_options(const cJSON *options, const struct snapshot_identity *id)
{
    cJSON *mine = cJSON_CreateObject();
    char a[256], b[256];
    add_named_options(mine, id->cfg);
    for (const cJSON *now = mine->child; now; now = now->next) {
        const cJSON *was = cJSON_GetObjectItemCaseSensitive(options, now->string);
        if (!was || cJSON_IsNumber(was) || cJSON_Compare(was, now, true))
            continue;
        print_value(was, a, sizeof a);
        print_value(now, b, sizeof b);
        log_warn("resume", "--%s was %s and is now %s", now->string, a, b);
    }
    cJSON_Delete(mine);
}

static void tell_options(const cJSON *meta, const struct snapshot_identity *id)
{
    const struct train_config *cfg = id->cfg;
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(meta, "options");
    double was;
#define X(name, f)                                                                                                     \
    if (json_f64(options, name, &was, NULL) == 0 && was != (double)cfg->f)                                             \
        log_warn("resume", "--" name " was %g and is now %g", was, (double)cfg->f);
    NOTED_OPTIONS(X)
#undef X
    tell_named_options(options, id);
}

/* An evaluation takes the averages, as the training did, where --ema is given. */
static void tell_average(const cJSON *meta, const struct snapshot_identity *id)
{
    double ema = 0;
    json_f64(cJSON_GetObjectItemCaseSensitive(meta, "options"), "ema", &ema, NULL);
    if (ema > 0 && id->cfg->ema == 0)
        log_warn("resume", "the checkpoint keeps an average of its weights, which is evaluated with --ema %g only",
                 ema);
}

bool meta_same_optimizer(const cJSON *meta, const struct snapshot_identity *id)
{
    const char *was = "sgd";
    json_str(meta, "optimizer", &was, NULL);
    return strcmp(was, id->optimizer) == 0;
}

static int check_fixed(const cJSON *meta, const struct snapshot_identity *id, struct err *e)
{
    int64_t was;
    for (const struct number *n = numbers; n < numbers + NUMBERS; n++) {
        if (n->rule == NOTED || !is_noted(id, n))
            continue;
        TRY(json_i64(meta, n->name, &was, e));
        if (was != number_of(id, n) && !(id->evaluate && n->rule == FIXED_IN_TRAINING))
            return err_set(e, ERR_MISMATCH, "the checkpoint has %s %lld, this run %lld", n->name, (long long)was,
                           (long long)number_of(id, n));
    }
    return 0;
}

static int tell_noted(const cJSON *meta, const struct snapshot_identity *id, struct err *e)
{
    int64_t was;
    for (const struct number *n = numbers; n < numbers + NUMBERS; n++) {
        if (n->rule != NOTED || !is_noted(id, n))
            continue;
        TRY(json_i64(meta, n->name, &was, e));
        if (was != number_of(id, n))
            log_warn("resume", "%s was %lld and is now %lld: results may differ in their last bits or more", n->name,
                     (long long)was, (long long)number_of(id, n));
    }
    return 0;
}

int meta_check(const cJSON *meta, const struct snapshot_identity *id, bool tell, struct err *e)
{
    const char *text;
    TRY(meta_check_model(meta, &(struct meta_model){id->arch, id->model, id->cfg->net_style}, e));
    TRY(check_fixed(meta, id, e));
    TRY(class_names_check(meta, id->classes, id->nclasses, e));
    TRY(meta_check_input(meta, id, tell, e));
    TRY(meta_check_split(meta, id, e));
    if (!id->evaluate)
        TRY(meta_check_order(meta, &id->order, e));
    if (tell && id->evaluate)
        tell_average(meta, id);
    if (!tell || id->evaluate)
        return 0;
    TRY(tell_noted(meta, id, e));
    TRY(json_str(meta, "device", &text, e));
    if (strcmp(text, id->device) != 0)
        log_warn("resume", "the device was '%s' and is now '%s': results may differ in their last bits", text,
                 id->device);
    TRY(json_str(meta, "amp", &text, e));
    if (strcmp(text, id->amp) != 0)
        log_warn("resume", "precision was %s and is now %s", text, id->amp);
    if (!meta_same_optimizer(meta, id))
        log_warn("resume", "the optimizer is %s now and was another: it begins without momentum", id->optimizer);
    tell_options(meta, id);
    return 0;
}

void meta_forget_best(const cJSON *meta, const struct snapshot_identity *id, struct position *at)
{
    static const char *const words[] = {BEST_BYS(CHOICE_NAME)};
    const char *was = words[BEST_BY_AUTO];
    json_str(cJSON_GetObjectItemCaseSensitive(meta, "options"), "best-by", &was, NULL);
    if (strcmp(was, words[id->cfg->best_by]) == 0)
        return;
    at->best_top1 = at->peak = 0;
    at->best_updates = at->stale = at->judged = 0;
}

int meta_position(const cJSON *meta, struct position *at, struct err *e)
{
    double v;
#define X(f)                                                                                                           \
    TRY(json_f64(meta, #f, &v, e));                                                                                    \
    at->f = (__typeof__(at->f))v;
    POSITION_FIELDS(X)
#undef X
#define X(f)                                                                                                           \
    if (json_f64(meta, #f, &v, NULL) == 0)                                                                             \
        at->f = (__typeof__(at->f))v;
    OPTIONAL_FIELDS(X)
#undef X
    if (at->rate_workers <= 0 || at->rate_batch <= 0) { /* an older checkpoint: as when it was saved */
        TRY(json_i64(meta, "world", &at->rate_workers, e));
        TRY(json_i64(meta, "batch", &at->rate_batch, e));
    }
    if (at->updates < 0 || at->epoch < 0 || at->step < 0 || at->moments_from < 0)
        return err_set(e, ERR_CORRUPT, "the manifest's position is negative");
    return 0;
}
