/* Writes and checks in a manifest where the order of samples is. */
#include "worker/snapshot/snapshot_order.h"

#include <stdbool.h>
#include <stdio.h>

#include "common/base/err.h"
#include "common/json/json.h"
#include "worker/data/loader/sampler.h"
#include "worker/manifest/manifest_choice.h"
#include "worker/snapshot/snapshot.h"

static const char *const kinds[] = {SAMPLERS(CHOICE_NAME)};
enum { KINDS = sizeof kinds / sizeof *kinds };

void meta_add_order(cJSON *meta, const struct sampler *order)
{
    cJSON *o = cJSON_AddObjectToObject(meta, "order");
    cJSON_AddNumberToObject(o, "samples", (double)order->n);
    cJSON_AddStringToObject(o, "kind", kinds[order->kind]);
    cJSON_AddNumberToObject(o, "batch", (double)order->batch);
    cJSON_AddNumberToObject(o, "world", order->world);
    cJSON_AddNumberToObject(o, "shards", order->shards);
    cJSON_AddBoolToObject(o, "shuffle", order->shuffle);
    cJSON_AddNumberToObject(o, "mixed", order->mixed);
    cJSON_AddBoolToObject(o, "drop_last", order->drop_last);
    cJSON_AddNumberToObject(o, "repetitions", order->repetitions > 1 ? order->repetitions : 1);
    cJSON_AddBoolToObject(o, "balanced", order->balanced);
}

/* That of the run that saved. What a checkpoint does not say (older ones) is as it is now. */
static struct sampler read_order(const cJSON *meta, const struct sampler *now)
{
    const cJSON *o = cJSON_GetObjectItemCaseSensitive(meta, "order");
    struct sampler was = *now;
    int64_t batch = 0, world = 0, shards = now->shards, samples = 0, mixed = 0, repetitions = 1;
    json_i64(o, "samples", &samples, NULL);
    json_i64(o, "world", &world, NULL);
    json_i64(o, "shards", &shards, NULL);
    json_i64(o, "mixed", &mixed, NULL);
    json_i64(o, "repetitions", &repetitions, NULL);
    const bool older = json_i64(o, "batch", &batch, NULL) < 0 && json_i64(meta, "batch", &batch, NULL) == 0;
    was.n = samples > 0 ? (size_t)samples : now->n;
    was.kind = (enum sampler_kind)meta_choice_id(o, "kind", kinds, KINDS, o ? KINDS : (int)now->kind);
    was.batch = batch > 0 ? (size_t)batch : now->batch;
    was.world = world > 0 ? (int)world : now->world;
    was.shards = (int)shards;
    if (o) {
        was.mixed = (int)mixed;
        was.repetitions = (int)repetitions;
        was.shuffle = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "shuffle"));
        was.drop_last = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "drop_last"));
        was.balanced = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "balanced"));
    }
    if (older && was.batch > was.n) /* what was typed; no step of those runs had more samples than there are */
        was.batch = was.n;
    return was;
}

struct text {
    char of[128];
};

static int repetitions_of(const struct sampler *s)
{
    return s->repetitions > 1 ? s->repetitions : 1;
}

static struct text text_of(const struct sampler *s)
{
    struct text t;
    char shuffle[24], again[48] = "";
    if (repetitions_of(s) > 1)
        snprintf(again, sizeof again, " --repeated-augmentation %d", s->repetitions);
    snprintf(shuffle, sizeof shuffle,
             s->mixed > 0  ? "shards:%d"
             : s->balanced ? "balanced"
             : s->shuffle  ? "on"
                           : "off",
             s->mixed);
    snprintf(t.of, sizeof t.of, "--sampler %s --shuffle %s%s%s", (int)s->kind < KINDS ? kinds[s->kind] : "?", shuffle,
             s->kind == SAMPLER_DISTRIBUTED && s->drop_last ? " --drop-last" : "", again);
    return t;
}

int meta_check_order(const cJSON *meta, const struct sampler *order, struct err *e)
{
    const struct sampler was = read_order(meta, order);
    const bool drops = was.kind == SAMPLER_DISTRIBUTED && was.drop_last != order->drop_last;
    int64_t step = 0;
    TRY(json_i64(meta, "step", &step, e));
    if (step <= 0 || step >= sampler_steps(&was))
        return 0;
    if (was.n != order->n)
        return err_set(e, ERR_MISMATCH,
                       "the checkpoint is in the middle of an epoch of %zu samples, this run has %zu: it would take "
                       "samples twice; "
                       "change them at the end of an epoch",
                       was.n, order->n);
    if (was.kind == order->kind && was.shuffle == order->shuffle && was.mixed == order->mixed &&
        was.balanced == order->balanced && repetitions_of(&was) == repetitions_of(order) && !drops)
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "the checkpoint is in the middle of an epoch with %s, this run has %s: it would take samples twice; "
                   "change them at the end of an epoch",
                   text_of(&was).of, text_of(order).of);
}

int64_t meta_place(const cJSON *meta, int64_t step, const struct snapshot_identity *id)
{
    const struct sampler was = read_order(meta, &id->order), *now = &id->order;
    const int64_t steps = sampler_steps(now);
    if (step >= sampler_steps(&was))
        return steps;
    if (was.batch == now->batch)
        return step;
    const int64_t here = step * (int64_t)was.batch / (int64_t)now->batch;
    return here > steps ? steps : here;
}
