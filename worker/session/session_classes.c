/* The rule of the loss: binary or not, and weights of classes, as they were given or from how many samples each has;
 * samples by classes, for --shuffle balanced. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/config/config.h"
#include "worker/data/sets/dataset.h"
#include "worker/session/session.h"
#include "worker/session/session_build.h"

/* How many samples each class has; *ret: malloc'ed, (classes). */
static int count(const struct session *s, const char *option, uint32_t **ret, struct err *e)
{
    struct dataset *d = s->train_set;
    const int classes = session_labels(s);
    if (!d->ops->label)
        return err_set(e, ERR_USAGE, "%s: the labels of %s are not known before its samples are read", option,
                       s->cfg->train_data);
    uint32_t *n = calloc((size_t)classes, sizeof *n);
    if (!n)
        return err_errno(e, ENOMEM, "%d classes", classes);
    for (size_t i = 0; i < d->n; i++) {
        const int label = d->ops->label(d, i);
        if (label >= 0 && label < classes)
            n[label]++;
    }
    *ret = n;
    return 0;
}

/* scikit-learn's: n / (classes * samples of the class), so that all classes weigh alike together. */
static int balance(const struct session *s, float *w, int classes, struct err *e)
{
    uint32_t *n;
    int none = 0;
    TRY(count(s, "--class-weights balanced", &n, e));
    while (none < classes && n[none] > 0)
        none++;
    for (int c = 0; c < classes && none == classes; c++)
        w[c] = (float)((double)s->train_set->n / ((double)classes * n[c]));
    free(n);
    if (none < classes)
        return err_set(e, ERR_DATA, "--class-weights balanced: class %d has no sample in %s", none, s->cfg->train_data);
    return 0;
}

static int read_weights(const char *text, float *w, int classes, struct err *e)
{
    int n = 0;
    for (const char *at = text; at; n++) {
        char one[ARG_NUMBER_MAX];
        double v;
        const size_t len = strcspn(at, ",");
        if (len >= sizeof one)
            return err_set(e, ERR_USAGE, "--class-weights: '%.40s' is no number", at);
        memcpy(one, at, len);
        one[len] = '\0';
        TRY(parse_f64(one, "--class-weights", 0, 1e6, &v, e));
        if (n < classes)
            w[n] = (float)v;
        at = at[len] ? at + len + 1 : NULL;
    }
    if (n != classes)
        return err_set(e, ERR_USAGE, "--class-weights: %d numbers for %d classes (expected one for each class)", n,
                       classes);
    return 0;
}

static int open_weights(struct session *s, struct err *e)
{
    const int classes = session_labels(s);
    float *w = calloc((size_t)classes, sizeof *w);
    if (!w)
        return err_errno(e, ENOMEM, "weights of %d classes", classes);
    s->class_weights = w;
    TRY(strcmp(s->cfg->class_weights, "balanced") == 0 ? balance(s, w, classes, e)
                                                       : read_weights(s->cfg->class_weights, w, classes, e));
    s->loss.weights = w;
    for (int c = 0; c < classes; c++)
        s->loss.total += (double)w[c];
    return s->loss.total > 0 ? 0 : err_set(e, ERR_USAGE, "--class-weights: all are 0, so there is nothing to learn");
}

/* Classes without samples are none of those that are drawn. */
static int open_order(struct session *s, struct err *e)
{
    struct dataset *d = s->train_set;
    const int classes = session_labels(s);
    uint32_t *n, sum = 0;
    if (s->cfg->sampler == SAMPLER_SHARDED)
        return err_set(e, ERR_USAGE, "--shuffle balanced: the shards of --sampler sharded have an order of their own");
    TRY(count(s, "--shuffle balanced", &n, e));
    s->by_class = calloc(d->n + 1, sizeof *s->by_class);
    s->class_ends = calloc((size_t)classes, sizeof *s->class_ends);
    if (!s->by_class || !s->class_ends) {
        free(n);
        return err_errno(e, ENOMEM, "samples by classes");
    }
    for (int c = 0; c < classes; c++) {
        const uint32_t first = sum;
        sum += n[c];
        if (n[c])
            s->class_ends[s->drawn_classes++] = sum;
        n[c] = first;
    }
    for (size_t i = 0; i < d->n; i++) {
        const int label = d->ops->label(d, i);
        if (label >= 0 && label < classes)
            s->by_class[n[label]++] = (uint32_t)i;
    }
    free(n);
    return sum > 0 ? 0 : err_set(e, ERR_DATA, "--shuffle balanced: no sample of %s has a class", s->cfg->train_data);
}

int session_open_classes(struct session *s, struct err *e)
{
    const struct train_config *cfg = s->cfg;
    const bool draws = cfg->shuffle.how == SHUFFLE_BALANCED;
    const char *option = cfg->loss == LOSS_BINARY ? "--loss bce"
                         : cfg->class_weights     ? "--class-weights"
                         : draws                  ? "--shuffle balanced"
                                                  : NULL;
    if (option && cfg->length)
        return err_set(e, ERR_USAGE, "%s is for classes of pictures, and %s reads tokens", option, cfg->arch);
    if (cfg->evaluate)
        return 0;
    s->loss = (struct loss_rule){.binary = cfg->loss == LOSS_BINARY};
    TRY(cfg->class_weights ? open_weights(s, e) : 0);
    return draws ? open_order(s, e) : 0;
}
