/* Builds the schedule that the options ask for. */
#include "worker/run/rate.h"

#include "worker/config/config.h"

enum { PRESET_WARMUP_EPOCHS = 5 };

double rate_workers(const struct train_config *cfg, int64_t workers, int64_t batch)
{
    return (double)workers * (double)cfg->batch_size / (double)batch;
}

static double scale(const struct train_config *cfg, double workers, int parts)
{
    const double batch256 = (double)cfg->batch_size / 256;
    if (cfg->lr_policy == LR_HOROVOD)
        return workers * parts;
    if (cfg->lr_policy == LR_APEX)
        return batch256;
    switch ((enum lr_scale)cfg->lr_scale) {
    case LR_SCALE_WORKERS:
        return workers;
    case LR_SCALE_BATCH256:
        return batch256;
    case LR_SCALE_NONE:
        break;
    }
    return 1;
}

static int64_t steps_of(double epochs, int64_t steps_per_epoch)
{
    return (int64_t)(epochs * (double)steps_per_epoch + 0.5);
}

static void set_milestones(struct schedule *s, const double *epochs, int n, int64_t steps_per_epoch)
{
    s->n_milestones = n;
    for (int i = 0; i < n; i++)
        s->milestones[i] = steps_of(epochs[i], steps_per_epoch);
}

/* horovod, apex: drops by ten at their own epochs after their own warm-up. */
static void set_preset(struct schedule *s, const struct train_config *cfg, double workers, int64_t steps_per_epoch)
{
    static const double drops[] = {30, 60, 80, 90};
    const bool horovod = s->policy == LR_HOROVOD;
    s->gamma = 0.1;
    s->warmup = horovod ? WARMUP_HOROVOD : WARMUP_APEX;
    s->warmup_start = 1 / workers;
    s->warmup_steps = steps_of(cfg->warmup_epochs < 0 ? PRESET_WARMUP_EPOCHS : cfg->warmup_epochs, steps_per_epoch);
    set_milestones(s, drops, horovod ? 3 : 4, steps_per_epoch);
    if (s->warmup_steps > s->total_steps) /* a shorter run ends within the warm-up */
        s->total_steps = s->warmup_steps;
}

int64_t rate_copied(const struct schedule *s, int64_t steps_per_epoch)
{
    return (s->warmup_steps + steps_per_epoch - 1) / steps_per_epoch * steps_per_epoch;
}

struct schedule rate_schedule(const struct train_config *cfg, double workers, int parts, int64_t steps_per_epoch,
                              int64_t total)
{
    const int64_t step_size = steps_of(cfg->lr_step_epochs, steps_per_epoch);
    const double scaled = scale(cfg, workers, parts);
    struct schedule s = {.policy = (enum lr_policy)cfg->lr_policy,
                         .warmup = (enum lr_warmup)cfg->lr_warmup,
                         .warmup_start = cfg->warmup_start,
                         .base_lr = cfg->base_lr * scaled,
                         .least = cfg->lr_min * scaled,
                         .total_steps = total,
                         .step_size = step_size > 0 ? step_size : 1,
                         .gamma = cfg->lr_gamma,
                         .power = cfg->lr_power,
                         .hold = cfg->lr_per == LR_PER_STEP ? 0 : steps_per_epoch,
                         .late = cfg->lr_per == LR_PER_EPOCH_BEFORE};
    if (s.policy == LR_HOROVOD || s.policy == LR_APEX) {
        set_preset(&s, cfg, workers, steps_per_epoch);
    } else {
        s.warmup_steps = cfg->warmup_epochs < 0 ? (int64_t)(0.05 * (double)total + 0.5)
                                                : steps_of(cfg->warmup_epochs, steps_per_epoch);
        set_milestones(&s, cfg->milestones.epoch, cfg->milestones.n, steps_per_epoch);
    }
    return s;
}
