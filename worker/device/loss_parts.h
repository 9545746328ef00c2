/* The loss of a row that is not plain (loss_rule.h), over parts of its logits as xent_parts.h has it: written once for
 * both host devices. The includer has included xent_parts.h, and defines LOGIT
 * where the logits that sums are made of are not REAL.
 *
 * Sums of a row become others: binary: SUMS_EXP is the sum of log(1 + exp(z)); weighted: SUMS_LOGITS is that of w z. */
#ifndef CRUN_WORKER_DEVICE_LOSS_PARTS_H
#define CRUN_WORKER_DEVICE_LOSS_PARTS_H

#include "worker/device/loss_rule.h"

#ifndef LOGIT
#define LOGIT REAL
#endif

static inline double loss_softplus(double z)
{
    return (z > 0 ? z : 0) + log1p(exp(-fabs(z)));
}

/* After xent_sums(), or what does the same. */
static inline void loss_sums(const struct loss_rule *r, const LOGIT *z, int n, int first, const REAL top[TOP_N],
                             REAL sums[SUMS_N])
{
    double soft = 0, logits = 0;
    if (loss_is_plain(r) || top[TOP_WEIGHT] == 0)
        return;
    for (int j = 0; j < n; j++) {
        soft += r->binary ? loss_softplus((double)z[j]) : 0;
        logits += r->weights ? (double)r->weights[first + j] * (double)z[j] : 0;
    }
    if (r->binary)
        sums[SUMS_EXP] = (REAL)soft;
    else
        sums[SUMS_LOGITS] = (REAL)logits;
}

/* What multiplies p in the gradient of a weighted row: the sum of w t. */
static inline double loss_weight(const struct loss_rule *r, int64_t label, int classes, double smoothing)
{
    return (1 - smoothing) * (double)r->weights[label] + smoothing * r->total / classes;
}

static inline double loss_of_row(const struct loss_rule *r, const REAL sums[SUMS_N], const REAL top[TOP_N],
                                 double log_sum, int classes, double smoothing)
{
    const int64_t label = (int64_t)top[TOP_CLASS];
    const double target = (double)top[TOP_TARGET], rest = smoothing / classes * (double)sums[SUMS_LOGITS];
    const bool mixed = top[TOP_SHARE] > 0 && top[TOP_SECOND] != top[TOP_CLASS];
    if (r->binary)
        return ((double)sums[SUMS_EXP] - (1 - smoothing) * (target + (mixed ? (double)top[TOP_OTHER] : 0)) - rest) /
               classes;
    return loss_weight(r, label, classes, smoothing) * log_sum - (1 - smoothing) * (double)r->weights[label] * target -
           rest;
}

/* As xent_parts(). */
static inline void loss_parts(const struct loss_rule *r, const REAL sums[SUMS_N], const REAL top[TOP_N], int classes,
                              double smoothing, REAL lse[LSE_N], double *metrics)
{
    const double before = metrics ? metrics[METRIC_LOSS] : 0;
    xent_parts(sums, top, classes, smoothing, lse, metrics);
    if (!loss_is_plain(r) && metrics && top[TOP_WEIGHT] != 0)
        metrics[METRIC_LOSS] = before + loss_of_row(r, sums, top, (double)lse[LSE_LSE], classes, smoothing);
}

/* As xent_parts_gradient(), of logit z of class j; label, second (-1: none) and j: of all classes. */
static inline double loss_slope(const struct loss_rule *r, double z, int64_t j, int64_t label, int64_t second,
                                double lse, int classes, double smoothing, double scale)
{
    const double hit = j == label || j == second ? 1 - smoothing : 0, rest = smoothing / classes;
    if (r->binary)
        return (1 / (1 + exp(-z)) - hit - rest) / classes * scale;
    if (!r->weights)
        return (exp(z - lse) - hit - rest) * scale;
    return (exp(z - lse) * loss_weight(r, label, classes, smoothing) - (hit + rest) * (double)r->weights[j]) * scale;
}

/* As xent_row_gradient(). */
static inline void loss_row_gradient(const struct loss_rule *r, REAL *z, int n, int first, const REAL lse[LSE_N],
                                     int classes, double smoothing, double scale)
{
    if (loss_is_plain(r)) {
        xent_row_gradient(z, n, first, lse, classes, smoothing, scale);
        return;
    }
    const int64_t label = (int64_t)lse[LSE_CLASS], second = lse[LSE_SHARE] > 0 ? (int64_t)lse[LSE_SECOND] : -1;
    for (int j = 0; j < n; j++)
        z[j] = lse[LSE_WEIGHT] == 0 ? 0
                                    : (REAL)loss_slope(r, (double)z[j], first + j, label, second, (double)lse[LSE_LSE],
                                                       classes, smoothing, scale);
}

#endif
