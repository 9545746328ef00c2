/* How far convolutions and batch norms are pulled together (decision 0007). Rungs, each only where its graphs
 * have plans:
 *
 *   statistics   conv -> BN: the convolution sums y and y * y on the way out (conv+stats)
 *   prologue     BN -> ReLU -> conv -> BN: the activation is never written: the convolution reads relu(x * scale +
 *                shift) (sbr+conv+stats), its weight gradient likewise (sbr+wgrad), and the data gradient goes through
 *                the ReLU and sums for the BN (dgrad+drelu+bn). All three or none
 *   dual         BN -> ADD <- BN: the sum normalises both; backward, both take the gradient that reaches the sum in one
 *                pass each (own kernels, any type)
 *   mask         BN [-> ADD] -> ReLU: where the ReLU was on is kept in a bit an element, and what it wrote is not read
 *                again for it (own kernels, any type)
 *   pool         BN -> ReLU -> max pooling: what lies between is never written, nor its gradient (own kernels,
 *                halves, NHWC: in fp32 fusing changes no bit, and this sums in another order)
 *   mean         BN [-> ADD] -> ReLU -> average pooling: the activation is never written, nor the gradient that the
 *                pooling spreads (own kernels, halves, NHWC)
 *   onto         the data gradient of a 1x1 convolution, which is a matrix product, is added to the other summand of
 *                its ADD where that lies: what takes the sum along reads one tensor instead of two (cuBLASLt, halves,
 *                NHWC). The product reads the summand instead, behind its arithmetic, and the sum is rounded once
 *
 * The first two: fp16, NHWC, as cuDNN has them for nothing else. Pure. */
#ifndef CRUN_WORKER_DEVICE_CUDA_LADDER_H
#define CRUN_WORKER_DEVICE_CUDA_LADDER_H

#include <stdbool.h>

struct cuda_plan;
struct err;

struct rung {     /* of an op; -1: none */
    int stats;    /* CONV: the BN that takes its sums. BN: the CONV that makes them */
    int prologue; /* CONV, CONV_BWD_PARAM: the BN whose scale and shift (and a ReLU) they apply to what they read */
    int drelu; /* CONV_BWD_DATA: the forward BN that it goes back into. BN_BWD: the CONV_BWD_DATA that made its sums */
    int dual;  /* the last op of BN+ADD[+ReLU]: the BN behind the other summand */
    int twin;  /* BN_BWD: the later one that takes the same gradient. `twinned`: that one */
    int pool;  /* the last op of BN+ReLU: the MAXPOOL that does its work; that one: this op; BN_BWD: the MAXPOOL_BWD */
    int mean; /* the last op of BN[+ADD]+ReLU: the AVGPOOL that does its work; that one: this op; BN_BWD: the AVGPOOL_BWD */
    int onto; /* CONV_BWD_DATA: the tensor that it adds to, in place. ADD of gradients: the one that holds the sum then */
    bool mask; /* the last op of BN[+ADD]+ReLU: keeps a mask */
    bool twinned;
    bool unwritten; /* BN, or the ReLU that ends BN+ReLU: its result is never stored */
};

/* Fill pl->rungs (allocated here, freed by the caller with free()). -ENOMEM. */
int ladder_climb(struct cuda_plan *pl, struct err *e);

/* --- seams.c */

/* Is a fusion worth it? That cuDNN has an engine for it does not say that it is fast: a prologue's may miss the tensor
 * cores' best way. Where things are timed, a plan is made three times, with all rungs, without prologues, and without
 * statistics from convolutions either; what each rung's steps take together, own kernels included, is compared, shape
 * by shape, and a rung that loses is left out from then on (cudnn_bar()). What won is noted, and not asked again. */
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
