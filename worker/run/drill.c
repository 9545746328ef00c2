#include "worker/run/drill.h"

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/device/device.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

#define BIT 0x10 /* of a byte in the middle of an arena: its value changes, and stays a number */

static int flip(struct state *s, void *arena, size_t n, struct err *e)
{
    unsigned char *at = (unsigned char *)arena + state_bytes(s, n / 2) + state_bytes(s, 1) - 2, byte;
    TRY(s->device->ops->download(s->device, &byte, at, 1, e));
    byte ^= BIT;
    s->version++; /* memory that a plan has a copy of */
    return s->device->ops->upload(s->device, at, &byte, 1, e);
}

int drill_at(struct drill *d, struct state *s, int rank, int64_t step, bool sums, struct err *e)
{
    static const char *const names[] = {DRILLS(CHOICE_NAME)};
    const enum drill_what what = d->what;
    if (what == DRILL_NONE || d->rank != rank || d->step != step || sums != (what == DRILL_SUMS))
        return 0;
    log_warn("drill", "a bit of this rank's %s flips in step %lld", names[what], (long long)step);
    d->what = DRILL_NONE;
    if (what == DRILL_WEIGHTS)
        return flip(s, s->params, s->program->n_train, e);
    return what == DRILL_MOMENTS ? flip(s, s->momentum, s->n_moments, e) : flip(s, s->reduce, s->program->n_train, e);
}
