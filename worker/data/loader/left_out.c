/* Remembers samples that count with weight 0, and tells of them, rarely. */
#include "worker/data/loader/left_out.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/data/sets/dataset.h"

#define FIRST_PAUSE_MS 60000
#define LONGEST_PAUSE_MS 3600000

int left_out_init(struct left_out *o, size_t n, int ranks, struct err *e)
{
    *o = (struct left_out){.told = calloc(n / 8 + 1, 1),
                           .names = (size_t)((LEFT_OUT_NAMES + ranks - 1) / ranks),
                           .damaged.pause_ms = FIRST_PAUSE_MS,
                           .labels.pause_ms = FIRST_PAUSE_MS};
    return o->told ? 0 : err_set(e, -ENOMEM, "no memory to note which of %zu samples are left out", n);
}

void left_out_finish(struct left_out *o)
{
    free(o->told);
    free(o->items);
    *o = (struct left_out){0};
}

void left_out_forget(struct left_out *o)
{
    free(o->items);
    o->items = NULL;
    o->n_items = o->cap = 0;
}

/* Is a pause over, before the next one begins? */
static bool is_due(struct left_out_count *c, int64_t now_ms)
{
    if (now_ms < c->next_ms)
        return false;
    c->next_ms = now_ms + c->pause_ms;
    c->pause_ms = 2 * c->pause_ms < LONGEST_PAUSE_MS ? 2 * c->pause_ms : LONGEST_PAUSE_MS;
    return true;
}

static void tell_label(struct left_out *o, struct dataset *d, uint32_t id, int label, const struct err *why,
                       int64_t now_ms)
{
    o->most = o->labels.n++ == 0 || label > o->most ? label : o->most;
    if (!is_due(&o->labels, now_ms))
        return;
    if (o->labels.n == 1)
        log_warn("data",
                 "'%s' is left out: %s (--num-labels, or the class names beside the data); more of them are counted",
                 d->ops->sample_name(d, id), why->text);
    else
        log_warn("data",
                 "%zu samples are left out so far, as their labels are no class: the largest is %d of a set of %d",
                 o->labels.n, o->most, d->classes);
}

static void tell_damage(struct left_out *o, struct dataset *d, uint32_t id, const struct err *why, int64_t now_ms)
{
    const bool last = ++o->damaged.n == o->names;
    if (o->damaged.n <= o->names)
        log_warn("data", "'%s' is left out: %s%s", d->ops->sample_name(d, id), why->text,
                 last ? "; more of them are counted" : "");
    if (last)
        (void)is_due(&o->damaged, now_ms); /* the first pause begins */
    else if (o->damaged.n > o->names && is_due(&o->damaged, now_ms))
        log_warn("data", "%zu samples are left out so far, as they cannot be read or decoded", o->damaged.n);
}

static void list(struct left_out *o, uint32_t id, const struct err *why)
{
    if (o->listed == LEFT_OUT_LISTED || ARRAY_RESERVE(o->items, o->cap, o->n_items + 1) < 0)
        return;
    o->listed++;
    o->items[o->n_items].id = id;
    snprintf(o->items[o->n_items++].why, sizeof o->items->why, "%.*s", (int)sizeof o->items->why - 1, why->text);
}

/* false: it is so already. */
static bool mark(struct left_out *o, uint32_t id)
{
    const unsigned char bit = (unsigned char)(1u << (id % 8));
    if (o->told[id / 8] & bit)
        return false;
    o->told[id / 8] |= bit;
    return true;
}

void left_out_know(struct left_out *o, uint32_t id)
{
    (void)mark(o, id);
}

void left_out_tell(struct left_out *o, struct dataset *d, uint32_t id, int label, const struct err *why, int64_t now_ms)
{
    if (!mark(o, id))
        return;
    list(o, id, why);
    if (label < 0 || label >= d->classes)
        tell_label(o, d, id, label, why, now_ms);
    else
        tell_damage(o, d, id, why, now_ms);
}
