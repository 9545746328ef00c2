/* Prints hints about options that are hardly what was meant. */
#include "worker/session/hints.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/config/config.h"
#include "worker/data/sets/dataset.h"
#include "worker/optim/schedule.h"
#include "worker/program/program.h"
#include "worker/session/session.h"
#include "worker/session/session_build.h"

/* Do the pictures of the first class lie in folders of it? */
static bool is_nested(const struct dataset *d, const char *root)
{
    const char *name = d->n ? d->ops->sample_name((struct dataset *)d, 0) : "";
    const size_t n = strlen(root);
    name = strncmp(name, root, n) == 0 ? name + n : "";
    int slashes = 0;
    for (const char *c = name + strspn(name, "/"); *c; c++)
        slashes += *c == '/';
    return slashes > 1;
}

const char *hints_part_to_train_on(const struct dataset *d, const char *root)
{
    const char *found = NULL;
    int parts = 0;
    if (strcmp(d->ops->name, "folder") != 0)
        return NULL;
    for (int i = 0; i < d->classes; i++) {
        const bool is_part = dataset_is_part(d->class_names[i], strlen(d->class_names[i]));
        parts += is_part;
        if (is_part && strncasecmp(d->class_names[i], "train", 5) == 0)
            found = d->class_names[i];
    }
    if (d->classes == 1 && is_nested(d, root)) /* as archives are unpacked: flowers/flowers/rose */
        return d->class_names[0];
    return parts > 1 || parts == d->classes ? found : NULL;
}

