/* Computes norms over arenas whose sums lie on several ranks. */
#include "worker/optim/norm.h"

#include <math.h>

#include "common/base/err.h"
#include "worker/device/device.h"
#include "worker/optim/update.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

/* The device divides gradients by METRIC_COUNT. */
static int add_range(struct state *s, const void *arena, enum ownership_arena a, size_t first, size_t end, double count,
                     double *sum, struct err *e)
{
    const bool gradients = a == OWNERSHIP_GRADIENTS;
    double m[METRIC_N];
    TRY(s->device->ops->grad_norm(s->device, (const char *)arena + state_bytes(s, first), end - first, 1,
                                  gradients ? state_metric(s, METRIC_COUNT) : NULL, s->norm, e));
    TRY(state_get_metrics(s, m, e));
    const double norm = m[METRIC_NORM] * (gradients ? count : 1);
    *sum += norm * norm;
    return 0;
}

int norm_add_squares(struct state *s, const void *arena, enum ownership_arena a, size_t first, size_t end, double count,
                     double *sum, struct err *e)
{
    for (int k = 0; k < s->own->npieces; k++) {
        const struct ownership_range r = s->own->pieces[k].saved;
        const size_t from = r.first > first ? r.first : first, to = r.end < end ? r.end : end;
        const size_t at = from < to ? ownership_place(s->own, a, from) : 0;
        if (from < to)
            TRY(add_range(s, arena, a, at, at + (to - from), count, sum, e));
    }
    return 0;
}

int optimizer_norm(const struct optimizer *o, struct state *s, struct ddp *d, double grad_scale, struct err *e)
{
    const size_t n = s->program->n_train, copy = s->own->copy.first < n ? s->own->copy.first : n;
    double m[METRIC_N], sum = 0;
    if (!ownership_is_spread(s->own))
        return s->device->ops->grad_norm(s->device, s->reduce, n, 1 / grad_scale, state_metric(s, optimizer_divisor(o)),
                                         s->norm, e);
    TRY(state_get_metrics(s, m, e));
    TRY(norm_add_squares(s, s->reduce, OWNERSHIP_GRADIENTS, 0, copy, m[METRIC_COUNT], &sum, e));
    TRY(norm_add_squares(s, s->reduce, OWNERSHIP_GRADIENTS, s->own->copy.end, n, m[METRIC_COUNT], &sum, e));
    TRY(ddp_sum(d, LAYOUT_ALL, &sum, 1, e));
    return state_set_metric(
        s, METRIC_NORM, m[optimizer_divisor(o)] > 0 ? sqrt(sum) / fabs(grad_scale) / m[optimizer_divisor(o)] : 0, e);
}
