/* The loss of a row over parts of its logits (program/split.h), written once for both host devices: the includer
 * defines REAL (double or float), what tensors are made of. Sums are double.
 *
 * z: logits of classes [first, first + n), n >= 1; classes: of all ranks together. */
#ifndef CRUN_WORKER_DEVICE_XENT_PARTS_H
#define CRUN_WORKER_DEVICE_XENT_PARTS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "worker/program/program.h"

/* Does class g beat the label's? Ties go to the lower class. */
static inline bool xent_beats(double z, int64_t g, double target, int64_t label)
{
    return g != label && !(z < target || (z == target && g > label));
}

/* most: of z */
static inline void xent_top(const REAL *z, int n, int first, const REAL label[LABEL_N], REAL most, REAL top[TOP_N])
{
    const int64_t at = (int64_t)label[LABEL_CLASS] - first, second = (int64_t)label[LABEL_SECOND] - first;
    const bool mixed = label[LABEL_SHARE] > 0;
    top[TOP_MAX] = most;
    top[TOP_TARGET] = at >= 0 && at < n ? z[at] : (REAL)-INFINITY;
    top[TOP_CLASS] = label[LABEL_CLASS];
    top[TOP_WEIGHT] = label[LABEL_WEIGHT];
    top[TOP_OTHER] = mixed && second >= 0 && second < n ? z[second] : (REAL)-INFINITY;
    top[TOP_SECOND] = label[LABEL_SECOND];
    top[TOP_SHARE] = label[LABEL_SHARE];
}

/* top: its maximum over the group. */
static inline void xent_sums(const REAL *z, int n, int first, const REAL top[TOP_N], REAL sums[SUMS_N])
{
    const int64_t label = (int64_t)top[TOP_CLASS];
    const double most = (double)top[TOP_MAX], target = (double)top[TOP_TARGET];
    double exps = 0, logits = 0;
    int64_t better = 0;
    for (int j = 0; j < n && top[TOP_WEIGHT] != 0; j++) {
        exps += exp((double)z[j] - most);
        logits += (double)z[j];
        better += xent_beats((double)z[j], (int64_t)first + j, target, label);
    }
    sums[SUMS_EXP] = (REAL)exps;
    sums[SUMS_LOGITS] = (REAL)logits;
    sums[SUMS_BETTER] = (REAL)better;
}

/* sums: over the group. Adds a sample that counts to metrics[METRIC_N]; NULL: others do. */
static inline void xent_parts(const REAL sums[SUMS_N], const REAL top[TOP_N], int classes, double smoothing,
                              REAL lse[LSE_N], double *metrics)
{
    const double target = (double)top[TOP_TARGET], share = (double)top[TOP_SHARE];
    const double mixed = share > 0 ? (1 - share) * target + share * (double)top[TOP_OTHER] : target;
    const double log_sum = top[TOP_WEIGHT] != 0 ? (double)top[TOP_MAX] + log((double)sums[SUMS_EXP]) : 0;
    lse[LSE_LSE] = (REAL)log_sum;
    lse[LSE_CLASS] = top[TOP_CLASS];
    lse[LSE_WEIGHT] = top[TOP_WEIGHT];
    lse[LSE_SECOND] = top[TOP_SECOND];
    lse[LSE_SHARE] = top[TOP_SHARE];
    if (!metrics || top[TOP_WEIGHT] == 0)
        return;
    metrics[METRIC_LOSS] += log_sum - (1 - smoothing) * mixed - smoothing * (double)sums[SUMS_LOGITS] / classes;
    metrics[METRIC_TOP1] += sums[SUMS_BETTER] < 1 && !isnan(target);
    metrics[METRIC_TOP5] += sums[SUMS_BETTER] < 5 && !isnan(target);
    metrics[METRIC_COUNT] += 1;
}

/* What element j of a sample's target has of its labels. label, second: where these are in z, if they are there. */
static inline double xent_parts_target(int64_t j, int64_t label, int64_t second, double share)
{
    return (j == label ? 1 - share : 0) + (j == second ? share : 0);
}

/* One element of dlogits, of a sample that counts. target: xent_parts_target(). */
static inline double xent_parts_gradient(double z, double target, double lse, int classes, double smoothing,
                                         double scale)
{
    return (exp(z - lse) - (1 - smoothing) * target - smoothing / classes) * scale;
}

/* The logits z become their gradients: zeros, of a row that does not count. */
static inline void xent_row_gradient(REAL *z, int n, int first, const REAL lse[LSE_N], int classes, double smoothing,
                                     double scale)
{
    const int64_t label = (int64_t)lse[LSE_CLASS] - first, second = (int64_t)lse[LSE_SECOND] - first;
    const double share = (double)lse[LSE_SHARE];
    for (int j = 0; j < n; j++)
        z[j] = lse[LSE_WEIGHT] == 0
                   ? 0
                   : (REAL)xent_parts_gradient((double)z[j], xent_parts_target(j, label, second, share),
                                               (double)lse[LSE_LSE], classes, smoothing, scale);
}

#endif
