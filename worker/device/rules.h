/* The update rules over a range of arenas, written once for both host devices: the includer defines REAL (double or
 * float) and may have it compiled for an instruction set. Norms are summed in double over fixed pieces, so they do not
 * depend on the number of threads.
 *
 * torch's SGD, Nesterov's momentum, Adam and AdamW: as torch.optim computes them. Caffe2's: MomentumSGDUpdate with
 * nesterov=1, whose momentum holds the rate. LARS: You, Gitman, Ginsburg, "Large Batch Training of Convolutional
 * Networks", arXiv 1708.03888, algorithm 1. LAMB: You and others, arXiv 1904.00962, as timm.optim.Lamb has it. */
#include <math.h>
#include <stddef.h>

#include "worker/device/update_rule.h"

enum { RULE_PIECES = 4096 };

static double rule_squares(const REAL *x, size_t n, int threads)
{
    double part[RULE_PIECES];
    const size_t least = 8192, even = n / RULE_PIECES + 1, piece = even > least ? even : least;
    const int pieces = (int)((n + piece - 1) / piece);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int p = 0; p < pieces; p++) {
        const size_t first = (size_t)p * piece, end = first + piece < n ? first + piece : n;
        double sum = 0;
        for (size_t i = first; i < end; i++)
            sum += (double)x[i] * (double)x[i];
        part[p] = sum;
    }
    double sum = 0;
    for (int p = 0; p < pieces; p++)
        sum += part[p];
    return sum;
}

#define RULE_LOOP _Pragma("omp parallel for simd schedule(static) num_threads(threads)") for (size_t i = 0; i < n; i++)

static void rule_sgd(REAL *w, REAL *m, const REAL *g, size_t n, const struct update *u, REAL scale, int threads)
{
    const REAL lr = (REAL)u->lr, mu = (REAL)u->momentum, wd = (REAL)u->weight_decay;
    RULE_LOOP
    {
        m[i] = mu * m[i] + (g[i] * scale + wd * w[i]);
        w[i] -= lr * m[i];
    }
}

static void rule_nesterov(REAL *w, REAL *m, const REAL *g, size_t n, const struct update *u, REAL scale, int threads)
{
    const REAL lr = (REAL)u->lr, mu = (REAL)u->momentum, wd = (REAL)u->weight_decay;
    RULE_LOOP
    {
        const REAL d = g[i] * scale + wd * w[i];
        m[i] = mu * m[i] + d;
        w[i] -= lr * (d + mu * m[i]);
    }
}

static void rule_caffe2(REAL *w, REAL *m, const REAL *g, size_t n, const struct update *u, REAL scale, int threads)
{
    const REAL lr = (REAL)u->lr, mu = (REAL)u->momentum, wd = (REAL)u->weight_decay;
    RULE_LOOP
    {
        const REAL old = m[i];
        m[i] = mu * old + lr * (g[i] * scale + wd * w[i]);
        w[i] -= (1 + mu) * m[i] - mu * old;
    }
}

static void rule_lars(REAL *w, REAL *m, const REAL *g, size_t n, const struct update *u, REAL scale, int threads)
{
    double local = 1;
    if (u->trust > 0) {
        const double wn = sqrt(rule_squares(w, n, threads)),
                     gn = sqrt(rule_squares(g, n, threads)) * fabs((double)scale);
        if (wn > 0 && gn > 0)
            local = u->trust * wn / (gn + u->weight_decay * wn);
    }
    const REAL lr = (REAL)(u->lr * local), mu = (REAL)u->momentum, wd = (REAL)u->weight_decay;
    RULE_LOOP
    {
        m[i] = mu * m[i] + lr * (g[i] * scale + wd * w[i]);
        w[i] -= m[i];
    }
}

static void rule_adam(REAL *w, REAL *m, const REAL *g, size_t n, const struct update *u, REAL scale, int threads)
{
    const double bias1 = 1 - pow(u->momentum, (double)u->step), bias2 = 1 - pow(u->beta2, (double)u->step);
    const REAL b1 = (REAL)u->momentum, b2 = (REAL)u->beta2, eps = (REAL)u->eps, rate = (REAL)(u->lr / bias1);
    const REAL root = (REAL)(1 / sqrt(bias2));
    const REAL wd = u->rule == UPDATE_ADAM ? (REAL)u->weight_decay : 0;
    const REAL keep = u->rule == UPDATE_ADAMW ? (REAL)(1 - u->lr * u->weight_decay) : 1;
    REAL *v = (REAL *)u->second + (u->first - u->skipped);
    RULE_LOOP
    {
        const REAL d = g[i] * scale + wd * w[i];
        m[i] = b1 * m[i] + (1 - b1) * d;
        v[i] = b2 * v[i] + (1 - b2) * d * d;
        const REAL step = (sizeof(REAL) == 4 ? (REAL)sqrtf((float)v[i]) : (REAL)sqrt(v[i])) * root + eps;
        w[i] = keep * w[i] - rate * m[i] / step;
    }
}

