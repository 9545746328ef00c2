/* Decides when replicas are compared, and what follows from a difference. */
#include "worker/run/guard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/config/config.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/state/state.h"

/* Standard deviation of normal values, of their median absolute deviation. */
#define MAD_TO_SIGMA 1.4826
#define LEAST_SIGMA 0.01 /* of the median */

static bool can_go_back(const struct layout *l)
{
    return l->zero < 3 && l->stages == 1 && l->tensor == 1;
}

static void tell_limits(const struct layout *l)
{
    if (!can_go_back(l))
        log_warn("replicas", "ranks hold parts of the model: what there are copies of is compared, and a bit that "
                             "differs ends the run");
    if (l->zero > 0)
        log_warn("replicas", "--zero %d: moments%s %s, so a bit that flips in them is not seen", l->zero,
                 l->zero > 2 ? ", parameters and sums of gradients" : " and sums of gradients",
                 l->seconds ? "are not compared with what their second owners have (--replicate-state)"
                            : "have one owner each");
}

int guard_open(struct guard *g, const struct train_config *cfg, struct state *s, int world, bool tells, struct err *e)
{
    const struct layout *l = &s->own->layout;
    guard_close(g);
    *g = (struct guard){.compared = -1, .hopeless = -1};
    for (int i = 0; i < GUARD_LOSSES; i++)
        g->steps[i] = -1;
    if (!cfg->check_replicas || cfg->evaluate)
        return 0;
    if (world == 1) {
        if (tells)
            log_warn("replicas", "--check-replicas %lld: one rank has nobody to compare its state with",
                     (long long)cfg->check_replicas);
        return 0;
    }
    g->every = cfg->check_replicas;
    g->asks = !s->device->ops->async;
    if (tells)
        tell_limits(l);
    if (!can_go_back(l))
        return 0;
    g->deviations = cfg->loss_spike;
    return verify_open(&g->verify, s, e);
}

void guard_close(struct guard *g)
{
    verify_close(g->verify);
    *g = (struct guard){0};
}

/* --- losses */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, ascending);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

bool guard_is_spike(double *others, size_t n, double v, double deviations)
{
    if (n < GUARD_LEAST || deviations <= 0 || !isfinite(v))
        return false;
    const double middle = median(others, n);
    for (size_t i = 0; i < n; i++)
        others[i] = fabs(others[i] - middle);
    const double sigma = fmax(MAD_TO_SIGMA * median(others, n), LEAST_SIGMA * fabs(middle));
    return v > middle + deviations * sigma;
}

void guard_loss(struct guard *g, int64_t step, double loss)
{
    double others[GUARD_LOSSES];
    size_t n = 0;
    if (!g->verify || verify_until(g->verify) >= 0 || !isfinite(loss))
        return;
    for (int i = 0; i < GUARD_LOSSES; i++) /* a rollback leaves later ones */
        if (g->steps[i] >= 0 && g->steps[i] < step && g->steps[i] >= step - GUARD_LOSSES)
            others[n++] = g->losses[i];
    g->spiked = g->spiked || guard_is_spike(others, n, loss, g->deviations);
    g->steps[step % GUARD_LOSSES] = step;
    g->losses[step % GUARD_LOSSES] = loss;
}

/* --- when */

bool guard_due(const struct guard *g, const struct position *at, bool saves, bool ends)
{
    if (g->every == 0 || g->compared == at->updates)
        return false;
    if (g->verify && verify_until(g->verify) >= 0)
        return at->updates == verify_until(g->verify);
    return at->updates % g->every == 0 || ends || g->spiked || (saves && g->asks);
}

bool guard_allows(const struct guard *g, const struct position *at)
{
    return g->every == 0 || g->compared == at->updates;
}

bool guard_doubts(struct guard *g, const struct position *at)
{
    if (!g->verify || !g->asks || g->hopeless == at->updates)
        return false;
    g->hopeless = at->updates;
    return true;
}

/* --- what was found */

const char *guard_text(const struct verify_finding *f, int64_t from, int64_t to, char *out, size_t cap)
{
    char what[96], others[48] = "";
    if (f->culprits > 1)
        snprintf(others, sizeof others, " (and %d ranks more)", f->culprits - 1);
    if (f->step <= to)
        snprintf(what, sizeof what, "weights were others before the update of step %lld", (long long)f->step);
    else
        snprintf(what, sizeof what, "%s were others after step %lld", replicas_arena_name(f->arena), (long long)to);
    if (f->culprits > 0)
        snprintf(
            out, cap,
            "silent corruption in rank %d%s, whose %s than in the replay; steps %lld to %lld were done again, and all is well",
            f->rank, others, what, (long long)from + 1, (long long)to);
    else if (f->everyone)
        snprintf(
            out, cap,
            "the replay of steps %lld to %lld came to something else on all ranks at once: what was wrong was in the sums of all, and no rank can be named; all is well",
            (long long)from + 1, (long long)to);
    else
        snprintf(out, cap, "the replay of steps %lld to %lld came to the same bit for bit: the loss is what it is",
                 (long long)from + 1, (long long)to);
    return out;
}
