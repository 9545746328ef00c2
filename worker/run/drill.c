/* Flips a bit, or makes a number none, where --drill-corrupt says. */
#include "worker/run/drill.h"

#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

#define BIT 0x10  /* of a float's, or a double's, byte but the highest: its value changes, and stays a number */
#define LOOK 4096 /* elements that are looked at for one that is not 0: of 0 the bit makes next to nothing */

static const char *const names[] = {DRILLS(CHOICE_NAME)};

int drill_check(const struct drill *d, int world, struct err *e)
{
    if (d->what == DRILL_NONE || d->rank < world)
        return 0;
    return err_set(e, ERR_USAGE, "--drill-corrupt %s@%lld:%lld: expected a rank from 0 to %d", names[d->what],
                   (long long)d->step, (long long)d->rank, world - 1);
}

/* The bit; or all bits of a NaN. */
static void spoil(unsigned char *v, size_t size, bool to_nan)
{
    if (to_nan)
        memset(v, 0xff, size);
    else
        v[size - 2] ^= BIT;
}

static int flip(struct state *s, char *arena, size_t n, bool to_nan, struct err *e)
{
    static const unsigned char zero[sizeof(double)];
    unsigned char v[sizeof(double)];
    const size_t size = state_bytes(s, 1);
    for (size_t i = n / 2; i < n && i < n / 2 + LOOK; i++) {
        TRY(s->device->ops->download(s->device, v, arena + state_bytes(s, i), size, e));
        if (memcmp(v, zero, size) == 0)
            continue;
        spoil(v, size, to_nan);
        s->version++; /* memory that a plan has a copy of */
        return s->device->ops->upload(s->device, arena + state_bytes(s, i), v, size, e);
    }
    return err_set(e, -EINVAL, "--drill-corrupt: %d elements are 0, so there is no bit whose flip would be felt", LOOK);
}

int drill_at(struct drill *d, struct state *s, int rank, int64_t step, bool sums, struct err *e)
{
    const enum drill_what what = d->what;
    if (what == DRILL_NONE || d->rank != rank || d->step != step || sums != (what >= DRILL_SUMS))
        return 0;
    if (what == DRILL_NAN)
        log_warn("drill", "one of this rank's sums becomes no number in step %lld", (long long)step);
    else
        log_warn("drill", "a bit of this rank's %s flips in step %lld", names[what], (long long)step);
    d->what = DRILL_NONE;
    if (what == DRILL_WEIGHTS)
        return flip(s, s->params, s->own->compact ? ownership_elements(s->own, OWNERSHIP_PARAMS) : s->program->n_train,
                    false, e);
    if (what == DRILL_MOMENTS)
        return flip(s, s->momentum, s->n_moments, false, e);
    return flip(s, s->reduce, s->program->n_train, what == DRILL_NAN, e);
}
