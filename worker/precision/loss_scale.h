/* Loss scaling for fp16: which factor the loss is multiplied by, and which steps are left out. Pure; NVIDIA Apex'
 * LossScaler, whose constants torch.cuda.amp.GradScaler shares: start at 2^16, halve and skip on a gradient that is not
 * finite, double after 2000 clean steps in a row, at most 2^24. */
#ifndef CRUN_WORKER_LOSS_SCALE_H
#define CRUN_WORKER_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#define LOSS_SCALE_START 65536.0
#define LOSS_SCALE_MAX 16777216.0
#define LOSS_SCALE_MIN 0x1p-14 /* below it the scale is not what makes gradients overflow */
#define LOSS_SCALE_WINDOW 2000

struct loss_scale {  /* equal on all ranks; stored in checkpoints */
    double scale;    /* > 0; 1: nothing is scaled */
    int64_t clean;   /* steps in a row with finite gradients since the scale last changed */
    int64_t skipped; /* steps of the run that changed nothing */
    bool dynamic;
};

struct loss_scale loss_scale_fixed(double scale);
struct loss_scale loss_scale_dynamic(void);

enum loss_scale_verdict {
    LOSS_SCALE_UPDATE,  /* the step counts */
    LOSS_SCALE_SKIP,    /* the step must change nothing; the scale is halved */
    LOSS_SCALE_HOPELESS /* not finite whatever the scale, or the scale is fixed: training diverged */
};

/* After the backward pass: finite: the gradients, summed over all ranks, are. */
enum loss_scale_verdict loss_scale_after(struct loss_scale *s, bool finite);

#endif
