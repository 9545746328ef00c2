/* What the loss of a row of logits is. Apart from device.h, so that whoever says it needs no device.
 *
 * Targets t are (1 - smoothing) * hit + smoothing / K over K classes; p = softmax(z). hit is onehot(label); of a mixed
 * row, whose second label has `share` of it,
 *   plain      (1 - share) * onehot(label) + share * onehot(second)
 *   binary     1 for both labels, however small the second's share is
 *   weighted   not defined: no row is mixed
 * The loss is
 *   plain      -sum t log p
 *   weighted   -sum w t log p, as torch.nn.CrossEntropyLoss(weight=w), whose mean divides by the sum of w[label]
 *   binary     the mean over classes of -t log s(z) - (1 - t) log(1 - s(z)), s the logistic function, as
 *              torch.nn.BCEWithLogitsLoss */
#ifndef CRUN_WORKER_DEVICE_LOSS_RULE_H
#define CRUN_WORKER_DEVICE_LOSS_RULE_H

#include <stdbool.h>

struct loss_rule { /* all-zero: plain */
    bool binary;
    const float *weights; /* (K), borrowed; NULL: all 1. Not with `binary` */
    double total;         /* their sum */
};

static inline bool loss_is_plain(const struct loss_rule *r)
{
    return !r->binary && !r->weights;
}

#endif
