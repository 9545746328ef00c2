/* Learning-rate schedules: pure functions of the step. Warm-up (linear from lr/steps upwards) then the policy. */
#ifndef CRUN_WORKER_SCHEDULE_H
#define CRUN_WORKER_SCHEDULE_H

#include <stdint.h>

struct err;

#define LR_POLICIES(X)                                                                                                 \
    X(LR_COSINE, "cosine") /* half a cosine from base to 0 */                                                          \
    X(LR_STEP, "step")     /* times gamma every step_size steps */                                                     \
    X(LR_FIXED, "fixed")

enum lr_policy {
#define X(name, text) name,
    LR_POLICIES(X)
#undef X
};

struct schedule {
    enum lr_policy policy;
    double base_lr;
    int64_t total_steps;  /* of the run */
    int64_t warmup_steps; /* step s < warmup: base * (s + 1) / warmup */
    int64_t step_size;    /* STEP: every so many steps, counted from step 0 ... */
    double gamma;         /* ... times this */
};

/* Can it be used? -EINVAL names the member, its value and what is expected. */
int schedule_check(const struct schedule *s, struct err *e);

/* Rate of step s (0-based). COSINE: base * (1 + cos(pi * (s - warmup) / (total - warmup))) / 2, 0 beyond the end.
 * STEP: base * gamma^floor(s / step_size). */
double schedule_lr(const struct schedule *s, int64_t step);

const char *schedule_policy_name(enum lr_policy p);

#endif