/* LAMB's constants of a slice; its direction d, of moments after the step. */
struct rule_lamb {
    REAL b1, b2, eps, wd, first, root;
};

static inline REAL rule_lamb_direction(const struct rule_lamb *k, REAL w, REAL m, REAL v)
{
    const REAL root = sizeof(REAL) == 4 ? (REAL)sqrtf((float)v) : (REAL)sqrt(v);
    return m * k->first / (root * k->root + k->eps) + k->wd * w;
}

/* Of d, from moments before the step. */
static double rule_lamb_squares(const struct rule_lamb *k, const REAL *w, const REAL *m, const REAL *v, const REAL *g,
                                size_t n, REAL scale, int threads)
{
    double part[RULE_PIECES], sum = 0;
    const size_t least = 8192, even = n / RULE_PIECES + 1, piece = even > least ? even : least;
    const int pieces = (int)((n + piece - 1) / piece);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int p = 0; p < pieces; p++) {
        const size_t first = (size_t)p * piece, end = first + piece < n ? first + piece : n;
        double own = 0;
        for (size_t i = first; i < end; i++) {
            const REAL d = g[i] * scale, to = rule_lamb_direction(k, w[i], k->b1 * m[i] + (1 - k->b1) * d,
                                                                  k->b2 * v[i] + (1 - k->b2) * d * d);
            own += (double)to * (double)to;
        }
        part[p] = own;
    }
    for (int p = 0; p < pieces; p++)
        sum += part[p];
    return sum;
}

static void rule_lamb(REAL *w, REAL *m, const REAL *g, size_t n, const struct update *u, REAL scale, int threads)
{
    const double bias1 = 1 - pow(u->momentum, (double)u->step), bias2 = 1 - pow(u->beta2, (double)u->step);
    const struct rule_lamb k = {(REAL)u->momentum,     (REAL)u->beta2,    (REAL)u->eps,
                                (REAL)u->weight_decay, (REAL)(1 / bias1), (REAL)(1 / sqrt(bias2))};
    REAL *v = (REAL *)u->second + (u->first - u->skipped);
    const double dn = u->trust > 0 ? sqrt(rule_lamb_squares(&k, w, m, v, g, n, scale, threads)) : 0,
                 wn = u->trust > 0 && !u->measure ? sqrt(rule_squares(w, n, threads)) : 0;
    const REAL lr = (REAL)(u->lr * (wn > 0 && dn > 0 ? u->trust * wn / dn : 1));
    if (u->measure) {
        *(REAL *)u->measure = (REAL)dn;
        return;
    }
    RULE_LOOP
    {
        const REAL d = g[i] * scale;
        m[i] = k.b1 * m[i] + (1 - k.b1) * d;
        v[i] = k.b2 * v[i] + (1 - k.b2) * d * d;
        w[i] -= lr * rule_lamb_direction(&k, w[i], m[i], v[i]);
    }
}

/* What clipping leaves of the gradients. */
static double rule_clip(const struct update *u)
{
    const double norm = u->norm ? (double)*(const REAL *)u->norm : 0;
    return norm > u->max_norm ? u->max_norm / (norm + 1e-6) : 1; /* torch.nn.utils.clip_grad_norm_ */
}

/* Arenas and count as device_ops.update() takes them; count is not 0. */
static void rule_update(const struct update *u, void *params, const void *grads, void *momentum, double count,
                        int threads)
{
    static void (*const rules[])(REAL *, REAL *, const REAL *, size_t, const struct update *, REAL, int) = {
        [UPDATE_SGD] = rule_sgd,   [UPDATE_NESTEROV] = rule_nesterov, [UPDATE_CAFFE2] = rule_caffe2,
        [UPDATE_LARS] = rule_lars, [UPDATE_ADAM] = rule_adam,         [UPDATE_ADAMW] = rule_adam,
        [UPDATE_LAMB] = rule_lamb,
    };
    const REAL scale = (REAL)(u->grad_mul * rule_clip(u) / count);
    rules[u->rule]((REAL *)params + (u->first - u->params_skipped), (REAL *)momentum + (u->first - u->skipped),
                   (const REAL *)grads + u->first, u->n, u, scale, threads);
}
