/* Learning-rate schedules: pure functions of the step. Warm-up (linear from lr/steps upwards) then the policy. */
#ifndef CRUN_WORKER_SCHEDULE_H
#define CRUN_WORKER_SCHEDULE_H

#include <stdint.h>

enum lr_policy { LR_COSINE, LR_STEP, LR_FIXED };

struct schedule {
    enum lr_policy policy;
    double base_lr;
    int64_t total_steps;   /* of the run */
    int64_t warmup_steps;  /* step s < warmup: base * (s + 1) / warmup */
    int64_t step_size;     /* STEP: every so many steps ... */
    double gamma;          /* ... times this */
};

/* Rate of step s (0-based). COSINE: base * (1 + cos(pi * (s - warmup) / (total - warmup))) / 2. */
double schedule_lr(const struct schedule *s, int64_t step);

#endif
