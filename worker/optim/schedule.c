/* Computes the learning rate of a step. */
#include "worker/optim/schedule.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/err.h"

/* Share of the run after warm-up that is done. */
static double done(const struct schedule *s, int64_t step)
{
    return step >= s->total_steps ? 1 : (double)(step - s->warmup_steps) / (double)(s->total_steps - s->warmup_steps);
}

static int passed(const struct schedule *s, int64_t step)
{
    int n = 0;
    while (n < s->n_milestones && step >= s->milestones[n])
        n++;
    return n;
}

static double warm(const struct schedule *s, int64_t step)
{
    const double m = s->warmup_start, w = (double)s->warmup_steps;
    switch (s->warmup) {
    case WARMUP_CAFFE2:
        return m + (1 - m) * (double)step / w;
    case WARMUP_CONSTANT:
        return m;
    case WARMUP_HOROVOD:
        return m + (1 - m) * (double)(step + 1) / w;
    case WARMUP_APEX:
        return (double)(step + 2) / w;
    case WARMUP_LINEAR:
        break;
    }
    return (double)(step + 1) / w;
}

static double cosine(const struct schedule *s, double share)
{
    return share >= 1 ? s->least : s->least + (s->base_lr - s->least) * (1 + cos(M_PI * share)) / 2;
}

/* The step whose rate step `step` has. */
static int64_t held(const struct schedule *s, int64_t step)
{
    if (s->hold == 0)
        return step;
    const int64_t first = step / s->hold * s->hold;
    return !s->late ? first : first > s->hold ? first - s->hold : 0;
}

double schedule_lr(const struct schedule *s, int64_t step)
{
    step = held(s, step);
    if (step < s->warmup_steps)
        return s->base_lr * warm(s, step);
    switch (s->policy) {
    case LR_COSINE:
        return cosine(s, done(s, step));
    case LR_TIMM:
        return cosine(s, (double)step / (double)s->total_steps);
    case LR_MULTISTEP:
    case LR_HOROVOD:
    case LR_APEX:
        return s->base_lr * pow(s->gamma, passed(s, step));
    case LR_POLY:
        return s->base_lr * pow(1 - done(s, step), s->power);
    case LR_EXP:
        return s->base_lr * pow(s->gamma, (double)step);
    case LR_INV:
        return s->base_lr * pow(1 + s->gamma * (double)step, -s->power);
    case LR_STEP:
        return s->base_lr * pow(s->gamma, (double)(step / s->step_size));
    case LR_FIXED:
        break;
    }
    return s->base_lr;
}

int schedule_check(const struct schedule *s, struct err *e)
{
    if (!schedule_policy_name(s->policy))
        return err_set(e, -EINVAL, "learning-rate policy %d is not known", (int)s->policy);
    if (!(s->base_lr >= 0) || !isfinite(s->base_lr))
        return err_set(e, -EINVAL, "base learning rate %g is not a number from 0 upwards", s->base_lr);
    const bool falls = s->policy == LR_COSINE || s->policy == LR_TIMM;
    if (falls && !(s->least >= 0 && s->least <= s->base_lr))
        return err_set(e, -EINVAL, "the rate at the end, %g, is not between 0 and the base learning rate %g", s->least,
                       s->base_lr);
    if (s->total_steps < 1)
        return err_set(e, -EINVAL, "a run of %" PRId64 " steps is shorter than one step", s->total_steps);
    if (s->warmup_steps < 0 || s->warmup_steps > s->total_steps)
        return err_set(e, -EINVAL, "warm-up of %" PRId64 " steps is not between 0 and the run's %" PRId64,
                       s->warmup_steps, s->total_steps);
    if (s->policy == LR_STEP && s->step_size < 1)
        return err_set(e, -EINVAL, "step size %" PRId64 " of the step policy is below 1", s->step_size);
    const bool gamma = !falls && s->policy != LR_POLY && s->policy != LR_FIXED;
    if (gamma && !(s->gamma > 0 && isfinite(s->gamma)))
        return err_set(e, -EINVAL, "gamma %g of the %s policy is not above 0", s->gamma,
                       schedule_policy_name(s->policy));
    if ((s->policy == LR_POLY || s->policy == LR_INV) && !(s->power > 0 && isfinite(s->power)))
        return err_set(e, -EINVAL, "power %g of the %s policy is not above 0", s->power,
                       schedule_policy_name(s->policy));
    if (s->n_milestones < 0 || s->n_milestones > SCHEDULE_MILESTONES_MAX)
        return err_set(e, -EINVAL, "%d milestones (expected 0 to %d)", s->n_milestones, SCHEDULE_MILESTONES_MAX);
    return 0;
}

const char *schedule_policy_name(enum lr_policy p)
{
    static const char *const names[] = {LR_POLICIES(CHOICE_NAME)};
    return (size_t)p < sizeof names / sizeof *names ? names[p] : NULL;
}
