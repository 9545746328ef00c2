/* What device_ops.update() is told. Apart from device.h, so that kernels, which are slow to compile, include this
 * alone. */
#ifndef CRUN_WORKER_DEVICE_UPDATE_RULE_H
#define CRUN_WORKER_DEVICE_UPDATE_RULE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/choice.h"

/* Parameter update of one slice [first, first + n) of the arenas. With g = gradient * grad_mul * clip / *count; count
 * points at METRIC_COUNT of the (reduced) reduce arena, device memory. A count of 0 leaves everything as it is. */
#define UPDATE_RULES(X)                                                                                                \
    X(UPDATE_SGD, "sgd")           /* torch: g += wd * w; m = mu * m + g; w -= lr * m */                               \
    X(UPDATE_NESTEROV, "nesterov") /* torch: as above, but w -= lr * (g + mu * m) */                                   \
    X(UPDATE_CAFFE2, "caffe2")     /* g += wd * w; m' = mu * m + lr * g; w -= (1 + mu) * m' - mu * m */                \
    X(UPDATE_LARS, "lars")   /* r = trust * |w| / (|g| + wd * |w|); m = mu * m + lr * r * (g + wd * w); w -= m */      \
    X(UPDATE_ADAM, "adam")   /* torch.optim.Adam: momentum is beta1, decay is added to the gradient */                 \
    X(UPDATE_ADAMW, "adamw") /* torch.optim.AdamW: w *= 1 - lr * wd, then Adam without decay */                        \
    X(UPDATE_LAMB, "lamb")   /* timm's: d = Adam's step at rate 1 + wd * w; w -= lr * r * d, r = |w| / |d| */

enum update_rule { UPDATE_RULES(CHOICE_ID) };

const char *update_rule_name(enum update_rule r);

struct update {
    enum update_rule rule;
    size_t first, n;       /* LARS, LAMB: one tensor */
    size_t skipped;        /* moments of element i are at i - skipped of their arenas: 0 where these are whole */
    size_t params_skipped; /* and the parameter likewise */
    double lr, momentum, weight_decay;
    double grad_mul;   /* 1 / grad_scale */
    double trust;      /* LARS: eta; LAMB: 1; 0: r = 1 (biases, batch norm) */
    double beta2, eps; /* ADAM, ADAMW, LAMB */
    int64_t step;      /* the same: updates of this state, this one included */
    void *second;      /* the same: arena of second moments */
    /* LAMB, NULL: none; else device memory, an element: it becomes the norm of d over the slice, and nothing else
     * changes. With a trust above 0. */
    void *measure;
    /* NULL: no clipping; else device memory, grad_norm()'s result: clip = min(1, max_norm / (norm + 1e-6)) */
    const void *norm;
    double max_norm;
};

/* One of several slices that are updated in one go. */
struct update_slice {
    size_t first, n;
    double weight_decay, trust;
    size_t skipped, params_skipped;
};

#endif
