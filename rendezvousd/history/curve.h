/* Keeps a job's curves in bounded memory: points in order of time. If there are too many, pairs are merged, so that
 * the whole job is kept, at a resolution that fits its length. Pure. */
#ifndef CRUN_RENDEZVOUSD_CURVE_H
#define CRUN_RENDEZVOUSD_CURVE_H

#include <stdint.h>

#define CURVE_MAX 512  /* points of a running job: between half of this and this */
#define CURVE_KEPT 256 /* of one that is over, at most */

#define CURVE_SERIES(X)                                                                                                \
    X(CURVE_LOSS, "loss")                                                                                              \
    X(CURVE_ACCURACY, "accuracy")           /* 0 to 1 */                                                               \
    X(CURVE_EVAL_ACCURACY, "eval_accuracy") /* 0 to 1 */                                                               \
    X(CURVE_RATE, "images_per_s")                                                                                      \
    X(CURVE_STEP_MS, "step_ms") /* of the slowest rank */

enum curve_series {
#define X(name, text) name,
    CURVE_SERIES(X)
#undef X
        CURVE_N
};

extern const char *const curve_names[CURVE_N];

struct curve_point {
    float t_s;        /* since the job's start; never less than the point before */
    uint32_t step;    /* goes back if a job resumes from a checkpoint */
    float v[CURVE_N]; /* NAN: not known */
};

/* All-zero is an empty one. */
struct curve {
    struct curve_point *v;
    uint32_t n, cap;
    uint32_t stride; /* number of original points in each point, except the last */
    uint32_t in_last;
};

int curve_add(struct curve *c, const struct curve_point *p); /* -ENOMEM: nothing has changed */
void curve_end(struct curve *c);                             /* no more points will come: free unused memory */
void curve_free(struct curve *c);

/* Steps a second at `now_s`, from the newest stretch; 0: not known. */
double curve_steps_per_s(const struct curve *c, double now_s);

#endif
