/* Which operations a picture gets, and how much of each: policies of torchvision, timm, big_vision and DeiT III, as
 * they are published. What is drawn is a function of the random numbers that come in alone.
 *
 *   trivial           torchvision's TrivialAugmentWide: one of 14 operations, at one of 31 magnitudes
 *   rand              torchvision's RandAugment: n of the 14, at magnitude m of 30
 *   rand-timm         timm's RandAugment: n of 15, each with probability 1/2, at a magnitude around m of 10 with
 *                     deviation mstd; inc: operations get stronger with it, which they else do not all
 *   rand-big-vision   big_vision's: n of 16, at magnitude m of 10, which may be above 10
 *   three             DeiT III's 3-Augment: grey, inverted from 128 on, or blurred
 * And after it a colour jitter, torchvision's: brightness, contrast and saturation in a random order.
 * Where several libraries differ in what comes in from outside of a picture (black, timm's mean, grey), so do these. */
#ifndef CRUN_WORKER_DATA_POLICY_H
#define CRUN_WORKER_DATA_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/choice.h"
#include "worker/data/augment/picture_ops.h"
#include "worker/data/image/rng.h"

struct err;

#define POLICIES(X)                                                                                                    \
    X(POLICY_NONE, "none")                                                                                             \
    X(POLICY_TRIVIAL, "trivial")                                                                                       \
    X(POLICY_RAND, "rand")                                                                                             \
    X(POLICY_RAND_TIMM, "rand-timm")                                                                                   \
    X(POLICY_RAND_BIG_VISION, "rand-big-vision")                                                                       \
    X(POLICY_THREE, "three")
enum policy_kind { POLICIES(CHOICE_ID) };

enum { POLICY_OPS_MOST = 16, POLICY_DRAWN_MOST = POLICY_OPS_MOST + 3 };

struct policy {
    enum policy_kind kind;
    int ops;                /* n, 1 to POLICY_OPS_MOST */
    double magnitude, mstd; /* m; of timm's alone, 0: m each time */
    bool inc, bilinear;     /* bilinear: pixels that move are computed from 4; else they are the nearest ones, and of
                               timm's drawn for each operation: from 4 or from 16 */
};

struct jitter {
    double by[3]; /* brightness, contrast, saturation: factors of 1 - by (at least 0) to 1 + by; 0: none */
};

/* NAME[:KEY=VALUE,...] with keys n, m, mstd, inc and bilinear (inc and bilinear without a value). ERR_USAGE. */
int policy_parse(const char *text, void *policy, struct err *e);
void policy_print(const void *policy, char *out, size_t cap);
/* B[,C,S]; one number is all three. ERR_USAGE. */
int jitter_parse(const char *text, void *jitter, struct err *e);
void jitter_print(const void *jitter, char *out, size_t cap); /* "": none */

struct drawn { /* an operation */
    bool cut_out, bicubic;
    enum picture_op op; /* where it is not cut_out: */
    double value;
    int x, y, half; /* of picture_cut_out() */
};

/* What a picture of `size` pixels square gets, in order; how many. */
int policy_draw(const struct policy *p, const struct jitter *j, int size, struct rng *r,
                struct drawn out[POLICY_DRAWN_MOST]);

/* spare: as picture_op(). */
void policy_apply(const struct policy *p, const struct drawn *d, int n, struct image *im, uint8_t *spare);

/* torchvision's RandomErasing: of (size, size) pixels with probability `share` a box of 2 to 33 % of the area, of an
 * aspect from 0.3 to 3.3. False: none, as also after ten boxes that would not fit. box: x0, y0, x1, y1. */
bool erase_draw(double share, int size, struct rng *r, int16_t box[4]);

#endif
