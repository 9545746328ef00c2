/* Is a fusion worth it? That cuDNN has an engine for it does not say that it is fast: a prologue's may miss the tensor
 * cores' best way. Where things are timed, a plan is made three times, with all rungs, without prologues, and without
 * statistics from convolutions either; what each rung's steps take together, own kernels included, is compared, shape
 * by shape, and a rung that loses is left out from then on (cudnn_bar()). What won is noted, and not asked again. */
#ifndef CRUN_WORKER_DEVICE_CUDA_SEAMS_H
#define CRUN_WORKER_DEVICE_CUDA_SEAMS_H

#include <stdbool.h>

struct cuda_plan;
struct err;

/* How far a plan may climb. */
enum seams_allowed { SEAMS_ALL, SEAMS_NO_PROLOGUE, SEAMS_NONE, SEAMS_LEVELS };

/* What was learned so far; begins as zeros. */
struct seams {
    enum seams_allowed next; /* how far the plan at hand may climb */
    struct seam_time *all;   /* per op of the program: malloc'ed */
    int nops;
    bool done;
};

/* Look at a plan that was made as s->next says. *ret_again: it is to be closed and made once more, as s->next says by
 * now. -ENOMEM, and the errors of the card. */
int seams_look(struct seams *s, struct cuda_plan *pl, bool *ret_again, struct err *e);
/* The plan that s->next asks for does not fit: what is known so far has to do. */
void seams_give_up(struct seams *s);
void seams_finish(struct seams *s);

#endif
