#include "worker/data/loader/left_out.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/data/sets/dataset.h"

#define FIRST_PAUSE_MS 60000
#define LONGEST_PAUSE_MS 3600000

int left_out_init(struct left_out *o, size_t n, struct err *e)
{
    *o = (struct left_out){.told = calloc(n / 8 + 1, 1), .pause_ms = FIRST_PAUSE_MS};
    return o->told ? 0 : err_set(e, -ENOMEM, "no memory to note which of %zu samples are left out", n);
}

void left_out_finish(struct left_out *o)
{
    free(o->told);
    *o = (struct left_out){0};
}

static void tell_label(struct left_out *o, struct dataset *d, uint32_t id, int label, const struct err *why,
                       int64_t now_ms)
{
    o->most = o->labels++ == 0 || label > o->most ? label : o->most;
    if (o->labels > 1 && now_ms < o->next_ms)
        return;
    if (o->labels == 1)
        log_warn("data",
                 "'%s' is left out: %s (--num-labels, or the class names beside the data); more of them are counted",
                 d->ops->sample_name(d, id), why->text);
    else
        log_warn("data",
                 "%zu samples are left out so far, as their labels are no class: the largest is %d of a set of %d",
                 o->labels, o->most, d->classes);
    o->next_ms = now_ms + o->pause_ms;
    o->pause_ms = 2 * o->pause_ms < LONGEST_PAUSE_MS ? 2 * o->pause_ms : LONGEST_PAUSE_MS;
}

void left_out_tell(struct left_out *o, struct dataset *d, uint32_t id, int label, const struct err *why, int64_t now_ms)
{
    const unsigned char bit = (unsigned char)(1u << (id % 8));
    if (o->told[id / 8] & bit)
        return;
    o->told[id / 8] |= bit;
    if (label < 0 || label >= d->classes)
        tell_label(o, d, id, label, why, now_ms);
    else
        log_warn("data", "'%s' is left out: %s", d->ops->sample_name(d, id), why->text);
}