/* "'train', 'val'" */
static const char *class_list(const struct dataset *d, char *out, size_t cap)
{
    size_t at = 0;
    for (int i = 0; i < d->classes && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s'%s'", i > 0 ? ", " : "", d->class_names[i]);
    return out;
}

void hints_tell_part(const struct dataset *d, const char *root)
{
    const char *part = hints_part_to_train_on(d, root);
    char classes[160];
    if (part)
        log_warn("data", "--train-data %s: its classes are %s: is --train-data %s/%s meant?", root,
                 class_list(d, classes, sizeof classes), root, part);
}

/* Folders 0 to 999 are not in the order of their numbers, which weights of others were trained in. */
static void tell_numbers(const struct session *s)
{
    const struct dataset *d = s->train_set;
    int odd = -1;
    if (!s->cfg->pretrained || !d->class_names || d->length)
        return;
    for (int i = 0; i < d->classes; i++) {
        char *end;
        const long number = strtol(d->class_names[i], &end, 10);
        if (end == d->class_names[i] || *end)
            return;
        odd = odd < 0 && number != i ? i : odd;
    }
    if (odd >= 0)
        log_warn("data",
                 "classes are numbered in byte order of their names: '%s' is class %d, which weights of others may not "
                 "mean by it; names of equal length (000 to 999) are in the order of numbers",
                 d->class_names[odd], odd);
}

/* What some policies of the rate, or optimizers, do not read. */
static void tell_useless(const struct train_config *c)
{
    static const char *const optimizers[] = {OPTIMIZERS(CHOICE_NAME)}, *const warmups[] = {LR_WARMUPS(CHOICE_NAME)};
    const enum lr_policy p = (enum lr_policy)c->lr_policy;
    const bool preset = p == LR_HOROVOD || p == LR_APEX, adam = c->optimizer >= OPTIMIZER_ADAM;
    char policy[40], optimizer[40], warmup[40];
    snprintf(policy, sizeof policy, "--lr-policy %s", schedule_policy_name(p));
    snprintf(optimizer, sizeof optimizer, "--optimizer %s", optimizers[c->optimizer]);
    snprintf(warmup, sizeof warmup, "--lr-warmup %s", warmups[c->lr_warmup]);
    const struct {
        bool read;
        const char *option, *with, *has;
    } options[] = {
        {p == LR_COSINE || p == LR_TIMM, "lr-min", "--lr-policy cosine and timm", policy},
        {p == LR_MULTISTEP, "lr-milestones", "--lr-policy multistep", policy},
        {p == LR_STEP, "lr-step", "--lr-policy step", policy},
        {p == LR_POLY || p == LR_INV, "lr-power", "--lr-policy poly and inv", policy},
        {p == LR_STEP || p == LR_MULTISTEP || p == LR_EXP || p == LR_INV, "lr-gamma",
         "--lr-policy step, multistep, exp and inv", policy},
        {!preset, "lr-warmup", "a policy without its own warm-up", policy},
        {!preset && c->lr_warmup != WARMUP_LINEAR, "warmup-start", "--lr-warmup caffe2 and constant",
         preset ? policy : warmup},
        {c->optimizer == OPTIMIZER_LARS, "lars-eta", "--optimizer lars", optimizer},
        {adam, "beta2", "--optimizer adam, adamw and lamb", optimizer},
        {c->ema > 0, "ema-every", "--ema", "no --ema"},
        {adam, "adam-eps", "--optimizer adam, adamw and lamb", optimizer},
    };
    struct train_config defaults = {0};
    struct arg_result r = {0};
    struct err e;
    if (train_config_defaults(&defaults, &r, &e) < 0)
        return;
    cJSON *usual = cJSON_CreateObject(), *now = cJSON_CreateObject();
    args_json(&train_program, &defaults, usual);
    args_json(&train_program, c, now);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (!options[i].read && !cJSON_Compare(cJSON_GetObjectItem(usual, options[i].option),
                                               cJSON_GetObjectItem(now, options[i].option), true))
            log_warn("train", "--%s is of use with %s only: this run has %s", options[i].option, options[i].with,
                     options[i].has);
    cJSON_Delete(usual);
    cJSON_Delete(now);
}

/* What Goyal et al. and torchvision train with, for sgd with momentum 0.9: 0.1 up to a batch of 256, and in proportion
 * above. Less momentum means that much more. adam and adamw: 0.001. 0: nothing is usual. */
static double usual_rate(const struct train_config *c, double batch)
{
    const double more = batch > 256 ? batch / 256 : 1;
    if (c->optimizer == OPTIMIZER_SGD && c->momentum < 1 && c->loss_reduction == 0)
        return more * (1 - c->momentum);
    return c->optimizer == OPTIMIZER_ADAM || c->optimizer == OPTIMIZER_ADAMW ? 0.001 * more : 0;
}

static void tell_rate(const struct session *s, double most, double batch)
{
    static const char *const optimizers[] = {OPTIMIZERS(CHOICE_NAME)};
    const double usual = usual_rate(s->cfg, batch);
    if (usual > 0 && most >= 10 * usual)
        log_warn(
            "train",
            "the learning rate rises to %g, %.0f times what is usual with %s, momentum %g and batches of %.0f: is it "
            "meant?",
            most, most / usual, optimizers[s->cfg->optimizer], s->cfg->momentum, batch);
}

#define FEW_VALUES 8

/* Of one value a channel a batch norm makes its bias, whatever the value is. */
static void tell_few_values(const struct session *s)
{
    const struct program *p = s->whole;
    const struct op *least = NULL;
    int64_t values = FEW_VALUES;
    for (int i = 0; i < p->nfwd; i++) {
        const struct op *o = &p->ops[i];
        if (o->kind != OP_BN || o->fixed)
            continue;
        const struct tensor *y = &p->tensors[o->out];
        const int64_t n =
            (int64_t)y->h * y->w * (int64_t)session_part(s, true) * (s->cfg->sync_bn ? s->batch.count : 1);
        if (n < values) {
            values = n;
            least = o;
        }
    }
    if (least)
        log_warn("train", "each rank's batch statistics in %s are of %lld value%s a channel%s: a larger batch%s helps",
                 p->tensors[least->out].name, (long long)values, values == 1 ? "" : "s",
                 values == 1 ? ", so what it makes does not depend on its input" : "",
                 s->batch.count > 1 && !s->cfg->sync_bn ? ", or --sync-bn," : "");
}

void hints_tell(const struct session *s, double most_rate)
{
    const struct train_config *cfg = s->cfg;
    const struct sampler order = session_order(s, true);
    tell_numbers(s);
    if (cfg->evaluate)
        return;
    tell_useless(cfg);
    tell_rate(s, most_rate, (double)order.batch);
    tell_few_values(s);
    hints_tell_part(s->train_set, cfg->train_data);
    if ((size_t)cfg->batch_size > order.batch)
        log_warn(
            "data",
            "--batch-size %d: --train-data %s has %zu pictures: a step takes %zu, an epoch %lld steps; a smaller batch "
            "gives more",
            (int)cfg->batch_size, cfg->train_data, order.n, order.batch, (long long)s->steps_per_epoch);
    if (cfg->accumulate > s->parts)
        log_warn("train", "--accumulate %d: a batch of %zu pictures over %d ranks is cut into %d parts",
                 (int)cfg->accumulate, order.batch, s->batch.count, s->parts);
}
