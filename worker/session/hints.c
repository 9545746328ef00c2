#include "worker/session/hints.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/log.h"
#include "worker/config/config.h"
#include "worker/data/sets/dataset.h"
#include "worker/session/session.h"
#include "worker/session/session_build.h"

static bool is_part(const char *name)
{
    static const char *const parts[] = {"train", "training", "val", "valid", "validation", "test", "testing", "eval"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcasecmp(name, parts[i]) == 0)
            return true;
    return false;
}

const char *hints_part_to_train_on(const struct dataset *d)
{
    const char *found = NULL;
    if (strcmp(d->ops->name, "folder") != 0)
        return NULL;
    for (int i = 0; i < d->classes; i++) {
        if (!is_part(d->class_names[i]))
            return NULL;
        if (strncasecmp(d->class_names[i], "train", 5) == 0)
            found = d->class_names[i];
    }
    return found;
}

/* "'train', 'val'" */
static const char *class_list(const struct dataset *d, char *out, size_t cap)
{
    size_t at = 0;
    for (int i = 0; i < d->classes && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s'%s'", i > 0 ? ", " : "", d->class_names[i]);
    return out;
}

void hints_tell(const struct session *s)
{
    const struct train_config *cfg = s->cfg;
    const struct sampler order = session_order(s, true);
    const char *part = hints_part_to_train_on(s->train_set);
    char classes[160];
    if (cfg->evaluate)
        return;
    if (part)
        log_warn("data", "--train-data %s: its classes are %s: is --train-data %s/%s meant?", cfg->train_data,
                 class_list(s->train_set, classes, sizeof classes), cfg->train_data, part);
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
