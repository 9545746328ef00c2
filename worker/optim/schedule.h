/* Learning-rate schedules: pure functions of the step. Warm-up, then the policy. */
#ifndef CRUN_WORKER_SCHEDULE_H
#define CRUN_WORKER_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/choice.h"

struct err;

#define LR_POLICIES(X)                                                                                                 \
    X(LR_COSINE, "cosine")       /* half a cosine from base to least */                                                \
    X(LR_TIMM, "timm")           /* the same, but begun with the run: warm-up covers its first steps, as in timm */    \
    X(LR_STEP, "step")           /* times gamma every step_size steps */                                               \
    X(LR_MULTISTEP, "multistep") /* times gamma at each milestone */                                                   \
    X(LR_POLY, "poly")           /* (1 - share of the run done)^power */                                               \
    X(LR_EXP, "exp")             /* gamma^step */                                                                      \
    X(LR_INV, "inv")             /* (1 + gamma * step)^-power */                                                       \
    X(LR_FIXED, "fixed")         /* base */                                                                            \
    X(LR_HOROVOD, "horovod")     /* multistep at epochs 30, 60, 80; its own warm-up (horovod's ImageNet example) */    \
    X(LR_APEX, "apex")           /* multistep at epochs 30, 60, 80, 90; its own warm-up (Apex's ImageNet example) */

/* Factor of step s < warmup_steps = w; m: warmup_start. */
#define LR_WARMUPS(X)                                                                                                  \
    X(WARMUP_LINEAR, "linear")     /* (s + 1) / w */                                                                   \
    X(WARMUP_CAFFE2, "caffe2")     /* m + (1 - m) * s / w: Caffe2's linearWarmup */                                    \
    X(WARMUP_CONSTANT, "constant") /* m: Caffe2's constantWarmup */

#define SCHEDULE_MILESTONES_MAX 16

enum lr_policy { LR_POLICIES(CHOICE_ID) };
enum lr_warmup {
    LR_WARMUPS(CHOICE_ID) /* and what policies of these names bring: */
    WARMUP_HOROVOD,       /* m + (1 - m) * (s + 1) / w, m = 1 / ranks: from one rank's rate to all ranks' */
    WARMUP_APEX           /* (s + 2) / w */
};

struct schedule {
    enum lr_policy policy;
    enum lr_warmup warmup;
    double warmup_start; /* CAFFE2, CONSTANT, HOROVOD */
    double base_lr;
    int64_t hold;         /* steps for which the rate stays as at the first of them: of an epoch; 0: one */
    bool late;            /* with hold: the rate is that of so many steps before, at the beginning that of step 0 */
    double least;         /* COSINE, TIMM: the rate at the end, at most base_lr */
    int64_t total_steps;  /* of the run */
    int64_t warmup_steps; /* steps before it: base * the warm-up's factor */
    int64_t step_size;    /* STEP: every so many steps, counted from step 0 ... */
    double gamma;         /* ... times this; MULTISTEP, HOROVOD, APEX, EXP, INV: see above */
    double power;         /* POLY, INV */
    int64_t milestones
        [SCHEDULE_MILESTONES_MAX]; /* MULTISTEP, HOROVOD, APEX: rising steps; from each on the rate is gamma times as much */
    int n_milestones;
};

/* Can it be used? -EINVAL names the member, its value and what is expected. */
int schedule_check(const struct schedule *s, struct err *e);

/* Rate of step s (0-based), or where rates are held of the first one that has the same.
 * COSINE: least + (base - least) * (1 + cos(pi * (s - warmup) / (total - warmup))) / 2, least beyond the end.
 * TIMM: the same with s / total.
 * POLY: base * (1 - (s - warmup) / (total - warmup))^power, 0 beyond the end.
 * The others count s from the beginning of the run, warm-up included, as LearningRate of Caffe2 and StepLR do. */
double schedule_lr(const struct schedule *s, int64_t step);

const char *schedule_policy_name(enum lr_policy p);

#endif
